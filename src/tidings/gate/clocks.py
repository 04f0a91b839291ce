"""Statutory clocks: from a start and an amount to the last permitted instant; a plain Python form and its native twin.

The day of the start is not counted. A deadline keeps the time of day of its start, which is never later than the end of the last
day. Months are calendar months: the same-numbered day, or the last day of a shorter month. Business days leave out Saturdays,
Sundays and the holidays of a named calendar; fewer holidays give an earlier, stricter date, so `weekends` is the default.
"""

from __future__ import annotations

import calendar as months
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cache

UNITS = ("seconds", "minutes", "hours", "days", "business_days", "months")
ORIGINS = ("request", "event")
CALENDARS = ("weekends", "us-federal", "us-ca", "ca-federal")
FIRST_YEAR, LAST_YEAR = 2015, 2050
# A native deadline walks a list of days: an amount beyond this is a mistake in the policy, not a law.
MAX_AMOUNT = {
    "seconds": 31_622_400,
    "minutes": 527_040,
    "hours": 8_784,
    "days": 3_660,
    "business_days": 90,
    "months": 120,
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

    def in_force(self, start: datetime) -> bool:
        day = start.date().isoformat()
        return (not self.since or self.since <= day) and (not self.until or day <= self.until)

    def __str__(self) -> str:
        unit = self.unit.replace("_", " ")
        return f"{self.amount} {unit if self.amount != 1 else unit[:-1]} from the {self.origin}"


def due(clock: Clock, start: datetime) -> datetime | None:
    """The last permitted instant, or None when the law was not in force at the start."""
    if not clock.in_force(start):
        return None
    if clock.unit in ("seconds", "minutes", "hours", "days"):
        end = start + timedelta(**{clock.unit: clock.amount})
    elif clock.unit == "months":
        end = add_months(start, clock.amount)
    else:
        end = add_business_days(start, clock.amount, clock.calendar)
    return _rolled(end, clock.calendar) if clock.roll else end


def add_months(start: datetime, amount: int) -> datetime:
    year, month = divmod(start.year * 12 + start.month - 1 + amount, 12)
    day = min(start.day, months.monthrange(year, month + 1)[1])
    return start.replace(year=year, month=month + 1, day=day)


def add_business_days(start: datetime, amount: int, calendar: str) -> datetime:
    free, end = holidays(calendar), start
    while amount > 0:
        end += timedelta(days=1)
        amount -= end.weekday() < 5 and end.date() not in free
    return end


def _rolled(end: datetime, calendar: str) -> datetime:
    free = holidays(calendar)
    while end.weekday() >= 5 or end.date() in free:
        end += timedelta(days=1)
    return end


@cache
def holidays(calendar: str) -> frozenset[date]:
    """The free weekdays of a calendar over all the years we reckon with."""
    makers = {"us-federal": _us_federal, "us-ca": _us_california, "ca-federal": _canada}
    if calendar == "weekends":
        return frozenset()
    days = (day for year in range(FIRST_YEAR, LAST_YEAR + 1) for day in makers[calendar](year))
    return frozenset(day for day in days if day.weekday() < 5)


def _us_federal(year: int) -> Iterable[date]:
    fixed = [date(year, 1, 1), date(year + 1, 1, 1), date(year, 7, 4), date(year, 11, 11), date(year, 12, 25)]
    if year >= 2021:
        fixed.append(date(year, 6, 19))
    yield from map(_observed, fixed)
    yield from (_nth(year, 1, 0, 3), _nth(year, 2, 0, 3), _last(year, 5, 0), _nth(year, 9, 0, 1), _nth(year, 10, 0, 2))
    yield _nth(year, 11, 3, 4)


def _us_california(year: int) -> Iterable[date]:
    fixed = [date(year, 1, 1), date(year, 3, 31), date(year, 7, 4), date(year, 11, 11), date(year, 12, 25)]
    # A Saturday holiday is not moved for state offices; a Sunday one is kept on Monday.
    yield from (day + timedelta(days=1) if day.weekday() == 6 else day for day in fixed)
    thanksgiving = _nth(year, 11, 3, 4)
    yield from (_nth(year, 1, 0, 3), _nth(year, 2, 0, 3), _last(year, 5, 0), _nth(year, 9, 0, 1), thanksgiving)
    yield thanksgiving + timedelta(days=1)


def _canada(year: int) -> Iterable[date]:
    fixed = [date(year, 1, 1), date(year, 7, 1), date(year, 11, 11), date(year, 12, 25), date(year, 12, 26)]
    if year >= 2021:
        fixed.append(date(year, 9, 30))
    yield from fixed
    victoria = date(year, 5, 25) - timedelta(days=date(year, 5, 25).weekday() or 7)
    yield from (_easter(year) - timedelta(days=2), victoria, _nth(year, 9, 0, 1), _nth(year, 10, 0, 2))


def _observed(day: date) -> date:
    return day + timedelta(days={5: -1, 6: 1}.get(day.weekday(), 0))


def _nth(year: int, month: int, weekday: int, nth: int) -> date:
    first = date(year, month, 1)
    return first + timedelta(days=(weekday - first.weekday()) % 7 + 7 * (nth - 1))


def _last(year: int, month: int, weekday: int) -> date:
    last = date(year, month, months.monthrange(year, month)[1])
    return last - timedelta(days=(last.weekday() - weekday) % 7)


def _easter(year: int) -> date:
    """Western Easter Sunday (the anonymous Gregorian method)."""
    golden, century, rest = year % 19, year // 100, year % 100
    leap, skew = century // 4, century % 4
    lunar = (century - (century + 8) // 25 + 1) // 3
    epact = (19 * golden + century - leap - lunar + 15) % 30
    weekday = (32 + 2 * skew + 2 * (rest // 4) - epact - rest % 4) % 7
    shift = (golden + 11 * epact + 22 * weekday) // 451
    month, day = divmod(epact + weekday - 7 * shift + 114, 31)
    return date(year, month, day + 1)
