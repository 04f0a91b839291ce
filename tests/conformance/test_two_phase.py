"""Two-phase commit on a real PostgreSQL: wherever we die, every event has its effect exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from rigs_tables import PostgreSqlRig, TwoPhaseRig
from sinks import call, member, members

from tidings.channels.call import Channel, Outcome

VICTIM = Path(__file__).parent / "two_phase_victim.py"


@pytest.fixture(scope="module")
def rig() -> Iterator[TwoPhaseRig]:
    made = TwoPhaseRig()
    made.start()
    yield made
    made.end()


@pytest.fixture
def place(rig: TwoPhaseRig) -> dict[str, Any]:
    return rig.place()


@pytest.fixture
def channel(rig: TwoPhaseRig, place: dict[str, Any]) -> Iterator[Any]:
    opened = PostgreSqlRig.open(rig, place)
    yield opened
    assert opened.left_prepared() == []  # type: ignore[attr-defined]
    opened.close()


def told(outcomes: list[Outcome]) -> set[tuple[str, str]]:
    return {(outcome.result, outcome.code) for outcome in outcomes}


def dies(rig: TwoPhaseRig, place: dict[str, Any], point: str, record: Path) -> list[str]:
    """A real process, really killed; the references it had recorded by then."""
    said = json.dumps({"connection": rig.connection(rig.password), "table": place["table"]})
    done = subprocess.run([sys.executable, VICTIM, point, record], input=said, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    return json.loads(record.read_text()) if record.exists() else [""] * 3


@pytest.mark.parametrize("point", ["recorded", "committed"])
def test_killed_when_it_was(
    rig: TwoPhaseRig, place: dict[str, Any], channel: Channel, tmp_path: Path, point: str
) -> None:
    references = dies(rig, place, point, tmp_path / "record")
    assert len(rig.arrived(place)) == (3 if point == "committed" else 0)
    # Each member is asked about in its own time; the first that is commits for all of them.
    for number, (one, known) in enumerate(zip(members(1, 3), references, strict=True)):
        assert told(channel.probe(call(replace(one, reference=known), number=10 + number))) == {
            ("acknowledged", "committed")
        }
    assert [one.event_id for one in rig.arrived(place)] == [one.event_id for one in members(1, 3)]


def test_killed_before_the_record_nothing_is_committed_and_all_is_sent_again(
    rig: TwoPhaseRig, place: dict[str, Any], channel: Any, tmp_path: Path
) -> None:
    assert dies(rig, place, "prepared", tmp_path / "record") == [""] * 3
    assert channel.left_prepared() == [7]
    codes = [told(channel.probe(call(replace(one, sent_in=7), number=8))) for one in members(1, 3)]
    assert codes == [{("transient", "rolled_back")}, *[{("transient", "never_prepared")}] * 2]
    (name,) = {one.reference for one in channel.send(call(*members(1, 3), number=9))}
    assert {one.result for one in channel.probe(call(*(replace(one, reference=name) for one in members(1, 3))))} == {
        "acknowledged"
    }
    assert [one.event_id for one in rig.arrived(place)] == [one.event_id for one in members(1, 3)]


def test_what_was_never_prepared_is_sent_again(rig: TwoPhaseRig, place: dict[str, Any], channel: Channel) -> None:
    doubtful = [replace(one, sent_in=7) for one in members(1, 3)]
    assert told(channel.probe(call(*doubtful, number=8))) == {("transient", "never_prepared")}
    assert rig.arrived(place) == []


def test_a_session_that_might_still_prepare_is_ended_first(
    rig: TwoPhaseRig, place: dict[str, Any], channel: Channel
) -> None:
    late: list[Outcome] = []
    with psycopg.connect(rig.database.address) as db:
        db.execute(f"LOCK TABLE {place['table']}")  # the call waits here while we ask about it
        thread = threading.Thread(target=lambda: late.extend(channel.send(call(*members(1, 3), number=7))))
        thread.start()
        _until(lambda: db.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone())
        doubtful = [replace(one, sent_in=7) for one in members(1, 3)]
        assert told(channel.probe(call(*doubtful, number=8))) == {("transient", "never_prepared")}
        db.rollback()
    thread.join(30)
    assert {outcome.result for outcome in late} <= {"transient", "in_doubt"}
    assert rig.arrived(place) == []


def _until(holds: Any) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_prepared_outlives_the_server(rig: TwoPhaseRig, place: dict[str, Any], channel: Any) -> None:
    outcomes = channel.send(call(*members(1, 3), number=7))
    assert told(outcomes) == {("accepted", "prepared")}
    rig.kill()
    down = channel.probe(call(*(replace(one, reference=outcomes[0].reference) for one in members(1, 3)), timeout=2))
    assert {outcome.result for outcome in down} == {"in_doubt"}
    rig.start()
    assert rig.arrived(place) == []
    again = channel.probe(call(*(replace(one, reference=outcomes[0].reference) for one in members(1, 3))))
    assert told(again) == {("acknowledged", "committed")}
    assert {outcome.strength for outcome in again} == {"A3"}
    assert len(rig.arrived(place)) == 3


def test_a_bad_row_prepares_nothing_and_holds_nobody(rig: TwoPhaseRig, place: dict[str, Any], channel: Any) -> None:
    with psycopg.connect(rig.connection(rig.password), autocommit=True) as db:
        db.execute(f"ALTER TABLE {place['table']} ADD CHECK (body->'data'->>'bad' IS NULL)")
    bad = replace(member(2), body={**member(2).body, "data": {"bad": "yes"}})
    outcomes = channel.send(call(member(1), bad, member(3), number=7))
    assert [outcome.result for outcome in outcomes] == ["throttled", "terminal", "throttled"]
    assert [outcome.code for outcome in outcomes] == ["beside_bad_row", "sql_23514", "beside_bad_row"]
    assert outcomes[0].retry_after == 0
    assert channel.left_prepared() == []


def test_orphans_are_rolled_back_when_their_call_is_resolved_and_not_before(
    rig: TwoPhaseRig, place: dict[str, Any], channel: Any
) -> None:
    channel.send(call(*members(1, 2), number=7))
    channel.send(call(*members(3, 2), number=9))
    assert channel.left_prepared() == [7, 9]
    assert channel.roll_back({1, 2, 7}) == [7]
    assert channel.left_prepared() == [9]
    assert channel.roll_back({9}) == [9]
    assert rig.arrived(place) == []


def test_a_name_that_is_taken_is_a_doubt(rig: TwoPhaseRig, place: dict[str, Any], channel: Any) -> None:
    channel.send(call(*members(1, 2), number=7))
    assert {one.result for one in channel.send(call(*members(3, 2), number=7))} == {"in_doubt"}
    channel.roll_back({7})


def test_a_server_without_prepared_transactions_says_what_to_set(rig: TwoPhaseRig, place: dict[str, Any]) -> None:
    rig.stop()
    where = ["-D", rig.database.data, "-p", str(rig.database.port), "-k", rig.folder, "-h", "127.0.0.1"]
    command = [*rig.database.as_user, rig.database.programs / "postgres", *where, "-c", "wal_level=logical"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=rig.folder)
    try:
        opened = PostgreSqlRig.open(rig, place)
        _until(lambda: opened.ping().result == "refused")
        said = opened.ping()
        opened.close()
    finally:
        os.kill(int((rig.database.data / "postmaster.pid").read_text().splitlines()[0]), signal.SIGINT)
        server.wait(30)
        rig.start()
    assert said.code == "prepared_transactions_off"
    assert "max_prepared_transactions" in said.detail
