"""What is counted of a batch on its way: by `observe` while it is written, and from the files it wrote. Nothing is counted by a second job.

The counts are saved with the batch's progress, so they are exactly as true as its journal commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.progress import Marks, Progress
from tidings.seal.columns import LOTS
from tidings.seen import Lag, Seen, keys_of, written
from tidings.shapes import Source
from tidings.stages.change import UNHEARD, skip_reasons
from tidings.stages.once import built_once

_COUNTED = (
    "rows",
    "messages",
    "skipped",
    "quarantined",
    "duplicates",
    "stale",
    "snapshots",
    "events",
    "clock_ahead",
    "masked",
)


@built_once
def counters(source: Source) -> list[Column]:
    """Every aggregate that a batch of this source is observed with."""
    events = F.size("units")
    when = F.coalesce("commit_time", "arrived")
    high = [
        F.max(F.when(F.col("ordered") & (F.col("entity") == table), F.struct("epoch", "ordering"))).alias(f"high_{i}")
        for i, table in enumerate(source.entities)
    ]
    return [
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.col("ordinal") == 0).alias("messages"),
        F.count_if(F.col("skip").isNotNull()).alias("skipped"),
        F.count_if(F.col("problem").isNotNull()).alias("quarantined"),
        F.count_if(F.col("repeat")).alias("duplicates"),
        F.count_if(F.col("stale")).alias("stale"),
        F.count_if(F.col("op") == "snapshot").alias("snapshots"),
        F.sum(events.cast("bigint")).alias("events"),
        F.count_if(F.col("suspect") & ~F.col("repeat")).alias("suspects"),
        F.count_if(F.col("ahead")).alias("clock_ahead"),
        F.count_if(F.col("masked")).alias("masked"),
        F.max(F.when(F.col("problem.code") == UNHEARD, F.col("problem.detail"))).alias("unheard"),
        F.min(F.when(F.col("suspect"), when)).alias("first_suspect"),
        F.max(F.when(F.col("suspect"), when)).alias("last_suspect"),
        F.max(F.struct("tick", "counter")).alias("hlc"),
        F.max(F.col("start") + events).alias("index"),
        F.max(F.when(~F.col("ahead"), F.col("commit_time"))).alias("newest"),
        *high,
        *_of_seen(source),
    ]


def _of_seen(source: Source) -> list[Column]:
    """What the report of a source's capture is made of."""
    change = F.col("problem").isNull() & F.col("skip").isNull()
    arrived = F.unix_millis("arrived")
    lag = F.when(change, arrived - F.unix_millis("commit_time"))
    found = [
        F.min(arrived).alias("first_arrival"),
        F.max(arrived).alias("last_arrival"),
        F.collect_set(F.when(change, F.substring_index("epoch", "/", 1))).alias("dialects"),
        F.count(lag).alias("timed"),
        F.percentile_approx(lag, [0.5, 0.99], 1000).alias("lag"),
    ]
    for i, table in enumerate(source.entities):
        mine = F.col("entity") == table
        # Of the longest image, and only the names: they are taken out when a longer one comes, not for every row.
        names = F.max_by(F.json_object_keys("after_json"), F.when(mine, F.octet_length("after_json")))
        found += [F.count_if(mine).alias(f"table_{i}"), names.alias(f"fields_{i}")]
    reasons = skip_reasons(source.dialect)
    return [*found, *[F.count_if(F.col("skip") == reason).alias(f"skip_{i}") for i, reason in enumerate(reasons)]]


def totals(found: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(found[name] or 0) for name in _COUNTED} | {"batches": 1}


def after(progress: Progress, found: Mapping[str, Any], source: Source, folder: Path) -> Progress:
    """Progress with this batch; `folder` holds the files it wrote."""
    marks = progress.marks
    high = dict(marks.high)
    for i, table in enumerate(source.entities):
        if (top := found[f"high_{i}"]) is not None:
            key = f"{top['epoch']}|{table}"
            high[key] = max(high.get(key, ""), top["ordering"])
    hlc = (found["hlc"]["tick"], found["hlc"]["counter"]) if found["hlc"] is not None else marks.hlc
    lamport = marks.lamport + int(found["index"] or 0) * LOTS
    newest = utc(found["newest"]).isoformat() if found["newest"] else ""
    return progress.plus(Marks(high, max(hlc, marks.hlc), lamport), totals(found), newest, _seen(found, source, folder))


def _seen(found: Mapping[str, Any], source: Source, folder: Path) -> Seen:
    types, codes, unmapped = written(folder)
    tables = {table: found[f"table_{i}"] for i, table in enumerate(source.entities)}
    fields = {table: keys_of(found[f"fields_{i}"]) for i, table in enumerate(source.entities)}
    skips = {reason: found[f"skip_{i}"] for i, reason in enumerate(skip_reasons(source.dialect))}
    first, last = found["first_arrival"] or 0, found["last_arrival"] or 0
    lags = [Lag(found["timed"], *found["lag"])] if found["timed"] else []
    return Seen(
        tables={name: count for name, count in tables.items() if count},
        unmapped=unmapped,
        codes=codes,
        skips={name: count for name, count in skips.items() if count},
        types=types,
        minutes={str(last // 60_000): found["messages"]} if last else {},
        fields={name: names for name, names in fields.items() if names},
        dialects=sorted(found["dialects"] or ()),
        first=first,
        last=last,
        lags=lags,
    )


def utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
