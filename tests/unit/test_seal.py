"""Sealing: Spark columns and Python twins agree byte for byte, and nothing opens, or is written, without its key."""

from __future__ import annotations

import pickle

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidings.errors import Damaged, Refused
from tidings.seal import columns, keyring
from tidings.seal.keyring import Keyring
from tidings.session import session

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


@pytest.fixture(scope="module")
def spark(tmp_path_factory) -> SparkSession:
    return session(tmp_path_factory.mktemp("spark"), master="local[2]", memory="1g")


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
