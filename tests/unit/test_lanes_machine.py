"""The lane machine's rules one at a time, on a clock that is only a number."""

from __future__ import annotations

import pytest

from tidings.channels.call import Capabilities, Outcome
from tidings.lanes import machine
from tidings.lanes.breaker import Breaker
from tidings.lanes.machine import LaneState, apply, next_due, offer, plan
from tidings.lanes.member import Delivery, Feed, PlannedCall, Rules
from tidings.lanes.recover import Recorded, Told, in_doubt, last_breaker, retrace
from tidings.lanes.semantics import CRASHED

FEED = Feed("crm", "g1")


def delivery(offset: int, subject: str = "", **more: object) -> Delivery:
    return Delivery(f"e{offset}", subject or f"p{offset}", FEED, offset, "email", **more)  # type: ignore[arg-type]


def lane(*deliveries: Delivery, **rules: object) -> LaneState:
    state = LaneState(Rules("klaviyo", **rules))  # type: ignore[arg-type]
    offer(state, FEED, deliveries, deliveries[-1].offset if deliveries else -1)
    return state


def answers(call: PlannedCall, result: str, **more: object) -> list[Outcome]:
    return [Outcome(m.event_id, result, "code", **more) for m in call.members]  # type: ignore[arg-type]


def ids(calls: list[PlannedCall]) -> list[list[str]]:
    return [[m.event_id for m in call.members] for call in calls]


def test_the_window_stops_the_cursor_and_a_settled_delivery_moves_it() -> None:
    rows = [delivery(n) for n in range(1, 6)]
    state = LaneState(Rules("slow", window=3, concurrency=1))
    assert offer(state, FEED, rows, 9) == 3
    assert state.cursors[FEED] == 3
    assert state.oldest(FEED) == 1
    (call,) = plan(state, 0.0)
    apply(state, call, answers(call, "acknowledged"), 0.0)
    assert (state.room, state.oldest(FEED)) == (1, 2)
    assert offer(state, FEED, rows, 9) == 1
    assert state.cursors[FEED] == 4


def test_a_reader_that_finds_nothing_still_moves_the_cursor() -> None:
    state = LaneState(Rules("x"))
    offer(state, FEED, [], 77)
    assert (state.cursors[FEED], state.oldest(FEED)) == (77, 78)


def test_one_delivery_per_subject_and_a_failure_parks_only_that_subject() -> None:
    state = lane(delivery(1, "ann"), delivery(2, "ann"), delivery(3, "bob"))
    first = plan(state, 0.0)
    assert ids(first) == [["e1"], ["e3"]]
    apply(state, first[0], answers(first[0], "transient", status=503), 0.0)
    apply(state, first[1], answers(first[1], "acknowledged"), 0.0)
    assert plan(state, 1.0) == []
    assert state.parked(1.0) == 1
    due = next_due(state, 1.0)
    assert 5.0 <= due <= 5.5
    (again,) = plan(state, due)
    assert (again.members[0].event_id, again.members[0].attempt) == ("e1", 2)
    apply(state, again, answers(again, "acknowledged"), due)
    assert ids(plan(state, due)) == [["e2"]]


def test_two_feeds_share_a_subject_without_two_calls_in_flight() -> None:
    other = Feed("erp", "g1")
    state = lane(delivery(5, "ann", since=10.0))
    offer(state, other, [Delivery("x1", "ann", other, 1, "email", since=4.0)], 1)
    (call,) = plan(state, 20.0)
    assert call.members[0].event_id == "x1"
    apply(state, call, answers(call, "transient", status=500), 20.0)
    assert plan(state, 21.0) == []  # begun work goes first, even when the other feed has something older now


def test_batches_hold_one_semantics_and_one_change_type() -> None:
    state = lane(
        delivery(1),
        delivery(2),
        delivery(3, semantics="at-most-once"),
        delivery(4),
        delivery(5),
        batch=3,
        concurrency=9,
    )
    calls = plan(state, 0.0)
    assert sorted(map(tuple, ids(calls))) == [("e1", "e2", "e4"), ("e3",), ("e5",)]
    assert [call.intent for call in sorted(calls, key=lambda c: c.members[0].event_id)] == [False, True, False]


def test_a_poison_is_isolated_by_halving_and_costs_the_others_no_try() -> None:
    state = lane(*[delivery(n) for n in range(1, 9)], batch=8, concurrency=8)
    ended: dict[str, str] = {}
    calls = 0
    while state.unsettled:
        for call in plan(state, 0.0):
            calls += 1
            bad = any(m.event_id == "e5" for m in call.members)
            back = answers(call, "terminal", status=400) if bad else answers(call, "acknowledged")
            for final in apply(state, call, back, 0.0):
                ended[final.event_id] = final.final
    assert {name for name, final in ended.items() if final == "dead_lettered"} == {"e5"}
    assert len(ended) == 8
    assert calls <= 7


def test_named_poison_ends_alone_while_the_rest_of_its_call_is_acknowledged() -> None:
    state = lane(delivery(1), delivery(2), batch=2)
    (call,) = plan(state, 0.0)
    finals = apply(
        state, call, [Outcome("e1", "terminal", "422", status=422), Outcome("e2", "acknowledged", "200")], 0.0
    )
    assert [(f.event_id, f.final) for f in finals] == [("e1", "dead_lettered"), ("e2", "acknowledged")]


def test_a_missing_outcome_is_in_doubt_never_forgotten() -> None:
    state = lane(delivery(1), delivery(2, semantics="at-most-once"), concurrency=2)
    ends = [final for call in plan(state, 0.0) for final in apply(state, call, [], 0.0)]
    assert [(f.event_id, f.final) for f in ends] == [("e2", "in_doubt")]
    assert state.unsettled["e1"].doubted


def test_the_breaker_opens_holds_back_without_attempts_and_asks_with_one_call() -> None:
    state = lane(*[delivery(n) for n in range(1, 40)], breaker_after=3, concurrency=3)
    for call in plan(state, 0.0):
        apply(state, call, answers(call, "transient", status=503), 0.0)
    assert state.breaker.look(0.0) == "open"
    assert plan(state, 9.9) == []
    assert all(d.attempt <= 1 for d in state.unsettled.values())
    assert next_due(state, 9.9) == 10.0
    (probe,) = plan(state, 10.0)
    apply(state, probe, answers(probe, "transient", status=503), 10.0)
    assert state.breaker.until == 30.0  # twice as long
    (probe,) = plan(state, 30.0)
    apply(state, probe, answers(probe, "acknowledged"), 30.0)
    assert state.breaker.look(30.0) == "closed"
    assert len(plan(state, 30.0)) == 2  # what piled up comes back step by step


def test_a_throttled_call_holds_the_whole_lane_and_costs_no_try() -> None:
    state = lane(delivery(1), delivery(2), concurrency=1)
    (call,) = plan(state, 0.0)
    apply(state, call, answers(call, "throttled", status=429, retry_after=40.0), 0.0)
    assert plan(state, 39.9) == []
    assert state.unsettled["e1"].tries == 0
    assert next_due(state, 1.0) == 40.0
    assert state.breaker.failures == 0


def test_the_rate_is_a_bucket_of_one_second() -> None:
    state = lane(*[delivery(n) for n in range(1, 50)], per_second=10.0, concurrency=100)
    sent = 0
    for tenth in range(31):
        for call in plan(state, tenth / 10):
            sent += 1
            apply(state, call, answers(call, "acknowledged"), tenth / 10)
    assert 38 <= sent <= 41  # one burst of 10, then 10 per second for 3 seconds


def test_aging_lifts_a_low_tier_over_a_steady_stream_of_urgent_ones() -> None:
    state = lane(delivery(1, priority=2, since=0.0), per_second=1.0, concurrency=1, aging_s=60.0, window=50)
    offset, now = 1, 0.0
    while "e1" in state.unsettled:
        fresh = [delivery(offset + n, priority=0, since=now) for n in (1, 2)]  # twice what the lane can carry
        offset += 2
        offer(state, FEED, fresh, offset)
        for call in plan(state, now):
            apply(state, call, answers(call, "acknowledged"), now)
        now += 1.0
        assert now < 300, "starved"
    assert now > 60, "tiers would mean nothing"


def test_an_urgent_delivery_lifts_the_one_of_its_subject_before_it() -> None:
    state = lane(
        delivery(1, "bob", priority=1), delivery(2, "ann", priority=2), delivery(3, "ann", priority=0), concurrency=1
    )
    assert ids(plan(state, 0.0)) == [["e2"]]


def test_a_deferred_delivery_parks_its_subject_until_released_or_refused_at_its_deadline() -> None:
    state = lane(delivery(1, "ann", deferred=True, deadline=100.0), delivery(2, "ann"), delivery(3, "bob"))
    assert ids(plan(state, 0.0)) == [["e3"]]
    assert machine.overdue(state, 99.0) == []
    assert next_due(state, 0.0) == 100.0
    ((late, final, reason),) = machine.overdue(state, 100.0)
    assert (late.event_id, final, reason) == ("e1", "refused", "undecided_at_deadline")
    machine.skip(state, "e1", final, reason, 100.0)
    assert ids(plan(state, 100.0)) == [["e2"]]


def test_a_release_lets_the_subject_go_on() -> None:
    state = lane(delivery(1, "ann", deferred=True, deadline=100.0))
    machine.release(state, "e1")
    assert ids(plan(state, 0.0)) == [["e1"]]


def test_the_gate_does_not_end_a_delivery_that_is_in_flight() -> None:
    state = lane(delivery(1))
    (call,) = plan(state, 0.0)
    assert machine.skip(state, "e1", "erased", "erased", 0.0) is None
    apply(state, call, answers(call, "transient"), 0.0)
    assert machine.skip(state, "e1", "erased", "erased", 0.0) is not None


def test_a_paused_lane_takes_rows_and_sends_nothing() -> None:
    state = lane(delivery(1))
    state.paused = "stop"
    assert plan(state, 0.0) == []
    assert next_due(state, 0.0) == machine.NEVER


def test_410_pauses_the_lane_and_keeps_the_delivery() -> None:
    state = lane(delivery(1))
    (call,) = plan(state, 0.0)
    assert apply(state, call, answers(call, "terminal", status=410), 0.0) == []
    assert "410" in state.paused
    assert "e1" in state.unsettled


@pytest.mark.parametrize("status", [401, 403])
def test_a_shut_door_opens_the_breaker_instead_of_filling_the_dead_letters(status: int) -> None:
    state = lane(*[delivery(n) for n in range(1, 20)], concurrency=10, breaker_after=5)
    for call in plan(state, 0.0):
        assert apply(state, call, answers(call, "terminal", status=status), 0.0) == []
    assert state.breaker.look(0.0) == "open"


def test_a_reopened_dead_letter_goes_first_and_does_not_hold_the_cursor_back() -> None:
    state = lane(delivery(7, "ann"))
    assert machine.reopen(state, delivery(2, "ann"), 1)
    assert not machine.reopen(state, delivery(2, "ann"), 1)
    assert state.oldest(FEED) == 7
    (call,) = plan(state, 0.0)
    assert call.members[0].event_id == "e2"
    (final,) = apply(state, call, answers(call, "acknowledged"), 0.0)
    assert final.reopened


def test_what_is_taken_up_again_stands_by_offset_but_behind_what_was_begun() -> None:
    state = lane(delivery(7, "ann"), delivery(9, "ann"))
    (call,) = plan(state, 0.0)
    for offset in (5, 8, 2):
        assert machine.reopen(state, delivery(offset, "ann"), 1)
    assert plan(state, 0.0) == []  # the one that may have had its effect comes first
    apply(state, call, answers(call, "acknowledged"), 0.0)
    told = []
    while state.unsettled:
        (call,) = plan(state, 0.0)
        told.append(call.members[0].offset)
        apply(state, call, answers(call, "acknowledged"), 0.0)
    assert told == [2, 5, 8, 9]


def test_a_fresh_lane_is_due_at_once_and_an_empty_bucket_says_when() -> None:
    state = lane(delivery(1), delivery(2), per_second=1.0, concurrency=5)
    assert next_due(state, 50.0) <= 50.0
    (call,) = plan(state, 50.0)
    apply(state, call, answers(call, "acknowledged"), 50.0)
    assert next_due(state, 50.0) == 51.0


def test_a_withdrawn_delivery_leaves_its_call_and_can_be_ended() -> None:
    state = lane(delivery(1), delivery(2), batch=2)
    (call,) = plan(state, 0.0)
    rest = machine.withdraw(state, call, {"e1"})
    assert rest is not None
    assert ids([rest]) == [["e2"]]
    assert machine.skip(state, "e1", "erased", "no_key", 0.0) is not None
    apply(state, rest, answers(rest, "acknowledged"), 0.0)
    assert not state.unsettled
    assert not state.in_flight
    state = lane(delivery(3))
    (call,) = plan(state, 0.0)
    assert machine.withdraw(state, call, {"e3"}) is None
    assert ids(plan(state, 0.0)) == [["e3"]]


def test_a_stop_of_our_own_neither_opens_the_breaker_nor_is_counted_when_read_back() -> None:
    state = lane(delivery(1, semantics="exactly-once"), breaker_after=1, capable=Capabilities(idempotency_key=True))
    (call,) = plan(state, 0.0)
    apply(state, call, in_doubt(call), 100.0)
    assert state.breaker == Breaker()
    standing = state.unsettled["e1"]
    told = Told("e1", 1, "in_doubt", CRASHED, standing.due, None)
    row = Recorded(1, False, FEED, (told,), 0.0, 100.0)
    assert last_breaker(state.rules, [row]) == Breaker()
    assert retrace(delivery(1), row, told).tries == standing.tries == 0


def test_a_withdrawal_passes_what_is_deferred_and_nothing_of_its_own_type() -> None:
    held = delivery(1, "ann", deferred=True, priority=1)
    behind = delivery(2, "ann", priority=1)
    grant = Delivery("grant", "ann", FEED, 3, "consent", priority=0)
    withdrawal = Delivery("withdrawal", "ann", FEED, 4, "consent", priority=0)
    state = lane(held, behind, grant, withdrawal)
    (first,) = plan(state, 0.0)
    assert ids([first]) == [["grant"]], "in the order of its own type"
    machine.release(state, "e1")
    assert plan(state, 0.0) == [], "one of a subject at a time, also when what was deferred is released meanwhile"
    apply(state, first, answers(first, "acknowledged"), 0.0)
    assert ids(plan(state, 0.0)) == [["e1"]]


def test_nothing_passes_a_deferred_delivery_that_is_as_urgent() -> None:
    held = delivery(1, "ann", deferred=True, priority=0)
    state = lane(held, Delivery("consent", "ann", FEED, 2, "consent", priority=0))
    assert plan(state, 0.0) == []
