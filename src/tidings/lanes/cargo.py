"""The events of one task of a stretch: what the driver says of them, and their sealed rows, which the executor reads itself.

Spark hands a task one Arrow stream and nothing else, so no row of the journal passes through the JVM on its way out. A journal
file that is gone, or that lacks an event, fails the task before its first call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings.errors import Damaged
from tidings.lanes.member import Feed
from tidings.lanes.stretch import Stretch
from tidings.parquet import AddFile
from tidings.stages.envelope import timestamp
from tidings.store import Store

ROW = (
    "source", "generation", "offset", "event_id", "change_type", "operation", "entity", "tenant", "banner", "location", "locale",
    "routing_hint", "time", "recorded", "correlation", "causation", "hlc", "vector", "subjectseq", "schema_version",
    "policy_version", "consent", "payload",
)  # fmt: skip
EVENTS = pa.schema(
    [
        ("offset", pa.int64()),
        ("split", pa.int32()),
        ("kind", pa.int32()),
        ("tag", pa.binary()),
        ("key", pa.binary()),
    ]
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Shelf:
    """Where the sealed rows are."""

    tables: str
    files: Sequence[AddFile]
    feed: Feed


class Cargo:
    """Rows by place, kept as columns: a row is made when it is asked for."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self.columns = columns
        self._names, self._values = list(columns), list(columns.values())

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Cargo:
        return cls({name: [row[name] for row in rows] for name in (rows[0] if rows else ())})

    def __getitem__(self, place: int) -> dict[str, Any]:
        return dict(zip(self._names, [values[place] for values in self._values], strict=True))

    def __len__(self) -> int:
        return len(self._values[0]) if self._values else 0


def packed(stretch: Stretch, tasks: int) -> pa.Table:
    """A row per task: its events in the order of splits and offsets, as one Arrow stream."""
    last = max(part.upto for part in stretch.parts.values())
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(stretch.splits)]
    keys = stretch.keys
    for entry, split, kind in zip(stretch.entries, stretch.split, stretch.kind, strict=True):
        if kind >= 0 and entry.offset <= last:
            rows[split].append((entry.offset, split, kind, *keys[entry.kid]))
    streams = []
    for task in range(tasks):
        mine = [row for split in range(task, stretch.splits, tasks) for row in rows[split]]
        streams.append(_stream(list(zip(*mine, strict=True)) or [[] for _ in EVENTS]))
    return pa.table({"task": pa.array(range(tasks), pa.int32()), "events": pa.array(streams, pa.binary())})


def _stream(columns: Sequence[Sequence[Any]]) -> bytes:
    table = pa.table([pa.array(values, field.type) for values, field in zip(columns, EVENTS, strict=True)], EVENTS)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, EVENTS) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpacked(stream: bytes, shelf: Shelf) -> Cargo:
    """The events of one task with their sealed rows."""
    said = pa.ipc.open_stream(stream).read_all()
    if not said.num_rows:
        return Cargo({})
    bounds = pc.min_max(said["offset"]).as_py()
    look = (ds.field("source") == shelf.feed.source) & (ds.field("generation") == shelf.feed.generation)
    look &= (ds.field("offset") >= bounds["min"]) & (ds.field("offset") <= bounds["max"])
    sealed = Store(shelf.tables).arrow("journal", ROW, files=shelf.files, filter=look)
    places = pc.index_in(said["offset"], sealed["offset"])
    if places.null_count:
        found = f"{places.null_count} events of a stretch that are not in the journal"
        raise Damaged("journal_rows", found, "the rows that were read when it was planned", "Nothing was sent.")
    rows = sealed.take(places)
    columns = {name: list(_listed(rows[name])) for name in ROW}
    return Cargo(columns | {name: said[name].to_pylist() for name in ("split", "kind", "tag", "key")})


def _listed(column: pa.ChunkedArray) -> Iterator[Any]:
    """Times as an envelope spells them, the rest as it is."""
    if not pa.types.is_timestamp(column.type):
        return iter(column.to_pylist())
    moments: dict[int | None, str | None] = {None: None}  # many events share one; Arrow makes each anew, and slowly
    micros = column.cast(pa.int64()).to_pylist()
    for one in set(micros) - {None}:
        moments[one] = timestamp(_EPOCH + timedelta(microseconds=one))
    return (moments[one] for one in micros)
