"""One lane's state and how it moves. No Spark, no I/O, no clock, no randomness: `now` is always an argument.

offer  new deliveries enter, up to the window; at the bound the cursor stops (that is the backpressure)
plan   which calls to make now: one delivery per subject at most, by priority with aging, within every limit
settle what the verdicts of a call mean: an end, a later time for that subject, or that the answer comes later
skip   the gate at send ended a delivery without a call
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tidings.channels.call import Outcome
from tidings.lanes.breaker import ANSWERS, Breaker, after_call
from tidings.lanes.budget import Budget
from tidings.lanes.incidents import Acked, incident
from tidings.lanes.member import Delivery, Feed, Final, FinalName, PlannedCall, Rules, Sent, Totals, Verdict
from tidings.lanes.pace import Pace
from tidings.lanes.queues import Queue, leave, to_front, urgent
from tidings.lanes.retry import SHORTEST_WAIT_S, moment
from tidings.lanes.semantics import OURS, SHUT_DOOR, UNANSWERED, judge, key_forgotten, needs_intent

NEVER = math.inf


@dataclass
class LaneState:
    """Everything a lane knows. `pace`, `breaker`, `budget` and `totals` are soft; the rest is what the tables say."""

    rules: Rules
    cursors: dict[Feed, int] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    unsettled: dict[str, Delivery] = field(default_factory=dict)
    awaiting: dict[str, Delivery] = field(default_factory=dict)  # of those: accepted, and no longer in a queue
    ended: dict[Feed, dict[int, int]] = field(default_factory=dict)  # above the oldest: offset → its first call
    in_flight: dict[int, PlannedCall] = field(default_factory=dict)
    acked: Acked = field(default_factory=dict)
    seq: int = 0
    paused: str = ""
    breaker: Breaker = field(default_factory=Breaker)
    budget: Budget = field(default_factory=Budget)
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
        if len(self.awaiting) >= self.rules.most_awaiting:
            return 0
        return max(0, self.rules.window - len(self.unsettled) + len(self.awaiting))

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
    """Take a delivery up again that had ended; False when it is already here. `seq` recorded the wish.

    It takes its place by offset, which is ahead of what waits, but behind what was begun: that may have had its effect.
    """
    if delivery.event_id in state.unsettled:
        return False
    delivery.reopened, delivery.begun = True, seq
    queue = state.queues.setdefault(delivery.subject, {}).setdefault(delivery.feed, deque())
    ahead = sum(1 for one in queue if one.started or one.offset < delivery.offset)
    queue.insert(ahead, delivery)
    state.unsettled[delivery.event_id] = delivery
    return True


def enqueue(state: LaneState, delivery: Delivery) -> None:
    """Put a delivery at the end of its subject's queue, whatever the window says."""
    assert delivery.event_id not in state.unsettled, "one delivery per event and lane"
    queue = state.queues.setdefault(delivery.subject, {}).setdefault(delivery.feed, deque())
    assert not queue or queue[-1].offset < delivery.offset, "offsets rise within a feed"
    queue.append(delivery)
    state.unsettled[delivery.event_id] = delivery


def _head(queue: Queue) -> Delivery:
    """The one delivery of a subject that may move: what was begun or deferred, else the oldest over all feeds.

    What is deferred holds its subject, except for what is more urgent and of another type: a withdrawal does not wait until two
    masters agree about an address.
    """
    heads = [feed_queue[0] for feed_queue in queue.values()]
    head = heads[0]
    if len(heads) > 1:
        head = min(heads, key=lambda d: (not d.started, not d.deferred, d.since, d.feed, d.offset))
    return (urgent(queue, head) or head) if head.deferred and not head.started else head


def _ready(state: LaneState, now: float) -> Iterator[tuple[float, Delivery]]:
    for queue in state.queues.values():
        head = _head(queue)
        if head.call is None and not head.deferred and head.due <= now:
            # An urgent delivery lifts whatever of its subject stands before it.
            tier = min(d.priority for feed_queue in queue.values() for d in feed_queue)
            yield tier - max(0.0, now - head.since) // state.rules.aging_s, head
    for delivery in state.awaiting.values():
        if delivery.call is None and delivery.due <= now:
            yield delivery.priority, delivery


def plan(state: LaneState, now: float, room: int | None = None) -> list[PlannedCall]:
    """The calls to make now. Their deliveries are in flight until `settle`."""
    calls = allowed_calls(state, now, room)
    if calls <= 0 or not state.unsettled:
        return []
    ready = sorted(_ready(state, now), key=lambda pair: (pair[0], pair[1].since, pair[1].feed, pair[1].offset))
    planned: list[list[Delivery]] = []
    again = 0
    filling: dict[tuple[object, ...], list[Delivery]] = {}
    for _, delivery in ready:
        largest = state.rules.largest_call(delivery.change_type)
        size = min(largest, delivery.limit or largest)
        failed = delivery.tries > 0 and not delivery.awaiting
        key = (delivery.feed, delivery.semantics, delivery.change_type, delivery.asks(state.rules), size, failed)
        group = filling.get(key)
        if group is None or len(group) >= size:
            if len(planned) >= calls or (failed and not state.budget.allows(again)):
                continue
            again += failed
            group = filling[key] = []
            planned.append(group)
        group.append(delivery)
    state.pace.tokens -= len(planned)
    state.budget.spent(state.rules, len(planned) - again, again)
    return [_call(state, group, now) for group in planned]


def allowed_calls(state: LaneState, now: float, room: int | None) -> int:
    """How many calls every limit together allows; tokens are filled as a side effect of time passing."""
    state.pace.fill(state.rules, now)
    state.budget.fill(state.rules, now)
    if state.paused or state.pace.hold > now:
        return 0
    free = (state.rules.concurrency if room is None else room) - len(state.in_flight)
    if state.rules.per_second:
        free = min(free, int(state.pace.tokens))
    most = state.breaker.most(now)
    return free if most is None else min(free, most - len(state.in_flight))


def _call(state: LaneState, group: list[Delivery], now: float) -> PlannedCall:
    state.seq += 1
    state.totals.calls += 1
    head = group[0]
    for delivery in group:
        delivery.call = state.seq
        delivery.begun = state.seq if delivery.begun is None else delivery.begun
        if delivery.event_id not in state.awaiting:
            to_front(state.queues[delivery.subject][delivery.feed], delivery)
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
        sent_in=delivery.sent_in,
        awaiting=delivery.awaiting,
        reference=delivery.reference,
        predicted=delivery.predicted,
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
    if call.members and call.members[0].tries and any(outcome.result in ANSWERS for outcome in outcomes):
        state.budget.answered(state.rules)
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
        return end(state, delivery, verdict.final, verdict.code, now)
    delivery.tries, delivery.attempt, delivery.first = verdict.tries, verdict.attempt, verdict.first
    delivery.due, delivery.limit, delivery.doubted = verdict.due, verdict.limit, verdict.doubted
    delivery.reference, delivery.deferred, delivery.sent_in = verdict.reference, False, verdict.sent_in
    if verdict.awaiting != delivery.awaiting:
        delivery.awaiting = verdict.awaiting
        if verdict.awaiting and not state.rules.holds(delivery.change_type):
            _step_aside(state, delivery)
    return None


def _step_aside(state: LaneState, delivery: Delivery) -> None:
    """Accepted: it waits outside its subject's queue and outside the cursors, however long the answer takes."""
    _leave(state, delivery)
    delivery.reopened = True
    state.awaiting[delivery.event_id] = delivery


def _leave(state: LaneState, delivery: Delivery) -> None:
    leave(state.queues, delivery)
    if delivery.subject not in state.queues:
        state.acked.pop(delivery.subject, None)


def skip(state: LaneState, event_id: str, final: FinalName, reason: str, now: float) -> Final | None:
    """End a delivery without a call: the gate at send said so. One in flight is left to its call.

    The skip takes a sequence number of its own, `state.seq`, under which it is recorded.
    """
    delivery = state.unsettled.get(event_id)
    if delivery is None or delivery.call is not None:
        return None
    state.seq += 1
    delivery.begun = state.seq if delivery.begun is None else delivery.begun
    return end(state, delivery, final, reason, now)


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
        elif delivery.awaiting and now >= _patience(state.rules, delivery):
            ends.append((delivery, "dead_lettered", UNANSWERED))
    return ends


def _patience(rules: Rules, delivery: Delivery) -> float:
    """When an accepted delivery is given up: at its deadline, or later when that is sooner than our patience."""
    return max((delivery.first or 0.0) + rules.patience_s, delivery.deadline or 0.0)


def _too_late_to_repeat(rules: Rules, delivery: Delivery, now: float) -> bool:
    repeats = delivery.doubted and delivery.semantics == "exactly-once" and rules.repeatable(delivery.change_type)
    return repeats and key_forgotten(rules, delivery.first, now)


def next_due(state: LaneState, now: float) -> float:
    """The first moment at which `plan` or `overdue` can have something to do; NEVER when only new rows can."""
    if not state.unsettled:
        return NEVER
    ends = [d.deadline for d in state.unsettled.values() if d.deferred and d.deadline is not None]
    heads = [] if state.paused else [_head(queue) for queue in state.queues.values()]
    later = state.budget.ready(state.rules)
    moments = [
        max(head.due, later) if head.tries else head.due for head in heads if head.call is None and not head.deferred
    ]
    if not state.paused:
        moments += [d.due for d in state.awaiting.values() if d.call is None and d.due < NEVER]
    ends += [_patience(state.rules, d) for d in state.awaiting.values()]
    if not moments:
        return min(ends, default=NEVER)
    gate = max(state.pace.ready(state.rules), state.breaker.until if state.breaker.state == "open" else 0.0)
    return min([max(min(moments), gate), *ends])


def end(state: LaneState, delivery: Delivery, final: FinalName, code: str, now: float) -> Final:
    del state.unsettled[delivery.event_id]
    incident(state.totals, state.acked, delivery, final, code)
    if delivery.begun is not None:
        state.ended.setdefault(delivery.feed, {}).setdefault(delivery.offset, delivery.begun)
    if state.awaiting.pop(delivery.event_id, None) is None:
        _leave(state, delivery)
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
        state.pace.throttled(max(waits), now)
    elif "acknowledged" in results or "accepted" in results:
        state.pace.eased()


def _felt(outcome: Outcome) -> str:
    if outcome.code in OURS:
        return outcome.code
    return "transient" if outcome.status in SHUT_DOOR else outcome.result
