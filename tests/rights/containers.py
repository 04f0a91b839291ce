"""Everything a data folder is packed in, opened down to bytes. What is none of these is an UnknownContainer, and fails the scan."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pages import dictionary_pages

DEEPEST = 8


class Piece(NamedTuple):
    """Bytes as they stand in one layer of a file."""

    inside: str
    data: bytes


class UnknownContainer(AssertionError):
    """A file that the scan cannot open, so nobody knows what is in it."""


def opened(path: Path, name: str) -> Iterator[Piece]:
    """Every layer of a file: its own bytes, and what they hold."""
    data = path.read_bytes()
    if data.startswith(SQLITE):
        yield from _rows(path)
    yield from layers(data, name, 0)


def layers(data: bytes, name: str, depth: int) -> Iterator[Piece]:
    if depth > DEEPEST:
        raise UnknownContainer(f"{name}: packed more than {DEEPEST} times")
    yield Piece(f"layer {depth}", data)
    for test, unpack in KINDS:
        if test(data, name):
            yield from unpack(data, name, depth)
            return
    raise UnknownContainer(f"{name}: {len(data)} bytes that begin with {data[:16].hex()}")


def _as_they_are(data: bytes, name: str, depth: int) -> Iterator[Piece]:
    yield from ()


def _packed(unpack: Callable[[bytes], bytes]) -> Callable[[bytes, str, int], Iterator[Piece]]:
    def inner(data: bytes, name: str, depth: int) -> Iterator[Piece]:
        yield from layers(unpack(data), f"{name}!", depth + 1)

    return inner


def _stream(codec: str) -> Callable[[bytes], bytes]:
    def read(data: bytes) -> bytes:
        return bytes(pa.input_stream(pa.py_buffer(data), compression=codec).read())

    return read


def _parquet(data: bytes, name: str, depth: int) -> Iterator[Piece]:
    """The footer stands in the bytes as it is; values and dictionaries are unpacked."""
    file = pq.ParquetFile(pa.BufferReader(data))
    for page in dictionary_pages(data, file.metadata):
        yield Piece("a dictionary", page)
    for batch in file.iter_batches():
        for number, column in enumerate(batch.columns):
            for buffer in column.buffers():
                if buffer is not None:
                    yield Piece(f"column {batch.schema.names[number]}", buffer.to_pybytes())


def _zip(data: bytes, name: str, depth: int) -> Iterator[Piece]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        yield Piece("comment", archive.comment)
        for entry in archive.infolist():
            yield Piece("name in archive", entry.filename.encode() + entry.comment + entry.extra)
            if not entry.is_dir():
                yield from layers(archive.read(entry), f"{name}!{entry.filename}", depth + 1)


def _tar(data: bytes, name: str, depth: int) -> Iterator[Piece]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for entry in archive:
            if entry.isfile() and (held := archive.extractfile(entry)):
                yield from layers(held.read(), f"{name}!{entry.name}", depth + 1)


def _pdf(data: bytes, name: str, depth: int) -> Iterator[Piece]:
    for number, found in enumerate(re.finditer(rb"stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL)):
        try:
            yield Piece(f"stream {number}", zlib.decompressobj().decompress(found[1]))
        except zlib.error:
            yield Piece(f"stream {number}", found[1])


def _blocks(data: bytes, name: str, depth: int) -> Iterator[Piece]:
    """LZ4 as the JVM writes it: blocks of [magic, method, packed size, size, checksum]."""
    at, made = 0, b""
    while data[at : at + 8] == b"LZ4Block":
        method = data[at + 8] & 0xF0
        packed, size = (int.from_bytes(data[at + k : at + k + 4], "little") for k in (9, 13))
        block = data[at + 21 : at + 21 + packed]
        made += bytes(pa.Codec("lz4_raw").decompress(block, size)) if method == 0x20 else block
        at += 21 + packed
    yield from layers(made, f"{name}!", depth + 1)


def _rows(path: Path) -> Iterator[Piece]:
    """Values that the pages of a database tear apart; its free pages and its journals are in the bytes of its files."""
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as database:
        names = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
        for name in names:
            quoted = name.replace('"', '""')
            for row in database.execute(f'select * from "{quoted}"'):
                values = (v if isinstance(v, bytes) else str(v).encode() for v in row)
                yield Piece(f"table {name}", b"\0".join(values))


def _text(data: bytes, name: str) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _place(pattern: str) -> Callable[[bytes, str], bool]:
    return lambda data, name: bool(re.search(pattern, name))


def _begins(*starts: bytes) -> Callable[[bytes, str], bool]:
    return lambda data, name: data.startswith(starts)


SQLITE = b"SQLite format 3\0"
SNAPPY = b"\xff\x06\x00\x00sNaPpY"
Kind = tuple[Callable[[bytes, str], bool], Callable[[bytes, str, int], Iterator[Piece]]]
KINDS: tuple[Kind, ...] = (
    (lambda data, name: not data, _as_they_are),
    (lambda data, name: data[:4] == data[-4:] == b"PAR1" and len(data) > 8, _parquet),
    (_begins(b"\x1f\x8b"), _packed(gzip.decompress)),
    (_begins(b"PK\x03\x04", b"PK\x05\x06"), _zip),
    (_begins(b"\x28\xb5\x2f\xfd"), _packed(_stream("zstd"))),
    (_begins(b"\x04\x22\x4d\x18"), _packed(_stream("lz4"))),
    (_begins(b"LZ4Block"), _blocks),
    (_begins(b"BZh"), _packed(bz2.decompress)),
    (_begins(b"\xfd7zXZ\x00"), _packed(lzma.decompress)),
    (_begins(SNAPPY), _packed(lambda data: _snappy(data))),
    (lambda data, name: data[257:262] == b"ustar", _tar),
    (_begins(b"%PDF-"), _pdf),
    (_begins(SQLITE, b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"), _as_they_are),
    (_place(r"\.(?:db|sqlite)-shm$"), _as_they_are),  # an index of pages, no values
    (_begins(b"crc\x00"), _as_they_are),  # sums of the file beside it
    (_place(r"(?:^|[/!])tile/(?:\d+|entries)/"), _as_they_are),  # hashes, and entries with their lengths
    (_place(r"(?:^|/)index/[a-z_]+\.index$"), _as_they_are),  # numbers: where the entries of a version stand
    (_place(r"(?:^|/)rights/inbox/\d{16}-[0-9a-f.]+\.(?:ask|word)$"), _as_they_are),  # sealed
    (_place(r"(?:^|/)state/\d+/\d+/.*\d+\.(?:delta|snapshot|changelog)!$"), _as_they_are),  # sizes and rows
    (_place(r"(?:^|/)blockmgr-[^/]+/[0-9a-f]{2}/(?:shuffle|temp|broadcast|rdd)_"), _as_they_are),  # encrypted by Spark
    (_text, _as_they_are),
)


def _snappy(data: bytes) -> bytes:
    """The framed form: chunks of [kind, size in three bytes, sum, packed or plain bytes]."""
    at, made = 0, b""
    while at < len(data):
        kind, size = data[at], int.from_bytes(data[at + 1 : at + 4], "little")
        body = data[at + 8 : at + 4 + size]
        if kind == 0:
            made += bytes(pa.Codec("snappy").decompress(body, _varint(body)))
        elif kind == 1:
            made += body
        at += 4 + size
    return made


def _varint(data: bytes) -> int:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    return value
