"""The native twin of `clocks.due`: day numbers in the clock's zone, microseconds for hours, whatever the session's zone.

A calendar that is not given, or a year it does not know, has no free weekdays: the end is earlier, never later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from datetime import date

from pyspark.sql import Column
from pyspark.sql import functions as F

# Dates are day numbers.
CLOCK = (
    "struct<unit:string,amount:int,origin:string,calendar:string,roll:boolean,since:int,until:int,"
    "zone:string,first_day:boolean,skip_hour:boolean,two_days:boolean>"
)
_DAY, _HOUR = 86_400_000_000, 3_600_000_000
_MICROS = {"seconds": 1_000_000, "minutes": 60_000_000, "hours": _HOUR}
_EPOCH = date(1970, 1, 1).toordinal()

FreeDays = Mapping[str, Collection[date]]


def day_number(iso: str) -> int | None:
    """A date as days since 1970; empty text is an open end."""
    return date.fromisoformat(iso).toordinal() - _EPOCH if iso else None


def due(clock: Column, start: Column, free: FreeDays) -> Column:
    """The last permitted instant of a CLOCK that starts at `start`; null when it was not in force then. `free` are the calendars' days."""
    return let(
        F.struct(clock.alias("clock"), F.unix_micros(start).alias("micros"), _wall(start, clock).alias("wall")),
        lambda at: let(
            F.struct(*[at[name].alias(name) for name in ("clock", "micros", "wall")], _day(at["wall"]).alias("day")),
            lambda known: _in_force(known, _end(known, free)),
        ),
    )


def let(value: Column, then: Callable[[Column], Column]) -> Column:
    """Binds `value` once: an expression named inside a lambda would otherwise be computed again for each element."""
    return F.element_at(F.transform(F.array(value), then), 1)


def _wall(moment: Column, clock: Column) -> Column:
    """What the wall clock shows in the clock's zone, as microseconds."""
    micros = F.unix_micros(moment)
    there = F.unix_micros(F.from_utc_timestamp(moment, clock["zone"]))
    return F.when(F.coalesce(clock["zone"], F.lit("UTC")) == "UTC", micros).otherwise(there)


def _instant(wall: Column, clock: Column) -> Column:
    moment = F.timestamp_micros(wall)
    there = F.to_utc_timestamp(moment, clock["zone"])
    return F.when(F.coalesce(clock["zone"], F.lit("UTC")) == "UTC", moment).otherwise(there)


def _day(micros: Column) -> Column:
    """The day number, in whole numbers: a quotient of doubles rounds the last microsecond of a day up."""
    whole = micros - F.pmod(micros, F.lit(_DAY))
    return F.call_function("div", whole, F.lit(_DAY)).cast("int")


def _in_force(at: Column, end: Column) -> Column:
    clock, day = at["clock"], at["day"]
    started = clock["since"].isNull() | (clock["since"] <= day)
    ended = clock["until"].isNotNull() & (day > clock["until"])
    return F.when(started & ~ended, end)


def _end(at: Column, free: FreeDays) -> Column:
    rest = at["wall"] - at["day"].cast("bigint") * F.lit(_DAY)
    by_day = _instant(_last_day(at, free).cast("bigint") * F.lit(_DAY) + rest, at["clock"])
    return F.when(at["clock"]["unit"].isin(*_MICROS), _passed(at, free)).otherwise(by_day)


def _passed(at: Column, free: FreeDays) -> Column:
    """Hours, minutes and seconds pass as they do; only a second working day may hold the end back."""
    clock, length = at["clock"], F.lit(0)
    for unit, size in _MICROS.items():
        length = F.when(clock["unit"] == unit, F.lit(size)).otherwise(length)
    next_hour = at["micros"] - F.pmod(at["micros"], F.lit(_HOUR)) + F.lit(_HOUR)
    begin = F.when(clock["skip_hour"], next_hour).otherwise(at["micros"])
    end = F.timestamp_micros(begin + clock["amount"].cast("bigint") * length)
    return F.when(clock["two_days"], _held_back(at, begin, end, free)).otherwise(end)


def _held_back(at: Column, begin: Column, end: Column, free: FreeDays) -> Column:
    clock = at["clock"]
    second = _walk(at["day"] + 1, F.lit(14), F.lit(2), clock, free)
    rest = F.pmod(_wall(F.timestamp_micros(begin), clock), F.lit(_DAY))
    later = _instant(second.cast("bigint") * F.lit(_DAY) + rest, clock)
    return F.when(second > _day(_wall(end, clock)), later).otherwise(end)


def _last_day(at: Column, free: FreeDays) -> Column:
    clock, day = at["clock"], at["day"]
    amount, first = clock["amount"], F.coalesce(clock["first_day"].cast("int"), F.lit(0))
    months = F.when(clock["unit"] == "years", amount * 12).otherwise(amount)
    month = F.unix_date(F.add_months(F.date_from_unix_date(day), months)) - first
    worked = _walk(day + 1 - first, amount * 2 + 20, amount, clock, free)
    counted = (
        F.when(clock["unit"] == "business_days", worked)
        .when(clock["unit"] == "days", day + amount - first)
        .otherwise(month)
    )
    rolled = F.when(clock["roll"], let(counted, lambda end: _walk(end, F.lit(14), F.lit(1), clock, free))).otherwise(
        counted
    )
    second = _walk(day + 1, F.lit(14), F.lit(2), clock, free)
    return F.when(clock["two_days"], F.greatest(rolled, second)).otherwise(rolled)


def _walk(first: Column, length: Column, nth: Column, clock: Column, free: FreeDays) -> Column:
    """The nth working day among `length` days from `first` on; where there are fewer, the last of those days."""

    def walked(at: Column) -> Column:
        near = F.filter(_free(clock, at["first"], free), lambda day: day.between(at["first"], at["last"]))
        found = let(near, lambda days: F.get(_working(at["first"], at["last"], days), nth - 1))
        return F.coalesce(found, at["last"])

    return let(F.struct(first.alias("first"), (first + length).alias("last")), walked)


def _working(first: Column, last: Column, free: Column) -> Column:
    # Day 0 was a Thursday, so Monday is 0 after adding three.
    return F.filter(F.sequence(first, last), lambda day: (F.pmod(day + 3, F.lit(7)) < 5) & ~F.array_contains(free, day))


def _free(clock: Column, first: Column, free: FreeDays) -> Column:
    """The free days of the clock's calendar in the year of a day and the next."""
    year = F.year(F.date_from_unix_date(first))
    result = F.array().cast("array<int>")
    for name, days in sorted(free.items()):
        if days:
            begin = min(days).year - 1
            listed = F.coalesce(F.get(_by_year(days, begin), year - begin), F.array().cast("array<int>"))
            result = F.when(clock["calendar"] == name, listed).otherwise(result)
    return result


def _by_year(days: Collection[date], begin: int) -> Column:
    """One literal text that is read once per plan: literals of their own would be built per batch, and 36 years searched per row."""
    numbers = [
        sorted(day.toordinal() - _EPOCH for day in days if day.year in (year, year + 1))
        for year in range(begin, max(days).year + 1)
    ]
    return F.from_json(F.lit(json.dumps(numbers)), "array<array<int>>")
