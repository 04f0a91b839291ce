"""The Spark job of a cycle: planned members joined with their sealed rows, sent, written. Nothing comes after the send."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas import functions as arrow_functions
from pyspark.util import PythonEvalType

from tidings.lanes.attempts import SCHEMA
from tidings.lanes.cargo import ROW, Shelf, packed
from tidings.lanes.carry import Load, carrier
from tidings.lanes.member import PlannedCall
from tidings.lanes.send import Job, sender
from tidings.lanes.stretch import Stretch
from tidings.store import AddFile, Store

PER_TASK = 50  # calls; more are spread over more tasks
SMALL = 500  # members; up to here the driver reads the sealed rows itself
OUTLINE = ["lane", "cycle", "finished", "latency_ms", "strength", "entry", "members.list.element.final"]
PLACE = ("source", "generation", "offset", "event_id")
PLAN = pa.schema(
    [
        ("task", pa.int32()),
        ("lane", pa.string()),
        ("seq", pa.int64()),
        ("place", pa.int32()),
        ("kind", pa.string()),
        ("at", pa.float64()),
        ("intent", pa.bool_()),
        ("source", pa.string()),
        ("generation", pa.string()),
        ("offset", pa.int64()),
        ("event_id", pa.string()),
        ("semantics", pa.string()),
        ("attempt", pa.int32()),
        ("tries", pa.int32()),
        ("first", pa.float64()),
        ("limit", pa.int32()),
        ("doubted", pa.bool_()),
        ("sent_in", pa.int64()),
        ("awaiting", pa.bool_()),
        ("reference", pa.string()),
        ("predicted", pa.float64()),
        ("key", pa.binary()),
        ("wire", pa.string()),
        ("redact", pa.list_(pa.string())),  # the fields that must not be in the request
    ]
)


def wire_subject(wire_key: bytes, subscriber: str, tag: bytes) -> str:
    """What a subscriber may call this person: stable for it, and different at every other."""
    own = hmac.new(wire_key, subscriber.encode(), hashlib.sha256).digest()
    return hmac.new(own, tag, hashlib.sha256).hexdigest()[:32]


def shared(calls: Sequence[PlannedCall], concurrency: Mapping[str, int], slots: int) -> tuple[dict[int, int], int]:
    """Which task makes which call (by position), and how many tasks there are. A lane is split only when it has many."""
    tasks = max(1, min(slots, 1 + len(calls) // PER_TASK))
    many: dict[str, int] = {}
    for call in calls:
        many[call.lane] = many.get(call.lane, 0) + 1
    spread = {lane: max(1, min(tasks, concurrency[lane], 1 + count // PER_TASK)) for lane, count in many.items()}
    first = {lane: number % tasks for number, lane in enumerate(sorted(many))}
    turn: dict[str, int] = {}
    placed = {}
    for position, call in enumerate(calls):
        turn[call.lane] = turn.get(call.lane, -1) + 1
        placed[position] = (first[call.lane] + turn[call.lane] % spread[call.lane]) % tasks
    return placed, tasks


def plan_rows(
    calls: Sequence[PlannedCall],
    tasks: Mapping[int, int],
    opened: Mapping[tuple[str, str], tuple[bytes, str, Sequence[str]]],
) -> pa.Table:
    """One row per member; `opened` gives (lane, event id) → (key, wire subject, fields to leave out)."""
    rows: list[dict[str, Any]] = []
    for position, call in enumerate(calls):
        shared_part = {"task": tasks[position], "lane": call.lane, "seq": call.seq, "kind": call.kind, "at": call.at}
        shared_part |= {"intent": call.intent, **call.feed._asdict()}
        for place, member in enumerate(call.members):
            key, wire, redact = opened[call.lane, member.event_id]
            own = {"place": place, "key": key, "wire": wire, "redact": list(redact)}
            rows.append({**asdict(member), **shared_part, **own})
    return pa.Table.from_pylist(rows, schema=PLAN)


def sending(spark: SparkSession, store: Store, plan: tuple[pa.Table, int], job: Job) -> DataFrame:
    """The whole plan: planned rows → by task → sorted → send. The rows that come out are written as they are."""
    members, tasks = plan
    rows = _shipped(spark, store, members) if members.num_rows <= SMALL else _joined(spark, store, members)
    placed = rows.coalesce(1) if tasks == 1 else rows.repartitionById(tasks, F.col("task"))
    return _mapped(placed.sortWithinPartitions("lane", "seq", "place"), sender(job), store.schema("attempts"))


def carrying(spark: SparkSession, store: Store, stretch: Stretch, load: Load, slots: int) -> DataFrame:
    """The plan of a stretch: a row per task, and the task does the rest. Nothing comes after that either."""
    low, high = stretch.entries[0].offset, max(part.upto for part in stretch.parts.values())
    files = store.files("journal", column="offset", above=low - 1, where=dict(stretch.feed._asdict()))
    near = [file for file in files if file.minimum.get("offset", high) <= high]
    shelf = Shelf(str(store.root), near, stretch.feed)
    tasks = max(n for n in range(1, load.splits + 1) if load.splits % n == 0 and n <= slots)
    rows = spark.createDataFrame(packed(stretch, tasks))
    return _mapped(rows, carrier(replace(load, shelf=shelf)), "written int")


def _shipped(spark: SparkSession, store: Store, members: pa.Table) -> DataFrame:
    """Few members: their sealed rows travel with the plan, which saves a scan and a broadcast (a third of a small cycle)."""
    files = _files(store, members)
    look = ds.field("offset").isin(members["offset"].combine_chunks())
    sealed = store.arrow("journal", ROW, files=files, filter=look)
    found = {tuple(row[name] for name in PLACE): row for row in sealed.to_pylist()}
    rows = [{**found[tuple(member[name] for name in PLACE)], **member} for member in members.to_pylist()]
    fields = [*sealed.schema, *(field for field in members.schema if field.name not in sealed.schema.names)]
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=pa.schema(fields)))


def _joined(spark: SparkSession, store: Store, members: pa.Table) -> DataFrame:
    """Many members: the executors read their sealed rows themselves."""
    paths = [file.path for file in _files(store, members)]
    journal = spark.read.schema(store.schema("journal")).parquet(*paths).select(*ROW)
    return journal.join(F.broadcast(spark.createDataFrame(members)), list(PLACE))


def _files(store: Store, members: pa.Table) -> list[AddFile]:
    """Journal files that hold one of these offsets, by their statistics."""
    low = pa.compute.min(members["offset"]).as_py()
    return [file for file in store.files("journal", column="offset", above=low - 1) if _holds(file, members["offset"])]


def _holds(file: AddFile, offsets: pa.ChunkedArray) -> bool:
    low, high = file.minimum.get("offset"), file.maximum.get("offset")
    if low is None or high is None:
        return True
    inside = pa.compute.and_(pa.compute.greater_equal(offsets, low), pa.compute.less_equal(offsets, high))
    return bool(pa.compute.any(inside).as_py())


def _mapped(rows: DataFrame, function: Callable[..., Any], schema: str) -> DataFrame:
    """DataFrame.mapInArrow, which insists on pandas being installed although Arrow batches never touch it.

    The version of PySpark is pinned, and the test of the send plan fails when this stops being the same node.
    """
    udf = arrow_functions.vectorized_udf(  # type: ignore[attr-defined]
        function, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    column = udf(*[rows[name] for name in rows.columns])
    return type(rows)(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)


def attempted(write: Callable[[], object]) -> BaseException | None:
    """Run a job that sends: what failed, if anything. The rows that were written are still true; the rest is in doubt."""
    try:
        write()
    except Exception as error:
        return error
    return None


def written(folder: str) -> pa.Table:
    """What the tasks wrote, also when the job failed half way: a row that is there is true."""
    kept = [name for name in SCHEMA.names if name != "exchanges"]  # sealed, and nothing the driver asks about
    schema = pa.schema([SCHEMA.field(name) for name in kept])
    found = (pq.ParquetFile(part).read(columns=kept).cast(schema) for part in _parts(folder))
    return pa.concat_tables([schema.empty_table(), *found])


def outlined(folder: str) -> pa.Table:
    """The same, and of its members only how each ended: enough of a stretch in which all went well."""
    found = [pq.ParquetFile(part).read(columns=OUTLINE) for part in _parts(folder)]
    return pa.concat_tables(found or [written(folder)])


def _parts(folder: str) -> list[Path]:
    place = Path(folder)
    return sorted(place.glob("part-*.parquet")) if place.is_dir() else []
