"""Statutory clocks: published dates, months that are months, zones, and a native twin that agrees on random starts."""

from __future__ import annotations

import random
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from tidings.gate.calendars import FIRST_YEAR, LAST_YEAR, LIBRARY, places
from tidings.gate.clock_columns import CLOCK, day_number
from tidings.gate.clock_columns import due as native_due
from tidings.gate.clocks import CALENDARS, INSTANTS, UNITS, Clock, due, local
from tidings.session import session

# Spark's own client leaves the socket of a small frame to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed.*socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LA, BERLIN = "America/Los_Angeles", "Europe/Berlin"
CASES = [
    # GDPR: received on the 31st, due on the last day of February, a Sunday; rolled it is Monday
    (Clock("months", 1), "2027-01-31T10:00", "2027-02-28T10:00"),
    (Clock("months", 1, roll=True), "2027-01-31T10:00", "2027-03-01T10:00"),
    (Clock("months", 1), "2028-01-31T00:00", "2028-02-29T00:00"),
    (Clock("months", 12), "2028-02-29T23:59", "2029-02-28T23:59"),
    (Clock("years", 1), "2028-02-29T23:59", "2029-02-28T23:59"),
    (Clock("years", 4), "2028-02-29T23:59", "2032-02-29T23:59"),
    (Clock("months", 1), "2026-12-15T08:00", "2027-01-15T08:00"),
    # CAN-SPAM over the turn of the year: Christmas and New Year's Day do not count
    (Clock("business_days", 10, calendar="us-federal"), "2026-12-21T10:00", "2027-01-06T10:00"),
    (Clock("business_days", 10), "2026-12-21T10:00", "2027-01-04T10:00"),
    # the day after Thanksgiving is a holiday in California and not in Washington
    (Clock("business_days", 15, calendar="us-ca"), "2026-11-16T10:00", "2026-12-09T10:00"),
    (Clock("business_days", 15, calendar="us-federal"), "2026-11-16T10:00", "2026-12-08T10:00"),
    # a Saturday start counts from Monday; a Saturday holiday is kept on Friday
    (Clock("business_days", 1), "2026-11-14T10:00", "2026-11-16T10:00"),
    (Clock("business_days", 1, calendar="us-federal"), "2026-07-02T10:00", "2026-07-06T10:00"),
    # Canada: Good Friday 2027, Victoria Day 2026
    (Clock("business_days", 1, calendar="ca-federal"), "2027-03-25T10:00", "2027-03-29T10:00"),
    (Clock("business_days", 1, calendar="ca-federal"), "2026-05-15T10:00", "2026-05-19T10:00"),
    (Clock("days", 45), "2026-11-16T10:00", "2026-12-31T10:00"),
    (Clock("hours", 72), "2026-11-13T12:17", "2026-11-16T12:17"),
    (Clock("minutes", 5), "2026-11-13T23:58", "2026-11-14T00:03"),
    (Clock("seconds", 900), "2026-11-13T12:00", "2026-11-13T12:15"),
    # hours never move to a working day: Saturday stays Saturday
    (Clock("hours", 24, roll=True), "2026-11-13T12:00", "2026-11-14T12:00"),
    # the day of receipt is day 1: in days, in business days from a working day and from a Sunday, and in months
    (Clock("days", 30, first_day=True), "2026-11-16T10:00", "2026-12-15T10:00"),
    (Clock("business_days", 5, calendar="us-federal", first_day=True), "2026-11-16T10:00", "2026-11-20T10:00"),
    (Clock("business_days", 5, calendar="us-federal", first_day=True), "2026-11-15T10:00", "2026-11-20T10:00"),
    (Clock("months", 1, first_day=True), "2026-11-16T10:00", "2026-12-15T10:00"),
    # Regulation 1182/71: the hour of the event is not counted; a window of hours holds two working days
    (Clock("hours", 72, skip_hour=True), "2026-11-10T12:17", "2026-11-13T13:00"),
    (Clock("hours", 72, two_days=True), "2026-11-13T12:17", "2026-11-17T12:17"),
    (Clock("hours", 72, two_days=True), "2026-11-10T12:17", "2026-11-13T12:17"),
    (Clock("days", 2, two_days=True), "2026-11-13T12:17", "2026-11-17T12:17"),
    # the day is the day there: 02:00 UTC on Monday is Sunday evening in California
    (Clock("business_days", 10, zone=LA), "2026-11-16T02:00", "2026-11-28T02:00"),
    (Clock("months", 1, zone=LA), "2026-03-01T02:00", "2026-03-29T01:00"),
    (Clock("months", 1, zone=BERLIN), "2026-01-30T23:30", "2026-02-27T23:30"),
    # over a change of clocks the time of day stays, so 23:30 does not become the next day
    (Clock("days", 45, zone=LA), "2026-03-02T07:30", "2026-04-16T06:30"),
    (Clock("days", 1, zone=LA), "2026-03-07T10:30", "2026-03-08T10:30"),  # 02:30 is left out on that day
    (Clock("days", 1, zone=BERLIN), "2026-10-24T00:30", "2026-10-25T00:30"),  # 02:30 comes twice: the first
    # effective dates: the window in force at the start, by the day there
    (Clock("days", 30, until="2025-04-10"), "2025-04-10T10:00", "2025-05-10T10:00"),
    (Clock("days", 30, until="2025-04-10"), "2025-04-11T00:00", None),
    (Clock("days", 30, until="2025-04-10", zone=LA), "2025-04-11T00:00", "2025-05-11T00:00"),
    (Clock("days", 30, since="2025-04-11"), "2025-04-10T23:59", None),
]


@pytest.mark.parametrize(("clock", "start", "end"), CASES)
def test_published_dates(clock: Clock, start: str, end: str | None) -> None:
    assert due(clock, datetime.fromisoformat(start)) == (datetime.fromisoformat(end) if end else None)


def test_known_holidays() -> None:
    federal = {day.isoformat() for day in LIBRARY["us-federal"].free if day.year == 2026}
    assert federal == {
        "2026-01-01", "2026-01-19", "2026-02-16", "2026-05-25", "2026-06-19", "2026-07-03", "2026-09-07", "2026-10-12", "2026-11-11",
        "2026-11-26", "2026-12-25",
    }  # fmt: skip
    assert date(2021, 12, 31) in LIBRARY["us-federal"].free  # 1 January 2022 was a Saturday
    assert {date(2024, 3, 29), date(2024, 5, 20), date(2024, 10, 14)} <= LIBRARY["ca-federal"].free


def test_california_keeps_its_own_days() -> None:
    state = {day for day in LIBRARY["us-ca"].free if day.year == 2026}
    assert {date(2026, 11, 27), date(2026, 3, 31)} <= state
    assert not {date(2026, 10, 12), date(2026, 7, 3), date(2026, 6, 19)} & state
    assert date(2028, 2, 15) not in LIBRARY["us-ca"].free  # an observance on which offices are open


def test_only_what_every_member_state_keeps_is_free_in_the_union() -> None:
    assert {(day.month, day.day) for day in LIBRARY["eu"].free} == {(1, 1), (12, 25)}
    states = [place.calendar for place in places().values() if place.within == "EU"]
    assert len(states) == 27
    assert all(LIBRARY["eu"].free <= LIBRARY[name].free for name in states)


def test_every_calendar_and_place_can_be_counted_in() -> None:
    for name in CALENDARS:
        calendar = LIBRARY[name]
        assert calendar.years == frozenset(range(FIRST_YEAR, LAST_YEAR + 1))
        assert all(day.weekday() < 5 and day.year in calendar.years for day in calendar.free)
    for place in places().values():
        assert local(datetime(2026, 11, 16, tzinfo=UTC), place.zone)
        assert not place.calendar or place.calendar in CALENDARS
        assert not place.within or place.within in places()


ZONES = [
    "UTC",
    LA,
    BERLIN,
    "Asia/Kolkata",
    "America/Sao_Paulo",
    "Europe/London",
    "America/St_Johns",
    "Pacific/Honolulu",
]
STARTS = st.datetimes(datetime(2016, 1, 1), datetime(2048, 1, 1))
CLOCKS = st.builds(
    Clock,
    unit=st.sampled_from(UNITS),
    amount=st.integers(1, 10),
    calendar=st.sampled_from(["weekends", "eu", "us-federal", "us-ca", "br"]),
    roll=st.booleans(),
    zone=st.sampled_from(ZONES),
    first_day=st.booleans(),
)


def end_of(clock: Clock, start: datetime) -> datetime:
    end = due(clock, start)
    assert end is not None
    return end


@given(CLOCKS, STARTS, st.timedeltas(timedelta(0), timedelta(days=400)))
@settings(max_examples=300, deadline=None)
def test_a_later_start_never_ends_earlier(clock: Clock, start: datetime, later: timedelta) -> None:
    one, other = local(start.replace(tzinfo=UTC), clock.zone), local((start + later).replace(tzinfo=UTC), clock.zone)
    first, second = end_of(clock, start), end_of(clock, start + later)
    if clock.unit in INSTANTS:
        assert first <= second
    elif one <= other:  # an hour that comes twice has no order on the wall
        ends = [local(end.replace(tzinfo=UTC), clock.zone).date() for end in (first, second)]
        assert ends[0] <= ends[1]


@given(CLOCKS, STARTS)
@settings(max_examples=300, deadline=None)
def test_the_end_stays_within_the_window(clock: Clock, start: datetime) -> None:
    begin = local(start.replace(tzinfo=UTC), clock.zone).date()
    end = end_of(clock, start)
    day = local(end.replace(tzinfo=UTC), clock.zone).date()
    least = {
        "days": clock.amount,
        "business_days": clock.amount,
        "months": 28 * clock.amount,
        "years": 365 * clock.amount,
    }
    if clock.unit in INSTANTS:
        assert end - start == timedelta(**{clock.unit: clock.amount})
        return
    assert (day - begin).days >= least[clock.unit] - clock.first_day
    most = {
        "days": clock.amount,
        "business_days": 2 * clock.amount + 12,
        "months": 31 * clock.amount,
        "years": 366 * clock.amount,
    }
    assert (day - begin).days <= most[clock.unit] + (7 if clock.roll else 0)
    if clock.roll or clock.unit == "business_days":
        assert LIBRARY[clock.calendar].works(day)


@given(CLOCKS, STARTS)
@settings(max_examples=200, deadline=None)
def test_more_time_never_ends_earlier(clock: Clock, start: datetime) -> None:
    more = Clock(**{**asdict(clock), "amount": clock.amount + 1})
    assert end_of(more, start) >= end_of(clock, start)


def random_cases() -> list[tuple[Clock, datetime]]:
    draw = random.Random(20261116)
    cases = [(clock, datetime.fromisoformat(start)) for clock, start, _ in CASES]
    for _ in range(2_500):
        unit = draw.choice(UNITS)
        clock = Clock(
            unit,
            draw.randint(1, 10 if unit == "years" else 60),
            "request",
            draw.choice(CALENDARS),
            draw.random() < 0.3,
            draw.choice(["", "2020-01-01"]),
            draw.choice(["", "2035-01-01"]),
            draw.choice(ZONES),
            draw.random() < 0.2,
            draw.random() < 0.1,
            draw.random() < 0.1,
        )
        day = datetime(1969, 12, 20) if draw.random() < 0.02 else datetime(2016, 1, 1)
        cases.append((clock, day + timedelta(microseconds=draw.randrange(33 * 365 * 86_400 * 10**6))))
    # The last microsecond of a day belongs to that day.
    return [*cases, (Clock("business_days", 1), datetime(2026, 11, 13, 23, 59, 59, 999_999))]


@pytest.mark.spark
def test_the_native_twin_agrees() -> None:
    cases = random_cases()
    structs = [{**asdict(c), "since": day_number(c.since), "until": day_number(c.until)} for c, _ in cases]
    moments = pa.timestamp("us", tz="UTC")
    table = pa.table(
        {
            "clock": structs,
            "start": pa.array([s for _, s in cases], moments),
            "want": pa.array([due(c, s) for c, s in cases], moments),
        }
    )
    rows = session(master="local[2]", memory="1g").createDataFrame(table)
    free = {name: LIBRARY[name].free for name in CALENDARS}
    got = rows.withColumn("got", native_due(F.col("clock").cast(CLOCK), F.col("start"), free))
    assert got.filter(~F.col("got").eqNullSafe(F.col("want"))).take(3) == []
    assert got.filter(F.col("got").isNotNull()).count() > 1_000


@pytest.mark.spark
def test_a_calendar_that_is_not_given_makes_the_end_earlier() -> None:
    clock = {**asdict(Clock("business_days", 15, calendar="own")), "since": None, "until": None}
    rows = session(master="local[2]", memory="1g").createDataFrame(
        pa.table({"clock": [clock], "start": pa.array([datetime(2026, 11, 16)], pa.timestamp("us", tz="UTC"))})
    )
    got = rows.select(native_due(F.col("clock").cast(CLOCK), F.col("start"), {}).cast("string").alias("got")).first()
    assert got is not None
    assert got["got"].startswith("2026-12-07")
