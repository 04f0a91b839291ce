"""A replay beside live traffic, with real Spark, real tables and real HTTP: the seam, a stop in the middle, a late subscriber."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lane_stage import Endpoint, Journal, operator, serving, until
from pyspark.sql import SparkSession

from tidings.lanes import control
from tidings.lanes.buffer import Order
from tidings.lanes.cycle import Cycle
from tidings.lanes.replay import Late
from tidings.lanes.slices import Owed
from tidings.report.account import ends, reconcile
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings
from tidings.store import Store

pytestmark = [
    pytest.mark.spark,
    # PySpark leaves the socket that carried an Arrow table to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
Stage = Callable[[dict[str, str]], tuple[Settings, Store, Journal]]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    def make(subscribers: dict[str, str]) -> tuple[Settings, Store, Journal]:
        settings = operator(tmp_path, subscribers)
        store = Store(settings.data_path / "tables")
        return settings, store, Journal(settings, store)

    return make


def order(settings: Settings, lane: str = "alpha", **said: Any) -> str:
    """As `tidings replay` asks for it."""
    made = Order(**said)
    request = control.ask(
        settings.data_path, lane, "replay", "the shop lost a day", order=made.as_dict() | {"range": made.words()}
    )
    return request.name


def over(lanes: Cycle, name: str) -> bool:
    """Taken up, gone through, and nothing left to do."""
    lane, _, serial = name.rpartition("-")
    run = lanes.replays.runs.get(name)
    return lanes.lanes[lane].requests >= int(serial) and (run is None or run.done) and lanes.idle()


def test_a_replay_meets_live_traffic_without_gap_repeat_or_inversion(spark: SparkSession, stage: Stage) -> None:
    shut = [True]
    alpha = Endpoint(lambda event_id, times: 400 if shut[0] else 204)
    with serving(alpha):
        settings, store, journal = stage({"alpha": alpha.url})
        lanes = Cycle(spark, store, settings, settings.keyring)
        lost = journal.batch([(f"p{n % 6}", {"alpha": "allow"}) for n in range(18)])
        until(lambda: len(ends(store)) == 18 and lanes.idle(), lanes.step, 60)
        shut[0] = False
        newer = journal.batch(
            [("p0", {"alpha": "allow"})]
        )  # the subscriber has something newer of p0 before the replay
        KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek")).erase(
            settings.keyring.tag("shop", "customer", json.dumps(["p1"]))
        )
        until(lambda: newer[0] in alpha.got and lanes.idle(), lanes.step, 30)
        alpha.got.clear()
        name = order(settings, most=2)
        live: list[str] = []
        for number in range(6):
            live += journal.batch([(f"p{number}", {"alpha": "allow"})])
            lanes.step()
            if number == 3:  # a process that is gone leaves only its tables
                lanes = Cycle(spark, store, settings, settings.keyring)
        until(lambda: over(lanes, name), lanes.step, 60)
        lanes.close()
    found = {event: end.final for (event, _), end in ends(store).items()}
    arrived = {event: alpha.got.count(event) for event in [*lost, *live]}
    assert all(arrived[event] == 1 for event in live)
    assert {found[event] for event in lost if event in lost[0::6]} == {"superseded"}
    assert {found[event] for event in lost if event in lost[1::6]} == {"erased"}
    for person in range(2, 6):
        mine = [event for event in alpha.got if event in {*lost[person::6], live[person]}]
        assert mine == sorted(mine), "order per subject"
        again = [event for event in lost[person::6] if found[event] == "acknowledged"]
        assert all(arrived[event] == 1 for event in again)
        assert {found[event] for event in lost[person::6]} <= {"acknowledged", "superseded"}
    assert sum(arrived[event] for event in lost) >= 6  # most of it was sent before anything newer came
    assert reconcile(store, {})["problems"] == []
    assert [row["call"] for row in store.arrow("attempts", ["call"]).to_pylist() if row["call"] == "control-1"]


def test_what_is_sent_again_is_byte_for_byte_what_was_sent_first(spark: SparkSession, stage: Stage) -> None:
    alpha = Endpoint()
    with serving(alpha):
        settings, store, journal = stage({"alpha": alpha.url})
        lanes = Cycle(spark, store, settings, settings.keyring)
        said = {"vector": [("crm", 7)], "correlation": "tx-9"}
        ids = journal.batch([("ann", {"alpha": "allow"}), ("bob", {"alpha": "allow"})], row=said)
        until(lambda: len(alpha.got) == 2 and lanes.idle(), lanes.step, 60)
        skipping = order(settings)
        until(lambda: over(lanes, skipping), lanes.step, 30)
        assert len(alpha.got) == 2  # the subscriber has both
        again = order(settings, again=True)
        lanes.step()
        until(lambda: over(lanes, again), lanes.step, 30)
        lanes.close()
    assert sorted(alpha.got) == sorted([*ids, *ids])
    for event in ids:
        first, second = (body for body in alpha.bodies if body["id"] == event)
        assert json.dumps(first) == json.dumps(second)
        assert {"sequence", "subjectseq", "causality", "time"} <= first.keys()
        assert len(first["sequence"]) == len(first["subjectseq"]) == 20
    assert reconcile(store, {})["problems"] == []


def test_a_late_subscriber_gets_the_buffer_then_live(spark: SparkSession, stage: Stage) -> None:
    alpha, late = Endpoint(), Endpoint()
    with serving(alpha, late):
        settings, store, journal = stage({"alpha": alpha.url, "late": late.url})
        old = journal.batch([(f"p{n % 3}", {"alpha": "allow"}) for n in range(6)])
        live = journal.batch([("p0", {"alpha": "allow", "late": "allow"})])
        owed = Owed("allow", "exactly-once", 5, None)
        decides = Late(
            lambda lane: lambda decision, entity, change_type: owed,
            lambda rows: {
                (row["lane"], row["event_id"]): ("refused", "not for it") if row["event_id"] == old[1] else frozenset()
                for row in rows
            },
        )
        name = order(settings, "late", bootstrap=True, most=1)
        lanes = Cycle(spark, store, settings, settings.keyring, late=decides)
        until(lambda: over(lanes, name) and len(late.got) >= 4, lanes.step, 60)
        lanes.close()
        lanes = Cycle(spark, store, settings, settings.keyring, late=decides)
        lanes.step()
        lanes.close()
    found = {event: end.final for (event, lane), end in ends(store).items() if lane == "late"}
    assert found[old[1]] == "refused"
    assert found[live[0]] == "acknowledged"
    assert len(late.got) == len(set(late.got))
    assert {event for event, final in found.items() if final == "acknowledged"} == set(late.got)
    for person in range(3):
        mine = [event for event in late.got if event in {*old[person::3], *(live if person == 0 else [])}]
        assert mine == sorted(mine)
    balanced = reconcile(store, {})
    assert balanced["problems"] == []
    assert balanced["pairs"] == 7 + 1 + 6


def test_a_moved_cursor_ends_what_it_passes_and_a_replay_can_be_paused_and_throttled(
    spark: SparkSession, stage: Stage
) -> None:
    alpha = Endpoint(lambda event_id, times: 400 if times == 1 and event_id.startswith("g1-0000") else 204)
    with serving(alpha):
        settings, store, journal = stage({"alpha": alpha.url})
        lanes = Cycle(spark, store, settings, settings.keyring)
        lost = journal.batch([(f"p{n}", {"alpha": "allow"}) for n in range(4)])
        until(lambda: len(ends(store)) == 4 and lanes.idle(), lanes.step, 60)
        control.ask(settings.data_path, "alpha", "pause", "a break")
        passed = journal.batch([(f"q{n}", {"alpha": "allow"}) for n in range(3)])
        kept = journal.batch([("q0", {"alpha": "allow"})])
        to = {"to": {"crm/g1": (1 << 24) + 2}, "count": 3}
        control.ask(settings.data_path, "alpha", "move", "their list starts later", order=to)
        lanes.step()
        control.ask(settings.data_path, "alpha", "resume", "go on")
        until(lambda: kept[0] in alpha.got and lanes.idle(), lanes.step, 30)
        assert not set(passed) & set(alpha.got)
        assert {ends(store)[event, "alpha"].final for event in passed} == {"expired"}

        name = order(settings, rate=2.0, most=1)
        control.ask(settings.data_path, "alpha", "replay_pause", "wait", event=name)
        for _ in range(5):
            lanes.step()
        assert all(alpha.seen[event] == 1 for event in lost)
        begun = time.monotonic()
        control.ask(settings.data_path, "alpha", "replay_resume", "now", event=name)
        until(lambda: over(lanes, name), lanes.step, 60)
        assert time.monotonic() - begun > 1.0  # the first at once, three more at two a second
        lanes.close()
    found = {event: end.final for (event, _), end in ends(store).items()}
    assert all(alpha.seen[event] == 2 for event in lost)
    assert {found[event] for event in lost} == {"acknowledged"}
    # What was passed over is in the buffer all the same, but of one person something newer has arrived.
    assert [found[event] for event in passed] == ["superseded", "acknowledged", "acknowledged"]
    assert reconcile(store, {})["problems"] == []
