"""One lane's state and how it moves. No Spark, no I/O, no clock, no randomness: `now` is always an argument.

offer  new deliveries enter, up to the window; at the bound the cursor stops (that is the backpressure)
plan   which calls to make now: one delivery per subject at most, by priority with aging, within every limit
settle what the verdicts of a call mean: an end, or a later time for that subject
skip   the gate at send ended a delivery without a call
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tidings.channels.call import Outcome
from tidings.lanes.breaker import Breaker, after_call
from tidings.lanes.member import Delivery, Feed, Final, FinalName, Pace, PlannedCall, Rules, Sent, Totals, Verdict
from tidings.lanes.retry import SHORTEST_WAIT_S, moment
from tidings.lanes.semantics import OURS, SHUT_DOOR, judge, key_forgotten, needs_intent

NEVER = math.inf
SLOWEST = 1 / 16  # of the allowed rate, after many throttled answers
LONGEST_HOLD_S = 3600.0  # one absurd Retry-After must not stop everybody else for days


@dataclass
class LaneState:
    """Everything a lane knows. `pace`, `breaker` and `totals` are soft; the rest is what the tables say."""

    rules: Rules
    cursors: dict[Feed, int] = field(default_factory=dict)
    queues: dict[str, dict[Feed, deque[Delivery]]] = field(default_factory=dict)
    unsettled: dict[str, Delivery] = field(default_factory=dict)
    ended: dict[Feed, dict[int, int]] = field(default_factory=dict)  # above the oldest: offset → its first call
    in_flight: dict[int, PlannedCall] = field(default_factory=dict)
    seq: int = 0
    paused: str = ""
    breaker: Breaker = field(default_factory=Breaker)
    pace: Pace = field(default_factory=Pace)
    totals: Totals = field(default_factory=Totals)

    def oldest(self, feed: Feed) -> int:
        """Everything below this offset is settled in this lane."""
        waiting = [d.offset for d in self.unsettled.values() if d.feed == feed and not d.reopened]
        return min(waiting, default=self.cursors.get(feed, -1) + 1)

    def since(self) -> int:
        """The first call a restart must read: the earliest that speaks of anything at or above the oldest unsettled."""
        for feed, ended in self.ended.items():
            oldest = self.oldest(feed)
            for offset in [offset for offset in ended if offset < oldest]:
                del ended[offset]
        waiting = [d.begun for d in self.unsettled.values() if d.begun is not None]
        return min([*waiting, *(seq for ended in self.ended.values() for seq in ended.values())], default=self.seq + 1)

    @property
    def room(self) -> int:
        return max(0, self.rules.window - len(self.unsettled))

    def parked(self, now: float) -> int:
        """Subjects that wait for a later time."""
        return sum(1 for queue in self.queues.values() if (head := _head(queue)).deferred or head.due > now)


def offer(state: LaneState, feed: Feed, deliveries: Sequence[Delivery], upto: int) -> int:
    """Take deliveries above the cursor in offset order; `upto` is the last offset the reader looked at."""
    cursor = state.cursors.get(feed, -1)
    taken = 0
    for delivery in deliveries:
        assert delivery.feed == feed, "a delivery offered under another feed"
        if delivery.offset <= cursor:
            continue
        if state.room == 0:
            state.cursors[feed] = cursor
            return taken
        enqueue(state, delivery)
        cursor, taken = delivery.offset, taken + 1
    state.cursors[feed] = max(cursor, upto)
    return taken


def reopen(state: LaneState, delivery: Delivery, seq: int) -> bool:
    """Take a dead letter up again, ahead of its subject's queue; False when it is already here. `seq` recorded the wish."""
    if delivery.event_id in state.unsettled:
        return False
    delivery.reopened, delivery.begun = True, seq
    queue = state.queues.setdefault(delivery.subject, {})
    queue.setdefault(delivery.feed, deque()).appendleft(delivery)
    state.unsettled[delivery.event_id] = delivery
    return True


def enqueue(state: LaneState, delivery: Delivery) -> None:
    """Put a delivery at the end of its subject's queue, whatever the window says."""
    assert delivery.event_id not in state.unsettled, "one delivery per event and lane"
    queue = state.queues.setdefault(delivery.subject, {}).setdefault(delivery.feed, deque())
    assert not queue or queue[-1].offset < delivery.offset, "offsets rise within a feed"
    queue.append(delivery)
    state.unsettled[delivery.event_id] = delivery


def _head(queue: dict[Feed, deque[Delivery]]) -> Delivery:
    """The one delivery of a subject that may move: what was begun or deferred, else the oldest over all feeds."""
    heads = [feed_queue[0] for feed_queue in queue.values()]
    if len(heads) == 1:
        return heads[0]
    return min(heads, key=lambda d: (not d.started, not d.deferred, d.since, d.feed, d.offset))


def _ready(state: LaneState, now: float) -> Iterator[tuple[float, Delivery]]:
    for queue in state.queues.values():
        head = _head(queue)
        if head.call is None and not head.deferred and head.due <= now:
            # An urgent delivery lifts whatever of its subject stands before it.
            tier = min(d.priority for feed_queue in queue.values() for d in feed_queue)
            yield tier - max(0.0, now - head.since) // state.rules.aging_s, head


def plan(state: LaneState, now: float, room: int | None = None) -> list[PlannedCall]:
    """The calls to make now. Their deliveries are in flight until `settle`."""
    calls = _calls_allowed(state, now, room)
    if calls <= 0:
        return []
    ready = sorted(_ready(state, now), key=lambda pair: (pair[0], pair[1].since, pair[1].feed, pair[1].offset))
    planned: list[list[Delivery]] = []
    filling: dict[tuple[object, ...], list[Delivery]] = {}
    for _, delivery in ready:
        largest = state.rules.largest_call(delivery.change_type)
        size = min(largest, delivery.limit or largest)
        key = (delivery.feed, delivery.semantics, delivery.change_type, delivery.asks(state.rules), size)
        group = filling.get(key)
        if group is None or len(group) >= size:
            if len(planned) >= calls:
                continue
            group = filling[key] = []
            planned.append(group)
        group.append(delivery)
    state.pace.tokens -= len(planned)
    return [_call(state, group, now) for group in planned]


def _calls_allowed(state: LaneState, now: float, room: int | None) -> int:
    """How many calls every limit together allows; tokens are filled as a side effect of time passing."""
    _fill(state, now)
    look = state.breaker.look(now)
    if state.paused or look == "open" or state.pace.hold > now or not state.unsettled:
        return 0
    free = (state.rules.concurrency if room is None else room) - len(state.in_flight)
    if state.rules.per_second:
        free = min(free, int(state.pace.tokens))
    if look == "half-open":
        free = min(free, 0 if state.in_flight else 1)
    return free


def _fill(state: LaneState, now: float) -> None:
    pace, rate = state.pace, state.rules.per_second * state.pace.factor
    burst = max(1.0, rate)  # one second's worth
    pace.tokens = burst if pace.filled is None else min(burst, pace.tokens + max(0.0, now - pace.filled) * rate)
    pace.filled = now


def _call(state: LaneState, group: list[Delivery], now: float) -> PlannedCall:
    state.seq += 1
    state.totals.calls += 1
    head = group[0]
    for delivery in group:
        delivery.call = state.seq
        delivery.begun = state.seq if delivery.begun is None else delivery.begun
    asks = head.asks(state.rules)
    call = PlannedCall(
        lane=state.rules.name,
        seq=state.seq,
        feed=head.feed,
        kind="probe" if asks else "send",
        members=tuple(sent(delivery) for delivery in group),
        at=moment(now),
        intent=needs_intent(head.semantics) and not asks,
    )
    state.in_flight[call.seq] = call
    return call


def sent(delivery: Delivery) -> Sent:
    """What the next call of this delivery must know to be judged."""
    return Sent(
        event_id=delivery.event_id,
        offset=delivery.offset,
        semantics=delivery.semantics,
        attempt=delivery.attempt + 1,
        change_type=delivery.change_type,
        tries=delivery.tries,
        first=delivery.first,
        limit=delivery.limit,
        doubted=delivery.doubted,
        reference=delivery.reference,
    )


def apply(state: LaneState, call: PlannedCall, outcomes: Sequence[Outcome], now: float) -> list[Final]:
    """Judge what came back at once and settle it."""
    sobered, verdicts = judge(state.rules, call, outcomes, call.at, now)
    return settle(state, call, verdicts, sobered, now)


def settle(
    state: LaneState, call: PlannedCall, verdicts: Iterable[Verdict], outcomes: Sequence[Outcome], now: float
) -> list[Final]:
    """Move each delivery as its verdict says, and learn from the call as a whole."""
    state.in_flight.pop(call.seq, None)
    _learn(state, outcomes, now)
    finals = [final for verdict in verdicts if (final := move(state, verdict, now)) is not None]
    if not state.unsettled:
        state.breaker = Breaker()  # nothing waits behind it; the next delivery asks anew
    return finals


def move(state: LaneState, verdict: Verdict, now: float) -> Final | None:
    """One delivery's step. Also how a restart replays what the attempts say."""
    delivery = state.unsettled.get(verdict.event_id)
    if delivery is None:
        return None
    delivery.call = None
    if verdict.final is not None:
        return _end(state, delivery, verdict.final, verdict.code, now)
    delivery.tries, delivery.attempt, delivery.first = verdict.tries, verdict.attempt, verdict.first
    delivery.due, delivery.limit, delivery.doubted = verdict.due, verdict.limit, verdict.doubted
    delivery.reference, delivery.deferred = verdict.reference, False
    return None


def skip(state: LaneState, event_id: str, final: FinalName, reason: str, now: float) -> Final | None:
    """End a delivery without a call: the gate at send said so. One in flight is left to its call.

    The skip takes a sequence number of its own, `state.seq`, under which it is recorded.
    """
    delivery = state.unsettled.get(event_id)
    if delivery is None or delivery.call is not None:
        return None
    state.seq += 1
    delivery.begun = state.seq if delivery.begun is None else delivery.begun
    return _end(state, delivery, final, reason, now)


def withdraw(state: LaneState, call: PlannedCall, gone: Collection[str]) -> PlannedCall | None:
    """Take deliveries out of a call that was not made yet; None when nothing is left of it."""
    for event_id in gone:
        state.unsettled[event_id].call = None
    kept = tuple(member for member in call.members if member.event_id not in gone)
    state.in_flight.pop(call.seq)
    if not kept:
        return None
    state.in_flight[call.seq] = replace(call, members=kept)
    return state.in_flight[call.seq]


def defer(state: LaneState, event_id: str) -> None:
    """A delivery that was allowed cannot be decided just now; it is asked about again like any other deferred one."""
    if (delivery := state.unsettled.get(event_id)) is not None:
        delivery.deferred = True


def release(state: LaneState, event_id: str) -> None:
    """A deferred delivery was decided again, and allowed."""
    if (delivery := state.unsettled.get(event_id)) is not None:
        delivery.deferred = False


def overdue(state: LaneState, now: float) -> list[tuple[Delivery, FinalName, str]]:
    """Deliveries that end by time alone: deferred past their deadline, or a doubt whose key is forgotten by now."""
    ends: list[tuple[Delivery, FinalName, str]] = []
    for delivery in state.unsettled.values():
        if delivery.call is not None:
            continue
        if delivery.deferred and delivery.deadline is not None and now >= delivery.deadline:
            ends.append((delivery, "refused", "undecided_at_deadline"))
        elif _too_late_to_repeat(state.rules, delivery, now):
            ends.append((delivery, "dead_lettered", "in_doubt"))
    return ends


def _too_late_to_repeat(rules: Rules, delivery: Delivery, now: float) -> bool:
    repeats = delivery.doubted and delivery.semantics == "exactly-once" and rules.repeatable(delivery.change_type)
    return repeats and key_forgotten(rules, delivery.first, now)


def next_due(state: LaneState, now: float) -> float:
    """The first moment at which `plan` or `overdue` can have something to do; NEVER when only new rows can."""
    if not state.unsettled:
        return NEVER
    ends = [d.deadline for d in state.unsettled.values() if d.deferred and d.deadline is not None]
    heads = [] if state.paused else [_head(queue) for queue in state.queues.values()]
    moments = [head.due for head in heads if head.call is None and not head.deferred]
    if not moments:
        return min(ends, default=NEVER)
    gate = max(state.pace.hold, state.breaker.until if state.breaker.state == "open" else 0.0)
    rate = state.rules.per_second * state.pace.factor
    if rate and state.pace.filled is not None and state.pace.tokens < 1:
        gate = max(gate, state.pace.filled + (1 - state.pace.tokens) / rate)
    return min([max(min(moments), gate), *ends])


def _end(state: LaneState, delivery: Delivery, final: FinalName, code: str, now: float) -> Final:
    del state.unsettled[delivery.event_id]
    if delivery.begun is not None and not delivery.reopened:
        state.ended.setdefault(delivery.feed, {})[delivery.offset] = delivery.begun
    queue = state.queues[delivery.subject]
    queue[delivery.feed].remove(delivery)
    if not queue[delivery.feed]:
        del queue[delivery.feed]
    if not queue:
        del state.queues[delivery.subject]
    state.totals.finals[final] = state.totals.finals.get(final, 0) + 1
    return Final(
        lane=state.rules.name,
        event_id=delivery.event_id,
        feed=delivery.feed,
        offset=delivery.offset,
        final=final,
        code=code,
        at=moment(now),
        reopened=delivery.reopened,
    )


def _learn(state: LaneState, outcomes: Sequence[Outcome], now: float) -> None:
    """Breaker and pace from one call."""
    results = [_felt(outcome) for outcome in outcomes] or ["in_doubt"]
    state.breaker = after_call(state.breaker, state.rules, results, now)
    if any(outcome.status == 410 for outcome in outcomes):
        state.paused = state.paused or "the subscriber answered 410 Gone"
    waits = [outcome.retry_after or SHORTEST_WAIT_S for outcome in outcomes if outcome.result == "throttled"]
    if waits:
        # A limit is the account's, not the subject's: the whole lane waits.
        state.pace.hold = max(state.pace.hold, now + min(max(waits), LONGEST_HOLD_S))
        state.pace.factor = max(SLOWEST, state.pace.factor / 2)
    elif "acknowledged" in results:
        state.pace.factor = min(1.0, state.pace.factor * 1.1)


def _felt(outcome: Outcome) -> str:
    if outcome.code in OURS:
        return outcome.code
    return "transient" if outcome.status in SHUT_DOOR else outcome.result
