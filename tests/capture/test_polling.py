"""Rows polled by their time on a real server, without Spark: late commits, ties, prepared transactions, clocks, and the spool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tidings.errors import SourceStopped
from tidings.sources import polling
from tidings.sources.pgserver import Server
from tidings.sources.polling import Polling
from tidings.sources.spool import FIRST, Spool
from tidings.sources.tap import Offset, Taken

Connection = psycopg.Connection[Any]
WRITE = (
    "INSERT INTO polled.people VALUES (%s, %s, now()) ON CONFLICT (id) DO UPDATE SET email = excluded.email, at = now()"
)


@pytest.fixture
def admin(postgresql: str) -> Iterator[Connection]:
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS polled CASCADE")
        connection.execute("CREATE SCHEMA polled")
        connection.execute("CREATE TABLE polled.people (id text PRIMARY KEY, email text, at timestamptz)")
        yield connection


@pytest.fixture
def tap(postgresql: str, admin: Connection, tmp_path: Path) -> Polling:
    spool = Spool("crm", tmp_path / "spool", (b"k" * 32, b"i" * 32))
    made = Polling(Server("crm", postgresql), (("polled.people", ("id",)),), "at", 0.0, spool)
    return made.verified()


def told(tap: Polling, start: Offset, end: Offset) -> list[str]:
    return [json.loads(taken.body)["row"]["email"] for taken in tap.read(start, end)]


def step(tap: Polling, start: Offset) -> tuple[list[str], Offset]:
    end = tap.latest(start)
    return ([] if end == start else told(tap, start, end)), end


def test_a_row_committed_late_is_not_passed_over(postgresql: str, tap: Polling, admin: Connection) -> None:
    with psycopg.connect(postgresql) as slow, psycopg.connect(postgresql) as idle:
        slow.execute(WRITE, ("1", "late"))
        admin.execute(WRITE, ("2", "quick"))
        assert step(tap, FIRST) == ([], FIRST)
        slow.commit()
        idle.execute("SELECT 1")  # has begun and not written: what it will write carries this time
        admin.execute(WRITE, ("3", "after"))
        first, end = step(tap, FIRST)
        assert first == ["late", "quick"]
        idle.execute(WRITE, ("4", "idle"))
        idle.commit()
        assert step(tap, end)[0] == ["idle", "after"]


def test_a_prepared_transaction_holds_back_everything(postgresql: str, tap: Polling, admin: Connection) -> None:
    with psycopg.connect(postgresql) as two_phase:
        two_phase.execute(WRITE, ("1", "prepared"))
        two_phase.execute("PREPARE TRANSACTION 'polled'")
        try:
            admin.execute(WRITE, ("2", "quick"))
            assert step(tap, FIRST) == ([], FIRST)
            assert "1 prepared transactions are open" in tap.remarks()[0]
        finally:
            admin.execute("COMMIT PREPARED 'polled'")
    assert step(tap, FIRST)[0] == ["prepared", "quick"]


def test_ties_are_divided_by_the_key(tap: Polling, admin: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "MOST", 3)
    many = "INSERT INTO polled.people SELECT n::text, 'm' || n, now() FROM generate_series(1, 8) AS n"
    admin.execute(many)
    found, place = [], FIRST
    while True:
        rows, after = step(tap, place)
        if after == place:
            break
        found += rows
        place = after
    assert found == [f"m{n}" for n in range(1, 9)]
    assert place["number"] == 3


def test_what_was_read_stays_what_it_was(tap: Polling, admin: Connection) -> None:
    admin.execute(WRITE, ("1", "old"))
    end = tap.latest(FIRST)
    admin.execute(WRITE, ("1", "new"))
    assert told(tap, FIRST, end) == ["old"]
    assert tap.latest(FIRST) == end
    rows, after = step(tap, end)
    assert rows == ["new"]
    tap.done(after)
    assert list(tap.spool.folder.iterdir()) == []
    with pytest.raises(SourceStopped) as stopped:
        told(tap, FIRST, end)
    assert stopped.value.code == "spool_missing"


def test_neither_offsets_nor_the_spool_say_who(tap: Polling, admin: Connection) -> None:
    admin.execute(WRITE, ("maya@example.com", "maya@example.com"))
    end = tap.latest(FIRST)
    kept = json.dumps(end).encode() + b"".join(path.read_bytes() for path in tap.spool.folder.iterdir())
    assert b"maya" not in kept
    assert b"people" not in kept
    assert repr(tap.spool.keys[0]) not in repr(tap)


def test_the_first_segment_wins(tmp_path: Path) -> None:
    spool = Spool("crm", tmp_path, (b"k" * 32, b"i" * 32))
    end = spool.put(FIRST, {"t": 1}, [Taken("p", 1, "r", "one")])
    assert spool.put(FIRST, {"t": 2}, [Taken("p", 1, "r", "two")]) == end
    assert [taken.body for taken in spool.read(FIRST, end)] == ["one"]
    assert spool.place(end) == {"t": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_clock_that_went_back_stops_the_source(tap: Polling, admin: Connection) -> None:
    oid = admin.execute("SELECT 'polled.people'::regclass::oid::text").fetchone()
    assert oid is not None
    ahead = tap.spool.put(FIRST, {f"polled.people/{oid[0]}": ("2999-01-01 00:00:00+00", ["1"])}, [])
    with pytest.raises(SourceStopped, match="clock is before the time of the last row") as stopped:
        tap.latest(ahead)
    assert stopped.value.code == "source_went_back"


def test_odd_times_are_told_and_not_skipped(tap: Polling, admin: Connection) -> None:
    rows = "('1', 'future', now() + interval '1 hour'), ('2', 'never', NULL), ('3', 'always', '-infinity'), ('4', 'now', now())"
    admin.execute(f"INSERT INTO polled.people VALUES {rows}")
    found, end = step(tap, FIRST)
    assert found == ["now"]
    said = " ".join(tap.remarks())
    assert "a time in the future" in said
    assert "rows without a time" in said
    assert "no index that begins with at" in said
    admin.execute("CREATE INDEX ON polled.people (at)")
    assert "no index" not in " ".join(tap.remarks())
    admin.execute("UPDATE polled.people SET at = clock_timestamp() WHERE id = '1'")  # its time has come
    assert step(tap, end)[0] == ["future"]


def test_a_table_made_anew_is_read_from_its_start(tap: Polling, admin: Connection) -> None:
    admin.execute(WRITE, ("1", "one"))
    end = tap.latest(FIRST)
    admin.execute("CREATE TABLE polled.copy (LIKE polled.people INCLUDING ALL)")
    admin.execute("INSERT INTO polled.copy VALUES ('7', 'loaded', '2020-01-01Z')")
    admin.execute("DROP TABLE polled.people")
    admin.execute("ALTER TABLE polled.copy RENAME TO people")
    assert step(tap, end)[0] == ["loaded"]


def test_what_stands_in_the_way_is_named(postgresql: str, tap: Polling, admin: Connection) -> None:
    admin.execute("ALTER TABLE polled.people ALTER COLUMN at TYPE timestamp")
    with pytest.raises(SourceStopped, match=r"people\.at is timestamp without time zone"):
        tap.verify()
    admin.execute("ALTER TABLE polled.people DROP COLUMN at")
    with pytest.raises(SourceStopped, match=r"people has no column at"):
        tap.verify()
    admin.execute("DROP TABLE polled.people")
    with pytest.raises(SourceStopped, match=r"no table polled\.people"):
        tap.verify()
    admin.execute("DROP ROLE IF EXISTS blind")
    admin.execute("CREATE ROLE blind LOGIN")
    blind = Polling(Server("crm", f"{postgresql} user=blind"), tap.tables, "at", 0.0, tap.spool)
    with pytest.raises(SourceStopped, match="pg_read_all_stats"):
        blind.verify()
    admin.execute("DROP ROLE blind")
