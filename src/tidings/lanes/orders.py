"""An operator's requests on their way into the lanes: taken once, attested, and true after a restart."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from tidings.lanes import awaiting, control, machine
from tidings.lanes.attempts import answered_row, asked_row
from tidings.lanes.lane import Lane, Tables
from tidings.lanes.member import Delivery, Final, FinalName


class Orders:
    """Looks at the sizes of the request files; reads them only when one changed."""

    def __init__(self, tables: Tables, attestor: str) -> None:
        self.tables, self.attestor = tables, attestor
        self._seen: tuple[int, ...] = ()
        self.ends: list[tuple[Final, str]] = []  # what the last answers ended, and how strongly

    def take(self, lanes: Collection[Lane], now: float) -> list[dict[str, Any]]:
        """Act on every new request; the rows attest them and are committed with the lane's number of requests taken."""
        data = self.tables.settings.data_path
        sizes = control.marks(data, [lane.name for lane in lanes])
        if sizes == self._seen:
            return []
        self._seen, self.ends = sizes, []
        rows = []
        for lane in lanes:
            asked = control.asked(data, lane.name)
            new = asked[lane.requests :][: self._most(lane)]
            wanted = self.tables.wanted(new)
            for request in new:
                if busy(lane, request):
                    self._seen = ()  # a question about it is on its way: looked at again in the next step
                    break
                rows.append(self._taken(lane, request, wanted.get(request.serial), now))
                lane.requests = request.serial
            if lane.requests < len(asked):
                self._seen = ()  # the rest is taken up when there is room
            lane.state.paused = control.paused(asked)
            lane.touch()
        return rows

    def _most(self, lane: Lane) -> int:
        """Letters sent again stand beside the window; as many again may be in memory, and a pause is never kept waiting."""
        return max(1, 2 * lane.state.rules.window - len(lane.state.unsettled))

    def _taken(self, lane: Lane, request: control.Request, wanted: Delivery | None, now: float) -> dict[str, Any]:
        lane.state.seq += 1
        if request.action in ("acknowledge", "reject"):
            return self._answered(lane, request, now)
        if wanted is not None:
            machine.reopen(lane.state, wanted, lane.state.seq)
        return asked_row(request, lane.state.seq, now, self.attestor)

    def _answered(self, lane: Lane, request: control.Request, now: float) -> dict[str, Any]:
        """The row of an answer: the deliveries that waited for it end; what nobody waits for is said to be unknown."""
        final: FinalName = "acknowledged" if request.action == "acknowledge" else "dead_lettered"
        found = []
        for event_id in dict.fromkeys((*request.events, *([request.event] if request.event else []))):
            delivery = lane.state.unsettled.get(event_id)
            ended = delivery and awaiting.answer(lane.state, event_id, final, request.action, now)
            if delivery is not None and ended:
                self.ends.append((ended, request.strength or "A3"))
                found.append(delivery)
        return answered_row(lane.state.rules, request, found, (lane.state.seq, now), lane.job.by)

    def shut_doors(self, lanes: Iterable[Lane]) -> None:
        """A lane that paused itself says so where an operator's pause would stand, so that `resume` works the same."""
        data = self.tables.settings.data_path
        for lane in lanes:
            if lane.state.paused and not control.paused(control.asked(data, lane.name)):
                control.ask(data, lane.name, "pause", lane.state.paused)


def busy(lane: Lane, request: control.Request) -> bool:
    """Whether an answer speaks of a delivery that a call is being made for."""
    spoken = (lane.state.unsettled.get(event_id) for event_id in (*request.events, request.event))
    return request.action in ("acknowledge", "reject") and any(d is not None and d.call is not None for d in spoken)
