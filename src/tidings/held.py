"""A small batch in hand: its rows, the keys and what is known of its subjects as one Arrow table, so that Spark joins nothing.

For a hundred changes the look-up jobs of `known.py` cost more than everything else; up to a few megabytes the driver looks up
the same state itself, by tag, and the rows that reach `flow.writing` are the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings.errors import Damaged
from tidings.progress import Marks
from tidings.seal.columns import lot_column
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import associated, open_payload
from tidings.stages.change import UNHEARD
from tidings.stages.event import Batch
from tidings.store import Store

_TEXTS = pa.map_(pa.string(), pa.string())
_SUBJECTS = {"known_consents": _TEXTS, "known_jurisdiction": pa.string(), "known_flags": pa.list_(pa.string())}
_IMAGES = {"known_fields": _TEXTS, "known_image": pa.string(), "known_time": pa.timestamp("us", tz="UTC")}
_COUNTS = pa.map_(pa.string(), pa.int64())
_WRITE = {"by": pa.string(), "at": pa.int64(), "time": pa.int64()}
_WAITS = _WRITE | {name: pa.string() for name in ("value", "change", "unit")}
_VIEW = {"fields": _TEXTS, "image": pa.string(), "time": pa.int64(), "seen": _COUNTS}
# The same as `stages.joint.STATE`, with the version vector and the row's own version.
_MASTERS = {
    "known_masters": pa.map_(pa.string(), pa.struct(_VIEW)),
    "known_wrote": pa.map_(pa.string(), pa.struct(_WRITE)),
    "known_held": pa.map_(pa.string(), pa.struct(_WAITS)),
    "known_vector": _COUNTS,
    "known_image_version": pa.string(),
}
Found = dict[bytes, dict[str, Any]]


@dataclass(frozen=True)
class Glance:
    """A first look at a batch: the stretch of time that rows which may be re-deliveries are from; none when there are none."""

    first: datetime | None = None
    last: datetime | None = None


def hold(rows: DataFrame) -> pa.Table:
    """The batch's rows, computed once. Writing them again (a new situation was met) does not read them again."""
    return rows.toArrow()


def unheard(rows: pa.Table) -> set[str]:
    """Dialects of messages that the plan of these rows leaves out."""
    found = [problem for problem in rows["problem"].to_pylist() if problem and problem["code"] == UNHEARD]
    return {problem["detail"] for problem in found}


def gathered(spark: SparkSession, rows: pa.Table, one: pa.Table, known: Mapping[str, pa.Array]) -> DataFrame:
    """What `flow.gathered` makes by joins: each row with the batch's keys and place, and with what is known of its subject."""
    first = pa.repeat(0, rows.num_rows)  # a batch may have no rows, and a map cannot be repeated no times
    for name in one.column_names:
        rows = rows.append_column(name, one[name].take(first))
    for name, values in known.items():
        rows = rows.append_column(name, values)
    frame = spark.createDataFrame(rows).coalesce(1)
    return frame.withColumn("lot", lot_column(F.col("lots"), F.col("tag"))).drop("lots")


def known_of(store: Store, keys: KeyFiles, batch: Batch, rows: pa.Table) -> dict[str, pa.Array]:
    """Columns beside the rows: the state of their subjects as it was committed before this batch."""
    tags = rows["tag"].to_pylist()
    look = {tag for tag in tags if tag is not None}
    subjects, images = _types(batch)
    columns = _columns(tags, _latest(store, "subjects", batch, look), subjects)
    return columns | _columns(tags, _images(store, keys, batch, look), images) if batch.keeps else columns


def nothing_known(rows: pa.Table, batch: Batch) -> dict[str, pa.Array]:
    """The same columns of an empty store."""
    subjects, images = _types(batch)
    return _columns([None] * rows.num_rows, {}, subjects | images)


def _types(batch: Batch) -> tuple[dict[str, pa.DataType], dict[str, pa.DataType]]:
    """Columns from `subjects` and from `last_seen`."""
    if not batch.masters:
        return _SUBJECTS, _IMAGES
    return _SUBJECTS | {"known_version": pa.string()}, _IMAGES | _MASTERS


def glance(rows: pa.Table, marks: Marks) -> Glance:
    """What `stages.event.suspect` says of each row, of rows in hand."""
    wanted = ("problem", "skip", "ordered", "ordering", "epoch", "entity", "commit_time", "arrived")
    times = [row["commit_time"] or row["arrived"] for row in rows.select(wanted).to_pylist() if _doubtful(row, marks)]
    return Glance(min(times, default=None), max(times, default=None))


def _doubtful(row: Mapping[str, Any], marks: Marks) -> bool:
    if row["problem"] is not None or row["skip"] is not None:
        return False
    high = marks.high.get(f"{row['epoch']}|{row['entity']}")
    return not row["ordered"] or high is None or row["ordering"] <= high


def _columns(tags: list[bytes | None], found: Found, types: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    each = [found.get(tag, {}) if tag is not None else {} for tag in tags]
    return {
        name: pa.array([row.get(name.removeprefix("known_")) for row in each], kind) for name, kind in types.items()
    }


def _latest(store: Store, table: str, batch: Batch, tags: Collection[bytes]) -> Found:
    """Tag → its newest row; the batch's own rows are left out, so that a repeat computes the same."""
    own = (
        (ds.field("source") == batch.source)
        & (ds.field("generation") == batch.generation)
        & (ds.field("batch") >= batch.number)
    )
    rows = store.lookup(table, tags).filter(~own).to_pylist() if tags and store.files(table) else []
    return {row["tag"]: row for row in sorted(rows, key=lambda row: row["version"])}


def _images(store: Store, keys: KeyFiles, batch: Batch, tags: Collection[bytes]) -> Found:
    """Last images, opened; of one whose key is gone only the time is known."""
    rows = _latest(store, "last_seen", batch, tags)
    opening = keys.of(rows) if rows else {}
    return {tag: _opened(row, opening) for tag, row in rows.items()}


def _opened(row: Mapping[str, Any], keys: Mapping[bytes, tuple[bytes, bytes]]) -> dict[str, Any]:
    aad = associated("last_seen", row["tag"].hex().upper(), "image")
    try:
        plain = json.loads(open_payload(keys[row["kid"]][1], aad, row["image"])) if row["kid"] in keys else {}
    except Damaged:
        plain = {}
    fields = plain.get("fields")
    found = {
        "time": row["time"],
        "image": plain.get("image"),
        "fields": None if fields is None else list(fields.items()),
        "vector": row["vector"],
        "image_version": row["version"],
    }
    return found if plain.get("masters") is None else found | _between_masters(plain)


def _between_masters(plain: Mapping[str, Any]) -> dict[str, Any]:
    views = {
        name: view | {part: list((view.get(part) or {}).items()) for part in ("fields", "seen")}
        for name, view in plain["masters"].items()
    }
    maps = {"masters": views} | {part: plain.get(part) or {} for part in ("wrote", "held")}
    return {name: list(found.items()) for name, found in maps.items()}
