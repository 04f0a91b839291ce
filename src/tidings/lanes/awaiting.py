"""Deliveries that were accepted and wait for a later answer: from a callback, a pull or a person, or until we ask. Pure.

They wait outside their subject's queue and outside the cursors, so that an answer that takes a month holds nothing up.
"""

from __future__ import annotations

from tidings.lanes.machine import LaneState, end
from tidings.lanes.member import Delivery, Final, FinalName


def carry(state: LaneState, behind: int) -> list[Delivery]:
    """Accepted deliveries whose first call lies this far back, each to be said again under a number of its own.

    Without it a restart would read everything since the oldest of them was sent, which may be a month ago.
    """
    oldest = {feed: state.oldest(feed) for feed in {d.feed for d in state.awaiting.values()}}
    found = [
        d
        for d in state.awaiting.values()
        if d.call is None and (d.begun or 0) < state.seq - behind and d.offset < oldest[d.feed]
    ]
    for delivery in found:
        state.seq += 1
        delivery.begun, delivery.tries, delivery.limit = state.seq, 0, 0
    return found


def answer(state: LaneState, event_id: str, final: FinalName, code: str, now: float) -> Final | None:
    """A word from outside about a delivery: a callback, a pull, a person. None when it is not here or in flight."""
    delivery = state.unsettled.get(event_id)
    if delivery is None or delivery.call is not None:
        return None
    return end(state, delivery, final, code, now)
