"""The cycle with real Spark, real tables and real HTTP on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lane_stage import Endpoint, Journal, operator, serving, until
from pyspark.sql import SparkSession

from tidings.lanes import control, cycle, job
from tidings.lanes.cycle import Cycle
from tidings.ledger.attestation import members_root
from tidings.ledger.vocabulary import validate_entry
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings
from tidings.store import Store

pytestmark = [
    pytest.mark.spark,
    # PySpark leaves the socket that carried an Arrow table to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
Stage = Callable[..., tuple[Settings, Store, Journal]]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    def make(subscribers: dict[str, str], **how: Any) -> tuple[Settings, Store, Journal]:
        settings = operator(tmp_path, subscribers, **how)
        store = Store(settings.data_path / "tables")
        return settings, store, Journal(settings, store)

    return make


def finals(store: Store) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for row in store.arrow("attempts", ["lane", "members"]).to_pylist():
        for member in row["members"]:
            if member["final"]:
                found.setdefault((row["lane"], member["event_id"]), []).append(member["final"])
    return found


def settled(store: Store) -> list[str]:
    return sorted(store.arrow("settled", ["event_id"])["event_id"].to_pylist())


def test_everybody_is_told_once_in_order_and_every_event_settles_once(spark: SparkSession, stage: Stage) -> None:
    alpha, beta = Endpoint(), Endpoint(lambda event_id, times: 503 if times == 1 and event_id.endswith("1") else 200)
    with serving(alpha, beta):
        settings, store, journal = stage({"alpha": alpha.url, "beta": beta.url})
        lanes = Cycle(spark, store, settings, settings.keyring, regate=None)
        ids = journal.batch([(f"p{n % 3}", {"alpha": "allow", "beta": "allow" if n < 4 else "deny"}) for n in range(6)])
        ids += journal.batch([("p0", {}), ("p1", {"alpha": "deny", "beta": "deny"})])
        until(lambda: len(settled(store)) == len(ids), lanes.step, 60)
        lanes.close()
    assert sorted(alpha.got) == ids[:6]
    assert [event_id for event_id in alpha.got if event_id in (ids[0], ids[3])] == [ids[0], ids[3]]
    assert alpha.bodies[0]["data"]["after"]["email"].endswith("@example.com")
    assert {body["subject"] for body in alpha.bodies}.isdisjoint({body["subject"] for body in beta.bodies})
    assert beta.seen[ids[1]] == 2
    assert finals(store) == {("alpha", i): ["acknowledged"] for i in ids[:6]} | {
        ("beta", i): ["acknowledged"] for i in ids[:4]
    }
    assert settled(store) == sorted(ids)
    check_entries(store, ids)


def check_entries(store: Store, ids: list[str]) -> None:
    for row in store.arrow("attempts").to_pylist():
        entry = validate_entry(row["entry"])
        assert entry["members_root"] == members_root((m["event_id"], m["result"]) for m in row["members"]).hex()
        assert "example.com" not in row["entry"].decode().replace(entry["destination"], "")
    said = {row["event_id"]: validate_entry(row["entry"]) for row in store.arrow("settled").to_pylist()}
    first = {ack["subscriber"]: (ack["outcome"], ack["ack_strength"]) for ack in said[ids[0]]["subscriber_ack_set"]}
    assert first == {"alpha": ("acknowledged", "A2"), "beta": ("acknowledged", "A2")}
    denied = {ack["subscriber"]: ack["outcome"] for ack in said[ids[5]]["subscriber_ack_set"]}
    assert denied == {"alpha": "acknowledged", "beta": "refused"}
    assert said[ids[6]]["count"] == 0


def test_a_hung_subscriber_holds_nobody_else(spark: SparkSession, stage: Stage) -> None:
    def hang(event_id: str, times: int) -> int:
        time.sleep(4 if times == 1 else 0)
        return 200

    quick, hung = Endpoint(), Endpoint(hang)
    with serving(quick, hung):
        settings, store, journal = stage({"quick": quick.url, "hung": hung.url}, fast_budget_s=1)
        lanes = Cycle(spark, store, settings, settings.keyring)
        journal.batch([("warm", {"quick": "allow"})])
        lanes.step()
        journal.batch([("ann", {"quick": "allow", "hung": "allow"})])
        lanes.step()
        assert lanes.lanes["hung"].slow
        assert lanes.lanes["hung"].state.unsettled  # in doubt, so it is tried again, with the same id
        for number in range(5):
            journal.batch([(f"n{number}", {"quick": "allow", "hung": "allow"})])
            lanes.step()
        assert len(quick.got) == 7
        assert lanes._slow is not None or len(hung.got) > 1
        until(lambda: not lanes.lanes["hung"].state.unsettled, lanes.step, 60)
        lanes.close()
    assert {tuple(found) for found in finals(store).values()} == {("acknowledged",)}
    assert len(settled(store)) == 7


def test_an_erased_person_is_not_sent_and_ends_erased(spark: SparkSession, stage: Stage) -> None:
    alpha = Endpoint()
    with serving(alpha):
        settings, store, journal = stage({"alpha": alpha.url})
        ids = journal.batch([("ann", {"alpha": "allow"}), ("bob", {"alpha": "allow"})])
        tag = settings.keyring.tag("shop", "customer", json.dumps(["ann"]))
        KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek")).erase(tag)
        lanes = Cycle(spark, store, settings, settings.keyring)
        lanes.step()
        lanes.close()
    assert alpha.got == [ids[1]]
    assert finals(store) == {("alpha", ids[0]): ["erased"], ("alpha", ids[1]): ["acknowledged"]}
    assert settled(store) == ids


def test_the_gate_at_send_ends_what_may_not_leave_any_more(spark: SparkSession, stage: Stage) -> None:
    alpha = Endpoint()
    with serving(alpha):
        settings, store, journal = stage({"alpha": alpha.url})
        ids = journal.batch([("ann", {"alpha": "allow"}), ("bob", {"alpha": "allow"})])

        def regate(rows: Any) -> dict[tuple[str, str], tuple[Any, str] | None]:
            return {
                (row["lane"], row["event_id"]): ("superseded", "newer") for row in rows if row["event_id"] == ids[1]
            }

        lanes = Cycle(spark, store, settings, settings.keyring, regate=regate)
        lanes.step()
        lanes.close()
    assert alpha.got == [ids[0]]
    assert finals(store)["alpha", ids[1]] == ["superseded"]


def test_a_deferred_delivery_waits_is_decided_again_and_never_allowed_by_time(
    spark: SparkSession, stage: Stage
) -> None:
    alpha, known, clock = Endpoint(), set[str](), [time.time()]
    with serving(alpha):
        settings, store, journal = stage({"alpha": alpha.url})
        deadline = datetime.fromtimestamp(clock[0] + 3600, UTC)
        first, second = journal.batch([("ann", {"alpha": "defer"}), ("bob", {"alpha": "defer"})], deadline=deadline)
        (behind,) = journal.batch([("ann", {"alpha": "allow"})])
        lanes = Cycle(
            spark,
            store,
            settings,
            settings.keyring,
            clock=lambda: clock[0],
            redecide=lambda rows: {("alpha", r["event_id"]): "allow" for r in rows if r["event_id"] in known},
        )
        lanes.step()
        assert alpha.got == []
        known.add(first)
        clock[0] += 10
        lanes.step()
        lanes.step()
        assert alpha.got == [first, behind]
        clock[0] += 3600
        lanes.step()
        lanes.close()
    assert alpha.got == [first, behind]
    assert finals(store)["alpha", second] == ["refused"]


def test_a_pause_is_durable_and_a_dead_letter_can_be_sent_again(spark: SparkSession, stage: Stage) -> None:
    alpha = Endpoint(lambda event_id, times: 400 if times == 1 else 200)
    with serving(alpha):
        settings, store, journal = stage({"alpha": alpha.url})
        (dead,) = journal.batch([("ann", {"alpha": "allow"})])
        lanes = Cycle(spark, store, settings, settings.keyring)
        assert lanes.step().dead == 1
        control.ask(settings.data_path, "alpha", "pause", "a drill")
        (second,) = journal.batch([("bob", {"alpha": "allow"})])
        lanes.step()
        lanes.close()
        lanes = Cycle(spark, store, settings, settings.keyring)
        lanes.step()
        assert alpha.got == [dead]
        assert lanes.lanes["alpha"].state.paused == "a drill"
        control.ask(settings.data_path, "alpha", "resume", "over")
        place = {"event": dead, "source": "crm", "generation": "g1", "offset": 0}
        control.ask(settings.data_path, "alpha", "retry", "mended", **place)
        until(lambda: len(alpha.got) == 3, lanes.step)  # bob's first try is refused too, and is not tried again
        lanes.close()
    assert finals(store)["alpha", dead] == ["dead_lettered", "acknowledged"]
    assert settled(store) == sorted([dead, second])  # once, although the dead letter went out later
    rows = store.arrow("attempts", ["cycle", "exchanges", "predicted"]).sort_by("cycle").to_pylist()
    assert [one["event_id"] for row in rows for one in row["exchanges"] or ()] == sorted([dead, second])
    assert rows[0]["predicted"][0] is not None
    kinds = [json.loads(e)["kind"] for e in store.arrow("attempts", ["entry"])["entry"].to_pylist() if e]
    assert kinds.count("lane_paused") == kinds.count("lane_resumed") == kinds.count("replayed") == 1


def test_410_pauses_the_lane_for_good(spark: SparkSession, stage: Stage) -> None:
    alpha = Endpoint(lambda event_id, times: 410)
    with serving(alpha):
        settings, store, journal = stage({"alpha": alpha.url})
        journal.batch([("ann", {"alpha": "allow"})])
        lanes = Cycle(spark, store, settings, settings.keyring)
        lanes.step()
        lanes.step()
        lanes.close()
        again = Cycle(spark, store, settings, settings.keyring)
    assert "410" in again.lanes["alpha"].state.paused
    assert len(again.lanes["alpha"].state.unsettled) == 1
    assert alpha.got != []


def test_a_restart_is_the_state_before(spark: SparkSession, stage: Stage) -> None:
    alpha = Endpoint(lambda event_id, times: 503 if event_id.endswith("2") else 200)
    with serving(alpha):
        settings, store, journal = stage({"alpha": alpha.url})
        ids = journal.batch([(f"p{n}", {"alpha": "allow"}) for n in range(5)])
        before = Cycle(spark, store, settings, settings.keyring)
        before.step()
        after = Cycle(spark, store, settings, settings.keyring)
    live, found = before.lanes["alpha"].state, after.lanes["alpha"].state
    assert found.unsettled == live.unsettled
    assert found.unsettled.keys() == {ids[2]}
    assert (found.cursors, found.seq) == (live.cursors, live.seq)
    assert after.books.pages == before.books.pages


def test_idle_costs_no_job_and_almost_no_time(spark: SparkSession, stage: Stage) -> None:
    alpha = Endpoint()
    with serving(alpha):
        settings, store, journal = stage({"alpha": alpha.url})
        journal.batch([(f"p{n}", {"alpha": "allow"}) for n in range(3)])
        lanes = Cycle(spark, store, settings, settings.keyring)
        until(lambda: lanes.step().idle, lambda: None)
        jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
        began = time.process_time()
        for _ in range(20):
            assert lanes.step().idle
        assert (time.process_time() - began) / 20 < 0.02
        assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(None)) == jobs
        assert lanes.idle(60)
        lanes.close()


@pytest.mark.parametrize("small", [500, 0])
def test_nothing_comes_after_the_send(
    spark: SparkSession, stage: Stage, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    alpha, plans = Endpoint(), []
    real = job.sending

    def watched(*given: Any) -> Any:
        frame = real(*given)
        plans.append(frame._jdf.queryExecution().executedPlan().toString())
        return frame

    monkeypatch.setattr(cycle, "sending", watched)
    monkeypatch.setattr(job, "SMALL", small)
    monkeypatch.setattr(job, "PER_TASK", 1)
    with serving(alpha):
        settings, store, journal = stage({"alpha": alpha.url})
        journal.batch([(f"p{n}", {"alpha": "allow"}) for n in range(3)])
        lanes = Cycle(spark, store, settings, settings.keyring)
        lanes.step()
        lanes.close()
    assert len(alpha.got) == 3
    first, *rest = plans[0].splitlines()
    assert "MapInArrow" in first
    assert sum("MapInArrow" in line for line in plans[0].splitlines()) == 1
    assert any("Sort" in line for line in rest)
    assert ("BroadcastHashJoin" in plans[0]) == (small == 0)
    assert "example.com" not in plans[0]


# Each point with the promise it could break; the recovery suite runs all promises through every point at once.
CRASHES = [
    ("lanes.after_intent", "at-most-once"),
    ("lanes.after_intent", "exactly-once"),
    ("lanes.after_send", "at-least-once"),
    ("lanes.after_send", "at-most-once"),
    ("lanes.after_attempts_commit", "exactly-once"),
]
RUN = """
import sys, time
from pathlib import Path
from tidings.lanes.cycle import Cycle
from tidings.session import session
from tidings.settings import load
from tidings.store import Store
settings = load(sys.argv[1])
spark = session(Path(sys.argv[1]) / "spark", slots=2, memory="1g")
lanes = Cycle(spark, Store(settings.data_path / "tables"), settings, settings.keyring)
while True:  # at-most-once goes by the slow job, which a later step collects
    lanes.step()
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("point", "semantics"), CRASHES)
def test_a_crash_at_every_point_keeps_every_promise(
    spark: SparkSession, stage: Stage, tmp_path: Path, point: str, semantics: str
) -> None:
    alpha = Endpoint()
    with serving(alpha):
        settings, store, journal = stage({"alpha": alpha.url + f"\nsemantics: {{default: {semantics}}}"})
        ids = journal.batch([("ann", {"alpha": "allow"}), ("bob", {"alpha": "allow"})], semantics=semantics)
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(tmp_path)],
            env=os.environ | {"TIDINGS_CRASH_AT": f"{point}:1"},
            capture_output=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
        sent = dict(alpha.seen)
        lanes = Cycle(spark, store, settings, settings.keyring)
        until(lambda: settled(store) == ids, lanes.step, 90)
        lanes.close()
    ends = finals(store)
    assert all(len(found) == 1 for found in ends.values())
    if semantics == "at-most-once":
        assert max(alpha.seen.values(), default=0) <= 1
        lost = point != "lanes.after_attempts_commit"
        assert {final for found in ends.values() for final in found} == {"in_doubt" if lost else "acknowledged"}
    else:
        assert {final for found in ends.values() for final in found} == {"acknowledged"}
        assert set(alpha.seen) == set(ids)
        again = point == "lanes.after_send"
        assert all(alpha.seen[i] == sent.get(i, 0) + (1 if again or not sent else 0) for i in ids)
