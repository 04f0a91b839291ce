"""What can be known of the reader of changefeeds without a cluster: its SQL, its times, its messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidings.sources.cockroachdb import feed_sql, in_order, kept_s, nanos, resolved, taken

SAMPLES = Path(__file__).parents[1] / "conformance" / "samples" / "cockroachdb_wrapped.jsonl"


def samples() -> list[dict[str, Any]]:
    told = [json.loads(line)["message"] for line in SAMPLES.read_text().splitlines()]
    return [message for message in told if "updated" in message["value"]]


@pytest.mark.parametrize("message", samples())
def test_a_row_is_told_as_the_dialect_reads_it(message: dict[str, Any]) -> None:
    key, value = (json.dumps(message[part]).encode() for part in ("key", "value"))
    one = taken("here", message["topic"], key, value)
    assert json.loads(one.body) == message
    assert one.micros == nanos(message["value"]["updated"]) // 1000
    assert one.place == f"here/customers/{key.decode()}/{message['value']['updated']}"


def test_times_sort_as_they_follow() -> None:
    told = ["1772442965123593417.0000000002", "1772442965123593417.0000000000", "972442965123593417.0000000000"]
    assert sorted(told, key=in_order) == [told[2], told[1], told[0]]


def test_resolved_times_are_told_from_rows() -> None:
    assert resolved(b'{"resolved": "1772443148124004417.0000000000"}') == "1772443148124004417.0000000000"
    assert resolved(b'{"after": {"resolved": 1}, "updated": "1.0"}') == ""
    assert resolved(None) == ""


def test_the_feed() -> None:
    told = feed_sql(("public.customers", 'o"dd'), "1772442965123593417.0000000000")
    assert told == (
        'EXPERIMENTAL CHANGEFEED FOR "public"."customers", "o""dd" WITH updated, diff, resolved = \'500ms\','
        " cursor = '1772442965123593417.0000000000'"
    )
    with pytest.raises(ValueError, match="drop"):
        feed_sql(("t",), "'; drop table t")


def test_how_long_old_versions_are_kept() -> None:
    assert kept_s("ALTER RANGE default CONFIGURE ZONE USING\n\tgc.ttlseconds = 14400,\n\tnum_replicas = 3") == 14_400
    assert kept_s("") == 0
