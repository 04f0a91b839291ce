"""Erased people stay erased: what is older than the erasure, or says nothing new of a lawful reason, ends here.

A subject's tombstone is a word among the flags of its row in `subjects`:  erased:<milliseconds>:<generation>:<gone|back>.
While it is *gone*, only a record that is created after the erasure lives; from then on it is *back*, one generation later, and only what
is older than the erasure ends. A re-delivery, a re-snapshot, a late update and a restored source cannot bring anybody back.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidings.stages.change import ERASED
from tidings.stages.event import in_order
from tidings.stages.once import built_once

WORD, GONE, BACK = f"{ERASED}:", "gone", "back"


def tombstone(millis: int, generation: int, back: bool = False) -> str:
    """The word in a subject's flags."""
    return f"{WORD}{millis}:{generation}:{BACK if back else GONE}"


def without_erased(rows: DataFrame) -> DataFrame:
    """Rows of erased people become skips; one that creates the person anew carries the tombstone of the next generation."""
    return rows.withColumns(_said()).withColumns(_created()).withColumns(_ended())


@built_once
def _said() -> dict[str, Column]:
    word = F.get(F.filter("known_flags", lambda flag: flag.startswith(WORD)), F.lit(0))
    return {"stone": F.split(word, ":")}


@built_once
def _created() -> dict[str, Column]:
    """Tags of people who were created anew up to this row of the batch; hardly ever any."""
    fine = F.col("problem").isNull() & F.col("skip").isNull() & ~F.col("repeat")
    anew = (F.col("stone")[3] == GONE) & (F.col("op") == "insert") & ~_older() & fine
    return {"anew": F.array_contains(F.collect_set(F.when(anew, F.col("tag"))).over(in_order()[1]), F.col("tag"))}


@built_once
def _ended() -> dict[str, Column]:
    stays = F.when(F.col("stone")[3] == BACK, F.lit(True)).otherwise(F.coalesce("anew", F.lit(False)))
    over = F.col("stone").isNotNull() & (_older() | ~stays)
    number = (F.col("stone")[2].cast("int") + F.when(F.col("stone")[3] == GONE, 1).otherwise(0)).cast("string")
    carried = F.array(F.concat_ws(":", F.lit(ERASED), F.col("stone")[1], number, F.lit(BACK)))
    return {
        "skip": F.when(over & F.col("problem").isNull(), F.coalesce("skip", F.lit(ERASED))).otherwise(F.col("skip")),
        "stone_now": F.when(F.col("stone").isNotNull() & ~over, carried),
    }


def _older() -> Column:
    """Was it said before the erasure?"""
    told = F.unix_millis(F.coalesce("commit_time", "arrived"))
    return told <= F.col("stone")[1].cast("bigint")
