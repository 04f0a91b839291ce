"""Sealing: Spark columns and Python twins agree byte for byte, and nothing opens, or is written, without its key."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from tidings.errors import Damaged, Refused
from tidings.seal import columns, keyring
from tidings.seal.keyfiles import KeyFiles, wrap
from tidings.seal.keyring import Keyring

# PySpark leaves its authenticated local socket to the collector when io encryption is on; the warning is not about our code.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed.*socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
MASTER = bytes(range(32))
SECRET = bytes(range(32, 64))
RING = Keyring(MASTER)
CASES = [
    # tenant, kind, key JSON, event id, payload
    ("shop", "customer", '{"id":1001}', "018f-1", '{"after":{"email":"jo@example.com"}}'),
    ("shop", "customer", '{"id":"1001"}', "018f-2", ""),
    ("shop", "location", '{"id":1001}', "018f-3", "é漢🙂\x00\x1f"),
    ("other", "customer", '{"id":1001}', "018f-4", "x" * 100_000),
]


def sealed_frame(spark, ring=RING):
    keys = columns.keys_frame(
        spark, {"k_tag": ring.derive("tag"), "k_iv": ring.derive("iv"), "kek": ring.derive("kek"), "secret": SECRET}
    )
    rows = spark.createDataFrame(CASES, "tenant string, kind string, key_json string, event_id string, plain string")
    col = F.col
    return (
        rows.join(F.broadcast(keys))
        .withColumn("tag", columns.tag_column(col("k_tag"), col("tenant"), col("kind"), col("key_json")))
        .withColumn("identifier", columns.identifier_column(col("k_tag"), "email", col("plain")))
        .withColumn("kid", columns.kid_column(col("secret"), col("tag")))
        .withColumn("key", columns.key_column(col("secret"), col("tag")))
        .withColumn("bucket", columns.bucket_column(col("tag"), 64))
        .withColumn("aad", columns.aad_column("journal", col("event_id"), "payload"))
        .withColumn("sealed", columns.seal_column(col("plain"), col("key"), col("k_iv"), col("aad")))
        .withColumn("wrapped", columns.wrap_column(col("key"), col("kek"), col("tag"), col("kid")))
        .withColumn("opened", columns.open_column(col("sealed"), col("key"), col("aad")).cast("string"))
        .withColumn("moved", columns.open_column(col("sealed"), col("key"), F.concat(col("aad"), F.lit(b"x"))))
        .withColumn("erased", columns.open_column(col("sealed"), F.lit(None).cast("binary"), col("aad")))
        .withColumn("unwrapped", columns.unwrap_column(col("wrapped"), col("kek"), col("tag"), col("kid")))
        .withColumn("swapped", columns.unwrap_column(col("wrapped"), col("kek"), col("kid"), col("tag")))
    )


@pytest.mark.spark
def test_columns_and_twins_agree_byte_for_byte(spark):
    rows = sealed_frame(spark).collect()
    assert len(rows) == len(CASES)
    for row in rows:
        tag = RING.tag(row.tenant, row.kind, row.key_json)
        key, aad = keyring.subject_key(SECRET, tag), keyring.associated("journal", row.event_id, "payload")
        assert bytes(row.tag) == tag
        assert row.bucket == keyring.bucket(tag, 64)
        assert bytes(row.identifier) == RING.identifier_hash("email", row.plain)
        assert bytes(row.kid) == keyring.kid(SECRET, tag)
        assert bytes(row.key) == key
        assert bytes(row.aad) == aad
        assert bytes(row.sealed) == keyring.seal_payload(row.plain.encode(), key, RING.derive("iv"), aad)
        assert keyring.open_payload(key, aad, bytes(row.sealed)).decode() == row.plain == row.opened
        assert row.moved is None
        assert row.erased is None
        assert row.swapped is None
        assert bytes(row.unwrapped) == key
        assert len(row.wrapped) == 48
    assert len({bytes(row.tag) for row in rows}) == len(CASES)


@pytest.mark.spark
def test_no_plan_shows_a_key(spark, capfd):
    frame = sealed_frame(spark).select("sealed", "wrapped")
    frame.explain("extended")
    frame.explain("codegen")
    shown = capfd.readouterr().out + frame._jdf.queryExecution().toString()
    assert "aes" in shown.lower()
    for name, secret in {
        "tag": RING.derive("tag"),
        "iv": RING.derive("iv"),
        "secret": SECRET,
        "master": MASTER,
    }.items():
        for start in range(0, 32, 8):
            part = secret[start : start + 8]
            spelled = [part.hex(), part.hex(" "), ", ".join(map(str, part)), part.decode("latin-1")]
            assert not [text for text in spelled if text.lower() in shown.lower()], name


@pytest.mark.spark
@pytest.mark.parametrize("missing", ["key", "k_iv", "event_id"])
def test_a_missing_key_stops_the_write_and_prints_no_value(spark, tmp_path, missing):
    row = {"plain": "jo@example.com", "key": b"k" * 32, "k_iv": b"i" * 32, "event_id": "e", missing: None}
    schema = "plain string, key binary, k_iv binary, event_id string"
    frame = spark.createDataFrame([tuple(row.values())], schema)
    aad = columns.aad_column("journal", F.col("event_id"), "payload")
    sealed = frame.select(columns.seal_column(F.col("plain"), F.col("key"), F.col("k_iv"), aad).alias("sealed"))
    with pytest.raises(PySparkException) as stopped:
        sealed.write.parquet(str(tmp_path / "out"))
    assert "sealing_key_missing" in str(stopped.value)
    assert "jo@example.com" not in str(stopped.value)


@pytest.mark.spark
def test_a_missing_plaintext_stays_missing(spark):
    frame = spark.createDataFrame([(None, b"k" * 32)], "plain string, k binary")
    [row] = frame.select(
        columns.seal_column(F.col("plain"), F.col("k"), F.col("k"), F.lit(b"aad")).alias("s")
    ).collect()
    assert row.s is None


def test_a_sealed_value_opens_only_in_its_own_place():
    key, aad = RING.derive("x"), keyring.associated("journal", "e1", "payload")
    sealed = keyring.seal_payload(b"jo@example.com", key, RING.derive("iv"), aad)
    wrong = [
        (RING.derive("y"), aad, sealed),
        (key, keyring.associated("journal", "e2", "payload"), sealed),
        (key, keyring.associated("journal", "e1", "payload", "2"), sealed),
        (key, aad, sealed[:-1] + bytes([sealed[-1] ^ 1])),
        (key, aad, sealed[:10]),
        (key, aad, b""),
    ]
    for arguments in wrong:
        with pytest.raises(Damaged, match="sealed_value") as refused:
            keyring.open_payload(*arguments)
        assert "example.com" not in str(refused.value)


def test_a_keyring_shows_nothing_and_stays_here():
    for shown in (repr(RING), str(RING), f"{RING!r}", repr([RING])):
        assert MASTER.hex() not in shown
        assert "Keyring()" in shown
    with pytest.raises(TypeError):
        pickle.dumps(RING)
    assert not hasattr(RING, "__dict__")


def test_purposes_give_independent_keys():
    purposes = ["tag", "id", "iv", "kek", "inbox", "quarantine", "digest", "ledger-sign", "wire"]
    derived = {RING.derive(purpose) for purpose in purposes}
    assert len(derived) == len(purposes)
    assert {len(key) for key in derived} == {32}
    assert Keyring.from_hex(MASTER.hex() + "\n").derive("tag") == RING.derive("tag")
    assert keyring.new_master() != keyring.new_master()


@pytest.mark.parametrize("text", ["", "zz", "00" * 31, "00" * 33])
def test_a_wrong_master_key_is_refused_without_showing_it(text):
    with pytest.raises(Refused) as refused:
        Keyring.from_hex(text)
    assert not text or text not in str(refused.value)


KEK = RING.derive("kek")
PEOPLE = [hashlib.sha256(str(n).encode()).digest()[:16] for n in range(200)]


def batch_rows(number: int) -> list[tuple[bytes, bytes, bytes]]:
    """Forty people's keys of one batch, so that each person is in two batches."""
    secret = hashlib.sha256(f"batch {number}".encode()).digest()
    some = [PEOPLE[(number * 20 + n) % len(PEOPLE)] for n in range(40)]
    return [(tag, keyring.kid(secret, tag), keyring.subject_key(secret, tag)) for tag in some]


def name_of(number: int) -> str:
    return f"crm-g1-{number}"


def filled(root, batches: range) -> KeyFiles:
    files = KeyFiles(root, KEK)
    for number in batches:
        columns_of = dict(zip(("tag", "kid", "key"), map(list, zip(*batch_rows(number), strict=True)), strict=True))
        files.write(pa.table(columns_of), name_of(number))
    return files


def expected(numbers: range) -> dict[bytes, tuple[bytes, bytes]]:
    return {kid: (tag, key) for number in numbers for tag, kid, key in batch_rows(number)}


def of_person(tag: bytes, numbers: range) -> list[tuple[str, bytes, bytes]]:
    return sorted((name_of(n), kid, key) for n in numbers for person, kid, key in batch_rows(n) if person == tag)


@pytest.mark.parametrize("compacted", [0, 5, 10])
def test_keys_are_found_by_batch_by_kid_and_by_person_wherever_they_lie(tmp_path, compacted):
    files = filled(tmp_path / "keys", range(compacted))
    assert files.compact(minimum=1) == compacted
    files = filled(tmp_path / "keys", range(compacted, 10))
    everything = range(10)
    assert files.load([name_of(n) for n in everything]) == expected(everything)
    assert files.load([name_of(3), name_of(7)]) == expected(range(3, 4)) | expected(range(7, 8))
    tag, kid, key = batch_rows(4)[11]
    assert files.load([name_of(4)], [kid]) == {kid: (tag, key)}
    assert files.load([name_of(5)], [kid]) == {}
    assert files.load(["never-written"]) == {}
    for person in PEOPLE[::37]:
        assert files.find(person) == of_person(person, everything)
    assert files.find(b"\x00" * 16) == []


@pytest.mark.parametrize("compacted", [False, True])
def test_erasing_a_person_leaves_their_key_nowhere_and_everybody_elses_in_place(tmp_path, compacted):
    files = filled(tmp_path / "keys", range(10))
    if compacted:
        files.compact(minimum=1)
    gone, stays = PEOPLE[25], PEOPLE[26]
    held = [wrap(KEK, gone, kid, key) for _, kid, key in files.find(gone)]
    assert len(held) == 2
    assert sum(part in path.read_bytes() for part in held for path in whole(files.root)) == 2
    assert files.erase(gone) == 2
    assert files.erase(gone) == 0
    assert files.find(gone) == []
    assert not [path for path in whole(files.root) if any(part in path.read_bytes() for part in (*held, gone))]
    assert files.find(stays) == of_person(stays, range(10))
    everyone = expected(range(10))
    assert files.load(map(name_of, range(10))) == {kid: value for kid, value in everyone.items() if value[0] != gone}


def whole(root) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_key_files_are_for_their_owner_alone(tmp_path):
    files = filled(tmp_path / "keys", range(2))
    files.compact(minimum=2)
    files = filled(tmp_path / "keys", range(2, 3))
    assert {oct(path.stat().st_mode & 0o777) for path in whole(files.root)} == {"0o600"}
    assert {oct(path.stat().st_mode & 0o777) for path in [files.root, *files.root.rglob("*")] if path.is_dir()} == {
        "0o700"
    }
    assert "kkk" not in repr(KeyFiles(tmp_path, b"k" * 32))


def test_a_name_used_twice_keeps_every_key(tmp_path):
    files = filled(tmp_path / "keys", range(1))
    other = [(PEOPLE[0], b"another kid here", b"another key".ljust(32))]
    table = pa.table({"tag": [other[0][0]], "kid": [other[0][1]], "key": [other[0][2]]})
    files.write(table, name_of(0))
    both = expected(range(1)) | {other[0][1]: (other[0][0], other[0][2])}
    assert files.load([name_of(0)]) == both
    files.compact(minimum=1)
    files.write(table, name_of(0))
    assert files.load([name_of(0)]) == both


def test_a_killed_compaction_loses_and_doubles_nothing(tmp_path):
    files = filled(tmp_path / "keys", range(6))
    program = (
        "import sys; from tidings.seal.keyfiles import KeyFiles; KeyFiles(sys.argv[1], bytes(32)).compact(minimum=1)"
    )
    environment = {**os.environ, "TIDINGS_CRASH_AT": "keys.compacting"}
    killed = subprocess.run([sys.executable, "-c", program, str(files.root)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    (files.root / "bucket" / "00").mkdir(exist_ok=True)
    (files.root / "bucket" / "00" / "half.draft").write_bytes(b"left by a killed writer")
    for _ in range(2):
        assert files.load(map(name_of, range(6))) == expected(range(6))
        assert files.find(PEOPLE[30]) == of_person(PEOPLE[30], range(6))
        files.compact(minimum=1)
    assert files.erase(PEOPLE[30]) == 2
    assert files.find(PEOPLE[30]) == []
    assert not [path for path in whole(files.root) if path.suffix == ".draft"]


def test_readers_are_not_disturbed_by_compaction_and_erasure(tmp_path):
    files = filled(tmp_path / "keys", range(12))
    stop, failures, reads = threading.Event(), [], [0]

    def read() -> None:
        while not stop.is_set():
            try:
                assert files.load([name_of(2)]) == expected(range(2, 3))
                assert files.find(PEOPLE[45]) == of_person(PEOPLE[45], range(12))
                reads[0] += 1
            except BaseException as error:
                failures.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(13, 17):  # batches that name neither of the two who are read
        files.compact(minimum=1)
        filled(files.root, range(number, number + 1))
        files.erase(PEOPLE[150 + number])
    stop.set()
    reader.join()
    assert failures == []
    assert reads[0] > 0


def test_a_rotated_kek_opens_what_the_older_one_wrapped(tmp_path):
    filled(tmp_path / "keys", range(4)).compact(minimum=1)
    old = filled(tmp_path / "keys", range(4, 6))
    newer = KeyFiles(old.root, b"n" * 32, KEK)
    assert newer.load(map(name_of, range(6))) == expected(range(6))
    with pytest.raises(Damaged, match="key_file"):
        KeyFiles(old.root, b"n" * 32).load([name_of(5)])
    assert newer.rewrap() > 0
    assert KeyFiles(old.root, b"n" * 32).load(map(name_of, range(6))) == expected(range(6))
    with pytest.raises(Damaged, match="key_file"):
        old.load([name_of(0)])


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a" * 201, "a\n"])
def test_a_key_file_name_is_only_a_name(tmp_path, name):
    with pytest.raises(Refused, match="key_file_name"):
        KeyFiles(tmp_path / "keys", KEK).write(pa.table({"tag": [b"t"], "kid": [b"i" * 16], "key": [b"k"]}), name)


@pytest.mark.spark
def test_what_spark_wraps_the_key_files_open(spark, tmp_path):
    files = KeyFiles(tmp_path / "keys", KEK)
    given = spark.createDataFrame([(tag,) for tag, _, _ in batch_rows(0)], "tag binary")
    secret = hashlib.sha256(b"batch 0").digest()
    frame = given.join(F.broadcast(columns.keys_frame(spark, {"secret": secret, "kek": KEK})))
    frame = frame.withColumn("kid", columns.kid_column(F.col("secret"), F.col("tag")))
    frame = frame.withColumn("plain", columns.key_column(F.col("secret"), F.col("tag")))
    wrapped = columns.wrap_column(F.col("plain"), F.col("kek"), F.col("tag"), F.col("kid")).alias("key")
    exact = frame.select("tag", "kid", wrapped)
    shapes = {
        "exact": exact,
        "wide": exact.select(
            "*", F.lit(None).cast("string").alias("payload"), F.lit(None).cast("map<string,int>").alias("m")
        ),
        "empty": exact.limit(0),
    }
    for name, rows in shapes.items():
        folder = files.fresh()
        rows.repartition(2).write.parquet(folder)
        files.adopt(folder, name)
        assert files.load([name]) == ({} if name == "empty" else expected(range(1))), name
        assert not Path(folder).exists()
    with files.reading():
        read = spark.read.schema("tag binary, kid binary, key binary").parquet(*files.paths([PEOPLE[3]])).cache()
        assert read.count() == 80
    opened = read.crossJoin(F.broadcast(columns.keys_frame(spark, {"kek": KEK}))).filter(
        F.col("tag") == F.lit(PEOPLE[3])
    )
    key = columns.unwrap_column(F.col("key"), F.col("kek"), F.col("tag"), F.col("kid"))
    assert {bytes(row[0]) for row in opened.select(key).collect()} == {files.find(PEOPLE[3])[0][2]}
    for bad in (
        exact.withColumn("email", F.lit("jo@example.com")),
        exact.withColumn("tag", F.lit(None).cast("binary")),
    ):
        folder = files.fresh()
        bad.write.parquet(folder)
        with pytest.raises(Damaged, match="key_file") as refused:
            files.adopt(folder, "bad")
        assert "jo@example.com" not in str(refused.value)
    assert files.load(["bad"]) == {}
