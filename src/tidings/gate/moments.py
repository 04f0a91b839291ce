"""Moments as a person writes them: a date, a time where the law holds, or a time with its offset; and pauses between two of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from tidings.errors import Refused
from tidings.gate.clocks import instant, local

FIRST, LAST = 1970, 2100
_MOMENT = re.compile(r"(\d{4}-\d{2}-\d{2})([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?(Z|[+-]\d{2}:\d{2})?")


@dataclass(frozen=True)
class Moment:
    """A moment and what the wall clock shows there; `dated` when only the day is known."""

    text: str
    instant: datetime
    wall: datetime
    dated: bool


@dataclass(frozen=True)
class Pause:
    first: date
    last: date


def moment(text: str, zone: str, *, late: bool = False) -> Moment:
    """A plain date is that date, from its first instant (`late`: its last) on; a time without an offset is local."""
    found = _MOMENT.fullmatch(text.strip())
    try:
        read = (
            datetime.fromisoformat(found[0].replace("Z", "+00:00"))
            if found and not (found[5] and not found[2])
            else None
        )
    except ValueError:
        read = None
    if read is None or not FIRST <= read.year <= LAST:
        expected = f"a date or time from {FIRST} to {LAST}, such as 2026-11-16 or 2026-11-16T09:00:00Z"
        raise Refused("moment", repr(text[:40]), expected, "Mend the moment.")
    if read.tzinfo is not None:
        return Moment(text, read.astimezone(UTC), local(read, zone), dated=False)
    dated = found is not None and found[2] is None
    begin = read + timedelta(days=1) if dated and late else read
    return Moment(text, instant(begin, zone), read, dated)


def pause(text: str, zone: str) -> Pause:
    """FROM..TO, each a moment."""
    first, dots, last = text.partition("..")
    if not dots:
        raise Refused("pause", repr(text[:80]), "FROM..TO, such as 2026-11-20..2026-11-27", "Write both ends.")
    found = Pause(moment(first, zone).wall.date(), moment(last, zone).wall.date())
    if found.last < found.first:
        raise Refused("pause", repr(text[:80]), "an end that is not before its beginning", "Swap or mend them.")
    return found


def counted_pause(pauses: Sequence[Pause], start: date, end: date) -> tuple[int, list[str]]:
    """The days that the clock stood still between start and end, counted once where pauses overlap, each told."""
    days, told, reached = 0, [], start
    for one in sorted(pauses, key=lambda each: (each.first, each.last)):
        first = max(one.first, reached)
        if first > end + timedelta(days=days):
            told.append(f"The pause from {one.first} begins after the end and does not count.")
            continue
        stood = max((one.last - first).days, 0)
        days += stood
        reached = max(reached, one.last)
        told.append(f"The clock stood still from {one.first} to {one.last}: {stood} days that were not counted yet.")
    if days:
        told.append(f"The end moves by {days} days to {end + timedelta(days=days)}.")
    return days, told
