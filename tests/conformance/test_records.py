"""Messages that came from a broker: which form each dialect reads, and what becomes of bytes that are no message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession
from test_dialects import canonical, samples

from tidings.sources.record import record_body, wants_record
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
