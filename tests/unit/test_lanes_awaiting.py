"""Accepted is not acknowledged: what waits for a later answer, who may give it, and what a restart knows of it."""

from __future__ import annotations

import math

from tidings.channels.call import Capabilities, Outcome
from tidings.lanes import awaiting, machine
from tidings.lanes.machine import LaneState, apply, next_due, offer, plan
from tidings.lanes.member import Delivery, Feed, PlannedCall, Rules
from tidings.lanes.semantics import NOTIFIED, UNANSWERED, judge, lacking

FEED = Feed("crm", "g1")
ASKED = Capabilities(probe=True)
HOUR = 3600.0


def lane(*subjects: str, change_type: str = "email", **rules: object) -> LaneState:
    state = LaneState(Rules("esp", **rules))  # type: ignore[arg-type]
    rows = [Delivery(f"e{n}", subject, FEED, n, change_type) for n, subject in enumerate(subjects, 1)]
    offer(state, FEED, rows, len(rows))
    return state


def said(call: PlannedCall, result: str, strength: str = "A2", **more: object) -> list[Outcome]:
    return [Outcome(m.event_id, result, "code", strength, **more) for m in call.members]  # type: ignore[arg-type]


def test_an_accepted_delivery_lets_its_subject_go_on_and_stays_open() -> None:
    state = lane("ann", "ann", capable=ASKED)
    (first,) = plan(state, 0.0)
    assert apply(state, first, said(first, "accepted", reference="job-7"), 0.0) == []
    assert set(state.unsettled) == {"e1", "e2"}
    (second,) = plan(state, 0.0)
    assert [m.event_id for m in second.members] == ["e2"]
    assert state.oldest(FEED) == 2, "an answer that takes a month must not hold the cursor's tail"


def test_it_is_asked_about_ever_more_seldom_until_it_is_answered() -> None:
    state, now, waits = lane("ann", capable=ASKED, poll_s=30.0), 0.0, []
    (call,) = plan(state, now)
    apply(state, call, said(call, "accepted", reference="job-7"), now)
    for _ in range(6):
        waits.append(next_due(state, now) - now)
        now = next_due(state, now)
        (question,) = plan(state, now)
        assert (question.kind, question.members[0].reference) == ("probe", "job-7")
        apply(state, question, said(question, "in_doubt", "A0"), now)
    assert 30.0 <= waits[0] <= 33.0
    assert waits[-1] > 2 * waits[0]
    (question,) = plan(state, next_due(state, now))
    (final,) = apply(state, question, said(question, "acknowledged", "A3"), now)
    assert (final.event_id, final.final) == ("e1", "acknowledged")


def test_where_nobody_can_be_asked_only_a_word_from_outside_ends_it() -> None:
    state = lane("ann", patience_s=HOUR)
    (call,) = plan(state, 0.0)
    apply(state, call, said(call, "accepted"), 0.0)
    assert state.unsettled["e1"].due == math.inf
    assert plan(state, 100.0) == []
    final = awaiting.answer(state, "e1", "acknowledged", "acknowledge", 200.0)
    assert final is not None
    assert final.final == "acknowledged"
    assert awaiting.answer(state, "e1", "acknowledged", "acknowledge", 201.0) is None, "said twice, ended once"


def test_patience_ends_at_the_deadline_when_that_is_later() -> None:
    state = lane("ann", "bob", patience_s=HOUR)
    state.unsettled["e2"].deadline = 5 * HOUR
    for call in plan(state, 0.0):
        apply(state, call, said(call, "accepted"), 0.0)
    assert next_due(state, 1.0) == HOUR
    assert [(d.event_id, final, code) for d, final, code in machine.overdue(state, HOUR)] == [
        ("e1", "dead_lettered", UNANSWERED)
    ]
    assert {d.event_id for d, _, _ in machine.overdue(state, 5 * HOUR)} == {"e1", "e2"}


def test_a_job_that_failed_is_for_a_person_because_later_events_may_have_gone_by() -> None:
    state = lane("ann", "ann", capable=ASKED)
    (call,) = plan(state, 0.0)
    apply(state, call, said(call, "accepted"), 0.0)
    question = next(c for c in plan(state, 40.0) if c.kind == "probe")
    (final,) = apply(state, question, said(question, "transient", "A0", status=404), 40.0)
    assert (final.event_id, final.final) == ("e1", "dead_lettered")


def test_a_weak_yes_to_an_erasure_is_a_notice_and_to_anything_else_an_acknowledgement() -> None:
    rules = {"notices": frozenset({"delete"}), "capable": ASKED}
    for strength, change_type, ends in [
        ("A0", "delete", None), ("A1", "delete", None), ("A2", "delete", "acknowledged"), ("A1", "email", "acknowledged"),
    ]:  # fmt: skip
        state = lane("ann", change_type=change_type, **rules)
        (call,) = plan(state, 0.0)
        _, (verdict,) = judge(state.rules, call, said(call, "acknowledged", strength), 0.0, 0.0)
        assert verdict.final == ends, (strength, change_type)
        assert verdict.awaiting == (ends is None)
        assert (verdict.code == NOTIFIED) == (ends is None)


def test_the_verifying_read_turns_a_notice_into_an_acknowledgement() -> None:
    state = lane("ann", change_type="delete", notices=frozenset({"delete"}), capable=ASKED)
    (call,) = plan(state, 0.0)
    assert apply(state, call, said(call, "acknowledged", "A1"), 0.0) == []
    (read,) = plan(state, 40.0)
    (final,) = apply(state, read, said(read, "acknowledged", "A3"), 40.0)
    assert final.final == "acknowledged"


def test_two_phases_hold_the_subject_until_the_commit() -> None:
    state = LaneState(Rules("sql", capable=Capabilities(two_phase=True)))
    rows = [Delivery(f"e{n}", "ann", FEED, n, "email", semantics="exactly-once") for n in (1, 2)]
    offer(state, FEED, rows, 2)
    (prepare,) = plan(state, 0.0)
    assert prepare.intent
    apply(state, prepare, said(prepare, "accepted", reference="gid"), 0.0)
    (commit,) = plan(state, 0.0)
    assert (commit.kind, [m.event_id for m in commit.members]) == ("probe", ["e1"])
    apply(state, commit, said(commit, "in_doubt", "A0"), 0.0)
    assert plan(state, 0.5) == [], "the second event may not pass a prepared one"
    (again,) = plan(state, 2.0)
    apply(state, again, said(again, "acknowledged", "A3"), 2.0)
    (second,) = plan(state, 2.0)
    assert (second.kind, second.members[0].event_id) == ("send", "e2")


def test_a_two_phase_sink_carries_nothing_less_than_exactly_once() -> None:
    assert lacking("exactly-once", Capabilities(two_phase=True)) == ""
    assert "exactly-once" in lacking("at-least-once", Capabilities(two_phase=True))


def test_what_waits_long_is_said_again_so_that_a_restart_reads_little() -> None:
    state = lane("ann", "bob", "bob", patience_s=1e9)
    first, other = plan(state, 0.0)
    apply(state, first, said(first, "accepted"), 0.0)
    apply(state, other, said(other, "acknowledged"), 0.0)
    state.seq += 100
    assert state.since() == first.seq
    (carried,) = awaiting.carry(state, 50)
    assert (carried.event_id, carried.begun) == ("e1", state.seq)
    assert state.since() >= other.seq
    assert awaiting.carry(state, 50) == []
