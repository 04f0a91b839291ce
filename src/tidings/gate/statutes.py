"""Laws as data: what they are called, where they are written, how sure we are, and which window held when."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidings import yaml_lines
from tidings.errors import Problem
from tidings.gate.clocks import CALENDARS, MAX_AMOUNT, Clock
from tidings.yaml_lines import Document, Place

CONFIDENCES = ("high", "med", "low")
NO_NUMBER = ("immediate", "undue_delay")  # the law gives no number, so the operator's own agreement must
WINDOWS = (*MAX_AMOUNT, *NO_NUMBER, "none")
_KEYS = {"law", "jurisdiction", "citation", "source", "confidence", "summary", "versions"}
_VERSION_KEYS = {"effective_from", "effective_to", "window", "unit", "calendar", "roll"}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class Version:
    """One text of a law while it was in force."""

    effective_from: str
    effective_to: str
    unit: str
    amount: int
    calendar: str
    roll: bool


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

    def clocks(self, origin: str) -> tuple[Clock, ...]:
        """The windows that carry a number, each valid for starts in its own dates."""
        return tuple(
            Clock(v.unit, v.amount, origin, v.calendar, v.roll, v.effective_from, v.effective_to)
            for v in self.versions
            if v.unit in MAX_AMOUNT
        )

    @property
    def needs_sla(self) -> bool:
        return any(version.unit in NO_NUMBER for version in self.versions)


def read_statutes(folders: Mapping[str, Path]) -> tuple[dict[str, Statute], list[Problem]]:
    """All statutes in the folders (label → folder); a later folder overrides an earlier one by id."""
    found: dict[str, Statute] = {}
    problems: list[Problem] = []
    for label, folder in folders.items():
        for path in sorted(folder.glob("*.yaml")):
            document, wrong = yaml_lines.read(path, f"{label}/{path.name}")
            problems += wrong
            if document is not None:
                statutes, wrong = parse_statutes(document)
                problems += wrong
                found |= {statute.id: statute for statute in statutes}
    return found, problems


def parse_statutes(document: Document) -> tuple[list[Statute], list[Problem]]:
    """`statutes:` maps an id to a law."""
    problems: list[Problem] = []
    entries = document.data.get("statutes")
    if not isinstance(entries, dict):
        return [], [document.problem((), "no_statutes", "no `statutes:` mapping", "id: law entries", "Add one.")]
    statutes = []
    for name, entry in entries.items():
        place: Place = ("statutes", name)
        if not isinstance(entry, dict):
            problems.append(document.problem(place, "not_a_mapping", "a plain value", "a law", "Write its keys."))
            continue
        problems += _unknown(document, place, entry, _KEYS)
        for key in ("law", "jurisdiction", "citation", "source"):
            if not isinstance(entry.get(key), str) or not entry[key].strip():
                problems.append(
                    document.problem(
                        (*place, key), "missing", "nothing", "text", "A law is only as good as its source."
                    )
                )
        if entry.get("confidence") not in CONFIDENCES:
            problems.append(_choice(document, (*place, "confidence"), entry.get("confidence"), CONFIDENCES))
        versions, wrong = _versions(document, place, entry.get("versions"))
        problems += wrong
        statutes.append(_statute(name, entry, versions))
    return ([] if problems else statutes), problems


def _statute(name: str, entry: Mapping[str, object], versions: tuple[Version, ...]) -> Statute:
    return Statute(
        id=name,
        law=str(entry.get("law", "")),
        jurisdiction=str(entry.get("jurisdiction", "")),
        citation=str(entry.get("citation", "")),
        source=str(entry.get("source", "")),
        confidence=str(entry.get("confidence", "")),
        summary=str(entry.get("summary", "")),
        versions=versions,
    )


def _versions(document: Document, place: Place, entries: object) -> tuple[tuple[Version, ...], list[Problem]]:
    if not isinstance(entries, list) or not entries:
        return (), [document.problem((*place, "versions"), "missing", "no versions", "at least one", "Add one.")]
    versions, problems = [], []
    for index, entry in enumerate(entries):
        here: Place = (*place, "versions", index)
        if not isinstance(entry, dict):
            problems.append(document.problem(here, "not_a_mapping", "a plain value", "a version", "Write its keys."))
            continue
        problems += _unknown(document, here, entry, _VERSION_KEYS)
        unit, amount = entry.get("unit", "none"), entry.get("window", 0)
        start, end = str(entry.get("effective_from") or ""), str(entry.get("effective_to") or "")
        calendar = entry.get("calendar", "weekends")
        if not _DATE.fullmatch(start) or (end and not _DATE.fullmatch(end)):
            problems.append(document.problem(here, "date", f"{start}..{end}", "dates as YYYY-MM-DD", "Mend the date."))
        if unit not in WINDOWS:
            problems.append(_choice(document, (*here, "unit"), unit, WINDOWS))
        elif unit in MAX_AMOUNT and not (type(amount) is int and 0 < amount <= MAX_AMOUNT[unit]):
            wants = f"a whole number from 1 to {MAX_AMOUNT[unit]:,}"
            problems.append(document.problem((*here, "window"), "amount", repr(amount), wants, "Mend the window."))
        if calendar not in CALENDARS:
            problems.append(_choice(document, (*here, "calendar"), calendar, CALENDARS))
        versions.append(
            Version(start, end, unit, amount if type(amount) is int else 0, calendar, bool(entry.get("roll")))
        )
    return tuple(versions), problems


def _unknown(document: Document, place: Place, entry: Mapping[str, object], keys: set[str]) -> list[Problem]:
    return [
        document.problem((*place, key), "unknown_key", key, "one of " + ", ".join(sorted(keys)), "Remove or rename it.")
        for key in entry
        if key not in keys
    ]


def _choice(document: Document, place: Place, value: object, choices: tuple[str, ...]) -> Problem:
    return document.problem(place, "choice", repr(value), "one of " + ", ".join(choices), "Choose one of them.")
