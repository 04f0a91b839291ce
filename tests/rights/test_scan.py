"""The scan for people sees every spelling in every container, and says so when it cannot open one."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from containers import UnknownContainer
from scanner import Scanner
from spellings import SHORTEST, exact, plain

PEOPLE = ("Zo\u00eb.Quux+news@Planted.Example", "+14155550177", "customer-70017")
BESIDE = b"nobody@elsewhere.example"


def spelled(identifier: str) -> dict[bytes, str]:
    """What the scan knows of an identifier: bytes → how it calls them."""
    return {raw: name for name, raw in [*plain(identifier), *exact(identifier)] if len(raw) >= SHORTEST}


def readable(raw: bytes) -> bool:
    try:
        return "\0" not in raw.decode()
    except UnicodeDecodeError:
        return False


# A packed file holds a file again, which must be of a kind that is known: text, here.
BLOB = b"\n".join(raw for who in PEOPLE for raw in spelled(who))
TEXT = b"\n".join(raw for who in PEOPLE for raw in spelled(who) if readable(raw))


def parquet(column: pa.Array, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": column}), sink, **options)
    return sink.getvalue()


def each() -> pa.Array:
    return pa.array(BLOB.split(b"\n") * 3, pa.binary())


def unused() -> bytes:
    """A dictionary with values that no row has."""
    values = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array([BESIDE, *BLOB.split(b"\n")], pa.binary()))
    return parquet(values, compression="zstd")


def archive() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as held:
        held.writestr("inner/tile/0/000", BLOB)
    return sink.getvalue()


def tarred() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as held:
        entry = tarfile.TarInfo("tile/entries/000")
        entry.size = len(BLOB)
        held.addfile(entry, io.BytesIO(BLOB))
    return sink.getvalue()


def lz4_of_the_jvm(data: bytes) -> bytes:
    packed = bytes(pa.Codec("lz4_raw").compress(data))
    sizes = len(packed).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    return b"LZ4Block" + bytes([0x26]) + sizes + bytes(4) + packed + b"LZ4Block\x16" + bytes(12)


def snappy_frames(data: bytes) -> bytes:
    packed = bytes(pa.Codec("snappy").compress(data))
    body = bytes(4) + packed
    return b"\xff\x06\x00\x00sNaPpY" + b"\x00" + len(body).to_bytes(3, "little") + body


def stream(codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as out:
        out.write(TEXT)
    return sink.getvalue().to_pybytes()


CONTAINERS: dict[str, Callable[[], bytes]] = {
    "tables/t/plain.parquet": lambda: parquet(each(), compression="none", use_dictionary=False),
    "tables/t/zstd.parquet": lambda: parquet(each(), compression="zstd"),
    "tables/t/snappy.parquet": lambda: parquet(each(), compression="snappy"),
    "tables/t/lz4.parquet": lambda: parquet(each(), compression="lz4"),
    "tables/t/_delta_log/1.checkpoint.parquet": lambda: parquet(
        pa.array([[b] for b in BLOB.split(b"\n")], pa.list_(pa.binary())), compression="gzip"
    ),
    "tables/t/unused.parquet": unused,
    "ledger/root/tile/entries/000": lambda: BLOB,
    "checkpoints/crm/stream/state/0/1/7.delta": lambda: lz4_of_the_jvm(BLOB),
    "spark/blockmgr-1/0a/shuffle_0_0_0.data": lambda: BLOB,
    "a.gz": lambda: gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]),
    "a.zst": lambda: stream("zstd"),
    "a.lz4": lambda: stream("lz4"),
    "a.snappy": lambda: snappy_frames(TEXT),
    "a.bz2": lambda: bz2.compress(TEXT),
    "a.xz": lambda: lzma.compress(TEXT),
    "a.zip": archive,
    "a.tgz": tarred,
    "a.pdf": lambda: b"%PDF-1.7\nstream\n" + zlib.compress(BLOB) + b"\nendstream",
}
TEXTS = {"a.gz", "a.zst", "a.lz4", "a.snappy", "a.bz2", "a.xz"}


@pytest.fixture(scope="module")
def scanner() -> Scanner:
    return Scanner(PEOPLE)


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return folder


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_spelling_is_seen_in_every_container(tmp_path: Path, scanner: Scanner, name: str) -> None:
    found = {find[:2] for find in scanner.scan(put(tmp_path, name, CONTAINERS[name]()))}
    wanted = [(who, how) for who in PEOPLE for raw, how in spelled(who).items() if name not in TEXTS or readable(raw)]
    assert len(wanted) > 100
    assert [one for one in wanted if one not in found] == []


def test_a_file_with_nobody_in_it_is_clean(tmp_path: Path, scanner: Scanner) -> None:
    for name in ("a.jsonl", "tables/t/_delta_log/0.json"):
        put(tmp_path, name, json.dumps({"email": BESIDE.decode(), "n": list(range(2000))}).encode())
    assert scanner.scan(put(tmp_path, "x.parquet", parquet(pa.array([BESIDE] * 9, pa.binary())))) == set()


def test_names_footers_and_nested_json_are_read(tmp_path: Path, scanner: Scanner) -> None:
    who = PEOPLE[1]
    put(tmp_path, f"keys/new/{who}/x", b"")
    stats = json.dumps({"minValues": {"phone": who}})
    put(tmp_path, "tables/t/_delta_log/1.json", json.dumps({"add": {"path": "p", "stats": stats}}).encode())
    rows = pa.table({"x": pa.array([1])}).replace_schema_metadata({"note": who})
    pq.write_table(rows, tmp_path / "meta.parquet", compression="zstd")
    pq.write_table(pa.table({"x": pa.array([who], pa.string())}), tmp_path / "stats.parquet", compression="zstd")
    found = {(find.file, find.inside) for find in scanner.scan(tmp_path)}
    assert {("tables/t/_delta_log/1.json", "layer 0"), ("meta.parquet", "layer 0")} <= found
    assert {("stats.parquet", "layer 0"), ("stats.parquet", "column x")} <= found
    assert (f"keys/new/{who}", "its name") in found


def database(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(path)
    base.execute("pragma secure_delete = off")
    base.execute("create table t (x blob)")
    base.execute("insert into t values (?)", (b"." * 6000 + PEOPLE[0].encode() + b"." * 6000,))  # over several pages
    base.execute("insert into t values (?)", (PEOPLE[1],))
    base.commit()
    return base


def test_databases_are_read_with_their_free_pages_and_their_journals(tmp_path: Path, scanner: Scanner) -> None:
    base = database(tmp_path / "a.db")
    assert {find.identifier for find in scanner.scan(tmp_path)} == set(PEOPLE[:2])
    base.execute("delete from t")
    base.commit()
    assert base.execute("select count(*) from t").fetchone() == (0,)
    assert PEOPLE[1] in {find.identifier for find in scanner.scan(tmp_path)}, "a free page still holds it"
    base.execute("vacuum")
    assert scanner.scan(tmp_path) == set()
    base.execute("pragma journal_mode = wal")
    base.execute("insert into t values (?)", (PEOPLE[2],))
    base.commit()
    assert {find.file for find in scanner.scan(tmp_path)} >= {"a.db-wal"}
    base.close()


@pytest.mark.parametrize(
    "data", [b"\x00\x01\x02\x03" * 9, b"\xca\xfe\xba\xbe" + bytes(40), gzip.compress(bytes(range(256)))]
)
def test_what_nobody_can_open_fails_the_scan(tmp_path: Path, scanner: Scanner, data: bytes) -> None:
    with pytest.raises(UnknownContainer, match="odd"):
        scanner.scan(put(tmp_path, "control/odd", data))


def test_keyed_values_are_found_by_name(tmp_path: Path) -> None:
    tag = bytes(range(100, 116))
    scanner = Scanner.of_bytes([("tag of 7", tag)])
    for name, data in {"a.json": tag.hex().upper().encode(), "tile/0/000": b"xx" + tag}.items():
        put(tmp_path, name, data)
    put(tmp_path, "b.parquet", parquet(pa.array([tag], pa.binary()), compression="zstd", write_statistics=False))
    assert {find.file for find in scanner.scan(tmp_path)} == {"a.json", "tile/0/000", "b.parquet"}
