"""Planning stretches and settling them: which events a lane takes as a whole, and what the machine has to know afterwards.

Plain is an event that was allowed, at least once, whose person still has a key, whom the gate lets go now, and of whose subject
nothing waits in the lane. All else in the stretch goes to the machine, in offset order, after the stretch is settled.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from tidings.gate.decisions import decided_in
from tidings.lanes import machine
from tidings.lanes.attempts import seconds
from tidings.lanes.breaker import Breaker
from tidings.lanes.lane import Lane, Tables
from tidings.lanes.member import Feed, Final, PlannedCall
from tidings.lanes.retry import moment
from tidings.lanes.slices import Entry, deliveries, tags
from tidings.lanes.stretch import FIRST_REACH, LEAST, SPLITS, Chunk, Part, Stretch
from tidings.lanes.whole import ACKNOWLEDGED, are_whole

Consents = tuple[tuple[str, str], ...]
QUICK_SHARE, LATE_SHARE = 0.6, 0.9  # of the time in which calls may begin; a stretch should take something between
LEAST_CALLS = 50  # fewer are the machine's, whatever they hold
NEAR_S = 0.05  # where answers are this quick, more calls at once would only wait for each other


@runtime_checkable
class Asked(Protocol):
    """A gate at send that can be asked once for all events that stand alike."""

    def standing(self, entries: Iterable[tuple[bytes, float]]) -> Mapping[bytes, Consents]: ...
    def alike(self, since: float) -> bool: ...
    def verdict(self, decision: str, consents: Consents, lane: str) -> Any: ...


Turn = Literal["whole", "drain", "one by one"]


class Slice(NamedTuple):
    """What a read gave to lanes that stand at the same place."""

    feed: Feed
    entries: Sequence[Entry]
    upto: int
    lanes: Sequence[Lane]


class Kind(NamedTuple):
    """Events that every lane may treat alike."""

    place: tuple[str, tuple[str, ...]]
    consents: Consents | None  # None: nothing was learnt, so the decision stands


@dataclass
class Settlement:
    """What became of one lane's part: members that were acknowledged, by call, and the ends that the machine gave."""

    whole: dict[int, Sequence[int]] = field(default_factory=dict)  # sequence number → places among the entries
    strength: str = "A0"
    odd: list[tuple[Mapping[str, Any], list[Final]]] = field(
        default_factory=list
    )  # rows that were not whole, and their ends
    sent: int = 0


class Stretches:
    """`reach` is how many events the next stretch may have; it follows the time that the last one took."""

    def __init__(self, tables: Tables, wire_key: bytes, regate: object, least: int = LEAST) -> None:
        self.tables, self.regate, self.least, self.reach = tables, regate, least, FIRST_REACH
        self._wire_key = wire_key
        # Calls are on record for ever: divided by the tag itself they would say of an erased member whose tag it cannot be.
        self._dividing = secrets.token_bytes(16)
        self._decided = decided_in(tables.store.decisions)

    def turn(self, lane: Lane, events: int, now: float) -> Turn:
        """How a lane goes on. Healthy, with nothing to do for its machine: as a whole; what is due there is drained first."""
        state = lane.state
        steady = state.breaker.state == "closed" and not (state.breaker.failures or state.breaker.step)
        calm = steady and not (state.in_flight or state.paused or lane.slow)
        able = events >= self.least and (self.regate is None or isinstance(self.regate, Asked))
        if not (able and calm and lane.job.form and state.pace.hold <= now and state.room):
            return "one by one"
        return "whole" if lane.due(now) > now else "drain"

    def plan(self, found: Slice, now: float, begin_s: float) -> Stretch | None:
        """The stretch, or None when no lane can take enough of it; a lane without a part goes on one by one."""
        # No rest is left that would be too little for a stretch of its own.
        whole = len(found.entries) - self.reach < self.least
        entries = found.entries if whole else found.entries[: self.reach]
        known = tags(self.tables.keys, entries)
        kinds, kind = self._kinds(entries, known)
        far = any(lane.latency_s > NEAR_S for lane in found.lanes)
        splits = min([SPLITS if far else SPLITS // 2, *(lane.state.rules.concurrency for lane in found.lanes)])
        split = [self._split(known[e.kid][0], splits) if e.kid in known else 0 for e in entries]
        last = found.upto if len(entries) == len(found.entries) else entries[-1].offset
        stretch = Stretch(found.feed, entries, split, kind, known, {}, moment(now), splits)
        cut: dict[object, list[list[Chunk]]] = {}
        for lane in found.lanes:
            part = self._part(stretch, lane, kinds, last, begin_s, now)
            if part is not None:
                stretch.take(lane.name, part, lane.state.seq + 1, cut)
                _begin(lane, len(stretch.calls[lane.name]))
        return stretch if stretch.parts else None

    def _split(self, tag: bytes, splits: int) -> int:
        return hashlib.blake2b(tag, digest_size=1, key=self._dividing).digest()[0] % splits

    def _kinds(
        self, entries: Sequence[Entry], known: Mapping[bytes, tuple[bytes, bytes]]
    ) -> tuple[list[Kind], list[int]]:
        asked = self.regate if isinstance(self.regate, Asked) else None
        news = asked.standing((known[e.kid][0], e.since) for e in entries if e.kid in known) if asked else {}
        numbers: dict[Kind, int] = {}
        found = []
        for entry in entries:
            tag = known[entry.kid][0] if entry.kid in known else b""
            consents = news.get(tag)
            if consents is None and asked is not None and not asked.alike(entry.since):
                consents = ()
            kind = Kind(entry.place, consents)
            found.append(numbers.setdefault(kind, len(numbers)) if tag else -1)
        return list(numbers), found

    def _part(
        self, stretch: Stretch, lane: Lane, kinds: Sequence[Kind], last: int, begin_s: float, now: float
    ) -> Part | None:
        state = lane.state
        size = min(state.rules.batches.values(), default=state.rules.batch)
        calls = machine.allowed_calls(state, now, lane.room(begin_s))
        most = min((calls - stretch.splits) * size, state.rules.window, len(stretch.entries))
        least = min(self.least, LEAST_CALLS * size)
        if most < least:
            return None
        views = {number: view for number, kind in enumerate(kinds) if (view := self._view(kind, lane.name)) is not None}
        plain = {number: view for number, view in views.items() if view is not MACHINE}
        most, left_out = _left_out(stretch, lane, (views.keys() - plain.keys()) | {-1}, most)
        if most < least:
            return None
        upto = last if most == len(stretch.entries) else stretch.entries[most - 1].offset
        own = hmac.new(self._wire_key, lane.name.encode(), hashlib.sha256).digest()
        return Part(lane.ready(self.tables.settings, now), size, upto, {}, plain, left_out, own)

    def _view(self, kind: Kind, lane: str) -> tuple[str, ...] | None:
        """Fields that this lane may not see; None when it is owed nothing; MACHINE when this is not plain."""
        decision, names = kind.place
        choice = self._decided.choices(decision).get(lane) if lane in names else None
        if choice is None or choice["outcome"] == "deny":
            return None
        if choice["outcome"] != "allow" or (choice["semantics"] or "at-least-once") != "at-least-once":
            return MACHINE
        hidden: Any = frozenset()
        if kind.consents is not None and isinstance(self.regate, Asked):
            hidden = self.regate.verdict(decision, kind.consents, lane)
        if hidden is not None and not isinstance(hidden, frozenset):
            return MACHINE
        return tuple(sorted({*choice["redact"], *(hidden or ())}))

    def learn(self, took_s: float, begin_s: float, events: int, most: int) -> None:
        """The next one may be larger when this one was quick, and is smaller when it was not."""
        if took_s > begin_s * LATE_SHARE:
            self.reach = max(self.least, events * 2 // 3)
        elif took_s < begin_s * QUICK_SHARE and events >= self.reach:
            self.reach = min(most, self.reach * 3 // 2)


MACHINE: tuple[str, ...] = ("\0",)  # no field has this name


def _left_out(stretch: Stretch, lane: Lane, kinds: Collection[int], most: int) -> tuple[int, frozenset[int]]:
    """How far the part reaches, and what in it is the machine's: what is not plain, and what is behind it or behind older."""
    state, name = lane.state, lane.name
    if not state.queues and not any(kind in kinds for kind in set(stretch.kind)):
        return most, frozenset()
    waiting, room = set(state.queues), state.room
    out: set[int] = set()
    for place in range(most):
        entry = stretch.entries[place]
        if not entry.owes(name):
            continue
        subject = (stretch.keys[entry.kid][0] if entry.kid in stretch.keys else entry.kid).hex()
        if stretch.kind[place] in kinds or subject in waiting:
            if len(out) == room:
                return place, frozenset(out)
            waiting.add(subject)
            out.add(entry.offset)
    return most, frozenset(out)


def _begin(lane: Lane, calls: int) -> None:
    lane.state.seq += calls
    lane.state.totals.calls += calls
    lane.state.pace.tokens -= calls
    lane.touch()


class Hand(NamedTuple):
    """What settling needs when not all went well: the job's rows in full, and the row of a call that has none."""

    rows: Callable[[], pa.Table]
    lost: Callable[[PlannedCall], dict[str, Any]]


def settle(stretch: Stretch, lane: Lane, rows: pa.Table, hand: Hand) -> Settlement:
    """One lane's part after the job: the cursor moves; what was not acknowledged, and what was left out, is the machine's.

    `rows` are the lane's own, in outline.
    """
    part, calls, state = stretch.parts[lane.name], stretch.calls[lane.name], lane.state
    numbers, good = rows["cycle"].to_pylist(), are_whole(rows).to_pylist()
    fine = {number for number, whole in zip(numbers, good, strict=True) if whole}
    told = Settlement(whole={seq: places for seq, places in calls.items() if seq in fine})
    told.strength = min(
        (s or "A0" for s, whole in zip(rows["strength"].to_pylist(), good, strict=True) if whole), default="A0"
    )
    told.sent = sum(len(places) for places in told.whole.values())
    bad = sorted(calls.keys() - fine)
    state.cursors[stretch.feed] = max(state.cursors.get(stretch.feed, -1), part.upto)
    if bad or part.left_out:
        _to_machine(stretch, lane, bad)
    if state.unsettled:
        ended = state.ended.setdefault(stretch.feed, {})
        for seq, places in told.whole.items():
            ended.update((stretch.entries[place].offset, seq) for place in places)
    state.totals.finals[ACKNOWLEDGED] = state.totals.finals.get(ACKNOWLEDGED, 0) + told.sent
    if fine:
        state.breaker = Breaker()
        state.pace.factor = min(1.0, state.pace.factor * 1.1 ** len(fine))
    if bad:
        _settle_odd(lane, bad, told, hand)
    lane.touch()
    return told


def _to_machine(stretch: Stretch, lane: Lane, bad: Sequence[int]) -> None:
    """Deliveries of what is not settled, in offset order; those of a call are in flight until its row is read."""
    calls = stretch.calls[lane.name]
    seqs = {stretch.entries[place].offset: seq for seq in bad for place in calls[seq]}
    out = stretch.parts[lane.name].left_out
    left = [entry for entry in stretch.entries if entry.offset in seqs or entry.offset in out]
    for delivery in deliveries(left, lane.name, stretch.feed, stretch.keys):
        machine.enqueue(lane.state, delivery)
        delivery.call = delivery.begun = seqs.get(delivery.offset)
    for seq in bad:
        members = [lane.state.unsettled[stretch.entries[place].event_id] for place in calls[seq]]
        sent = tuple(map(machine.sent, members))
        lane.state.in_flight[seq] = PlannedCall(lane.name, seq, stretch.feed, "send", sent, stretch.at, False)


def _settle_odd(lane: Lane, bad: Sequence[int], told: Settlement, hand: Hand) -> None:
    rows = hand.rows()
    mine = pc.and_(pc.equal(rows["lane"], lane.name), pc.is_in(rows["cycle"], pa.array(bad, pa.int64())))
    found = {row["cycle"]: row for row in rows.filter(mine).to_pylist()}
    for seq in bad:
        call = lane.state.in_flight[seq]
        row = found.get(seq) or hand.lost(call)
        told.odd.append((row, lane.settle(call, row)))


def latest(rows: pa.Table) -> float:
    """When the last of these calls came back."""
    return seconds(pc.max(rows["finished"]).as_py()) if rows.num_rows else 0.0


def acknowledged(
    stretch: Stretch, told: Mapping[str, Settlement]
) -> Iterator[tuple[str, Mapping[str, tuple[str, str]]]]:
    """Event id → the lanes that acknowledged it, those that were sent the same members together."""
    alike: dict[tuple[int, ...], tuple[list[int], dict[str, tuple[str, str]]]] = {}
    for name, one in told.items():
        key = tuple(id(places) for places in one.whole.values())  # alike parts share them
        places, acks = alike.setdefault(key, ([place for own in one.whole.values() for place in own], {}))
        acks[name] = (ACKNOWLEDGED, one.strength)
    for places, acks in alike.values():
        for place in places:
            yield stretch.entries[place].event_id, acks
