"""Parquet files as the tables hold them: checked against the layout, described by their own footers."""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from tidings.errors import Damaged
from tidings.tables import Table

SCANNED, LOOKED_UP = (
    100_000,
    1_024,
)  # rows in a group: of a table that is read through, of one in which rows are looked up
FLAT = {
    "long": pa.int64(),
    "integer": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}


@dataclass(frozen=True)
class AddFile:
    """One data file and what its statistics say; `path` is absolute."""

    path: str
    size: int
    rows: int
    minimum: Mapping[str, Any] = field(default_factory=dict)
    maximum: Mapping[str, Any] = field(default_factory=dict)
    nulls: Mapping[str, int] = field(default_factory=dict)


def describe(path: Path, root: Path, table: Table) -> AddAction | None:
    """The add-action of one file, or None when it has no rows. Statistics are of the declared columns alone."""
    footer = pq.read_metadata(path)
    if footer.num_rows == 0:
        return None
    columns = chunks(footer)
    _check(path, footer.schema.to_arrow_schema(), columns, table)
    stats: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in table.statistics:
        low, high, nulls = _range(columns[name]) if name in columns else (None, None, footer.num_rows)
        if nulls is not None:
            stats["nullCount"][name] = nulls
        if low is not None and high is not None:
            stats["minValues"][name], stats["maxValues"][name] = _plain(low, up=False), _plain(high, up=True)
    seen = path.stat()
    place = path.relative_to(root).as_posix()
    return AddAction(place, seen.st_size, {}, int(seen.st_mtime * 1000), True, json.dumps(stats, separators=(",", ":")))


def write(parts: Iterable[pa.Table], path: Path, table: Table) -> None:
    """The parts one after the other in one file. Statistics of the key stay in the footer; the log gets the declared ones alone."""
    statistics = [*table.statistics, *([table.key] if table.key else [])]
    writer: pq.ParquetWriter | None = None
    try:
        for rows in parts:
            writer = writer or pq.ParquetWriter(path, rows.schema, compression="zstd", write_statistics=statistics)
            writer.write_table(rows, row_group_size=LOOKED_UP if table.key else SCANNED)
    finally:
        if writer is not None:
            writer.close()


def holding(paths: Iterable[str], schema: pa.Schema, column: str, values: Collection[bytes]) -> ds.Dataset:
    """The row groups in which one of these values stands: by their statistics, then by that column alone."""
    wanted = sorted(values)
    fmt, here = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
    found = [(path, _groups_with(path, column, wanted)) for path in paths]
    fragments = [fmt.make_fragment(path, here, row_groups=groups) for path, groups in found if groups]
    return ds.FileSystemDataset(fragments, schema, fmt, here)


def _groups_with(path: str, column: str, wanted: list[bytes]) -> list[int]:
    footer, ranges = _ranges(path, os.stat(path).st_ino, column)
    near = [n for n, (low, high) in enumerate(ranges) if low is None or _any_between(wanted, low, high)]
    if not near:
        return []
    values = pq.ParquetFile(path, metadata=footer).read_row_groups(near, columns=[column])[column]
    places = pc.indices_nonzero(pc.is_in(values, pa.array(wanted, pa.binary()))).to_pylist()
    ends = list(accumulate(footer.row_group(n).num_rows for n in near))
    return sorted({near[bisect_right(ends, place)] for place in places})


@lru_cache(maxsize=512)
def _ranges(path: str, inode: int, column: str) -> tuple[pq.FileMetaData, list[tuple[Any, Any]]]:
    """A file's footer, and from where to where each row group reaches; a replaced file is another inode."""
    footer = pq.read_metadata(path)
    stats = [part.statistics for part in chunks(footer)[column]]
    return footer, [(s.min, s.max) if s is not None and s.has_min_max else (None, None) for s in stats]


def _any_between(wanted: list[bytes], low: bytes, high: bytes) -> bool:
    place = bisect_left(wanted, low)
    return place < len(wanted) and wanted[place] <= high


def dataset(files: Iterable[AddFile], schema: pa.Schema) -> ds.Dataset:
    """These files as one; a file whose statistics exclude the filter of a scan is not opened."""
    fmt, here = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
    fragments = [fmt.make_fragment(f.path, here, partition_expression=_bounds(f, schema)) for f in files]
    return ds.FileSystemDataset(fragments, schema, fmt, here)


def _bounds(file: AddFile, schema: pa.Schema) -> ds.Expression | None:
    """What the statistics promise of every row; a column with missing values promises nothing."""
    promise = None
    for name in file.minimum:
        if file.nulls.get(name) != 0 or name not in file.maximum:
            continue
        low, high = (pa.scalar(side[name], schema.field(name).type) for side in (file.minimum, file.maximum))
        part = (ds.field(name) >= low) & (ds.field(name) <= high)
        promise = part if promise is None else promise & part
    return promise


def steadily(read: Callable[[], pa.Table]) -> pa.Table:
    """An erasure unlinks a file that was listed a moment ago: listed again, what it became is there."""
    for _ in range(3):
        try:
            return read()
        except FileNotFoundError:
            time.sleep(0.01)
    return read()


def values(stats: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """Statistics as the log spells them, as Python values."""
    reads = {"timestamp": datetime.fromisoformat, "date": date.fromisoformat}
    return {name: reads.get(table.fields[name], lambda plain: plain)(value) for name, value in stats.items()}


def _check(path: Path, found: pa.Schema, columns: Mapping[str, list[pq.ColumnChunkMetaData]], table: Table) -> None:
    """A column the layout does not know may only be empty: nothing unforeseen about a person gets into a table."""
    for name in found.names:
        kind, problem = found.field(name).type, ""
        if name not in table.fields:
            problem = "" if is_empty(columns[name]) else f"a column {name} with values"
        elif isinstance(table.fields[name], str) and FLAT[table.fields[name]] != kind:
            problem = f"column {name} of type {kind}"
        if problem:
            raise Damaged("table_layout", f"{path} has {problem}", "the declared layout", "Nothing was committed.")


def chunks(footer: pq.FileMetaData) -> dict[str, list[pq.ColumnChunkMetaData]]:
    """The column chunks of every top-level column. One pass: a file of many tables' columns has a hundred of them."""
    found: dict[str, list[pq.ColumnChunkMetaData]] = {}
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(footer.num_columns)):
            found.setdefault(column.path_in_schema.split(".")[0], []).append(column)
    return found


def is_empty(parts: list[pq.ColumnChunkMetaData]) -> bool:
    return all(part.statistics is not None and part.statistics.null_count == part.num_values for part in parts)


def _range(parts: list[pq.ColumnChunkMetaData]) -> tuple[Any, Any, int | None]:
    """Minimum, maximum and count of missing values; None for what the footer does not say."""
    stats = [part.statistics for part in parts]
    if any(s is None or not s.has_null_count for s in stats):
        return None, None, None
    nulls = sum(s.null_count for s in stats)
    valued = [s for s, part in zip(stats, parts, strict=True) if s.null_count < part.num_values]
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
