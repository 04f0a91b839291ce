"""How long each class of record is kept, and what stops it from going. Pure arithmetic: no table is read here.

A record is kept until the last day of the longest duty that binds its class; it may go on the day after. A duty counts from the day the
record was made. A class without a duty is kept for ever. A hold keeps what it covers whatever the duties say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import cache
from importlib.resources import files

from tidings import yaml_lines
from tidings.errors import Damaged
from tidings.gate.clocks import add_months, spoken
from tidings.gate.statutes import Amount, Statute

UNITS = ("days", "months", "years")
OWN = "own"  # the operator's number, where a statute would have its id


@dataclass(frozen=True)
class RecordClass:
    """One class of record: what leaves in the end, and which time its age is counted from in each table."""

    name: str
    about: str
    goes: str
    moments: Mapping[str, str] = field(default_factory=dict)
    rules: bool = False
    types: Collection[str] = ()  # change types that are kept by this class when it is named


@cache
def classes() -> dict[str, RecordClass]:
    """The classes of the catalogue, by name."""
    text = files("tidings").joinpath("catalog/retention/classes.yaml").read_text(encoding="utf-8")
    document, problems = yaml_lines.parse(text, "catalog/retention/classes.yaml")
    if document is None or problems:
        raise Damaged("catalogue", "; ".join(map(str, problems)), "the record classes", "Install the package again.")
    return {name: RecordClass(name, **entry) for name, entry in document.data["classes"].items()}


@dataclass(frozen=True)
class Duty:
    """One reason to keep a class of record, with its number."""

    name: str
    amount: Amount
    citation: str = ""

    def until(self, day: date) -> date:
        """The last day on which a record of this day is kept."""
        if self.amount.unit == "days":
            return day + timedelta(days=self.amount.number)
        return add_months(day, self.amount.number * (12 if self.amount.unit == "years" else 1))

    def __str__(self) -> str:
        said = spoken(self.amount.unit, self.amount.number)
        return f"{said}, the operator's own number" if self.name == OWN else f"{said}, {self.name} ({self.citation})"


def duty_of(statute: Statute) -> Duty | None:
    """How long a law wants records kept; None when it gives no number."""
    kept = statute.retention
    return Duty(statute.id, kept, statute.citation) if kept and kept.unit in UNITS else None


@dataclass(frozen=True)
class Schedule:
    """The duties that bind one class. Only a class that the operator `named` ever goes."""

    record_class: str
    duties: tuple[Duty, ...] = ()
    named: bool = False

    def decides(self, day: date) -> Duty | None:
        """The longest duty for a record of this day; the first named among equals."""
        return max(self.duties, key=lambda duty: duty.until(day), default=None) if self.named else None

    def until(self, day: date) -> date | None:
        """The last day that a record of this day is kept; None for ever."""
        longest = self.decides(day)
        return longest.until(day) if longest else None

    def lawful(self, day: date) -> Duty | None:
        """The longest duty of a law, which an erasure does not end; the operator's own number is none."""
        laws = [duty for duty in self.duties if duty.name != OWN] if self.named else []
        return max(laws, key=lambda duty: duty.until(day), default=None)

    def over(self, day: date, today: date) -> bool:
        """May a record of this day go?"""
        last = self.until(day)
        return last is not None and last < today

    def steps(self, day: date) -> list[str]:
        """The arithmetic in sentences that a person can follow."""
        if not self.named:
            return [f"No `retention:` names {self.record_class}: it is kept for ever."]
        said = [f"{duty}: a record of {day} is kept until {duty.until(day)}." for duty in self.duties]
        longest = self.decides(day)
        if longest is None:
            return [f"No duty of {self.record_class} has a number: it is kept for ever."]
        return [*said, f"The longest wins: {longest.name}, until {longest.until(day)}."]


@dataclass(frozen=True)
class Hold:
    """Keeps what it covers, until its own end. What it does not narrow down it covers whole; where we cannot tell, it covers."""

    reason: str
    by: str
    since: date
    record_class: str = ""
    source: str = ""
    entity: str = ""
    first: date = date.min
    last: date = date.max
    until: date = date.max  # the last day of the hold itself; on the day after it is over

    def covers(
        self,
        record_class: str,
        days: tuple[date, date],
        sources: Collection[str] | None = None,
        entities: Collection[str] | None = None,
    ) -> bool:
        """Is any record of these days held? `sources` and `entities` are those of the records, None when unknown."""
        low, high = days
        return (
            self.record_class in ("", record_class)
            and low <= self.last
            and high >= self.first
            and (not self.source or sources is None or self.source in sources)
            and (not self.entity or entities is None or self.entity in entities)
        )

    def __str__(self) -> str:
        ends = f", until {self.until}" if self.until != date.max else ""
        return f"{self.reason} ({self.by}, since {self.since}{ends})"


@dataclass(frozen=True)
class Retention:
    """Everything a policy says about keeping."""

    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    holds: tuple[Hold, ...] = ()

    def __getitem__(self, record_class: str) -> Schedule:
        return self.schedules.get(record_class, Schedule(record_class))

    def on(self, today: date) -> Retention:
        """With the holds that are not over."""
        return replace(self, holds=tuple(hold for hold in self.holds if hold.until >= today))
