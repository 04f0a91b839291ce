"""Predicted and realised: a lane on a virtual clock keeps what it foretold, and says before it happens what will be late."""

from __future__ import annotations

import json
import random
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import Journal, operator

from tidings.channels.call import Outcome
from tidings.lanes import attempts
from tidings.lanes.breaker import Breaker
from tidings.lanes.lane import Lane
from tidings.lanes.machine import NEVER, LaneState, apply, next_due, offer, plan
from tidings.lanes.member import Delivery, Feed, PlannedCall, Rules, Sent
from tidings.lanes.semantics import judge
from tidings.lanes.sla import at_risk, due_by, foretell, prospect
from tidings.report.sla import percentile
from tidings.store import Store
from tidings.verbs import report

FEED = Feed("crm", "g1")


def delivery(offset: int, subject: str = "", **more: Any) -> Delivery:
    return Delivery(f"e{offset}", subject or f"p{offset}", FEED, offset, "email", **more)


def entered(state: LaneState, deliveries: list[Delivery], now: float, latency: float) -> list[Delivery]:
    new = offer(state, FEED, deliveries, deliveries[-1].offset)
    foretell(state, new, prospect(state, latency, now), now)
    return deliveries


def kept(state: LaneState, now: float, latency: float) -> dict[str, float]:
    """Every call takes the latency; returns when each delivery was acknowledged."""
    done: dict[str, float] = {}
    flying: list[tuple[float, PlannedCall]] = []
    while state.unsettled:
        flying += [(now + latency, call) for call in plan(state, now)]
        back = [pair for pair in flying if pair[0] <= now + 1e-9]
        flying = [pair for pair in flying if pair[0] > now + 1e-9]
        for at, call in back:
            for final in apply(state, call, [Outcome(m.event_id, "acknowledged", "ok") for m in call.members], at):
                done[final.event_id] = at
        moments = [at for at, _ in flying] + [due for due in [next_due(state, now)] if now < due < NEVER]
        now = min(moments, default=now + 0.01)
    return done


@pytest.mark.parametrize("seed", range(20))
def test_what_was_foretold_is_what_happens_while_calls_go_on_as_they_went(seed: int) -> None:
    rng = random.Random(seed)
    latency = rng.choice([0.05, 0.2, 1.0])
    rules = {"batch": rng.choice([1, 5]), "concurrency": rng.randint(1, 8), "per_second": rng.choice([0.0, 5.0])}
    state = LaneState(Rules("x", **rules))
    rows = entered(
        state, [delivery(n, since=100.0, priority=rng.choice([0, 1, 1, 1])) for n in range(200)], 100.0, latency
    )
    done = kept(state, 100.0, latency)
    took = max(done.values()) - 100.0
    errors = [abs(done[row.event_id] - (row.predicted or 0.0)) for row in rows]
    assert (percentile(errors, 95) or 0.0) < 0.15 * took + 2 * latency + 1.0


def test_a_hold_an_open_breaker_a_pause_and_a_parked_subject_are_in_it() -> None:
    state = LaneState(Rules("x"))
    state.pace.hold = 160.0
    (held,) = entered(state, [delivery(1)], 100.0, 0.5)
    assert held.predicted == 160.5
    state.breaker = Breaker("open", 5, 1, 200.0)
    (later,) = entered(state, [delivery(2)], 100.0, 0.5)
    assert later.predicted is not None
    assert 200.5 <= later.predicted < 201.0
    state.breaker, state.pace.hold = Breaker(), 0.0
    state.unsettled["e1"].due = 500.0
    (behind,) = entered(state, [delivery(3, "p1")], 100.0, 0.5)
    assert behind.predicted == 501.0, "after its subject's retry, a call later"
    state.paused = "a drill"
    (unknown,) = entered(state, [delivery(4)], 100.0, 0.5)
    assert unknown.predicted is None
    assert at_risk(state, prospect(state, 0.5, 100.0), 100.0).at_risk == 4, "a paused lane keeps no promise"


def test_the_earlier_of_promise_and_statute_counts() -> None:
    rules = Rules("x", sla={"email": 60.0})
    assert due_by(rules, delivery(1, since=100.0)) == 160.0
    assert due_by(rules, delivery(1, since=100.0, deadline=130.0)) == 130.0
    assert due_by(rules, delivery(1, since=100.0, deadline=9_999.0)) == 160.0
    assert due_by(Rules("x"), delivery(1, since=100.0)) == 1000.0


def test_a_breach_is_said_before_it_happens_and_only_of_what_will_be_late() -> None:
    state = LaneState(Rules("x", per_second=1.0, concurrency=1, sla={"email": 60.0}))
    entered(state, [delivery(n, since=0.0) for n in range(100)], 0.0, 0.1)
    risk = at_risk(state, prospect(state, 0.1, 0.0), 0.0)
    assert (risk.waiting, risk.late) == (100, 0)
    assert 38 <= risk.at_risk <= 41, "sixty can be told in sixty seconds"
    assert risk.nearest == 60.0
    for now in range(1, 70):
        for call in plan(state, float(now)):
            apply(state, call, [Outcome(call.members[0].event_id, "acknowledged", "ok")], float(now))
    risk = at_risk(state, prospect(state, 0.1, 61.0), 61.0)
    assert risk.late == risk.waiting > 0


def test_one_call_of_a_person_at_a_time_is_counted_on() -> None:
    state = LaneState(Rules("x", concurrency=8, sla={"email": 10.0}))
    rows = entered(state, [delivery(n, "ann", since=0.0) for n in range(30)], 0.0, 1.0)
    assert [row.predicted for row in rows[:2]] == [1.0, 2.0]
    assert at_risk(state, prospect(state, 1.0, 0.0), 0.0).at_risk > 15
    others = LaneState(Rules("x", concurrency=8, sla={"email": 10.0}))
    entered(others, [delivery(n, since=0.0) for n in range(30)], 0.0, 1.0)
    assert at_risk(others, prospect(others, 1.0, 0.0), 0.0).at_risk == 0


def test_a_thousand_events_of_one_person_are_foretold_at_once() -> None:
    state = LaneState(Rules("x", window=20_000))
    begun = time.monotonic()
    entered(state, [delivery(n, "ann", since=0.0) for n in range(10_000)], 0.0, 0.1)
    at_risk(state, prospect(state, 0.1, 0.0), 0.0)
    assert time.monotonic() - begun < 5, "each against all the others takes minutes"


def test_half_of_a_statutes_time_gone_is_worth_a_word_whatever_is_predicted() -> None:
    state = LaneState(Rules("x", sla={"email": 10_000.0}))
    entered(state, [delivery(1, since=0.0, deadline=1_000.0)], 0.0, 0.1)
    assert at_risk(state, prospect(state, 0.1, 400.0), 400.0).at_risk == 0
    assert at_risk(state, prospect(state, 0.1, 501.0), 501.0).at_risk == 1


def test_a_lane_learns_how_much_later_than_predicted_its_calls_are_answered() -> None:
    lane = Lane(None, LaneState(Rules("x")), latency_s=0.1)  # type: ignore[arg-type]
    for n in range(30):
        now = 10.0 * n
        (row,) = [delivery(n)]
        offer(lane.state, FEED, [row], n)
        foretell(lane.state, 1, lane.prospect(now), now)
        (call,) = plan(lane.state, now)
        told = judge(lane.state.rules, call, [Outcome(row.event_id, "acknowledged", "ok", "A2", 200)], now, now + 0.9)
        made = attempts.made_row(lane.state.rules, call, told, (now + 0.8, now + 0.9), BY)
        assert made["predicted"] == [attempts.when(row.predicted or 0.0)]
        lane.settle(call, made)
    assert 0.75 < lane.around_s < 0.85


BY = attempts.Stamp("tidings/shop", "webhook", "http://127.0.0.1/1")


def test_the_report_compares_what_was_predicted_first_with_what_happened(tmp_path: Path) -> None:
    settings = operator(
        tmp_path, {"alpha": "http://127.0.0.1:1/hook\nsla: {default: 5}", "beta": "http://127.0.0.1:1/"}
    )
    store = Store(settings.data_path / "tables")
    soon = datetime.now(UTC) + timedelta(seconds=2)
    ids = Journal(settings, store).batch([(f"p{n}", {"alpha": "allow"}) for n in range(3)])
    ids += Journal(settings, store, number=1).batch([("p9", {"alpha": "allow"})], deadline=soon)
    begun, rows, rules = time.time(), [], Rules("alpha")
    for seq, (event, attempt, result, took, expected) in enumerate(
        [
            (ids[0], 1, "acknowledged", 1.0, 1.25),
            (ids[1], 1, "transient", 1.0, 1.0),
            (ids[1], 2, "acknowledged", 9.0, 8.0),  # the first prediction counts
            (ids[3], 1, "acknowledged", 4.0, 4.0),  # within the promise, after the statute's deadline
        ],
        1,
    ):
        offset = ids.index(event) if event != ids[3] else 2**24
        member = Sent(event, offset, "at-least-once", attempt, "email", predicted=begun + expected)
        call = PlannedCall("alpha", seq, FEED, "send", (member,), begun, False)
        told = judge(rules, call, [Outcome(event, result, "code", "A2", 200)], begun, begun + took)  # type: ignore[arg-type]
        rows.append(attempts.made_row(rules, call, told, (begun, begun + took), BY))
    folder = store.fresh("attempts")
    attempts.write(rows, folder)
    cursors = {"lane/alpha": 4, "lane/alpha/since": 1, f"lane/alpha/{FEED}": 2**24, f"lane/alpha/{FEED}/oldest": 2}
    store.commit("attempts", folder, app="lanes", version=1, cursors=cursors)
    app = typer.Typer(pretty_exceptions_enable=False)
    report.register(app)
    result = CliRunner().invoke(app, ["report", "sla", "-C", str(tmp_path), "--json"], catch_exceptions=False)
    alpha, beta = json.loads(result.stdout)["subscribers"]
    (kind,) = alpha["types"]
    assert (kind["acknowledged"], kind["late"], kind["predicted"]) == (3, 2, 3)
    assert kind["error_p50_s"] == pytest.approx(0.25, abs=0.01)
    assert kind["error_p95_s"] == pytest.approx(8.0, abs=0.01)
    assert (alpha["waiting"], beta["waiting"], beta["types"]) == (1, 0, [])
    text = CliRunner().invoke(app, ["report", "sla", "--subscriber", "alpha", "-C", str(tmp_path)]).stdout
    assert "alpha: 1 wait" in text
    assert "beta" not in text
