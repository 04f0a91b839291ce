"""The answer to "until when?": the law in force at the start, its window, its extension, the operator's part, in steps that a lawyer can follow.

What the law leaves open is null and said so; what is asked wrongly is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tidings.errors import Refused
from tidings.gate.calendars import LIBRARY, Calendars
from tidings.gate.clocks import MAX_AMOUNT, Clock, spoken
from tidings.gate.moments import moment, pause
from tidings.gate.reckoning import End, Reckoning, also_due, earlier, place_for, shown, sub_window
from tidings.gate.statutes import Statute, Version

MEANING = {"deadline": "Act by", "wait": "Not before", "keep": "Keep it at least until", "expires": "It lapses on"}


@dataclass(frozen=True)
class Asked:
    """What a person asks of a statute."""

    received: str
    extended: bool = False
    paused: tuple[str, ...] = ()
    share: Fraction = Fraction(1, 2)
    place: str = ""


@dataclass(frozen=True)
class Ends:
    """The clock that binds, its end, and the end of the law's one extension."""

    clock: Clock | None
    due: End | None
    extended: End | None


def deadline(
    statutes: Mapping[str, Statute], name: str, asked: Asked, calendars: Calendars = LIBRARY
) -> dict[str, Any]:
    """Plain data: due, subwindow_due, extended_due, citation, steps and what the statute says besides."""
    statute = named(statutes, name)
    place = place_for(statute, asked.place)
    start = moment(asked.received, place.zone, late=statute.bound in ("wait", "keep"))
    pauses = tuple(pause(text, place.zone) for text in asked.paused)
    reckoning = Reckoning(statute, place, start, pauses, calendars)
    version = reckoning.version
    if asked.extended and version.extension is None:
        told = f"an extension of {name}, which has none"
        raise Refused("no_extension", told, "a statute with an extension", "Ask without --extended.")
    reckoning.steps += _opening(reckoning, version)
    ends = _ends(reckoning, version, asked.extended)
    part = _part(reckoning, ends, asked.share)
    quoted = _quoted(statute, version)
    reckoning.steps += _closing(statute, version, ends, quoted)
    return {
        "statute": name,
        "law": statute.law,
        "citation": statute.citation,
        "jurisdiction": asked.place or statute.jurisdiction,
        "zone": place.zone,
        "received": asked.received,
        "window": {"unit": version.unit, "amount": version.amount or None, "bound": statute.bound},
        "due": shown(ends.due),
        "subwindow_due": shown(part),
        "extended_due": shown(ends.extended),
        "extended": asked.extended,
        "subwindow": float(asked.share),
        "also": also_due(reckoning, statutes),
        "quoted": quoted,
        "retention": {statute.retention.unit: statute.retention.number} if statute.retention else None,
        "told": statute.told,
        "duty": statute.duty,
        "source": statute.source,
        "confidence": statute.confidence,
        "steps": reckoning.steps,
    }


def named(statutes: Mapping[str, Statute], name: str) -> Statute:
    if name in statutes:
        return statutes[name]
    near = difflib.get_close_matches(name, list(statutes), n=3, cutoff=0.5)
    expected = "one of " + ", ".join(near) if near else "an id of the catalogue or of policy/statutes/"
    raise Refused("unknown_statute", repr(name[:64]), expected, "Mend the id.")


def _opening(reckoning: Reckoning, version: Version) -> Iterator[str]:
    statute, start = reckoning.statute, reckoning.start
    day = start.wall.date()
    if start.dated:
        yield f"The start is {day} ({day:%A})."
    else:
        yield f"The start is {start.text}; in {reckoning.place.zone} that is {day} ({day:%A}), {start.wall:%H:%M:%S}."
    if statute.start:
        yield f"What starts the clock: {statute.start}"
    since = f" since {version.effective_from}" if version.effective_from else ""
    until = f" until {version.effective_to}" if version.effective_to else ""
    yield f"{statute.law}, {statute.citation}: the text read holds{since}{until}."


def _ends(reckoning: Reckoning, version: Version, extend: bool) -> Ends:
    """The end that binds now and the extended one; with `extend` they are the same."""
    clock, own = reckoning.law(), reckoning.statute.own_clock(place=reckoning.place)
    due = reckoning.end(clock, tell=True) if clock else None
    extended = _extended(reckoning, clock, version, tell=extend)
    if extend and clock and due:
        if any(word in version.extension_if for word in ("notice", "told", "reasons")):
            reckoning.steps.append(f"The person is told of the extension and its reason by {shown(due)}.")
        return Ends(reckoning.extended(clock) or clock, extended, extended)
    if own:
        promised = reckoning.end(own)
        said = f"The operator's own clock is {spoken(own.unit, own.amount)}, until {shown(promised)}"
        if due is None or earlier(promised, due, reckoning.place.zone) is promised:
            reckoning.steps.append(f"{said}: it binds.")
            return Ends(own, promised, extended)
        reckoning.steps.append(f"{said}: the law is shorter this time and binds.")
    return Ends(clock, due, extended)


def _extended(reckoning: Reckoning, clock: Clock | None, version: Version, *, tell: bool) -> End | None:
    extension = version.extension
    if clock is None or extension is None:
        return None
    longer = reckoning.extended(clock)
    more = spoken(extension.unit, extension.number)
    if tell and longer:
        total = spoken(longer.unit, longer.amount)
        reckoning.steps.append(f"Extended once by {more}: {total} from the start. {version.extension_if}".rstrip())
    elif tell:
        reckoning.steps.append(f"Extended once by {more} after the first window. {version.extension_if}".rstrip())
    return reckoning.end(longer, tell=tell) if longer else reckoning.end(clock, tell=tell, beyond=extension.number)


def _part(reckoning: Reckoning, ends: Ends, share: Fraction) -> End | None:
    """The operator's part of the window; what must wait or be kept has no earlier end."""
    if ends.clock is None or ends.due is None or reckoning.statute.bound in ("wait", "keep"):
        return None
    part = sub_window(reckoning, ends.clock, ends.due, share)
    reckoning.steps.append(f"The operator's part of the window is {float(share):g}: until {shown(part)}.")
    return part


def _closing(statute: Statute, version: Version, ends: Ends, quoted: Mapping[str, Any] | None) -> Iterator[str]:
    if ends.due is not None:
        yield f"{MEANING[statute.bound]} {shown(ends.due)}."
    elif version.unit == "none":
        yield "This text sets no clock."
    else:
        how = "at once" if version.unit == "immediate" else "without undue delay"
        yield f"The law says {how} and gives no number: the operator's own promise is needed (`clocks:` in a policy document)."
    if quoted:
        yield f"Often quoted otherwise ({_words(quoted)}); the law is used. A stricter number can be promised under `clocks:`."


def _quoted(statute: Statute, version: Version) -> dict[str, Any] | None:
    """What is commonly quoted, where it differs from the law."""
    law: dict[str, Any] = {version.unit: version.amount, "retention": {}}
    if statute.retention:
        law["retention"] = {statute.retention.unit: statute.retention.number}
    return {name: said for name, said in statute.quoted.items() if law.get(name) != said} or None


def _words(quoted: Mapping[str, Any]) -> str:
    parts = [spoken(unit, number) for unit, number in quoted.items() if unit in MAX_AMOUNT]
    parts += [f"retention of {spoken(unit, number)}" for unit, number in quoted.get("retention", {}).items()]
    return "; ".join([*parts, *([str(quoted["text"])] if "text" in quoted else [])])
