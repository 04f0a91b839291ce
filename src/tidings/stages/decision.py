"""event → decided event: who is told, who is not, why, and until when. Nothing is decided here, only looked up."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidings.gate.clock_columns import due, let
from tidings.stages.once import built_once

RECIPIENTS = (
    "array<struct<subscriber:string,outcome:string,reasons:array<string>,semantics:string,priority:int,deadline:timestamp,"
    "redact:array<string>>>"
)


def decision(events: DataFrame, decisions: DataFrame, filters: Mapping[str, Column] | None = None) -> DataFrame:
    """Adds `recipients`, `policy_version` and `anchors` to rows with `situation`, `decision`, `request_time` and `time`.

    `filters` are the subscribers' CESQL filters; one that does not match makes no pair, unless the decision reaches everyone.
    A row whose situation is not in `decisions` keeps null `recipients`: decide it, extend the table, run the batch again.
    """
    known = decisions.select("decision", "policy_version", "clocks", "choices", "bounds", "reaching", "anchors")
    joined = events.join(F.broadcast(known), "decision", "left")
    told = _told_whom(NO_FILTERS if filters is None else filters)
    return joined.withColumns(told).drop("clocks", "choices", "bounds", "reaching")


NO_FILTERS: Mapping[str, Column] = {}


@built_once
def _told_whom(filters: Mapping[str, Column]) -> dict[str, Column]:
    return {"recipients": _matched(_timed(), filters).cast(RECIPIENTS)}


def _timed() -> Column:
    """The pairs as they stand in the table for almost every row; only where a clock runs are they made anew."""
    times = F.transform("clocks", lambda clock: due(clock, _start(clock)))
    made = let(times, lambda at: F.zip_with("choices", "bounds", lambda pair, bound: _with_deadline(pair, bound, at)))
    return F.when(F.size("clocks") > 0, made).otherwise(F.col("choices"))


def _start(clock: Column) -> Column:
    asked = F.coalesce(F.col("request_time"), F.col("time"))
    return F.when(clock["origin"] == "event", F.col("time")).otherwise(asked)


def _with_deadline(pair: Column, bound: Column, times: Column) -> Column:
    """The shortest of the pair's clocks; a clock that was not in force has no time and does not count."""
    return pair.withField("deadline", F.array_min(F.transform(bound, lambda number: F.get(times, number))))


def _matched(pairs: Column, filters: Mapping[str, Column]) -> Column:
    """The pairs whose subscriber has no filter, or one that matched, or must be told whatever it filters."""
    if not filters:
        return pairs
    fails = [F.when(~F.coalesce(column, F.lit(False)), F.lit(name)) for name, column in sorted(filters.items())]
    held_back = F.array_except(F.array_compact(F.array(*fails)), F.col("reaching"))
    return let(
        F.struct(held_back.alias("held_back"), pairs.alias("pairs")),
        lambda at: F.when(F.size(at["held_back"]) == 0, at["pairs"]).otherwise(
            F.filter(at["pairs"], lambda pair: ~F.array_contains(at["held_back"], pair["subscriber"]))
        ),
    )
