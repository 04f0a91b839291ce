"""How fast each dialect is decoded, beside a bare `from_json` of the same bytes in the same session."""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings.session import session
from tidings.stages.change import change
from tidings.stages.dialect import names
from tidings.stages.message import MESSAGE

ROUNDS = 3
# What differs between the people of the samples: the number of a record, an address, a UUID.
_RECORD = re.compile(r"(?<![0-9.:-])0*10(?:[0-9]{2}|[0-9]{5})(?![0-9.:-])")
_UUID = re.compile(r"-8000-[0-9]{8}([0-9]{4})")
_ADDRESS = re.compile(r"[a-z.]+@example\.com")
AIM = 0.6
Say = Callable[[str], None]


def measure(samples: Path, messages: int, only: Collection[str] = (), say: Say = lambda text: None) -> dict[str, Any]:
    """Microseconds per message and dialect, slowest ratio first; both sides take turns, and the median turn counts."""
    with tempfile.TemporaryDirectory(prefix="tidings-bench-", ignore_cleanup_errors=True) as scratch:
        spark = session(Path(scratch))
        try:
            found = []
            for name in only or names():
                found.append(_one(spark, name, samples, messages))
                say(f"{name}: {found[-1]['ratio']}")
        finally:
            spark.stop()
    found.sort(key=lambda row: row["ratio"])
    ratios = [row["ratio"] for row in found]
    summary = {"worst": min(ratios), "median": statistics.median(ratios), "reach": sum(r >= AIM for r in ratios)}
    return {"messages": messages, "aim": AIM, "dialects": len(found), **summary, "each": found}


def _one(spark: SparkSession, dialect: str, samples: Path, messages: int) -> dict[str, Any]:
    lines = varied(sampled(samples / f"{dialect}.jsonl"), messages)
    rows = _frame(spark, lines).cache()
    rows.count()
    shape = spark.read.json(rows.select("body").limit(200)).schema
    bare = rows.select(F.from_json("body", shape).alias("m"))
    decoded = change(rows, dialect, {})
    refused = decoded.filter(F.col("problem").isNotNull()).count()  # also the first turn, which compiles
    _timed(bare)
    turns = [(_timed(bare), _timed(decoded)) for _ in range(ROUNDS)]
    rows.unpersist()
    limit, ours = (statistics.median(side) / messages * 1e6 for side in zip(*turns, strict=True))
    return {
        "dialect": dialect,
        "ratio": round(limit / ours, 3),
        "decode_us": round(ours, 1),
        "bare_us": round(limit, 1),
        "bytes": round(sum(map(len, lines)) / messages),
        "refused": refused,
    }


def sampled(path: Path) -> list[Any]:
    """The messages of a dialect's samples that make a change."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row["message"] for row in rows if isinstance(row["expect"], list) or "op" in row["expect"]]


def varied(samples: list[Any], count: int) -> list[str]:
    """As many messages, each with its own numbers and addresses."""
    return [json.dumps(_other(samples[number % len(samples)], number), ensure_ascii=False) for number in range(count)]


def _other(value: Any, number: int) -> Any:
    if isinstance(value, dict):
        return {name: _other(inner, number) for name, inner in value.items()}
    if isinstance(value, list):
        return [_other(inner, number) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1000:
        return value + number
    if isinstance(value, str):
        own = _RECORD.sub(str(100_000 + number), _ADDRESS.sub(f"c{number}.\\g<0>", value))
        return _UUID.sub(f"-8000-{number:08d}\\g<1>", own)
    return value


def _frame(spark: SparkSession, lines: list[str]) -> DataFrame:
    """MESSAGE rows in memory, one partition for each core."""
    rows = spark.createDataFrame(pa.table({"line": pa.array(range(len(lines)), pa.int64()), "body": pa.array(lines)}))
    given = {name: F.col(name) for name in ("line", "body")}
    columns = [given.get(each.name, F.lit(None).cast(each.dataType)).alias(each.name) for each in MESSAGE.fields]
    return rows.repartition(spark.sparkContext.defaultParallelism).select(*columns)


def _timed(frame: DataFrame) -> float:
    """Seconds of processor time that the tasks took: what runs beside this on the machine does not show in it."""
    context = frame.sparkSession.sparkContext
    before = context.statusTracker().getJobIdsForGroup(None)
    frame.write.format("noop").mode("overwrite").save()
    scala = context._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    tracker, store = context.statusTracker(), scala.statusStore()
    jobs = {*tracker.getJobIdsForGroup(None)} - {*before}
    stages = [stage for job in jobs if (info := tracker.getJobInfo(job)) for stage in info.stageIds]
    return float(sum(store.lastStageAttempt(int(stage)).executorCpuTime() for stage in stages)) / 1e9
