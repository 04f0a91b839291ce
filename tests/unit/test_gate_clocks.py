"""Statutory clocks: published dates, months that are months, and a native twin that agrees on random starts."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from tidings.gate.clock_columns import CLOCK, day_number
from tidings.gate.clock_columns import due as native_due
from tidings.gate.clocks import CALENDARS, UNITS, Clock, due, holidays
from tidings.session import session

# Spark's own client leaves the socket of a small frame to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed.*socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CASES = [
    # GDPR: received on the 31st, due on the last day of February, a Sunday; rolled it is Monday
    (Clock("months", 1), "2027-01-31T10:00", "2027-02-28T10:00"),
    (Clock("months", 1, roll=True), "2027-01-31T10:00", "2027-03-01T10:00"),
    (Clock("months", 1), "2028-01-31T00:00", "2028-02-29T00:00"),
    (Clock("months", 12), "2028-02-29T23:59", "2029-02-28T23:59"),
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
    # effective dates: the window in force at the start
    (Clock("days", 30, until="2025-04-10"), "2025-04-10T10:00", "2025-05-10T10:00"),
    (Clock("days", 30, until="2025-04-10"), "2025-04-11T00:00", None),
    (Clock("days", 30, since="2025-04-11"), "2025-04-10T23:59", None),
]


@pytest.mark.parametrize(("clock", "start", "end"), CASES)
def test_published_dates(clock: Clock, start: str, end: str | None) -> None:
    assert due(clock, datetime.fromisoformat(start)) == (datetime.fromisoformat(end) if end else None)


def test_known_holidays() -> None:
    federal = {day.isoformat() for day in holidays("us-federal") if day.year == 2026}
    assert federal == {
        "2026-01-01", "2026-01-19", "2026-02-16", "2026-05-25", "2026-06-19", "2026-07-03", "2026-09-07", "2026-10-12", "2026-11-11",
        "2026-11-26", "2026-12-25",
    }  # fmt: skip
    assert "2021-12-31" in {day.isoformat() for day in holidays("us-federal")}  # 1 January 2022 was a Saturday
    assert {day.isoformat() for day in holidays("ca-federal") if day.year == 2024} >= {
        "2024-03-29",
        "2024-05-20",
        "2024-10-14",
    }


@pytest.mark.spark
def test_the_native_twin_agrees() -> None:
    draw = random.Random(20261116)
    cases = [(clock, datetime.fromisoformat(start)) for clock, start, _ in CASES]
    for _ in range(1_500):
        since, until = draw.choice(["", "2020-01-01"]), draw.choice(["", "2035-01-01"])
        clock = Clock(
            draw.choice(UNITS),
            draw.randint(1, 60),
            "request",
            draw.choice(CALENDARS),
            draw.random() < 0.3,
            since,
            until,
        )
        day = datetime(1969, 12, 20) if draw.random() < 0.02 else datetime(2016, 1, 1)
        cases.append((clock, day + timedelta(microseconds=draw.randrange(33 * 365 * 86_400 * 10**6))))
    # The last microsecond of a day belongs to that day.
    cases.append((Clock("business_days", 1), datetime(2026, 11, 13, 23, 59, 59, 999_999)))
    structs = [
        {"unit": c.unit, "amount": c.amount, "origin": c.origin, "calendar": c.calendar, "roll": c.roll, "since": day_number(c.since), "until": day_number(c.until)}
        for c, _ in cases
    ]  # fmt: skip
    moments = pa.timestamp("us", tz="UTC")
    table = pa.table(
        {
            "clock": structs,
            "start": pa.array([s for _, s in cases], moments),
            "want": pa.array([due(c, s) for c, s in cases], moments),
        }
    )
    rows = session(master="local[2]", memory="1g").createDataFrame(table)
    got = rows.withColumn("got", native_due(F.col("clock").cast(CLOCK), F.col("start")))
    assert got.filter(~F.col("got").eqNullSafe(F.col("want"))).take(3) == []
    assert got.filter(F.col("got").isNotNull()).count() > 1_000
