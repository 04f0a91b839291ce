"""The operator's own clocks: `clocks:` in a policy document promises more than the law, or chooses among its readings.

The shorter of law and promise binds. A promise that is longer than the law whatever the start is refused, because nobody would be
bound by it and somebody might believe in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tidings.errors import Problem
from tidings.gate.calendars import LIBRARY, Calendars
from tidings.gate.clocks import MAX_AMOUNT
from tidings.gate.statutes import Amount, Own, Statute
from tidings.reading import did_you_mean
from tidings.yaml_lines import Document, Place

_SECONDS = {"seconds": 1, "minutes": 60, "hours": 3_600}
_DAY = 86_400


def with_own_clocks(
    statutes: Mapping[str, Statute], documents: Iterable[Document], calendars: Calendars = LIBRARY
) -> tuple[dict[str, Statute], list[Problem]]:
    """The statutes with what the documents promise; the first document that names one is heard."""
    found = dict(statutes)
    problems: list[Problem] = []
    seen: set[str] = set()
    for document in documents:
        clocks = document.data.get("clocks", {})
        if not isinstance(clocks, dict):
            expected = "statute ids with a clock each"
            problems.append(document.problem(("clocks",), "not_a_mapping", "another shape", expected, "Write it so."))
            continue
        for name, entry in clocks.items():
            if name not in statutes:
                expected = f"the id of a statute.{did_you_mean(name, statutes)}"
                problems.append(document.problem(("clocks", name), "unknown_statute", name, expected, "Mend the id."))
            elif name not in seen:
                own, wrong = _own(document, ("clocks", name), entry, statutes[name], calendars)
                problems += wrong
                found[name] = replace(statutes[name], own=own)
                seen.add(name)
    return found, problems


def _own(
    document: Document, place: Place, entry: object, statute: Statute, calendars: Calendars
) -> tuple[Own, list[Problem]]:
    def wrong(at: Place, code: str, found: str, expected: str, what_now: str) -> tuple[Own, list[Problem]]:
        return Own(), [document.problem(at, code, found, expected, what_now)]

    if not isinstance(entry, dict) or not set(entry) <= {*MAX_AMOUNT, "calendar", "readings"}:
        return wrong(place, "own_clock", repr(entry), "such as {days: 30} or {readings: [...]}", "Mend the clock.")
    units = [unit for unit in MAX_AMOUNT if unit in entry]
    amounts = [Amount(unit, entry[unit]) for unit in units if type(entry[unit]) is int and entry[unit] > 0]
    if len(units) > 1 or len(amounts) < len(units) or any(one.number > MAX_AMOUNT[one.unit] for one in amounts):
        return wrong(place, "amount", repr(entry), "at most one whole number with its unit", "Mend the amount.")
    readings = entry.get("readings", [])
    if not isinstance(readings, list) or not set(readings) <= set(statute.readings):
        expected = "a list of " + (", ".join(statute.readings) or "nothing: this text has one reading")
        return wrong((*place, "readings"), "choice", repr(readings), expected, "Choose among them.")
    calendar = entry.get("calendar", "weekends")
    if calendar not in calendars:
        return wrong((*place, "calendar"), "choice", repr(calendar), "a known calendar", "Mend the name.")
    own = Own(amounts[0] if amounts else None, str(calendar), tuple(readings))
    if own.amount and statute.bound != "deadline":
        return wrong(place, "own_clock", "a promise", "none: it is no deadline", "Remove it.")
    law = statute.versions[-1]
    if own.amount and law.unit in MAX_AMOUNT and shortest(own.amount) > longest(Amount(law.unit, law.amount)):
        found = f"{own.amount.number} {own.amount.unit}"
        expected = f"no more than the law's {law.amount} {law.unit}"
        return wrong(place, "looser_clock", found, expected, "Promise less time or remove the promise.")
    return own, []


def shortest(amount: Amount) -> int:
    """The least seconds that an amount can be, whatever its start."""
    number = amount.number
    if amount.unit in _SECONDS:
        return number * _SECONDS[amount.unit]
    days = {
        "days": number,
        "business_days": number // 5 * 7 + number % 5,
        "months": number * 30 - 2,
        "years": 365 * number,
    }
    return days[amount.unit] * _DAY


def longest(amount: Amount) -> int:
    """The most seconds that an amount can be without free days at its end."""
    number = amount.number
    if amount.unit in _SECONDS:
        return number * _SECONDS[amount.unit]
    days = {"days": number, "business_days": number * 2 + 4, "months": number * 31, "years": 366 * number}
    return days[amount.unit] * _DAY
