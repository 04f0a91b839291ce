"""A lane's state after a restart: a fold over what the tables say. Pure: rows in, state out.

Read the journal from each feed's oldest unsettled offset to its cursor, and the lane's attempts from the first call on that
speaks of anything there. What is not in an attempt was not sent, except under an intent: an intent without its outcome is
in doubt. The pace is not recovered and the breaker only guessed; both are learned again from the next calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidings.channels.call import Outcome
from tidings.lanes.breaker import Breaker, after_call
from tidings.lanes.machine import LaneState, enqueue, move, reopen, sent
from tidings.lanes.member import Delivery, Feed, FinalName, PlannedCall, Rules, Verdict
from tidings.lanes.semantics import ABSENT, CRASHED, ISOLATING, NOT_STARTED, OURS


@dataclass(frozen=True)
class Told:
    """One member of an attempts row."""

    event_id: str
    attempt: int
    result: str
    code: str
    next_due: float | None
    final: FinalName | None
    reference: str = ""


@dataclass(frozen=True)
class Recorded:
    """One row of the attempts table, as far as a restart needs it."""

    seq: int
    intent: bool
    feed: Feed
    members: tuple[Told, ...]
    started: float = 0.0
    finished: float = 0.0
    carried: bool = False  # said again so that the rows before it need not be read


@dataclass(frozen=True)
class Committed:
    """What the lane's application transactions said last."""

    seq: int = 0
    since: int = 1
    cursors: Mapping[Feed, int] = field(default_factory=dict)
    oldest: Mapping[Feed, int] = field(default_factory=dict)


def recorded_verdicts(verdicts: Sequence[Verdict], results: Sequence[str]) -> tuple[Told, ...]:
    """What a row keeps of its verdicts; the rest follows from the rows before it."""
    return tuple(
        Told(v.event_id, v.attempt, result, v.code, None if v.final else v.due, v.final, v.reference)
        for v, result in zip(verdicts, results, strict=True)
    )


def recover(
    rules: Rules,
    committed: Committed,
    journal: Mapping[Feed, Sequence[Delivery]],
    rows: Iterable[Recorded],
    reopened: Mapping[int, Sequence[Delivery]] | None = None,
    outside: Iterable[Delivery] = (),
) -> tuple[LaneState, list[PlannedCall]]:
    """The state as it was, and the calls that were intended and never reported.

    `reopened` are deliveries that had ended and were taken up again, by the row that recorded the wish; `outside` are
    deliveries below the oldest that these rows say were accepted.
    """
    state = LaneState(rules=rules, seq=committed.seq)
    for delivery in sorted(outside, key=lambda d: (d.feed, d.offset)):
        if delivery.offset < committed.oldest.get(delivery.feed, 0):
            enqueue(state, delivery)
    for feed, cursor in committed.cursors.items():
        state.cursors[feed] = cursor
        for delivery in journal.get(feed, ()):
            if committed.oldest.get(feed, 0) <= delivery.offset <= cursor:
                enqueue(state, delivery)
    intended: dict[int, Recorded] = {}
    for row in sorted(rows, key=lambda row: (row.seq, not row.intent)):
        state.seq = max(state.seq, row.seq)
        _begin(state, row)
        for delivery in (reopened or {}).get(row.seq, ()):
            reopen(state, delivery, row.seq)
        if row.intent:
            intended[row.seq] = row
            continue
        intended.pop(row.seq, None)
        for told in row.members:
            standing = state.unsettled.get(told.event_id)
            if standing is not None:
                move(state, retrace(standing, row, told), row.finished)
    return state, [call for row in intended.values() if (call := _orphan(state, row)) is not None]


def _begin(state: LaneState, row: Recorded) -> None:
    for told in row.members:
        delivery = state.unsettled.get(told.event_id)
        if delivery is not None and (delivery.begun is None or row.carried):
            delivery.begun = row.seq


def retrace(delivery: Delivery, row: Recorded, told: Told) -> Verdict:
    """The verdict behind a recorded member, from the member and where its delivery stood before."""
    begun = told.code != NOT_STARTED
    failed = told.result in ("transient", "in_doubt", "terminal") and told.code not in (ISOLATING, ABSENT, CRASHED)
    still = delivery.awaiting and told.final is None and (told.result != "transient" or not begun)
    failed = failed and not still
    first = row.started if delivery.first is None or row.carried else delivery.first
    awaiting = told.final is None and (told.result == "accepted" or still)
    doubted = (delivery.doubted or (begun and told.result == "in_doubt")) and told.code != ABSENT and not awaiting
    return Verdict(
        event_id=told.event_id,
        final=told.final,
        code=told.code,
        due=math.inf if told.next_due is None and awaiting else told.next_due or 0.0,
        tries=0 if row.carried else delivery.tries + int(begun and failed),
        attempt=told.attempt,
        first=first if told.attempt else None,
        limit=len(row.members) // 2 if told.code == ISOLATING else 0 if row.carried else delivery.limit,
        doubted=doubted,
        sent_in=(delivery.sent_in or row.seq) if doubted else 0,
        awaiting=awaiting,
        reference=told.reference,
    )


def _orphan(state: LaneState, row: Recorded) -> PlannedCall | None:
    """The intended call with the members that are still open; they are in flight until they are resolved."""
    found = [state.unsettled[told.event_id] for told in row.members if told.event_id in state.unsettled]
    if not found:
        return None
    return PlannedCall(state.rules.name, row.seq, row.feed, "send", tuple(map(sent, found)), row.started, True)


def in_doubt(call: PlannedCall) -> list[Outcome]:
    """An intent with no outcome: the request may have left, so every member is in doubt."""
    words = "we stopped between the intent and its record"
    return [Outcome(member.event_id, "in_doubt", CRASHED, detail=words) for member in call.members]


def last_breaker(rules: Rules, rows: Iterable[Recorded]) -> Breaker:
    """The breaker as far as these rows tell: the best guess after a restart, corrected by the next calls."""
    breaker = Breaker()
    for row in sorted(rows, key=lambda row: row.finished):
        if not row.intent and row.members:
            breaker = after_call(breaker, rules, map(_felt, row.members), row.finished)
    return breaker


def _felt(told: Told) -> str:
    if told.code in OURS:
        return told.code
    shut = told.result == "terminal" and told.final is None and told.code != ISOLATING
    return "transient" if shut else told.result
