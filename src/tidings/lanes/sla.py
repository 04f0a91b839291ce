"""When a waiting delivery will be acknowledged, as far as its lane can tell, and which of them come too late for that.

A prediction is made when a delivery enters its lane, from its place in the queue, the lane's pace, the latency seen so far, a
pause the subscriber asked for, an open breaker and its subject's retry. It is recorded with the delivery's first call, so that
what happened can be compared with it, and is right as long as calls go on as they went: it knows of no outage before the
first failed call. The time by which a delivery is due is its subscriber's `sla` for that change type, or the deadline a
statute sets where that is earlier. Pure; a look costs one pass over what waits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from tidings.lanes.machine import NEVER, LaneState
from tidings.lanes.member import Delivery, Rules
from tidings.lanes.retry import moment

HALF = 0.5  # of the time to a statute's deadline gone without an acknowledgement is worth a word, whatever is predicted


@dataclass(frozen=True)
class Prospect:
    """How a lane goes on from now if calls go on as they went."""

    opens: float  # when it can call again
    calls_per_s: float
    latency_s: float  # of a call, and of what stands around it

    def after(self, ahead: float, at: float = 0.0, turn: int = 0) -> float:
        """When a call is answered that has this many calls before it and may begin no earlier than `at`.

        `turn` counts those of its own subject, which take a call each, one at a time.
        """
        return max(self.opens + ahead / self.calls_per_s, max(self.opens, at) + turn * self.latency_s) + self.latency_s


def prospect(state: LaneState, latency_s: float, now: float, around_s: float = 0.0) -> Prospect:
    """`latency_s` is a call's own; `around_s` is what passes beside it, such as the wait for the next cycle."""
    rules, pace = state.rules, state.pace
    calls = rules.concurrency / max(latency_s, 0.001)
    if rules.per_second:
        calls = min(calls, rules.per_second * pace.factor)
    until = state.breaker.until if state.breaker.state == "open" else 0.0
    opens = NEVER if state.paused else max(now, pace.hold, until)
    return Prospect(opens, calls, latency_s + around_s)


def due_by(rules: Rules, delivery: Delivery) -> float:
    """The promise to the subscriber or the statute's deadline, whichever is earlier."""
    promised = delivery.since + rules.sla_for(delivery.change_type)
    return promised if delivery.deadline is None else min(promised, delivery.deadline)


def foretell(state: LaneState, new: int, seen: Prospect, now: float) -> None:
    """Predict the deliveries that entered last. Those before them count by tier: an urgent one overtakes."""
    if not new:
        return
    fresh = list(islice(reversed(state.unsettled.values()), new))[::-1]
    ahead = Counter[int]()
    for delivery in islice(state.unsettled.values(), len(state.unsettled) - new):
        if delivery.due <= now:
            ahead[delivery.priority] += 1
    urgent = Counter(delivery.priority for delivery in fresh)
    turns = _turns(state, fresh)
    for delivery in fresh:
        before = sum(count for tier, count in ahead.items() if tier <= delivery.priority)
        before += sum(count for tier, count in urgent.items() if tier < delivery.priority)
        delivery.predicted = _answered(state, delivery, seen, (before, turns[delivery.subject]))
        ahead[delivery.priority] += 1
        urgent[delivery.priority] -= 1
        turns[delivery.subject] += 1


def _turns(state: LaneState, fresh: Iterable[Delivery]) -> Counter[str]:
    """How many deliveries of each subject stood in its queue before these came."""
    came = Counter(delivery.subject for delivery in fresh if not delivery.awaiting)
    queued = {subject: sum(map(len, state.queues[subject].values())) for subject in came}
    return Counter({subject: queued[subject] - many for subject, many in came.items()})


def _answered(state: LaneState, delivery: Delivery, seen: Prospect, place: tuple[int, int]) -> float | None:
    """None where nobody can say: the lane is paused, its subject waits for a fact, or the subscriber answers later."""
    if delivery.awaiting:
        return None
    before, turn = place
    heads = [feed_queue[0] for feed_queue in state.queues[delivery.subject].values()]
    at = max([delivery.due, *(head.due for head in heads)])
    ends = seen.after(before / state.rules.largest_call(delivery.change_type), at, turn)
    unsure = delivery.deferred or any(head.deferred for head in heads) or math.isinf(ends)
    return None if unsure else moment(ends)


@dataclass(frozen=True)
class Risk:
    """What of a lane comes too late, or is late."""

    waiting: int = 0
    at_risk: int = 0
    late: int = 0
    nearest: float = NEVER  # when the first of those at risk is due


def at_risk(state: LaneState, seen: Prospect, now: float) -> Risk:
    """Every waiting delivery against the time it is due by. One sent again by an operator was late before.

    Of what was accepted and is answered later nobody can say when, so only the time that is gone counts.
    """
    rules, risky, late = state.rules, 0, 0
    nearest = NEVER
    waiting = [d for d in list(state.unsettled.values()) if not d.reopened or d.awaiting]
    behind: dict[str, tuple[int, float]] = {}  # subject → calls before the next one of it, and when that may begin
    for place, delivery in _in_turn(waiting, rules, now):
        turn, at = behind.get(delivery.subject, (0, 0.0))
        at = at if delivery.awaiting else max(at, delivery.due)
        behind[delivery.subject] = (turn + (not delivery.awaiting), at)
        due = due_by(rules, delivery)
        ends = seen.after(place / rules.largest_call(delivery.change_type), at, turn)
        if now > due:
            late += 1
        elif _half_gone(delivery, now) or (not delivery.awaiting and ends > due):
            risky, nearest = risky + 1, min(nearest, due)
    return Risk(len(waiting), risky, late, nearest)


def _in_turn(waiting: Iterable[Delivery], rules: Rules, now: float) -> Iterator[tuple[int, Delivery]]:
    """Deliveries with how many go before them, as the lane would plan them."""
    ordered = sorted(waiting, key=lambda d: (d.priority - max(0.0, now - d.since) // rules.aging_s, d.since, d.offset))
    place = 0
    for delivery in ordered:
        yield place, delivery
        place += delivery.due <= now


def _half_gone(delivery: Delivery, now: float) -> bool:
    return delivery.deadline is not None and now > delivery.since + HALF * (delivery.deadline - delivery.since)
