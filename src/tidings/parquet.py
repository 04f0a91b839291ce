"""Parquet files as the tables hold them: checked against the layout, described by their own footers."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from tidings.errors import Damaged
from tidings.tables import Table

FLAT = {
    "long": pa.int64(),
    "integer": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}


def describe(path: Path, root: Path, table: Table) -> AddAction | None:
    """The add-action of one file, or None when it has no rows. Statistics are of the declared columns alone."""
    footer = pq.read_metadata(path)
    if footer.num_rows == 0:
        return None
    _check(path, footer, table)
    stats: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in table.statistics:
        low, high, nulls = _range(footer, name)
        if nulls is not None:
            stats["nullCount"][name] = nulls
        if low is not None and high is not None:
            stats["minValues"][name], stats["maxValues"][name] = _plain(low, up=False), _plain(high, up=True)
    seen = path.stat()
    place = path.relative_to(root).as_posix()
    return AddAction(place, seen.st_size, {}, int(seen.st_mtime * 1000), True, json.dumps(stats, separators=(",", ":")))


def write(rows: pa.Table, path: Path, table: Table) -> None:
    pq.write_table(rows, path, compression="zstd", write_statistics=list(table.statistics), row_group_size=100_000)


def _check(path: Path, footer: pq.FileMetaData, table: Table) -> None:
    """A column the layout does not know may only be empty: nothing unforeseen about a person gets into a table."""
    fields, found = table.fields, footer.schema.to_arrow_schema()
    for name in found.names:
        if name not in fields:
            problem = "" if _empty(footer, name) else f"a column {name} with values"
        else:
            wanted = FLAT.get(fields[name]) if isinstance(fields[name], str) else None
            is_other = wanted is not None and found.field(name).type != wanted
            problem = f"column {name} of type {found.field(name).type}" if is_other else ""
        if problem:
            raise Damaged("table_layout", f"{path} has {problem}", "the declared layout", "Nothing was committed.")


def _empty(footer: pq.FileMetaData, name: str) -> bool:
    for column in _chunks(footer, name):
        if column.statistics is None or column.statistics.null_count != column.num_values:
            return False
    return True


def _chunks(footer: pq.FileMetaData, name: str) -> list[pq.ColumnChunkMetaData]:
    leaves = [i for i in range(footer.num_columns) if footer.schema.column(i).path.split(".")[0] == name]
    return [footer.row_group(g).column(i) for g in range(footer.num_row_groups) for i in leaves]


def _range(footer: pq.FileMetaData, name: str) -> tuple[Any, Any, int | None]:
    """Minimum, maximum and count of missing values; None for what the footer does not say."""
    chunks = _chunks(footer, name)
    if not chunks:
        return None, None, footer.num_rows
    stats = [chunk.statistics for chunk in chunks]
    if any(s is None or not s.has_null_count for s in stats):
        return None, None, None
    nulls = sum(s.null_count for s in stats)
    valued = [s for s, chunk in zip(stats, chunks, strict=True) if s.null_count < chunk.num_values]
    if not valued or any(not s.has_min_max for s in valued):
        return None, None, nulls
    return min(s.min for s in valued), max(s.max for s in valued), nulls


def _plain(value: Any, *, up: bool) -> Any:
    """JSON as Delta spells it. Times have milliseconds there, so a range is widened to whole ones, never narrowed."""
    if isinstance(value, datetime):
        value = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        rest = timedelta(microseconds=value.microsecond % 1000)
        value = value - rest + (timedelta(milliseconds=1) if up and rest else timedelta())
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
