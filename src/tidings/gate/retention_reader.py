"""`retention:` and `holds:` of the policy documents, read with every problem at its line.

retention:
  events: {months: 13, at_most: [us-glba-disposal]}     the operator's number; never beyond what a law lets anyone keep
  quarantine: {days: 90}
  proof: {statutes: [us-hipaa-docs, us-tsr-records]}    the longest of them and of what the rules name
holds:
  - {class: events, source: crm, from: "2025-01-01", to: "2025-06-30", since: "2026-11-01", until: "2028-12-31", reason: "case 12",
     by: "counsel"}                                     `from` and `to` say which records, `until` when the hold itself ends
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from tidings.errors import Problem
from tidings.gate.own_clocks import longest, shortest
from tidings.gate.retention import OWN, UNITS, Duty, Hold, Retention, Schedule, classes, duty_of
from tidings.gate.rules import Rule
from tidings.gate.statutes import Amount, Statute
from tidings.reading import did_you_mean
from tidings.yaml_lines import Document, Place

MAX_NUMBER = {"days": 36_600, "months": 1_200, "years": 100}
# Files hold a month of records and go whole, so what is due on the first waits for the last.
WAIT = Amount("days", 31)
OWN_FOLDER = "policy"  # a bundle of somebody else may hold records, and never lets them go
_HOLD_KEYS = {"class", "source", "entity", "from", "to", "since", "until", "reason", "by"}


def read_retention(
    documents: Iterable[Document], rules: Iterable[Rule], statutes: Mapping[str, Statute]
) -> tuple[Retention, list[Problem]]:
    """What the documents say, with the duties that the rules in force bring along."""
    schedules: dict[str, Schedule] = {}
    holds: list[Hold] = []
    problems: list[Problem] = []
    for document in documents:
        reading = _Reading(document, statutes)
        for schedule in reading.schedules():
            if schedule.record_class in schedules:
                place: Place = ("retention", schedule.record_class)
                found = f"{schedule.record_class}, already named by another document"
                problems.append(document.problem(place, "duplicate_id", found, "each class once", "Remove one."))
            schedules.setdefault(schedule.record_class, schedule)
        holds += reading.holds()
        problems += reading.problems
    duties, wrong = _duties_of_rules(rules, statutes)
    for name in (name for name, one in classes().items() if one.rules):
        schedules[name] = with_duties(schedules.get(name, Schedule(name)), duties)
    return Retention(schedules, tuple(holds)), [*problems, *wrong]


def with_duties(schedule: Schedule, duties: Iterable[Duty]) -> Schedule:
    """The schedule with more duties, each once."""
    known = {duty.name for duty in schedule.duties}
    more = {duty.name: duty for duty in duties if duty.name not in known}
    return replace(schedule, duties=(*schedule.duties, *(more[name] for name in sorted(more))))


def _duties_of_rules(rules: Iterable[Rule], statutes: Mapping[str, Statute]) -> tuple[list[Duty], list[Problem]]:
    duties: dict[str, Duty] = {}
    problems = []
    for rule in rules:
        name = rule.effect.retention
        if name and name not in statutes:
            expected = f"the id of a statute.{did_you_mean(name, statutes)}"
            path = f"{rule.id}.effect.retention"
            problems.append(Problem(rule.file, rule.line, path, "unknown_statute", name, expected, "Mend the id."))
        elif name and (duty := duty_of(statutes[name])):
            duties[name] = duty
    return [duties[name] for name in sorted(duties)], problems


@dataclass
class _Reading:
    """One document; what is wrong piles up."""

    document: Document
    statutes: Mapping[str, Statute]
    problems: list[Problem] = field(default_factory=list)

    def schedules(self) -> list[Schedule]:
        entries = self.document.data.get("retention", {})
        if not isinstance(entries, dict):
            self._wrong(("retention",), "not_a_mapping", "another shape", "record classes", "Write `events: …`.")
            return []
        if entries and self.document.file.rpartition("/")[0] != OWN_FOLDER:
            found = "a bundle that would let records go"
            expected = f"`retention:` in a document of {OWN_FOLDER}/ alone"
            self._wrong(("retention",), "not_own", found, expected, "Write it in a document of your own.")
            return []
        read = [self._schedule(name, entry) for name, entry in entries.items()]
        return [schedule for schedule in read if schedule is not None]

    def _schedule(self, name: str, entry: object) -> Schedule | None:
        place: Place = ("retention", name)
        ending = {each for each, one in classes().items() if one.goes != "nothing"}
        if name not in ending:
            self._wrong(place, "choice", name, "one of " + ", ".join(sorted(ending)), "Name a class that can go.")
            return None
        if not isinstance(entry, dict) or not set(entry) <= {*UNITS, "statutes", "at_most"}:
            expected = "such as {months: 13} or {statutes: [us-hipaa-docs]}"
            self._wrong(place, "unknown_key", "another shape", expected, "Mend it.")
            return None
        duties = [*self._own(place, entry), *self._laws((*place, "statutes"), entry.get("statutes", []))]
        if not duties:
            self._wrong(place, "amount", "no duty with a number", "a number or a statute that has one", "Add one.")
            return None
        self._bounded(place, entry.get("at_most", []), duties)
        return Schedule(name, tuple(duties), named=True)

    def _own(self, place: Place, entry: Mapping[str, Any]) -> list[Duty]:
        said = [(unit, entry[unit]) for unit in UNITS if unit in entry]
        for unit, number in said:
            if len(said) > 1 or type(number) is not int or not 0 < number <= MAX_NUMBER[unit]:
                expected = f"one whole number, such as {{{unit}: 13}}, up to {MAX_NUMBER[unit]:,}"
                self._wrong((*place, unit), "amount", repr(number), expected, "Mend the number.")
                return []
        return [Duty(OWN, Amount(unit, number)) for unit, number in said]

    def _laws(self, place: Place, names: object) -> list[Duty]:
        duties = []
        for statute in self._named(place, names):
            duty = duty_of(statute)
            if duty is None:
                found = f"{statute.id}, which gives no period for records"
                self._wrong(place, "no_period", found, "a statute with one", "Write your own number instead.")
            else:
                duties.append(duty)
        return duties

    def _bounded(self, place: Place, names: object, duties: Iterable[Duty]) -> None:
        """A law that lets nobody keep longer is never outlasted, not even by the month that a file waits for its last record."""
        for statute in self._named((*place, "at_most"), names):
            text = statute.versions[-1]
            if text.unit not in UNITS:
                found = f"{statute.id}, which gives no longest time"
                self._wrong((*place, "at_most"), "no_period", found, "a statute with one", "Remove it.")
                continue
            most = shortest(Amount(text.unit, text.amount))
            for duty in duties:
                if longest(duty.amount) + longest(WAIT) > most:
                    expected = f"a month less than the {text.amount} {text.unit} of {statute.id} ({statute.citation})"
                    self._wrong(place, "beyond_disposal", str(duty), expected, "Keep it for less time.")

    def _named(self, place: Place, names: object) -> list[Statute]:
        if not isinstance(names, list):
            self._wrong(place, "not_a_list", repr(names), "a list of statute ids", "Write it as a list.")
            return []
        for name in names:
            if name not in self.statutes:
                expected = f"the id of a statute.{did_you_mean(str(name), self.statutes)}"
                self._wrong(place, "unknown_statute", str(name), expected, "Mend the id.")
        return [self.statutes[name] for name in names if name in self.statutes]

    def holds(self) -> list[Hold]:
        entries = self.document.data.get("holds", [])
        if not isinstance(entries, list):
            self._wrong(("holds",), "not_a_list", "another shape", "a list of holds", "Write `- {reason: …}`.")
            return []
        read = [self._hold(("holds", index), entry) for index, entry in enumerate(entries)]
        return [hold for hold in read if hold is not None]

    def _hold(self, place: Place, entry: object) -> Hold | None:
        if not isinstance(entry, dict) or not set(entry) <= _HOLD_KEYS:
            self._wrong(place, "unknown_key", "another shape", "keys: " + ", ".join(sorted(_HOLD_KEYS)), "Mend it.")
            return None
        for key in ("reason", "by", "since"):
            if not str(entry.get(key) or "").strip():
                self._wrong((*place, key), "missing", "nothing", "text", "A hold says why, by whom and since when.")
                return None
        held = str(entry.get("class") or "")
        if held and held not in classes():
            self._wrong((*place, "class"), "choice", held, "one of " + ", ".join(classes()), "Name a class.")
            return None
        try:
            since, first, last, until = (
                date.fromisoformat(str(entry[key])) if entry.get(key) else default
                for key, default in (("since", date.min), ("from", date.min), ("to", date.max), ("until", date.max))
            )
        except ValueError:
            self._wrong(place, "date", "something else", "dates as YYYY-MM-DD", "Mend the date.")
            return None
        texts = {key: str(entry.get(key) or "") for key in ("source", "entity")}
        return Hold(str(entry["reason"]), str(entry["by"]), since, held, **texts, first=first, last=last, until=until)

    def _wrong(self, place: Place, code: str, found: str, expected: str, what_now: str) -> None:
        self.problems.append(self.document.problem(place, code, found, expected, what_now))
