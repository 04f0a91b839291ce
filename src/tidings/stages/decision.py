"""event → decided event: who is told, who is not, why, and until when. Nothing is decided here, only looked up."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidings.gate.clock_columns import FreeDays, due, let
from tidings.stages.once import built_once


def decision(
    events: DataFrame,
    decisions: DataFrame,
    filters: Mapping[str, Column] | None = None,
    free: FreeDays | None = None,
) -> DataFrame:
    """Adds `recipients`, `deadlines`, `policy_version` and `anchors` to rows with `situation`, `decision`, `request_time` and `time`.

    `filters` are the subscribers' CESQL filters; one that does not match makes no pair, unless the decision reaches everyone.
    `free` are the free days of the calendars that the clocks count by.
    A row whose situation is not in `decisions` keeps null `recipients`: decide it, extend the table, run the batch again.
    """
    known = decisions.select(
        "decision", "policy_version", "clocks", "names", "bounds", "reaching", "anchors", "tags", "reference"
    )
    joined = events.join(F.broadcast(known), "decision", "left")
    told = joined.withColumns(_told_whom(NO_FILTERS if filters is None else filters))
    told = told.withColumns(_until_when(NO_CALENDARS if free is None else free))
    return told.drop("clocks", "names", "bounds", "reaching")


NO_FILTERS: Mapping[str, Column] = {}
NO_CALENDARS: FreeDays = {}


@built_once
def _told_whom(filters: Mapping[str, Column]) -> dict[str, Column]:
    """The names as they stand in the table for almost every row; a stale change is told to nobody, because a newer one is known."""
    stale = F.array_contains("flags", "stale") & F.col("names").isNotNull()
    return {"recipients": F.when(stale, F.array().cast("array<string>")).otherwise(_matched(F.col("names"), filters))}


@built_once
def _until_when(free: FreeDays) -> dict[str, Column]:
    """Subscriber → the shortest of its clocks, where a clock runs; one that was not in force has no time and does not count."""
    times = F.transform("clocks", lambda clock: due(clock, _start(clock), free))
    made = let(times, lambda at: F.transform("bounds", lambda bound: _shortest(bound, at)))
    told = F.map_filter(
        F.map_from_arrays("names", made), lambda name, at: at.isNotNull() & F.array_contains("recipients", name)
    )
    return {"deadlines": F.when(F.size("clocks") > 0, told)}


def _start(clock: Column) -> Column:
    """A clock that claims to start after its message came starts when it came: nobody wins time with a wrong date."""
    asked = F.coalesce(F.col("request_time"), F.col("time"))
    return F.least(F.when(clock["origin"] == "event", F.col("time")).otherwise(asked), F.col("arrived"))


def _shortest(bound: Column, times: Column) -> Column:
    return F.array_min(F.transform(bound, lambda number: F.get(times, number)))


def _matched(names: Column, filters: Mapping[str, Column]) -> Column:
    """The subscribers without a filter, or with one that matched, or that must be told whatever they filter."""
    if not filters:
        return names
    fails = [F.when(~F.coalesce(column, F.lit(False)), F.lit(name)) for name, column in sorted(filters.items())]
    held_back = F.array_except(F.array_compact(F.array(*fails)), F.col("reaching"))
    return F.array_except(names, held_back)
