"""An operator's requests on their way into the lanes: taken once, attested, and true after a restart."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from tidings.lanes import control, machine
from tidings.lanes.attempts import asked_row
from tidings.lanes.lane import Lane, Tables


class Orders:
    """Looks at the sizes of the request files; reads them only when one changed."""

    def __init__(self, tables: Tables, attestor: str) -> None:
        self.tables, self.attestor = tables, attestor
        self._seen: tuple[int, ...] = ()

    def take(self, lanes: Collection[Lane], now: float) -> list[dict[str, Any]]:
        """Act on every new request; the rows attest them and are committed with the lane's number of requests taken."""
        data = self.tables.settings.data_path
        sizes = control.marks(data, [lane.name for lane in lanes])
        if sizes == self._seen:
            return []
        self._seen = sizes
        rows = []
        for lane in lanes:
            asked = control.asked(data, lane.name)
            for request in asked[lane.requests :]:
                lane.state.seq += 1
                rows.append(asked_row(request, lane.state.seq, now, self.attestor))
                if request.action == "retry" and (delivery := self.tables.wanted(request)) is not None:
                    machine.reopen(lane.state, delivery, lane.state.seq)
                lane.requests = request.serial
            lane.state.paused = control.paused(asked)
            lane.touch()
        return rows

    def shut_doors(self, lanes: Iterable[Lane]) -> None:
        """A lane that paused itself says so where an operator's pause would stand, so that `resume` works the same."""
        data = self.tables.settings.data_path
        for lane in lanes:
            if lane.state.paused and not control.paused(control.asked(data, lane.name)):
                control.ask(data, lane.name, "pause", lane.state.paused)
