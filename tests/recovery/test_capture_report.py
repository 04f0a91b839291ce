"""`tidings report capture` counts each message once, whatever was killed on the way, and names what no contract covers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checker import check
from small import Small, small
from warm import WarmJvm

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

HEARTBEAT = '{"topic": "__debezium-heartbeat.crm", "key": {"serverName": "crm"}, "value": {"ts_ms": 1772443000000}}'
ORDERS = 3
NEVER = {"delete", "rekey"}


def elsewhere(line: str, table: str) -> str:
    """The same change, of another table."""
    message = json.loads(line)
    message["value"]["source"]["table"] = table
    message["topic"] = f"crm.public.{table}"
    return json.dumps(message)


def publish(one: Small) -> int:
    """A round, with an unmapped table, one whose name is no name, an extra field, a heartbeat; how many lines it has."""
    lines = one.world._crm(one.world.rounds)
    one.world.rounds += 1
    richer = json.loads(lines[0])
    richer["value"]["after"]["shoe_size"] = 43
    orders = [elsewhere(lines[0], "orders")] * ORDERS
    lines = [json.dumps(richer), *lines[1:], *orders, elsewhere(lines[0], "jo@example.com"), HEARTBEAT]
    one.world.publish("crm", lines)
    one.world.broken += ORDERS + 1
    return len(lines)


def report(one: Small, *options: str) -> str:
    command = [sys.executable, "-m", "tidings.cli", "report", "capture", "-C", str(one.folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def of_crm(one: Small) -> dict[str, Any]:
    (found,) = json.loads(report(one, "--json"))["sources"]
    assert found["name"] == "crm"
    return dict(found)


def test_what_was_seen_is_counted_once(tmp_path: Path, jvm: WarmJvm) -> None:
    with small(tmp_path, "crm", jvm=jvm) as one:
        assert of_crm(one)["messages"] == 0
        lines = publish(one)
        one.killed_at("journal.before_commit")
        assert of_crm(one)["messages"] == 0, "progress was saved, and the journal that makes it true was not committed"
        one.killed_at("emit.journal")
        says_what_was_written(one, of_crm(one), lines, rounds=1)
        one.finish()
        says_what_was_written(one, of_crm(one), lines, rounds=1)
        a_screen_of_eighty_columns(one)
        lines += publish(one)
        one.finish()
        says_what_was_written(one, of_crm(one), lines, rounds=2)
        assert check(one) == []


def says_what_was_written(one: Small, found: dict[str, Any], lines: int, rounds: int) -> None:
    events = [event.change_type for event in one.world.events]
    assert (found["kind"], found["dialects"]) == ("files", ["debezium_postgresql"])
    assert (found["messages"], found["batches"], found["events"]) == (lines, rounds, len(events))
    assert found["quarantined"] == {"truncated_json": rounds, "unknown_table": (ORDERS + 1) * rounds}
    assert found["skipped"] == {"heartbeat": rounds}
    tables = {one["table"]: (one["contract"], one["changes"], one["unnamed_fields"]) for one in found["tables"]}
    assert tables == {
        "public.customers": ("customer", lines - (ORDERS + 3) * rounds, ["shoe_size"]),
        "public.orders": (None, ORDERS * rounds, []),
        "(not a name)": (None, rounds, []),
    }
    assert {one["type"]: one["events"] for one in found["types"] if one["events"]} == {
        kind: events.count(kind) for kind in set(events)
    }
    assert {one["type"] for one in found["types"] if not one["events"]} >= NEVER
    lag = found["lag"]
    assert 0 < lag["p50_s"] <= lag["p99_s"] < 600
    assert lag["p99_s"] <= lag["behind_s"]
    assert lag["batches"] == rounds
    assert found["per_minute"]["last_hour"] == pytest.approx(lines / 60, abs=0.01)


def a_screen_of_eighty_columns(one: Small) -> None:
    shown = report(one)
    assert max(map(len, shown.splitlines())) <= 80
    assert "public.orders" in shown
    assert "unmapped" in shown
    assert "jo@example.com" not in shown
