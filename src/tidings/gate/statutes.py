"""Laws as data: what they are called, where they are written, how sure we are, which window held when, and who must be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from tidings.gate.calendars import Place, places
from tidings.gate.clocks import MAX_AMOUNT, Clock

CONFIDENCES = ("high", "med", "low")
NO_NUMBER = ("immediate", "undue_delay")  # the law gives no number, so the operator's own promise must
WINDOWS = (*MAX_AMOUNT, *NO_NUMBER, "none")
# What the end of a window means: act by then, not before then, keep at least until then, or it lapses then.
BOUNDS = ("deadline", "wait", "keep", "expires")
# Who else must be told: nobody, every recipient, processors, those who received it lately, or whom the text names.
TOLD = ("none", "each", "processors", "recent", "named")
PAUSES = ("text", "practice")  # does the text stop the clock, or only the habit of an authority
# Readings of a text that lengthen or shorten its window, and the clock's field for each.
READINGS = {"skip_hour": "skip_hour", "two_working_days": "two_days", "first_day_counts": "first_day"}


@dataclass(frozen=True)
class Amount:
    unit: str
    number: int


@dataclass(frozen=True)
class Version:
    """One text of a law while it was in force; without a date it has held for as long as anyone asks."""

    effective_from: str
    effective_to: str
    unit: str
    amount: int
    calendar: str
    roll: bool
    first_day_counts: bool = False
    extension: Amount | None = None
    extension_if: str = ""

    def in_force(self, day: date) -> bool:
        text = day.isoformat()
        return (self.effective_from or text) <= text <= (self.effective_to or text)


@dataclass(frozen=True)
class Own:
    """What the operator promises beyond the law, and the readings its counsel chose."""

    amount: Amount | None = None
    calendar: str = "weekends"
    readings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statute:
    id: str
    law: str
    jurisdiction: str
    citation: str
    source: str
    confidence: str
    summary: str
    versions: tuple[Version, ...]
    trigger: str = ""
    start: str = ""
    bound: str = "deadline"
    told: str = "none"
    duty: str = ""
    semantic: str = ""
    retention: Amount | None = None
    proof: str = ""
    cure: str = ""
    notes: str = ""
    quoted: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    pause: str = ""
    readings: tuple[str, ...] = ()
    own: Own = field(default_factory=Own)

    @property
    def place(self) -> Place:
        return places()[self.jurisdiction]

    def clocks(self, origin: str) -> tuple[Clock, ...]:
        """The windows that carry a number, each valid for starts in its own dates, and the operator's own promise."""
        if self.bound != "deadline":
            return ()
        law = tuple(self.clock(version, origin) for version in self.versions if version.unit in MAX_AMOUNT)
        own = self.own_clock(origin)
        return (*law, own) if own else law

    def clock(self, version: Version, origin: str = "request", place: Place | None = None) -> Clock:
        """One text as a clock, counted where the statute holds or in a place within."""
        there, calendar = place or self.place, version.calendar
        if there.calendar and calendar == self.place.calendar:
            calendar = there.calendar
        chosen = {READINGS[name]: True for name in self.own.readings}
        return Clock(
            version.unit,
            version.amount,
            origin,
            calendar,
            version.roll,
            version.effective_from,
            version.effective_to,
            there.zone,
            **({"first_day": version.first_day_counts} | chosen),
        )

    def own_clock(self, origin: str = "request", place: Place | None = None) -> Clock | None:
        """The operator's promise; it begins to bind with the law."""
        promised = self.own.amount
        if promised is None:
            return None
        since = min(version.effective_from for version in self.versions)
        zone = (place or self.place).zone
        return Clock(promised.unit, promised.number, origin, self.own.calendar, since=since, zone=zone)

    @property
    def needs_sla(self) -> bool:
        return self.own.amount is None and any(version.unit in NO_NUMBER for version in self.versions)
