"""From a law as written to a law as reckoned with: every problem at once, each with its line."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidings import yaml_lines
from tidings.errors import Problem
from tidings.gate.calendars import LIBRARY, Calendars, places
from tidings.gate.clocks import MAX_AMOUNT
from tidings.gate.statutes import BOUNDS, CONFIDENCES, PAUSES, READINGS, TOLD, WINDOWS, Amount, Statute, Version
from tidings.reading import did_you_mean
from tidings.yaml_lines import Document, Place

_TEXTS = ("law", "jurisdiction", "citation", "source")
_MORE_TEXTS = ("summary", "trigger", "start", "duty", "semantic", "proof", "cure", "notes")
_CHOICES = {"confidence": CONFIDENCES, "bound": BOUNDS, "told": TOLD, "pause": PAUSES}
_KEYS = {*_TEXTS, *_MORE_TEXTS, *_CHOICES, "versions", "retention", "quoted", "also", "readings"}
_VERSION_KEYS = {"effective_from", "effective_to", "window", "unit", "calendar", "roll", "first_day_counts"}
_VERSION_KEYS |= {"extension", "extension_if"}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def read_statutes(
    folders: Mapping[str, Path], calendars: Calendars = LIBRARY
) -> tuple[dict[str, Statute], list[Problem]]:
    """All statutes in the folders (label → folder); a later folder overrides an earlier one by id."""
    found: dict[str, Statute] = {}
    problems: list[Problem] = []
    readings = []
    for label, folder in folders.items():
        for path in sorted(folder.glob("*.yaml")):
            document, wrong = yaml_lines.read(path, f"{label}/{path.name}")
            problems += wrong
            if document is not None:
                reading = Reading(document, calendars)
                found |= {statute.id: statute for statute in reading.statutes()}
                readings.append(reading)
    for reading in readings:
        reading.check_parallel(found)
        problems += reading.problems
    return found, problems


@dataclass
class Reading:
    """One document being read; what is wrong piles up here so that a person sees all of it."""

    document: Document
    calendars: Calendars = LIBRARY
    problems: list[Problem] = field(default_factory=list)

    def statutes(self) -> list[Statute]:
        """`statutes:` maps an id to a law; a document with a problem gives none."""
        entries = self.document.data.get("statutes")
        if not isinstance(entries, dict):
            self._wrong((), "no_statutes", "no `statutes:` mapping", "id: law entries", "Add one.")
            return []
        read = [self._statute(name, entry) for name, entry in entries.items()]
        return [] if self.problems else [statute for statute in read if statute is not None]

    def check_parallel(self, known: Collection[str]) -> None:
        """A clock that starts together with another one must exist."""
        entries = self.document.data.get("statutes")
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            for other in (entry.get("also") or ()) if isinstance(entry, dict) else ():
                if other not in known:
                    expected = f"the id of a statute.{did_you_mean(str(other), known)}"
                    self._wrong(("statutes", name, "also"), "unknown_statute", str(other), expected, "Mend the id.")

    def _statute(self, name: str, entry: object) -> Statute | None:
        place: Place = ("statutes", name)
        if not isinstance(entry, dict):
            self._wrong(place, "not_a_mapping", "a plain value", "a law", "Write its keys.")
            return None
        self._only(place, entry, _KEYS)
        for key in _TEXTS:
            if not isinstance(entry.get(key), str) or not entry[key].strip():
                self._wrong((*place, key), "missing", "nothing", "text", "A law is only as good as its source.")
        for key, choices in _CHOICES.items():
            if (key in entry or key == "confidence") and entry.get(key) not in choices:
                self._choice((*place, key), entry.get(key), choices)
        if entry.get("jurisdiction") and entry["jurisdiction"] not in places():
            expected = "a place of the catalogue, such as EU, DE, GB, US, US-CA or GLOBAL"
            found = str(entry["jurisdiction"])
            self._wrong((*place, "jurisdiction"), "unknown_place", found, expected, "Name the place whose law it is.")
        texts = {key: str(entry.get(key) or "") for key in (*_TEXTS, *_MORE_TEXTS)}
        chosen = {key: str(entry[key]) for key in _CHOICES if key in entry}
        return Statute(
            id=name,
            versions=self._versions(place, entry.get("versions")),
            retention=self._amount((*place, "retention"), entry["retention"]) if "retention" in entry else None,
            quoted=self._quoted((*place, "quoted"), entry.get("quoted", {})),
            also=self._names((*place, "also"), entry.get("also", [])),
            readings=self._names((*place, "readings"), entry.get("readings", []), tuple(READINGS)),
            **{"confidence": "", **texts, **chosen},  # type: ignore[arg-type]
        )

    def _quoted(self, place: Place, entry: object) -> dict[str, Any]:
        if not isinstance(entry, dict):
            self._wrong(place, "not_a_mapping", repr(entry), "a number with its unit, retention or text", "Write it.")
            return {}
        self._only(place, entry, {*MAX_AMOUNT, "retention", "text"})
        return dict(entry)

    def _names(self, place: Place, entries: object, choices: tuple[str, ...] = ()) -> tuple[str, ...]:
        if not isinstance(entries, list) or not all(isinstance(name, str) for name in entries):
            self._wrong(place, "not_a_list", repr(entries), "a list of names", "Write it as a list.")
            return ()
        for name in entries:
            if choices and name not in choices:
                self._choice(place, name, choices)
        return tuple(entries)

    def _amount(self, place: Place, entry: object) -> Amount | None:
        """One number with its unit, such as {days: 45}."""
        one = list(entry.items()) if isinstance(entry, dict) else []
        if len(one) != 1 or one[0][0] not in MAX_AMOUNT or type(one[0][1]) is not int or one[0][1] < 1:
            expected = "one number with its unit, such as {days: 45}"
            self._wrong(place, "amount", repr(entry), expected, "Mend the amount.")
            return None
        return Amount(*one[0])

    def _versions(self, place: Place, entries: object) -> tuple[Version, ...]:
        if not isinstance(entries, list) or not entries:
            self._wrong((*place, "versions"), "missing", "no versions", "at least one", "Add one.")
            return ()
        read = [self._version((*place, "versions", index), entry) for index, entry in enumerate(entries)]
        return tuple(version for version in read if version is not None)

    def _version(self, here: Place, entry: object) -> Version | None:
        if not isinstance(entry, dict):
            self._wrong(here, "not_a_mapping", "a plain value", "a version", "Write its keys.")
            return None
        self._only(here, entry, _VERSION_KEYS)
        unit, amount = entry.get("unit", "none"), entry.get("window", 0)
        start, end = str(entry.get("effective_from") or ""), str(entry.get("effective_to") or "")
        calendar = entry.get("calendar", "weekends")
        if any(text and not _DATE.fullmatch(text) for text in (start, end)) or (end and end < start):
            self._wrong(here, "date", f"{start}..{end}", "dates as YYYY-MM-DD, in order", "Mend the date.")
        if unit not in WINDOWS:
            self._choice((*here, "unit"), unit, WINDOWS)
        elif unit in MAX_AMOUNT and not (type(amount) is int and 0 < amount <= MAX_AMOUNT[unit]):
            wants = f"a whole number from 1 to {MAX_AMOUNT[unit]:,}"
            self._wrong((*here, "window"), "amount", repr(amount), wants, "Mend the window.")
        if calendar not in self.calendars:
            self._choice((*here, "calendar"), calendar, tuple(self.calendars))
        extension = self._amount((*here, "extension"), entry["extension"]) if "extension" in entry else None
        if extension is not None and extension.unit not in (unit, "days"):
            expected = f"an extension in {unit} or days"
            self._wrong((*here, "extension"), "amount", extension.unit, expected, "Mend the unit.")
        return Version(
            start,
            end,
            str(unit),
            amount if type(amount) is int else 0,
            str(calendar),
            bool(entry.get("roll")),
            bool(entry.get("first_day_counts")),
            extension,
            str(entry.get("extension_if") or ""),
        )

    def _only(self, place: Place, entry: Mapping[str, object], keys: set[str]) -> None:
        for key in entry:
            if key not in keys:
                expected = "one of " + ", ".join(sorted(keys))
                self._wrong((*place, key), "unknown_key", key, expected, "Remove or rename it.")

    def _choice(self, place: Place, value: object, choices: tuple[str, ...]) -> None:
        self._wrong(place, "choice", repr(value), "one of " + ", ".join(choices), "Choose one of them.")

    def _wrong(self, place: Place, code: str, found: str, expected: str, what_now: str) -> None:
        self.problems.append(self.document.problem(place, code, found, expected, what_now))
