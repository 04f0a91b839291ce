"""What people are told about: a deadline at risk, an open breaker, dead letters, a silent source."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tidings.alerts import Alerts
from tidings.lanes.cycle import Cycle
from tidings.progress import Generations
from tidings.settings import Settings

AT_RISK = (
    0.5  # of the time between an obligation and its deadline: half gone without an acknowledgement is worth a word
)


class Watch:
    """Looks at the running process now and then; the same matter is told once an hour."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        references = [alert.secret for alert in settings.alerts if alert.secret]
        secrets = {reference: settings.secret(reference).reveal() for reference in references}
        self.settings, self.clock, self.started = settings, clock, clock()
        self.alerts = Alerts(settings.alerts, secrets, settings.network, clock=clock)

    def look(self, cycle: Cycle) -> None:
        if not self.settings.alerts:
            return
        now = self.clock()
        for kind, subject, detail in (*self._lanes(cycle, now), *self._silent(now)):
            self.alerts.raise_(kind, subject, detail)  # type: ignore[arg-type]

    def _lanes(self, cycle: Cycle, now: float) -> Iterator[tuple[str, str, str]]:
        for name, lane in list(cycle.lanes.items()):
            state = lane.state
            if state.breaker.look(now) != "closed":
                yield (
                    "breaker_open",
                    name,
                    f"{state.breaker.failures} calls failed in a row; {len(state.unsettled)} deliveries wait",
                )
            if dead := state.totals.finals.get("dead_lettered", 0):
                yield "dead_letters", name, f"{dead} since the start; see `tidings dead-letters`"
            late = [
                d
                for d in list(state.unsettled.values())
                if d.deadline and now > d.since + AT_RISK * (d.deadline - d.since)
            ]
            if late:
                nearest = min(d.deadline or now for d in late)
                yield (
                    "deadline_at_risk",
                    name,
                    f"{len(late)} deliveries; the nearest is due in {max(0, nearest - now) / 3600:.1f} h",
                )

    def _silent(self, now: float) -> Iterator[tuple[str, str, str]]:
        for name, source in self.settings.sources.items():
            folder = Generations(self.settings.data_path, name).folder
            last = max((path.stat().st_mtime for path in folder.rglob("*.json")), default=self.started)
            quiet = now - max(last, self.started)
            if source.silent_after and quiet > source.silent_after:
                yield "silent_source", name, f"nothing for {quiet / 60:.0f} minutes"
