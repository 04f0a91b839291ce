"""The law rows of a certificate: what was counted, by which text, from when, in a form that is read back as the catalogue is read.

`laws.json` carries every row that was used with its citation, source, confidence and versions, the operator's own promises and calendars,
and for each clock its place and its start. Whoever checks a certificate counts again from these rows and from the attested steps. What
breaks the promise: a law that was left out; a reader who knows the law sees which rows were used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any

from tidings.errors import Damaged, Refused
from tidings.gate.calendars import Calendar, Calendars, places
from tidings.gate.clocks import instant
from tidings.gate.deadlines import Asked, deadline
from tidings.gate.own_clocks import with_own_clocks
from tidings.gate.statute_reader import Reading
from tidings.gate.statutes import Amount, Statute, Version
from tidings.yaml_lines import Document

MAX_USED = 64
ON_THE_WAY = ("confirm_receipt", "completion_notice", "refusal_notice", "result_notice", "pre_erasure_notice")
_TEXTS = (
    *("law", "jurisdiction", "citation", "source", "confidence", "summary", "trigger", "start", "bound", "told"),
    *("duty", "semantic", "proof", "cure", "notes", "pause"),
)


@dataclass(frozen=True)
class Used:
    """One clock: a law, the place it was counted in, and what started it."""

    statute: str
    place: str
    start: str


@dataclass(frozen=True)
class Rows:
    """The laws of one certificate."""

    statutes: Mapping[str, Statute]
    calendars: Calendars
    used: tuple[Used, ...]


@dataclass(frozen=True)
class Told:
    """What the steps of a request say about its clocks."""

    pauses: tuple[str, ...]
    noticed: datetime | None  # when the letter about an extension was sent
    ended: datetime | None


def as_json(rows: Rows) -> dict[str, Any]:
    named = {one.statute for one in rows.used}
    named |= {other for name in named for other in rows.statutes[name].also}
    kept = {name: rows.statutes[name] for name in sorted(named)}
    needed = {version.calendar for law in kept.values() for version in law.versions}
    needed |= {law.own.calendar for law in kept.values()}
    needed |= {place.calendar for one in rows.used if (place := places().get(one.place))}
    return {
        "used": [vars(one) for one in rows.used],
        "statutes": {name: _row(law, kept) for name, law in kept.items()},
        "clocks": {name: own for name, law in kept.items() if (own := _own(law))},
        "calendars": {name: _days(own) for name, own in sorted(rows.calendars.own.items()) if name in needed},
    }


def read(document: Any) -> Rows:
    """The rows of a certificate, checked as the catalogue's are; Damaged when they cannot be."""
    own = {str(name): _calendar(days) for name, days in document["calendars"].items()}
    calendars = Calendars(own)
    reading = Reading(Document("laws.json", {"statutes": document["statutes"]}, {}), calendars)
    statutes = {law.id: law for law in reading.statutes()}
    reading.check_parallel(statutes)
    clocks = Document("laws.json", {"clocks": document["clocks"]}, {})
    statutes, wrong = with_own_clocks(statutes, [clocks], calendars)
    used = tuple(Used(str(one["statute"]), str(one["place"]), str(one["start"])) for one in document["used"])
    strange = [one for one in used if one.statute not in statutes] or used[MAX_USED:]
    if reading.problems or wrong or strange:
        found = str([*reading.problems, *wrong][0]) if reading.problems or wrong else "a clock without its law"
        raise Damaged("certificate_clock", found, "law rows as the catalogue holds them", "Do not rely on its dates.")
    return Rows(statutes, calendars, used)


def reckoned(rows: Rows, told: Told) -> list[dict[str, Any]]:
    """Every clock, counted: ends, whether they were met, and the sentences that lead there."""
    return [_reckoned(rows, one, told) for one in rows.used]


def _reckoned(rows: Rows, used: Used, told: Told) -> dict[str, Any]:
    law = rows.statutes[used.statute]
    said = deadline(
        rows.statutes, used.statute, Asked(used.start, paused=told.pauses, place=used.place), rows.calendars
    )
    first = last_instant(said["due"], said["zone"])
    extended = bool(first and told.noticed and told.noticed <= first and said["extended_due"])
    if extended:
        longer = Asked(used.start, True, told.pauses, place=used.place)
        said = deadline(rows.statutes, used.statute, longer, rows.calendars)
    end = last_instant(said["due"], said["zone"])
    day = date.fromisoformat(used.start[:10])
    version = next((one for one in reversed(law.versions) if one.in_force(day)), law.versions[-1])
    return {
        **{name: getattr(law, name) for name in ("law", "jurisdiction", "citation", "source", "confidence", "summary")},
        "statute": used.statute,
        "place": used.place,
        "version": {"from": version.effective_from, "to": version.effective_to},
        "window": spoken(version),
        "start": used.start,
        "due": said["due"] or "",
        "extended": "yes" if extended else "no",
        "met": _met(end, told.ended),
        "steps": said["steps"],
    }


def spoken(version: Version) -> str:
    return f"{version.amount} {version.unit}" if version.amount else version.unit


def _met(end: datetime | None, ended: datetime | None) -> str:
    if end is None:
        return "no number in the law"
    if ended is None:
        return "open"
    return "in time" if ended <= end else "late"


def last_instant(due: str | None, zone: str) -> datetime | None:
    """The last moment of an end: a day ends with its last instant where the law holds."""
    if not due or "T" in due:
        return datetime.fromisoformat(due).astimezone(UTC) if due else None
    return instant(datetime.combine(date.fromisoformat(due) + timedelta(days=1), datetime.min.time()), zone)


def bindings(rows: Rows, told: Told) -> list[datetime]:
    """The last moments that the laws leave to answer; a receipt or a notice on the way has a clock of its own."""
    found = []
    for clock in reckoned(rows, told):
        if rows.statutes[clock["statute"]].trigger in ON_THE_WAY:
            continue
        zone = places()[clock["place"] or clock["jurisdiction"]].zone
        if end := last_instant(clock["due"], zone):
            found.append(end)
    return found


def in_force(statutes: Mapping[str, Statute], names: Iterable[tuple[str, str, str]], calendars: Calendars) -> Rows:
    """The named (statute, place, start) that held at their start."""
    kept = []
    for name, place, start in names:
        try:
            deadline(statutes, name, Asked(start, place=place), calendars)
        except Refused as refused:
            if refused.code != "not_in_force":
                raise
        else:
            kept.append(Used(name, place, start))
    return Rows(statutes, calendars, tuple(sorted(kept, key=lambda one: (one.statute, one.place))))


def unlike_ours(rows: Rows) -> list[str]:
    """The laws used whose text is not the one in the catalogue that came with this installation."""
    ours = _catalogue()
    return sorted(
        {one.statute for one in rows.used if _text(rows.statutes[one.statute]) != _text(ours.get(one.statute))}
    )


def _text(law: Statute | None) -> tuple[object, ...]:
    return (law.versions, law.bound, law.pause, law.jurisdiction, law.trigger, law.own.readings) if law else ()


@cache
def _catalogue() -> Mapping[str, Statute]:
    from tidings.gate.loading import catalogue_statutes

    return catalogue_statutes()[0]


def _row(law: Statute, kept: Mapping[str, Statute]) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(law, name) for name in _TEXTS if getattr(law, name)}
    row["versions"] = [_version(version) for version in law.versions]
    row["also"] = [name for name in law.also if name in kept]
    row["readings"] = list(law.readings)
    row["quoted"] = dict(law.quoted)
    if law.retention:
        row["retention"] = _amount(law.retention)
    return row


def _version(version: Version) -> dict[str, Any]:
    said: dict[str, Any] = {"unit": version.unit, "calendar": version.calendar, "roll": version.roll}
    said |= {"window": version.amount} if version.amount else {}
    for name in ("effective_from", "effective_to", "extension_if", "first_day_counts"):
        if value := getattr(version, name):
            said[name] = value
    return said | ({"extension": _amount(version.extension)} if version.extension else {})


def _amount(amount: Amount) -> dict[str, int]:
    return {amount.unit: amount.number}


def _own(law: Statute) -> dict[str, Any]:
    own = law.own
    said: dict[str, Any] = _amount(own.amount) if own.amount else {}
    said |= {"calendar": own.calendar} if own.calendar != "weekends" else {}
    return said | ({"readings": list(own.readings)} if own.readings else {})


def _days(calendar: Calendar) -> dict[str, list[str]]:
    free = sorted(day.isoformat() for day in calendar.free)
    return {str(year): [day for day in free if day.startswith(f"{year}-")] for year in sorted(calendar.years)}


def _calendar(days: Mapping[str, list[str]]) -> Calendar:
    free = frozenset(date.fromisoformat(day) for listed in days.values() for day in listed)
    return Calendar(free, frozenset(int(year) for year in days))
