"""Who may have whose data for what: the list that counsel has approved.

    recipients:
      - {subscriber: newsletter, purposes: [marketing], jurisdictions: [US, EU], approved_by: NAME, on: "2026-11-01"}

Where a policy folder keeps such a list, a subscriber that is not on it, for one of its purposes or for the place where the person
lives, gets nothing about that person but what it must know: deletions, withdrawals, corrections, restrictions. Where it keeps none,
the folder of subscribers is the list, and `tidings check` says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from tidings.errors import Problem
from tidings.gate.policy import Approval
from tidings.reading import did_you_mean
from tidings.yaml_lines import Document, Place

_KEYS = {"subscriber", "purposes", "jurisdictions", "approved_by", "on", "note"}
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}|\*")
_PLACE = re.compile(r"[A-Z]{2}(-[A-Z0-9]{1,3})?|\*")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def read_approvals(
    documents: Iterable[Document], subscribers: Iterable[str]
) -> tuple[Mapping[str, tuple[Approval, ...]] | None, list[Problem]]:
    """Subscriber → its approvals; None when no document keeps a list."""
    listed = [document for document in documents if "recipients" in document.data]
    if not listed:
        return None, []
    names = set(subscribers)
    found: dict[str, list[Approval]] = defaultdict(list)
    problems: list[Problem] = []
    for document in listed:
        entries = document.data["recipients"]
        if not isinstance(entries, list):
            problems.append(document.problem(("recipients",), "not_a_list", "no list", "a list", "Write `- …`."))
            continue
        for index, entry in enumerate(entries):
            wrong = list(_wrong(document, ("recipients", index), entry, names))
            problems += wrong
            if not wrong and isinstance(entry, dict):
                purposes, places = (tuple(map(str, entry[key])) for key in ("purposes", "jurisdictions"))
                found[str(entry["subscriber"])].append(Approval(purposes, places))
    return {name: tuple(found.get(name, ())) for name in names}, problems


def _wrong(document: Document, place: Place, entry: object, names: set[str]) -> Iterable[Problem]:
    say = document.problem
    if not isinstance(entry, dict):
        yield say(place, "not_a_mapping", "a plain value", "keys: " + ", ".join(sorted(_KEYS)), "Write its keys.")
        return
    for key in entry:
        if key not in _KEYS:
            expected = "one of " + ", ".join(sorted(_KEYS))
            yield say((*place, key), "unknown_key", str(key), expected, f"Remove it.{did_you_mean(str(key), _KEYS)}")
    name = str(entry.get("subscriber", ""))
    if name not in names:
        expected = "a subscriber of this folder"
        yield say((*place, "subscriber"), "unknown_subscriber", name, expected, f"Mend it.{did_you_mean(name, names)}")
    for key, pattern, expected in (
        ("purposes", _NAME, 'a list of purposes, or ["*"]'),
        ("jurisdictions", _PLACE, 'a list of places like US, US-CA, EU, or ["*"]'),
    ):
        values = entry.get(key)
        if not isinstance(values, list) or not values or not all(pattern.fullmatch(str(value)) for value in values):
            yield say((*place, key), "wrong_value", repr(values), expected, "Mend the list.")
    if not isinstance(entry.get("approved_by"), str) or not str(entry["approved_by"]).strip():
        yield say((*place, "approved_by"), "missing", "nobody", "who approved it", "Name the counsel.")
    if not _DATE.fullmatch(str(entry.get("on", ""))):
        yield say((*place, "on"), "date", repr(entry.get("on")), "a date as YYYY-MM-DD", "Say when.")
