"""A lane's state after a restart: a fold over what the tables say. Pure: rows in, state out.

Read the journal from each feed's oldest unsettled offset to its cursor, and the attempts whose members reach that far.
What is not in an attempt was not sent, except under an intent: an intent without its outcome is in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tidings.channels.call import Outcome
from tidings.lanes.machine import LaneState, apply, enqueue, move
from tidings.lanes.member import Delivery, Feed, Final, PlannedCall, Rules, Verdict


@dataclass(frozen=True)
class Recorded:
    """One row of the attempts table, as far as a restart needs it."""

    kind: Literal["intent", "call", "skip"]
    call: PlannedCall
    verdicts: tuple[Verdict, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    at: float = 0.0


@dataclass(frozen=True)
class Committed:
    """What the lane's application transactions said last."""

    seq: int = 0
    cursors: Mapping[Feed, int] = field(default_factory=dict)
    oldest: Mapping[Feed, int] = field(default_factory=dict)


def recover(
    rules: Rules, committed: Committed, journal: Mapping[Feed, Sequence[Delivery]], rows: Iterable[Recorded]
) -> tuple[LaneState, list[PlannedCall]]:
    """The state as it was, and the calls that were intended and never reported."""
    state = LaneState(rules=rules, seq=committed.seq)
    for feed, cursor in committed.cursors.items():
        state.cursors[feed] = cursor
        for delivery in journal.get(feed, ()):
            if committed.oldest.get(feed, 0) <= delivery.offset <= cursor:
                enqueue(state, delivery)
    intended: dict[int, PlannedCall] = {}
    for row in sorted(rows, key=lambda row: (row.call.seq, row.kind != "intent")):
        state.seq = max(state.seq, row.call.seq)
        if row.kind == "intent":
            intended[row.call.seq] = row.call
            continue
        intended.pop(row.call.seq, None)
        for verdict in row.verdicts:
            move(state, verdict, row.at)
    return state, list(intended.values())


def resolve(state: LaneState, call: PlannedCall, now: float) -> tuple[list[Outcome], list[Final]]:
    """An intent with no outcome: the request may have left, so every member still open is in doubt."""
    open_ones = [sent for sent in call.members if sent.event_id in state.unsettled]
    outcomes = [
        Outcome(sent.event_id, "in_doubt", "crashed", detail="we stopped between the intent and its record")
        for sent in open_ones
    ]
    return outcomes, apply(state, call, outcomes, now)
