"""The gate at send: what was allowed when the event was journaled is asked again before it leaves.

An erased person has no key any more; a hook may say that consent was withdrawn or a newer event was acknowledged; time ends
what stayed undecided. What does not pass ends with a reason, and is recorded and attested like a call. What passes carries the
fields that its recipient must not see: those of the decision it was journaled with, and those that the hook adds. An event whose
decision cannot be found does not leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tidings.gate.decisions import decided_in
from tidings.lanes import machine
from tidings.lanes.job import wire_subject
from tidings.lanes.lane import Lane, Tables
from tidings.lanes.member import Delivery, Feed, Final, FinalName, PlannedCall
from tidings.lanes.slices import Sealed, keys_of

# Members about to be sent → (lane, event id) → how it ends and why; fields that must not go with it; "defer"; or None to let it go.
Regate = Callable[
    [Sequence[Mapping[str, Any]]],
    Mapping[tuple[str, str], tuple[FinalName, str] | frozenset[str] | Literal["defer"] | None],
]
# Deferred deliveries → (lane, event id) → "allow", how it ends and why, or None to go on waiting.
Redecide = Callable[
    [Sequence[Mapping[str, Any]]], Mapping[tuple[str, str], Literal["allow"] | tuple[FinalName, str] | None]
]
DECIDE_EVERY_S = 5.0


class Opened(NamedTuple):
    """What the job needs to send one event to one subscriber."""

    key: bytes
    wire: str
    redact: tuple[str, ...]


class Gate:
    """`opened` holds what passed last, for the job that sends it; nothing of it is kept longer."""

    def __init__(
        self, tables: Tables, wire_key: bytes, regate: Regate | None = None, redecide: Redecide | None = None
    ) -> None:
        self.tables, self.regate, self.redecide = tables, regate, redecide
        self._decided_at = 0.0
        self.opened: dict[tuple[str, str], Opened] = {}
        self._wire_key = wire_key
        self._decided = decided_in(tables.store.decisions)

    def passed(
        self, lanes: Mapping[str, Lane], calls: Sequence[PlannedCall], now: float
    ) -> tuple[list[PlannedCall], list[tuple[Final, int]]]:
        """The calls without the members that may not leave, and those members' ends."""
        self.opened = {}
        if not calls:
            return [], []
        keys = self._keys(calls)
        stopped, hidden = self._stopped(lanes, calls, keys)
        kept, ends = [], []
        for call in calls:
            lane = lanes[call.lane]
            gone = {m.event_id for m in call.members if (call.lane, m.event_id) in stopped}
            left = machine.withdraw(lane.state, call, gone) if gone else call
            for event_id in sorted(gone):
                verdict = stopped[call.lane, event_id]
                if verdict is None:
                    machine.defer(lane.state, event_id)
                else:
                    ends += _end(lane, event_id, *verdict, now)
            if left is None:
                continue
            kept.append(left)
            for member in left.members:
                tag, key, decision = keys[call.feed, member.event_id]
                place = (call.lane, member.event_id)
                choices = self._decided.choices(decision)
                # A pair that was not there when it was decided leaves only with an answer of the gate at send.
                decided = choices[call.lane]["redact"] if call.lane in choices else hidden[place]
                fields = {*decided, *hidden.get(place, ())}
                wire = wire_subject(self._wire_key, call.lane, tag)
                self.opened[place] = Opened(key, wire, tuple(sorted(fields)))
        return kept, ends

    def overdue(self, lanes: Iterable[Lane], now: float) -> list[tuple[Final, int]]:
        """Deliveries that end by time alone."""
        ends: list[tuple[Final, int]] = []
        for lane in lanes:
            if lane.due(now) > now:
                continue
            for delivery, final, reason in machine.overdue(lane.state, now):
                ends += _end(lane, delivery.event_id, final, reason, now)
        return ends

    def redecided(self, lanes: Mapping[str, Lane], now: float) -> list[tuple[Final, int]]:
        """Ask again about what was deferred: a fact or the policy may have changed."""
        if self.redecide is None or now - self._decided_at < DECIDE_EVERY_S:
            return []
        self._decided_at = now
        rows = [
            _row(lane.name, delivery, bytes.fromhex(delivery.subject))
            for lane in lanes.values()
            for delivery in lane.state.unsettled.values()
            if delivery.deferred
        ]
        ends: list[tuple[Final, int]] = []
        for (name, event_id), verdict in (self.redecide(rows) if rows else {}).items():
            if verdict == "allow":
                machine.release(lanes[name].state, event_id)
                lanes[name].touch()
            elif verdict is not None:
                ends += _end(lanes[name], event_id, *verdict, now)
        return ends

    def _keys(self, calls: Sequence[PlannedCall]) -> dict[tuple[Feed, str], Sealed]:
        """(feed, event id) → what opens it, read anew at every send: what was erased a moment ago is not there."""
        wanted: dict[Feed, dict[int, str]] = {}
        for call in calls:
            for member in call.members:
                wanted.setdefault(call.feed, {})[member.offset] = member.event_id
        return {
            (feed, event_id): found
            for feed, offsets in wanted.items()
            for event_id, found in keys_of(self.tables.store, self.tables.keys, feed, offsets).items()
        }

    def _stopped(
        self,
        lanes: Mapping[str, Lane],
        calls: Sequence[PlannedCall],
        keys: Mapping[tuple[Feed, str], Sealed],
    ) -> tuple[dict[tuple[str, str], tuple[FinalName, str] | None], dict[tuple[str, str], frozenset[str]]]:
        """What may not leave and why, None for what has to wait; and what leaves with less."""
        stopped: dict[tuple[str, str], tuple[FinalName, str] | None] = {}
        hidden: dict[tuple[str, str], frozenset[str]] = {}
        rows = []
        for call in calls:
            for member in call.members:
                if (call.feed, member.event_id) not in keys:
                    stopped[call.lane, member.event_id] = ("erased", "no_key")
                    continue
                decided = self._decided.choices(keys[call.feed, member.event_id].decision)
                if call.kind == "probe" and call.lane in decided:
                    continue  # a question tells the subscriber nothing new
                delivery = lanes[call.lane].state.unsettled[member.event_id]
                rows.append(_row(call.lane, delivery, keys[call.feed, member.event_id].tag))
        for place, verdict in (self.regate(rows) if self.regate and rows else {}).items():
            if isinstance(verdict, frozenset):
                hidden[place] = verdict
            elif verdict is not None:
                stopped[place] = None if verdict == "defer" else verdict
        return stopped, hidden


def _row(lane: str, delivery: Delivery, tag: bytes) -> dict[str, Any]:
    """What a hook is told of a delivery."""
    return {
        "lane": lane,
        "event_id": delivery.event_id,
        "tag": tag,
        "source": delivery.feed.source,
        "generation": delivery.feed.generation,
        "offset": delivery.offset,
        "change_type": delivery.change_type,
        "attempt": delivery.attempt + 1,
        "since": delivery.since,
    }


def _end(lane: Lane, event_id: str, final: FinalName, reason: str, now: float) -> list[tuple[Final, int]]:
    lane.touch()
    ended = machine.skip(lane.state, event_id, final, reason, now)
    return [] if ended is None else [(ended, lane.state.seq)]
