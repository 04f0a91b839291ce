"""What is remembered of a subject that several masters write: what stands, who wrote it, what each of them has said.

All of it lies sealed in the last image; only the version vector and the row's version are beside it. A contract without `masters` costs
nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidings.contract import Contract
from tidings.seal.columns import LOTS
from tidings.stages.conflict import (
    in_dispute,
    is_master,
    live,
    master_fields,
    mastered,
    no_counts,
    stands,
    unit_of,
    up_to,
)
from tidings.stages.event import nothing
from tidings.stages.once import built_once

# What the sealed last image holds besides, for a contract with masters; times are microseconds, `at` is the writer's Lamport time.
_WRITE = "by:string,at:bigint,time:bigint"
STATE = (
    "masters map<string,struct<fields:map<string,string>,image:string,time:bigint,seen:map<string,bigint>>>,"
    f" wrote map<string,struct<{_WRITE}>>, held map<string,struct<{_WRITE},value:string,change:string,unit:string>>"
)


def remembered(rows: DataFrame, contracts: Mapping[str, Contract]) -> DataFrame:
    """Adds `joint_now`: what stands of the subject after this row, who wrote it, and what each master has said. Needs `start`."""
    if not mastered(contracts):
        return rows
    return rows.withColumns(_at()).withColumns(_written_by(contracts)).withColumns(_joint_now(contracts))


@built_once
def _at() -> dict[str, Column]:
    """The Lamport time of the change: that of its first event."""
    return {"at": F.col("b_lamport") + 1 + F.col("start") * LOTS + F.col("lot")}


@built_once
def _written_by(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    _, upto = up_to()
    standing: list[Column] = []
    waiting: list[Column] = []
    for name in master_fields(contracts):
        value = F.try_element_at(F.col("fields_after"), F.lit(name))
        waits = in_dispute(name, "held")
        write = _write(value, F.hex("change_id"), unit_of(contracts, name))
        for entries, test in ((standing, stands(name)), (waiting, waits)):
            entry = F.struct(F.lit(name).alias("key"), write.alias("value"))
            entries.append(F.last(F.when(test, entry), ignorenulls=True).over(upto))
    spoke = F.max(F.when(F.size("units") > 0, F.col("at") + (F.size("units") - 1) * LOTS)).over(upto)
    return {
        "stands": F.map_from_entries(F.array_compact(F.array(*standing))),
        "waits": F.map_from_entries(F.array_compact(F.array(*waiting))),
        "spoke": spoke,
        "told_last": F.max(F.when(live(), F.col("told"))).over(upto),
    }


def _write(value: Column, change: Column, unit: Column) -> Column:
    parts = {"by": F.col("source"), "at": F.col("at"), "time": F.col("told"), "value": value}
    parts |= {"change": change, "unit": unit}
    return F.struct(*[column.alias(name) for name, column in parts.items()])


@built_once
def _joint_now(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    own = F.map_concat(F.coalesce("held", nothing()), F.col("fields_after"))
    values = F.transform_values("stands", lambda _, write: write["value"])
    writes = F.transform_values("stands", lambda _, write: F.struct(write["by"], write["at"], write["time"]))
    known = F.col("known_masters")
    view = F.try_element_at(known, F.col("source"))
    mine = {
        "fields": own,
        "image": F.col("after_json"),
        "time": F.greatest(view["time"], F.col("told_last")),
        "seen": F.col("context"),
    }
    said = F.create_map(F.col("source"), F.struct(*[column.alias(name) for name, column in mine.items()]))
    # A field that its source has settled since waits for nobody.
    waiting = F.map_filter("known_held", lambda name, _: ~F.map_contains_key("stands", name))
    state = {
        "fields": F.map_concat(own, F.coalesce("joint_fields", nothing()), values),
        "image": F.col("after_json"),
        "masters": _over(known, said),
        "wrote": _over(F.col("known_wrote"), writes),
        "held": _over(waiting, F.col("waits")),
    }
    now = F.to_json(F.struct(*[column.alias(name) for name, column in state.items()]), {"ignoreNullFields": "false"})
    spoken = F.when(F.col("spoke").isNotNull(), F.create_map(F.col("source"), F.col("spoke"))).otherwise(no_counts())
    return {
        "joint_now": F.when(is_master(contracts), now),
        "joint_vector": F.when(is_master(contracts), _over(F.col("known_vector"), spoken)),
    }


def _over(known: Column, new: Column) -> Column:
    """What was known with what is new over it; nothing known is nothing to lay it over."""
    return F.when(known.isNull(), new).otherwise(F.map_concat(known, new))


def later_version(version: Column) -> Column:
    """A version above everything known of the subject: between masters the later word is the one journalled later."""
    known = (F.col("known_version"), F.col("known_image_version"))
    after = [
        F.concat(
            F.substring(text, 1, 14),
            F.lpad((F.substring(text, 15, 6).try_cast("bigint") + F.col("nth")).cast("string"), 6, "0"),
        )
        for text in known
    ]
    return reduce(lambda high, one: F.greatest(high, one), after, version)
