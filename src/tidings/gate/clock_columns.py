"""The native twin of `clocks.due`. Everything is reckoned in UTC microseconds and day numbers, whatever the session's zone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.gate.clocks import CALENDARS, holidays

CLOCK = "struct<unit:string,amount:int,origin:string,calendar:string,roll:boolean,since:int,until:int>"  # dates as day numbers
_DAY = 86_400_000_000
_MICROS = {"seconds": 1_000_000, "minutes": 60_000_000, "hours": 3_600_000_000, "days": _DAY}
_EPOCH = date(1970, 1, 1).toordinal()


def day_number(iso: str) -> int | None:
    """A date as days since 1970; empty text is an open end."""
    return date.fromisoformat(iso).toordinal() - _EPOCH if iso else None


def due(clock: Column, start: Column) -> Column:
    """The last permitted instant of a CLOCK that starts at `start`; null when it was not in force then."""
    micros = F.unix_micros(start)
    day = _day(micros)
    return let(
        F.struct(
            clock.alias("clock"), micros.alias("micros"), day.alias("day"), (micros - day * F.lit(_DAY)).alias("rest")
        ),
        _due,
    )


def _day(micros: Column) -> Column:
    """The UTC day number, in whole numbers: a quotient of doubles rounds the last microsecond of a day up."""
    whole = micros - F.pmod(micros, F.lit(_DAY))
    return F.call_function("div", whole, F.lit(_DAY)).cast("int")


def let(value: Column, then: Callable[[Column], Column]) -> Column:
    """Binds `value` once: an expression named inside a lambda would otherwise be computed again for each element."""
    return F.element_at(F.transform(F.array(value), then), 1)


def _due(at: Column) -> Column:
    clock = at["clock"]
    day, amount = at["day"], clock["amount"]
    length = F.lit(0)
    for unit, size in _MICROS.items():
        length = F.when(clock["unit"] == unit, F.lit(size)).otherwise(length)
    month = F.unix_date(F.add_months(F.date_from_unix_date(day), amount))
    worked = _walk(day + 1, amount * 2 + 30, amount, clock["calendar"])
    end = F.when(clock["unit"] == "months", month).when(clock["unit"] == "business_days", worked)
    micros = F.when(end.isNotNull(), end.cast("bigint") * F.lit(_DAY) + at["rest"]).otherwise(
        at["micros"] + amount.cast("bigint") * length
    )
    rolled = F.when(clock["roll"], let(micros, lambda m: _rolled(m, clock["calendar"]))).otherwise(micros)
    started = clock["since"].isNull() | (clock["since"] <= day)
    ended = clock["until"].isNotNull() & (day > clock["until"])
    return F.when(started & ~ended, F.timestamp_micros(rolled))


def _rolled(micros: Column, calendar: Column) -> Column:
    day = _day(micros)
    return _walk(day, F.lit(14), F.lit(1), calendar).cast("bigint") * F.lit(_DAY) + micros - day * F.lit(_DAY)


def _walk(first: Column, length: Column, nth: Column, calendar: Column) -> Column:
    """The nth working day among `length` days from `first` on."""
    near = F.filter(_free(calendar), lambda h: h.between(first, first + length))
    return let(near, lambda free: F.element_at(_working(first, length, free), nth))


def _working(first: Column, length: Column, free: Column) -> Column:
    # Day 0 was a Thursday, so Monday is 0 after adding three.
    return F.filter(
        F.sequence(first, first + length), lambda day: (F.pmod(day + 3, F.lit(7)) < 5) & ~F.array_contains(free, day)
    )


def _free(calendar: Column) -> Column:
    """The holidays of a calendar as day numbers: one literal text each, because 400 literals would be built per batch."""
    result = F.lit(None).cast("array<int>")
    for name in CALENDARS:
        numbers = ",".join(str(day.toordinal() - _EPOCH) for day in sorted(holidays(name)))
        days = F.split(F.lit(numbers), ",").cast("array<int>") if numbers else F.array().cast("array<int>")
        result = F.when(calendar == name, days).otherwise(result)
    return result
