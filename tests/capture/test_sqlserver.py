"""What can be known of the reader of change tables without a SQL Server: its SQL, its positions, its messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tidings.errors import SourceStopped
from tidings.sources.sqlserver import Changes, after, before, from_lsn, hexed, plain, rows_sql, taken, unhex

SAMPLES = Path(__file__).parents[1] / "conformance" / "samples" / "sqlserver_cdc.jsonl"
WHEN = datetime(2026, 3, 2, 9, 16, 5, 123_000, tzinfo=UTC)
TAP = Changes("crm", ("dbo.customers",), "Server=host;UID=me;PWD=hunter2", origin="db/1")


def held(least: int) -> dict[str, tuple[str, bytes]]:
    return {"dbo.customers": ("dbo_customers", least.to_bytes(10))}


def samples() -> list[dict[str, Any]]:
    told = [json.loads(line)["message"] for line in SAMPLES.read_text().splitlines()]
    return [message for message in told if "__$start_lsn" in message["row"]]


@pytest.mark.parametrize("message", samples())
def test_a_row_is_told_as_the_dialect_reads_it(message: dict[str, Any]) -> None:
    binary = {name: unhex(message["row"][name]) for name in ("__$start_lsn", "__$seqval", "__$update_mask")}
    one = taken("db/1", "dbo.customers", {**message["row"], **binary, "tran_end_time": WHEN})
    told = json.loads(one.body)
    assert told.pop("origin") == "db/1"
    assert told["row"].pop("tran_end_time") == "2026-03-02T09:16:05.123000+00:00"
    assert told == message
    assert one.micros == 1_772_442_965_123_000


def test_rows_of_one_update_keep_their_order_and_have_places_of_their_own() -> None:
    row = {"__$start_lsn": b"\x01" * 10, "__$seqval": b"\x02" * 10, "__$command_id": 1, "tran_end_time": WHEN}
    old, new = (taken("db/1", "dbo.t", {**row, "__$operation": operation}) for operation in (3, 4))
    assert old.rank < new.rank
    assert old.place != new.place


def test_positions() -> None:
    lsn = unhex("0x0000002C00000002FFFF")
    assert hexed(after(lsn)) == "0x0000002C000000030000"
    assert before(after(lsn)) == lsn
    start = {
        "origin": "db/1",
        "lsn": hexed(lsn),
        "since": {"old": "0x00000000000000000001", "new": "0x000000FF000000000001"},
    }
    assert from_lsn(start, "old") == after(lsn)
    assert hexed(from_lsn(start, "new")) == "0x000000FF000000000001"


def test_begins_before_the_oldest_row_that_is_kept() -> None:
    start = TAP._begun(held(500))
    assert unhex(start["lsn"]) == (499).to_bytes(10)
    TAP._kept(start, held(500))


@pytest.mark.parametrize(("least", "origin", "code"), [(501, "db/1", "source_purged"), (0, "db/1", "source_purged"), (500, "db/2", "source_went_back")])  # fmt: skip
def test_a_place_that_is_gone_stops_with_the_remedy(least: int, origin: str, code: str) -> None:
    start = TAP._begun(held(500))
    with pytest.raises(SourceStopped) as stopped:
        TAP._kept({**start, "origin": origin}, held(least))
    assert stopped.value.code == code
    assert "checkpoint folder" in stopped.value.what_now


def test_sql_names_are_quoted() -> None:
    assert "cdc.[fn_cdc_get_all_changes_a]]b](?, ?, N'all update old')" in rows_sql("a]b", zoned=True)
    assert "AT TIME ZONE" not in rows_sql("a", zoned=False)
    made = Changes("crm", ("dbo.o'neil",), "x").statements()
    assert "@source_name = N'o''neil'" in made[1][0]
    assert made[0] == ("EXEC sys.sp_cdc_enable_db", "EXEC sys.sp_cdc_disable_db")


def test_values() -> None:
    assert plain(Decimal("12.50")) == "12.50"
    assert plain(Decimal(12)) == 12
    assert plain(b"\x0f") == "0x0F"
    assert plain(datetime(2026, 3, 2, 9)) == "2026-03-02T09:00:00"


def test_what_the_driver_says_is_told_apart_and_shows_no_secret() -> None:
    assert TAP.stopped("OperationalError", "Invalid authorization specification").code == "source_denied"
    assert TAP.stopped("OperationalError", "Client unable to establish connection").code == "source_unreachable"
    assert "hunter2" not in repr(TAP)
    with pytest.raises(SourceStopped) as stopped:
        Changes("crm", ("dbo.t",), "no such thing hunter2").verify()
    assert stopped.value.code == "source_not_ready"
    assert "hunter2" not in str(stopped.value)
