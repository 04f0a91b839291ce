"""What one subject waits for in a lane: its deliveries in order, one queue per feed. Pure."""

from __future__ import annotations

from collections import deque

from tidings.lanes.member import Delivery, Feed

Queue = dict[Feed, deque[Delivery]]


def urgent(queue: Queue, head: Delivery) -> Delivery | None:
    """The oldest delivery that may pass a deferred one: more urgent, of another type, and the first of its own type."""
    first: dict[str, Delivery] = {}
    for delivery in sorted((d for q in queue.values() for d in q), key=lambda d: (d.since, d.feed, d.offset)):
        first.setdefault(delivery.change_type, delivery)
    able = (d for d in first.values() if d.change_type != head.change_type and d.priority < head.priority)
    return next((d for d in able if not d.deferred), None)


def to_front(queue: deque[Delivery], delivery: Delivery) -> None:
    """What passed a deferred one is what its subject waits for now."""
    if queue[0] is not delivery:
        queue.remove(delivery)
        queue.appendleft(delivery)


def leave(queues: dict[str, Queue], delivery: Delivery) -> None:
    """Take a delivery out; a subject that waits for nothing has no queue."""
    queue = queues[delivery.subject]
    queue[delivery.feed].remove(delivery)
    if not queue[delivery.feed]:
        del queue[delivery.feed]
    if not queue:
        del queues[delivery.subject]
