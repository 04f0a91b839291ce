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
    known = decisions.select("decision", "policy_version", "clocks", "choices", "anchors")
    joined = events.join(F.broadcast(known), "decision", "left")
    return joined.withColumns(_told_whom(NO_FILTERS if filters is None else filters)).drop("clocks", "choices")


NO_FILTERS: Mapping[str, Column] = {}


@built_once
def _told_whom(filters: Mapping[str, Column]) -> dict[str, Column]:
    return {"recipients": F.when(F.col("choices").isNotNull(), _recipients(filters)).cast(RECIPIENTS)}


def _recipients(filters: Mapping[str, Column]) -> Column:
    unmatched = [F.when(~F.coalesce(column, F.lit(False)), F.lit(name)) for name, column in sorted(filters.items())]
    bound = F.struct(
        F.transform("clocks", lambda clock: due(clock, _start(clock))).alias("times"),
        F.array_compact(F.array(*unmatched)).cast("array<string>").alias("unmatched"),
    )
    return let(bound, lambda at: F.transform(_told(at) if unmatched else F.col("choices"), lambda one: _pair(one, at)))


def _start(clock: Column) -> Column:
    asked = F.coalesce(F.col("request_time"), F.col("time"))
    return F.when(clock["origin"] == "event", F.col("time")).otherwise(asked)


def _told(at: Column) -> Column:
    return F.filter(
        "choices", lambda one: (one["reach"] == "everyone") | ~F.array_contains(at["unmatched"], one["subscriber"])
    )


def _pair(one: Column, at: Column) -> Column:
    deadline = F.array_min(F.transform(one["clocks"], lambda number: F.get(at["times"], number)))
    fields = {name: one[name] for name in ("subscriber", "outcome", "reasons", "semantics", "priority")}
    fields |= {"deadline": deadline, "redact": one["redact"]}
    return F.struct(*[column.alias(name) for name, column in fields.items()])
