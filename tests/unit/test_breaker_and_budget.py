"""A subscriber in trouble: when it is left alone, how it is taken up again, and how much of a lane its retries may use."""

from __future__ import annotations

from collections.abc import Callable

from tidings.channels.call import Outcome
from tidings.lanes import machine
from tidings.lanes.breaker import Breaker, after_call
from tidings.lanes.budget import LEAST
from tidings.lanes.machine import NEVER, LaneState, apply, next_due, offer, plan
from tidings.lanes.member import Delivery, Feed, Final, PlannedCall, Rules

FEED = Feed("crm", "g1")
HOUR = 3600.0
Answer = Callable[[PlannedCall], list[Outcome]]


def delivery(offset: int) -> Delivery:
    return Delivery(f"e{offset}", f"p{offset}", FEED, offset, "email")


def lane(count: int, **rules: object) -> LaneState:
    state = LaneState(Rules("klaviyo", **rules))  # type: ignore[arg-type]
    offer(state, FEED, [delivery(n) for n in range(count)], count - 1)
    return state


def said(result: str, **more: object) -> Answer:
    return lambda call: [Outcome(m.event_id, result, "code", **more) for m in call.members]  # type: ignore[arg-type]


def run(state: LaneState, begin: float, end: float, answer: Answer) -> tuple[float, list[PlannedCall], list[Final]]:
    """Everything that is due between two moments, each call answered at once."""
    now, made, ended = begin, [], []
    while now < end:
        for call in plan(state, now):
            made.append(call)
            ended += apply(state, call, answer(call), now)
        due = next_due(state, now)
        if due == NEVER:
            break
        now = max(round(due + 0.001, 3), round(now + 0.01, 3))
    return now, made, ended


def test_half_of_the_last_calls_failing_opens_it_though_never_two_in_a_row() -> None:
    rules, breaker = Rules("x", breaker_after=5), Breaker()
    for number in range(9):
        breaker = after_call(breaker, rules, ["transient" if number % 2 else "acknowledged"], number)
        assert breaker.look(number) == "closed", "too few calls to say so"
    breaker = after_call(breaker, rules, ["transient"], 9.0)
    assert breaker.look(9.0) == "open"


def test_a_few_failures_among_many_answers_do_not_open_it() -> None:
    rules, breaker = Rules("x"), Breaker()
    for number in range(400):
        breaker = after_call(breaker, rules, ["acknowledged" if number % 4 else "in_doubt"], number)
        assert breaker.look(number) == "closed"
    assert len(breaker.recent) == rules.breaker_window


def test_after_an_outage_calls_double_from_round_to_round() -> None:
    state = lane(200, concurrency=16, breaker_after=3, retry_floor=100.0)
    run(state, 0.0, 1.0, said("transient"))
    assert state.breaker.look(1.0) == "open"
    now, rounds = state.breaker.until, []
    while len(rounds) < 6:
        calls = plan(state, now)
        rounds.append(len(calls))
        for call in calls:
            apply(state, call, said("acknowledged")(call), now)
        now += 1.0
    assert rounds == [1, 2, 4, 8, 16, 16]


def test_a_failure_while_it_is_taken_up_again_halves_the_step_and_the_waits_go_on_growing() -> None:
    rules = Rules("x", concurrency=32, breaker_after=2)
    breaker = Breaker("open", 5, 2, 10.0)
    for _ in range(6):
        breaker = after_call(breaker, rules, ["acknowledged"], 20.0)
    assert breaker.step == 7
    breaker = after_call(breaker, rules, ["transient"], 21.0)
    assert (breaker.step, breaker.look(21.0)) == (3, "closed")
    breaker = after_call(breaker, rules, ["transient"], 22.0)
    assert (breaker.look(22.0), breaker.until) == ("open", 22.0 + 4 * rules.breaker_cool_s)


def test_an_outage_of_hours_ends_nothing_and_counts_no_attempt_for_what_was_never_offered() -> None:
    state = lane(2_000, concurrency=8)
    now, made, ended = run(state, 0.0, 10 * HOUR, said("transient", status=503))
    offered = {m.event_id for call in made for m in call.members}
    untouched = [d for name, d in state.unsettled.items() if name not in offered]
    assert ended == []
    assert len(made) < 200, "one call a cooling time, not one a delivery"
    assert len(untouched) > 1_800
    assert {(d.attempt, d.tries, d.first) for d in untouched} == {(0, 0, None)}
    _, _, ended = run(state, now, now + 3 * HOUR, said("acknowledged", status=200))
    assert {final.final for final in ended} == {"acknowledged"}
    # A delivery that was offered late in the outage waits for its own schedule; nothing else does.
    assert {final.event_id for final in ended} >= {d.event_id for d in untouched}


def test_retries_that_fail_stay_a_share_of_the_calls() -> None:
    """Every third person fails for ever; the breaker is kept out of it."""
    schedule = (0.0, *[0.5] * 400)
    state = lane(0, concurrency=20, per_second=100.0, schedule=schedule, breaker_after=10**9, breaker_share=2.0)
    made: list[PlannedCall] = []
    taken, now = 0, 0.0
    while now < 60.0:
        fresh = [delivery(n) for n in range(taken, taken + 5)]
        taken += machine.offer(state, FEED, fresh, taken + 4)
        for call in plan(state, now):
            bad = int(call.members[0].event_id[1:]) % 3 == 0
            apply(state, call, said("transient" if bad else "acknowledged")(call), now)
            made.append(call)
        now = round(now + 0.1, 3)
    again = sum(call.members[0].tries > 0 for call in made)
    first = len(made) - again
    assert first == taken, "what is new is never held back by what fails"
    assert again <= LEAST + 0.2 * first + 60.0
    assert again > 0.2 * first, "the budget is used"
    assert len(state.unsettled) == len([n for n in range(taken) if n % 3 == 0]), "delayed, not dropped"


def test_retries_that_succeed_are_not_held_up() -> None:
    state = lane(1_000, concurrency=50, breaker_after=10**9, breaker_share=2.0, schedule=(0.0, 5.0, 5.0))
    _, made, ended = run(state, 0.0, 4.0, said("transient"))
    assert (len(made), ended) == (1_000, [])
    now, again, ended = run(state, 6.0, 60.0, said("acknowledged"))
    assert len(ended) == 1_000
    assert now < 12.0, "doubling, not one a second"
    assert {call.members[0].tries for call in again} == {1}


def test_a_lane_with_an_empty_budget_sleeps_until_time_fills_it() -> None:
    state = lane(
        40, concurrency=50, breaker_after=10**9, breaker_share=2.0, schedule=(0.0, 0.1, 0.1, 0.1), retry_floor=0.5
    )
    for call in plan(state, 0.0):
        apply(state, call, said("transient")(call), 0.0)
    calls = plan(state, 1.0)
    assert len(calls) == int(min(LEAST + 0.5 + 8, state.budget.most(state.rules)))
    for call in calls:
        apply(state, call, said("transient")(call), 1.0)
    assert plan(state, 1.5) == []
    assert 1.5 < next_due(state, 1.5) <= 3.0
    assert len(plan(state, next_due(state, 1.5))) == 1
