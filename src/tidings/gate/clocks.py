"""Statutory clocks: from a start and an amount to the last permitted instant; a plain Python form with a native twin.

Days, months and years are counted in the zone where the law holds, hours as they pass. The day of the start is not counted unless
the law says that it is day 1. Months are calendar months: the same-numbered day, or the last day of a shorter month. A deadline
keeps the time of day of its start, which is never later than the end of the last day. Hours never move to a working day.
"""

from __future__ import annotations

import calendar as months
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from tidings.gate.calendars import CALENDARS, LIBRARY, Calendar, Calendars, working

__all__ = [
    "CALENDARS",
    "INSTANTS",
    "MAX_AMOUNT",
    "ORIGINS",
    "UNITS",
    "Clock",
    "due",
    "last_day",
    "local",
    "rolled",
    "unrolled",
]

INSTANTS = ("seconds", "minutes", "hours")  # what passes as time; everything else is counted in days
UNITS = (*INSTANTS, "days", "business_days", "months", "years")
ORIGINS = ("request", "event")
# A native deadline walks a list of days: an amount beyond this is a mistake in the policy, not a law.
MAX_AMOUNT = {
    "seconds": 31_622_400,
    "minutes": 527_040,
    "hours": 8_784,
    "days": 3_660,
    "business_days": 90,
    "months": 120,
    "years": 10,
}


@dataclass(frozen=True, order=True)
class Clock:
    """How long after which moment; `roll` moves an end on a free day to the next working day."""

    unit: str
    amount: int
    origin: str = "request"
    calendar: str = "weekends"
    roll: bool = False
    since: str = ""  # first and last day (ISO) on which a start falls under this clock; empty means open
    until: str = ""
    zone: str = "UTC"
    first_day: bool = False  # the day of the start is day 1
    skip_hour: bool = False  # the hour of the start is not counted
    two_days: bool = False  # the window holds at least two working days

    def in_force(self, day: date) -> bool:
        return (not self.since or self.since <= day.isoformat()) and (not self.until or day.isoformat() <= self.until)

    @property
    def needs_calendar(self) -> bool:
        return self.unit == "business_days" or self.two_days or (self.roll and self.unit not in INSTANTS)

    def __str__(self) -> str:
        return f"{spoken(self.unit, self.amount)} from the {self.origin}"


def spoken(unit: str, amount: int) -> str:
    words = unit.replace("_", " ")
    return f"{amount} {words if amount != 1 else words[:-1]}"


def due(clock: Clock, start: datetime, calendars: Calendars = LIBRARY) -> datetime | None:
    """The last permitted instant, or None when the law was not in force at the start. A start without a zone is UTC, and so is its end."""
    moment = start if start.tzinfo else start.replace(tzinfo=UTC)
    wall = local(moment, clock.zone)
    if not clock.in_force(wall.date()):
        return None
    calendar = calendars[clock.calendar]
    if clock.unit in INSTANTS:
        end = _passed(clock, moment, calendar)
    else:
        end = instant(datetime.combine(last_day(clock, wall.date(), calendar), wall.time()), clock.zone)
    return end.astimezone(start.tzinfo) if start.tzinfo else end.replace(tzinfo=None)


def _passed(clock: Clock, moment: datetime, calendar: Calendar) -> datetime:
    """Hours, minutes and seconds pass as they do; only a second working day may hold the end back."""
    begin = begins(clock, moment)
    end = begin.astimezone(UTC) + timedelta(**{clock.unit: clock.amount})
    if clock.two_days:
        second = working(calendar, local(moment, clock.zone).date() + timedelta(days=1), 2)
        if second > local(end, clock.zone).date():
            return instant(datetime.combine(second, local(begin, clock.zone).time()), clock.zone)
    return end


def begins(clock: Clock, moment: datetime) -> datetime:
    """When the hours begin to count."""
    if not clock.skip_hour:
        return moment
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)


def local(moment: datetime, zone: str) -> datetime:
    """What the wall clock shows in the zone at that moment."""
    return moment.astimezone(_zone(zone)).replace(tzinfo=None)


def instant(wall: datetime, zone: str) -> datetime:
    """The moment at which a wall clock shows this; a time that a change of clocks leaves out is read after it, a double one the first time."""
    return wall.replace(tzinfo=_zone(zone)).astimezone(UTC)


@cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def last_day(clock: Clock, start: date, calendar: Calendar) -> date:
    """The last day of a clock that is counted in days."""
    end = rolled(clock, unrolled(clock, start, calendar), calendar)
    return max(end, working(calendar, start + timedelta(days=1), 2)) if clock.two_days else end


def unrolled(clock: Clock, start: date, calendar: Calendar) -> date:
    """The last day as counted, whatever day it is."""
    first = timedelta(days=int(clock.first_day))
    if clock.unit == "business_days":
        return working(calendar, start + timedelta(days=1) - first, clock.amount)
    if clock.unit == "days":
        return start + timedelta(days=clock.amount) - first
    return add_months(start, clock.amount * (12 if clock.unit == "years" else 1)) - first


def rolled(clock: Clock, end: date, calendar: Calendar) -> date:
    """The same day, or the next working day where the law moves an end on a free day."""
    return working(calendar, end, 1) if clock.roll else end


def add_months(start: date, amount: int) -> date:
    year, month = divmod(start.year * 12 + start.month - 1 + amount, 12)
    return date(year, month + 1, min(start.day, months.monthrange(year, month + 1)[1]))
