"""The alerts that are open, and those that were: one per cause until it clears, kept over restarts.

    data/alerts/open.json        what is open now
    data/alerts/history.jsonl    a line when an alert is raised and one when it is cleared

A condition clears when it no longer holds, an incident a day after the last one. Names and counts only, never personal data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidings import durable
from tidings.matters import ANSWER_WITHIN, DAY, MATTERS, Kind, runbook

Cause = tuple[Kind, str]
QUIET_S = DAY  # after the last incident


@dataclass
class Alert:
    """One open matter. `told` is whether every receiver has heard of it."""

    kind: Kind
    subject: str
    detail: str
    raised: float
    seen: float
    told: bool = False

    def said(self, base: str) -> dict[str, Any]:
        """As a person or a program reads it."""
        matter = MATTERS[self.kind]
        within = ANSWER_WITHIN[matter.severity]
        return {
            "severity": matter.severity,
            "kind": self.kind,
            "subject": self.subject,
            "title": matter.title,
            "detail": self.detail,
            "raised": moment(self.raised),
            "answer_by": None if within is None else moment(self.raised + within),
            "what_now": matter.advice,
            "runbook": runbook(self.kind, base),
        }


class Book:
    """What is open, by cause."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open: dict[Cause, Alert] = {}
        for row in _read(folder / "open.json"):
            alert = Alert(**row)
            self.open[alert.kind, alert.subject] = alert

    def note(self, causes: Mapping[Cause, str], now: float, *, whole: bool = True) -> tuple[list[Alert], list[Alert]]:
        """What is new and what is over. `whole` says that every condition was looked at, so that one not named is over."""
        before = {cause: asdict(alert) for cause, alert in self.open.items()}
        raised = []
        for cause, detail in causes.items():
            if (alert := self.open.get(cause)) is None:
                alert = self.open[cause] = Alert(*cause, detail, now, now)
                raised.append(alert)
            alert.detail, alert.seen = detail, now
        cleared = [alert for cause, alert in self.open.items() if cause not in causes and self._over(alert, now, whole)]
        for alert in cleared:
            del self.open[alert.kind, alert.subject]
        self._log("raised", raised, now)
        self._log("cleared", cleared, now)
        if raised or cleared or any(_differs(before[cause], alert) for cause, alert in self.open.items()):
            self.keep()
        return raised, cleared

    def _over(self, alert: Alert, now: float, whole: bool) -> bool:
        return now - alert.seen > QUIET_S if MATTERS[alert.kind].incident else whole

    def keep(self) -> None:
        durable.make_folder(self.folder)
        rows = [asdict(alert) for alert in self.open.values()]
        durable.durable_write(self.folder / "open.json", json.dumps(rows, ensure_ascii=False))

    def _log(self, what: str, alerts: list[Alert], now: float) -> None:
        if not alerts:
            return
        durable.make_folder(self.folder)
        with (self.folder / "history.jsonl").open("a", encoding="utf-8") as file:
            for alert in alerts:
                line = {"what": what, "at": moment(now), "kind": alert.kind, "subject": alert.subject}
                line |= {"severity": MATTERS[alert.kind].severity, "detail": alert.detail}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def listed(folder: Path, base: str) -> list[dict[str, Any]]:
    """The open alerts, the most severe first."""
    alerts = sorted(Book(folder).open.values(), key=lambda alert: (MATTERS[alert.kind].severity, alert.raised))
    return [alert.said(base) for alert in alerts]


def history(folder: Path) -> list[dict[str, Any]]:
    """Every alert that was raised or cleared, oldest first; a last line torn by a crash was never told."""
    path, found = folder / "history.jsonl", []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [row for row in found if row["kind"] in MATTERS]


def _differs(before: dict[str, Any], alert: Alert) -> bool:
    """A later look alone is not worth a write."""
    return bool(before["detail"] != alert.detail)
