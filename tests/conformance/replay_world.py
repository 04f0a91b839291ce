"""A lane's world with an operator who replays: deliveries that ended are taken up again while live traffic, faults and crashes go on.

The replay owns what is at or below the live cursor of the moment it was ordered, takes a few at a time, and commits its cursor with
the wish, as `tidings.lanes.replays` does over the tables.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from lane_world import World

from tidings.lanes import machine
from tidings.lanes.machine import LaneState
from tidings.lanes.member import Delivery, Feed, Final, PlannedCall
from tidings.lanes.recover import Recorded, recover
from tidings.lanes.semantics import ABSENT


class ReplayWorld(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.starts = self.rng.randint(5, 60)
        self.most = self.rng.randint(1, 4)
        self.upto: dict[Feed, int] | None = None
        self.at: dict[Feed, int] = {}
        self.wishes: dict[int, list[Delivery]] = {}
        self.taken: dict[str, int] = {}  # event → the place in `rows` of its last wish
        self.replayed = self.superseded = 0

    # The order

    def _interfere(self, step: int) -> None:
        super()._interfere(step)
        if self.upto is None and step >= self.starts:
            self.upto = {feed: cursor for feed, cursor in self.state.cursors.items() if cursor >= 0}
            self.at = dict.fromkeys(self.upto, -1)
            self.commit([])
        for feed, end in (self.upto or {}).items():
            self._take_up(feed, end)
        self._overtaken()

    def _take_up(self, feed: Feed, end: int) -> None:
        chosen = []
        for delivery in self.journal[feed]:
            under_way = sum(d.reopened for d in self.state.unsettled.values()) + len(chosen)
            full = under_way >= self.most or self.state.room <= len(chosen)
            if delivery.offset <= self.at[feed] or delivery.offset > end or full:
                continue
            self.at[feed] = delivery.offset
            if delivery.event_id in self.ended and self._harmless(delivery):
                chosen.append(replace(delivery, deferred=False))
        if not chosen:
            return
        self.state.seq += 1
        self.wishes[self.state.seq] = [copy.copy(d) for d in chosen]
        for delivery in chosen:
            assert machine.reopen(self.state, delivery, self.state.seq)
            del self.ended[delivery.event_id]
            self.taken[delivery.event_id] = len(self.rows)
            self.replayed += 1
        self.commit([Recorded(self.state.seq, False, feed, (), self.now, self.now)])

    def _harmless(self, delivery: Delivery) -> bool:
        """As the buffer decides: not acknowledged, and no second effect can come of it."""
        told = [t for row in self.rows if not row.intent for t in row.members if t.event_id == delivery.event_id]
        if any(t.final == "acknowledged" for t in told):
            return False
        if delivery.semantics == "at-least-once":
            return True
        if delivery.semantics == "exactly-once" and self.rules.repeatable(delivery.change_type):
            return self.rules.key_window_s is None
        doubt = False
        for one in told:
            doubt = (doubt or one.result == "accepted" or "in_doubt" in (one.result, one.code)) and one.code != ABSENT
        return not doubt and not (
            delivery.semantics == "at-most-once" and any(t.final == "dead_lettered" for t in told)
        )

    def _overtaken(self) -> None:
        """The gate at send: nothing older than what the subscriber has."""
        for delivery in [d for d in self.state.unsettled.values() if d.reopened]:
            if delivery.call is None and delivery.event_id not in self.state.awaiting and self._newer(delivery):
                self._skip(delivery.event_id, "superseded", "newer_acknowledged")
                self.superseded += 1

    def _newer(self, delivery: Delivery) -> bool:
        later = [d for d in self.journal[delivery.feed] if d.subject == delivery.subject and d.offset > delivery.offset]
        return any((end := self.ended.get(d.event_id)) is not None and end.final == "acknowledged" for d in later)

    # What a crash leaves

    def restart(self) -> None:
        super().restart()
        for event_id in self.state.unsettled.keys() & self.ended.keys():
            del self.ended[event_id]

    def _note(self, finals: list[Final]) -> None:
        for final in finals:
            if final.reopened:
                self.ended.pop(final.event_id, None)  # of an earlier turn
        super()._note(finals)

    def _recovered(self) -> tuple[LaneState, list[PlannedCall]]:
        reach = [row for row in self.rows if row.seq >= self.committed.since]
        journal = {feed: [copy.copy(d) for d in rows] for feed, rows in self.journal.items()}
        reopened = {row.seq: [copy.copy(d) for d in self.wishes.get(row.seq, ())] for row in reach}
        again = {d.event_id for found in reopened.values() for d in found}
        accepted = {t.event_id for row in reach for t in row.members if t.result == "accepted"} - again
        outside = [copy.copy(d) for rows in self.journal.values() for d in rows if d.event_id in accepted]
        return recover(self.rules, self.committed, journal, reach, reopened, outside)

    def done(self) -> bool:
        return super().done() and self.upto is not None and all(self.at[f] >= self._last(f) for f in self.upto)

    def _last(self, feed: Feed) -> int:
        assert self.upto is not None
        return max((d.offset for d in self.journal[feed] if d.offset <= self.upto[feed]), default=-1)

    # The promises

    def _send(self, calls: list[PlannedCall]) -> bool:
        for call in calls:
            for member in call.members if call.kind == "send" else ():
                delivery = self._delivery(call.feed, member.event_id)
                if member.event_id in self.taken and self._newer(delivery):
                    self.broken.append(f"{member.event_id} was sent after something newer was acknowledged")
        return super()._send(calls)

    def _check_calls(self, calls: list[PlannedCall]) -> None:
        """What was begun before the wish stays ahead of it; in everything else offsets rise."""
        begun = {m.event_id: self.state.unsettled[m.event_id] for call in calls for m in call.members}
        behind = [
            d
            for d in self.state.unsettled.values()
            for one in begun.values()
            if d.reopened and one.subject == d.subject and (one.begun or 0) < (d.begun or 0) and one is not d
        ]
        tolerated = {d.event_id: Final("lane", d.event_id, d.feed, d.offset, "expired", "", 0.0) for d in behind}
        self.ended |= tolerated
        super()._check_calls(calls)
        for event_id in tolerated:
            del self.ended[event_id]

    def check_ends(self) -> None:
        """Every turn of a delivery has one end; what follows a wish is judged like a first turn."""
        for place, row in enumerate(self.rows):
            kept = tuple(t for t in row.members if place >= self.taken.get(t.event_id, 0) or t.final is None)
            self.rows[place] = Recorded(row.seq, row.intent, row.feed, kept, row.started, row.finished, row.carried)
        super().check_ends()

    def _check_order(self) -> None:
        """A delivery that was given up although it had its effect is not overtaken by us knowingly; see `_send`."""
        order, self.subscriber.order = self.subscriber.order, [e for e in self.subscriber.order if e not in self.taken]
        super()._check_order()
        self.subscriber.order = order
