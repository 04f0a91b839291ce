"""How fast messages become journal rows, beside the bare limit measured in the same run."""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidings.benches.operator import drop, messages, operator
from tidings.decisions import Decisions
from tidings.emit import Emitter
from tidings.feed import Feeding, source_rows
from tidings.progress import Generations
from tidings.session import session
from tidings.settings import Settings
from tidings.sources import files
from tidings.store import Store

PER_FILE, FILES = 25_000, 4  # FILES is the operator's batch_files
BARE = (
    "topic string, key string, value struct<before:string,after:string,op:string,ts_ms:bigint,"
    "source:struct<connector:string,lsn:bigint,ts_us:bigint,txId:string,schema:string,table:string,snapshot:string>>"
)
Say = Callable[[str], None]


def measure(events: int, subscribers: int, *, sealed: bool = True, say: Say = lambda text: None) -> dict[str, Any]:
    """Events per second through the whole chain, and the bare parse + Parquet write of the same messages."""
    root = Path(tempfile.mkdtemp(prefix="tidings-bench-"))
    settings = operator(root, subscribers)
    spark = session(settings.data_path)
    try:
        folder = settings.source_path("crm")
        say("writing messages")
        # One batch more than is measured: the first compiles the plan and decides the situations.
        per_file = min(PER_FILE, max(PER_FILE // 10, events // (2 * FILES)))
        count = events + FILES * per_file
        drop(folder, messages(count, max(1000, events // 10)), per_file)
        limit = _bare(spark, folder, root / "bare", count)
        say(f"bare limit {limit:,.0f}/s")
        rate, memory = emitted(spark, settings, sealed, say)
        return {
            "events": events,
            "subscribers": subscribers,
            "sealed": sealed,
            "events_per_s": round(rate),
            "limit_per_s": round(limit),
            "ratio": round(rate / limit, 3),
            "driver_mb": memory,
        }
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


def _bare(spark: SparkSession, folder: Path, out: Path, count: int) -> float:
    """The bare limit: parse with a fixed schema and write Parquet, twice; the second is the warm one."""
    rate = 0.0
    for turn in range(2):
        start = time.perf_counter()
        spark.read.text(str(folder)).select(F.from_json("value", BARE).alias("m")).write.mode("overwrite").parquet(
            str(out / str(turn))
        )
        rate = count / (time.perf_counter() - start)
    return rate


def emitted(spark: SparkSession, settings: Settings, sealed: bool, say: Say) -> tuple[float, list[int]]:
    """Events per second after the first batch, and the driver's memory on the way."""
    source = settings.sources["crm"]
    store, decisions = Store(settings.data_path / "tables"), Decisions.load(settings)
    generation = Generations(settings.data_path, "crm").current()
    marks: list[tuple[float, int, int]] = []

    def told(counts: Any) -> None:
        marks.append(
            (time.perf_counter(), counts["events"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        )
        say(f"batch {len(marks)}: {counts['events']:,} events")

    emitter = Emitter(spark, settings, source, store, decisions, generation, sealed=sealed, told=told)
    feed = Feeding(source, emitter, files.DropFolder(settings.source_path("crm"), source.after))
    assert feed.drop is not None
    feed.drop.claim()
    rows = source_rows(spark, settings, source, feed.drop)
    stream = rows.writeStream.foreachBatch(feed.batch).option(
        "checkpointLocation", str(emitter.generations.checkpoint / "stream")
    )
    stream.trigger(availableNow=True).start().awaitTermination()
    first = marks[0][0]
    done = sum(count for _, count, _ in marks[1:])
    return done / (marks[-1][0] - first), [mb for _, _, mb in marks][:: max(1, len(marks) // 5)]
