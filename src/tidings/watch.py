"""What people are told about, found in the running process: once per cause until it clears, and when it does.

Incidents are looked at every second, since a broken order is told at once; conditions every half minute, each with one pass over
what waits. Nothing here reads history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from tidings.alertbook import Book, Cause
from tidings.alerts import Alerts
from tidings.errors import SourceStopped
from tidings.lanes.cycle import Cycle
from tidings.lanes.sla import at_risk
from tidings.matters import Kind
from tidings.progress import Generations
from tidings.report.capture import progress_of
from tidings.settings import Settings
from tidings.store import Store

LOOK_S = 30.0
FULL_S = 300.0  # a lane that is full for so long does not only catch up
INCIDENTS: tuple[Kind, ...] = ("order_violation", "exactly_once_breach")
# Codes of the quarantine that say: this is not what the contract describes.
SHAPES = (
    "missing_field", "missing_key", "not_an_object", "number_not_exact", "unknown_dialect", "unknown_operation",
    "unknown_table", "wrong_type",
)  # fmt: skip
Found = Iterator[tuple[Kind, str, str]]


class Watch:
    """Looks at the running process now and then, keeps the book, and tells."""

    def __init__(self, settings: Settings, store: Store, clock: Callable[[], float] = time.time) -> None:
        references = [alert.secret for alert in settings.alerts if alert.secret]
        secrets = {reference: settings.secret(reference).reveal() for reference in references}
        self.settings, self.store, self.clock, self.started = settings, store, clock, clock()
        runbooks = settings.operator.runbooks
        self.alerts = Alerts(settings.alerts, secrets, settings.network, clock=clock, runbooks=runbooks)
        self.book = Book(settings.data_path / "alerts")
        self.others: list[Callable[[], Iterable[tuple[Kind, str, str]]]] = []  # who else sees conditions: the desk
        self._looked = -LOOK_S
        self._counted: dict[Cause, int] = {("schema_incompatible", n): self._misfits(n)[0] for n in settings.sources}
        self._full: dict[str, float] = {}

    def look(self, cycle: Cycle, failure: BaseException | None = None) -> None:
        """What is wrong now, told if it is new; what is over, told if it was told. `failure` is what ended the run."""
        now = self.clock()
        whole = now - self._looked >= LOOK_S
        found = [*self._happened(cycle, whole)]
        if whole:
            self._looked = now
            found += [*self._lanes(cycle, now), *self._silent(now), *self._undocumented()]
            found += [cause for other in self.others for cause in other()]
        if isinstance(failure, SourceStopped):
            found.append(("source_stopped", failure.code, "the run ended with it"))
        causes = {(kind, subject): detail for kind, subject, detail in found}
        _, cleared = self.book.note(causes, now, whole=whole)
        waiting = [alert for alert in self.book.open.values() if not alert.told]
        for alert in waiting:
            sent = self.alerts.raise_(alert.kind, alert.subject, alert.detail)
            alert.told = all(one.ok for one in sent)
        for alert in cleared:
            self.alerts.clear(alert.kind, alert.subject, alert.detail)
        if any(alert.told for alert in waiting):
            self.book.keep()

    def _happened(self, cycle: Cycle, whole: bool) -> Found:
        """Incidents, by counts that rose since the last look."""
        for name, lane in list(cycle.lanes.items()):
            totals = lane.state.totals
            for kind in INCIDENTS:
                yield from self._risen(kind, name, totals.incidents.get(kind, 0), "since the start")
            yield from self._risen("dead_letters", name, totals.finals.get("dead_lettered", 0), "since the start")
        for name in self.settings.sources if whole else ():
            count, codes = self._misfits(name)
            yield from self._risen("schema_incompatible", name, count, f"messages in quarantine: {codes}")

    def _risen(self, kind: Kind, subject: str, count: int, words: str) -> Found:
        if count > self._counted.get((kind, subject), 0):
            yield kind, subject, f"{count} {words}"
        self._counted[kind, subject] = count

    def _misfits(self, source: str) -> tuple[int, str]:
        codes = {
            code: n for code, n in progress_of(self.settings, self.store, source).seen.codes.items() if code in SHAPES
        }
        return sum(codes.values()), ", ".join(f"{code} {count}" for code, count in sorted(codes.items()))

    def _lanes(self, cycle: Cycle, now: float) -> Found:
        for name, lane in list(cycle.lanes.items()):
            state = lane.state
            if state.breaker.look(now) != "closed":
                failed = f"{state.breaker.failures} calls failed in a row"
                yield "breaker_open", name, f"{failed}; {len(state.unsettled)} deliveries wait"
            risk = at_risk(state, lane.prospect(now), now)
            if risk.at_risk:
                hours = max(0.0, risk.nearest - now) / 3600
                yield "deadline_at_risk", name, f"{risk.at_risk} deliveries; the nearest is due in {hours:.1f} h"
            if risk.late:
                yield "deadline_missed", name, f"{risk.late} deliveries wait beyond the time they were due by"
            self._full = {k: at for k, at in self._full.items() if k != name or not state.room}
            if not state.room and now - self._full.setdefault(name, now) >= FULL_S:
                yield "backpressure", name, f"{len(state.unsettled)} deliveries wait; the cursor stands still"

    def _silent(self, now: float) -> Found:
        for name, source in self.settings.sources.items():
            folder = Generations(self.settings.data_path, name).folder
            last = max((path.stat().st_mtime for path in folder.rglob("*.json")), default=self.started)
            quiet = now - max(last, self.started)
            if source.silent_after and quiet > source.silent_after:
                yield "silent_source", name, f"nothing for {quiet / 60:.0f} minutes"

    def _undocumented(self) -> Found:
        for name, subscriber in self.settings.subscribers.items():
            said = {"owner": subscriber.owner, "runbook": subscriber.runbook, "dpa": subscriber.dpa}
            if lacking := [what for what, value in said.items() if not value]:
                yield "documentation", name, f"no {', '.join(lacking)}"
