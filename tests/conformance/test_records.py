"""Messages that came from a broker: which form each dialect reads, and what becomes of bytes that are no message."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from test_dialects import canonical, samples

from tidings.sources.kafka import messages
from tidings.sources.record import record_body, wants_record
from tidings.stages.change import change
from tidings.stages.dialect import names
from tidings.verbs.try_decode import decoded

pytestmark = [
    pytest.mark.spark,
    # PySpark leaves the socket to its JVM open when it hands over rows.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_a_dialect_says_that_it_reads_records_when_its_samples_are_records() -> None:
    are_records = {
        name: all(
            isinstance(one["message"], dict) and {"topic", "value"} <= set(one["message"]) for one in samples(name)
        )
        for name in names()
    }
    assert {name: wants_record(name) for name in names()} == are_records
    assert wants_record("auto")


def as_record(message: Any, **more: Any) -> str:
    """What a producer that knows nothing of us puts on a topic, as we read it."""
    value = json.dumps(message).encode()
    given = {"timestamp_ms": 1772442965123, "headers": {"trace": "7"}, **more}
    return record_body("auto", "crm.events", b'{"id": 7}', value, **given)


CARRIED = ("segment", "shopify", "canal", "hubspot", "airbyte", "singer", "snowplow", "wal2json_v1", "debezium_mysql")


def test_what_a_broker_carries_reads_as_what_it_wraps(spark: SparkSession) -> None:
    """A message of a dialect that knows no topic, put into a record, is recognised and means the same."""
    cases = [(name, one) for name in CARRIED for one in samples(name)]
    lines = [json.dumps(one["message"]) if wants_record(name) else as_record(one["message"]) for name, one in cases]
    answers = [canonical(json.loads(text)) for text in decoded(spark, [line.encode() for line in lines], "auto", {})]
    differ = {
        f"{name}/{one['case']}": (canonical(one["expect"]), answer)
        for (name, one), answer in zip(cases, answers, strict=True)
        if answer != canonical(one["expect"])
    }
    assert differ == {}


def test_a_record_keeps_its_parts_byte_for_byte() -> None:
    value = b'{"op":"c", "n": 1.10}'
    body = record_body("debezium_mysql", "crm.t", b"7", value, timestamp_ms=5, headers={"a": "b"})
    assert body == '{"topic": "crm.t", "key": 7, "value": {"op":"c", "n": 1.10}, "headers": {"a": "b"}, "timestamp": 5}'
    assert record_body("segment", "crm.t", b"7", value, timestamp_ms=5, headers={"a": "b"}) == value.decode()
    assert json.loads(record_body("maxwell", "t", b"plain key", None, timestamp_ms=None, headers={})) == {
        "topic": "t",
        "key": "plain key",
        "value": None,
    }


BROKEN = {
    b"\xff\xfe": "malformed_json",
    b'{"a": "\xff"}': "lone_surrogate",
    b'{"a": "\\\xff"}': "lone_surrogate",
    b'{"a": "\\\\\xff"}': "lone_surrogate",
    '{"a": 1}'.encode("utf-16"): "nul_byte",
    b'{"a": 1}, "topic": "other"': "trailing_content",
    b'{"a": 1}, "messageId": "1", "type": "identify", "userId": "7"': "trailing_content",
    b'{"a": ': "truncated_json",
    b"\x00\x00\x00\x00\x07avro": "nul_byte",
    b"[" * 5000 + b"]" * 5000: "too_deep",
    b'{"a": 1, "a": 2}': "duplicate_key",
}


@pytest.mark.parametrize("dialect", ["auto", "debezium_mysql", "segment"])
def test_bytes_that_are_no_message_are_refused_with_a_code(spark: SparkSession, dialect: str) -> None:
    bodies = [record_body(dialect, "t", b"7", value, timestamp_ms=1, headers={}) for value in BROKEN]
    said = [json.loads(text) for text in decoded(spark, [body.encode() for body in bodies], dialect, {})]
    assert [one["quarantine"]["code"] for one in said] == list(BROKEN.values())


def test_a_key_that_is_no_text_refuses_the_record(spark: SparkSession) -> None:
    body = record_body("debezium_mysql", "t", b"\xff", b'{"op": "c"}', timestamp_ms=1, headers={})
    (said,) = [json.loads(text) for text in decoded(spark, [body.encode()], "debezium_mysql", {})]
    assert said["quarantine"]["code"] == "lone_surrogate"


KAFKA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,"
    " headers array<struct<key: string, value: binary>>"
)
ROWS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]] | None]] = [
    (b'{"id": 7}', b'{"op":"c", "n": 1.10}', None),
    (b'"7"', b'{"op": "c"}', [("a", b"1"), ("b", b'say "x"'), ("a", b"2")]),
    (b'plain "key"\n', b"[1, 2]", None),
    (None, b'"text"', None),
    (b"7", None, None),
    (b'{"id": 7}, "value": 1', b"{}", None),
    (b"7", b'{"a": 1}, "topic": "other"', None),
    (b"7", b'{"a": ', None),
    (b"7", b"", None),
    (b"7", "é€𝄞".encode(), None),
]


@pytest.mark.parametrize("dialect", ["auto", "debezium_mysql", "segment"])
def test_sparks_records_become_the_same_texts(spark: SparkSession, dialect: str) -> None:
    """What the columns make of Kafka's rows is what record_body makes of any other broker's message."""
    when = datetime(2026, 3, 2, 9, 16, 5, 123000, UTC)
    given = [(key, value, "t", 2, place, when, 0, headers) for place, (key, value, headers) in enumerate(ROWS)]
    rows = messages(spark.createDataFrame(given, KAFKA), "crm", dialect, {"t": "an-id"}).orderBy("line").collect()
    expected = [
        record_body(
            dialect, "t", key, value, timestamp_ms=1772442965123,
            headers={name: text.decode() for name, text in headers or ()},
        )
        for key, value, headers in ROWS
    ]  # fmt: skip
    assert [_same(row["body"]) for row in rows] == [_same(text) for text in expected]
    assert (rows[9]["place"], rows[9]["rank"]) == ("an-id/2/9", "0000000002-0000000000000000009")
    assert (rows[9]["source"], rows[9]["file"], rows[9]["line"]) == ("crm", "t", 9)


def _same(text: str) -> Any:
    """Headers alone may differ in their spaces."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize(("key", "value"), [(b"\xff", b'{"op": "c"}'), (b"7", b'{"op": "\xff"}')])
def test_a_record_of_sparks_that_is_no_text_stays_no_text(spark: SparkSession, key: bytes, value: bytes) -> None:
    rows = spark.createDataFrame(
        [(key, value, "t", 0, 0, datetime(2026, 3, 2, tzinfo=UTC), 0, None)],
        KAFKA,
    )
    found = change(messages(rows, "crm", "debezium_mysql", {"t": "an-id"}), "debezium_mysql").select("problem.code")
    assert [row["code"] for row in found.collect()] == ["invalid_utf8"]
