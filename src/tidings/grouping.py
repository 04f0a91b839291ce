"""Which files of a table are written together again, by their statistics alone, and in which parts.

What breaks the promise that whole files can go when their time is over: a file with rows of several months. Compaction makes none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tidings.parquet import AddFile, dataset
from tidings.tables import Table

SMALL_BYTES = 16 << 20
TARGET_BYTES = 64 << 20
PORTION = 32_768  # rows of a large file in memory at once
TIER = 4  # as many files of about one size are made one
BARE = "bare-"  # files whose rows have lost their payload begin so
KEPT = "kept-"  # and so those where only rows of classes with a longer time still have theirs


def is_bare(file: AddFile) -> bool:
    """Have the rows of this file lost their payload?"""
    return Path(file.path).name.startswith(BARE)


def worn(file: AddFile) -> str:
    """How the name of a file begins whose payloads went, all or some; empty when none did."""
    return next((prefix for prefix in (BARE, KEPT) if Path(file.path).name.startswith(prefix)), "")


def apart(files: list[AddFile], table: Table) -> list[list[AddFile]]:
    """Files that may be merged: of one month, with or without payload, of lanes or of what operators did; what goes goes as a whole file."""
    if not table.moment:
        return [files]
    parts: dict[tuple[object, ...], list[AddFile]] = {}
    for file in files:
        newest = file.maximum.get(table.moment)
        month = (newest.year, newest.month) if newest is not None else ()
        parts.setdefault((month, worn(file), str(file.maximum.get("lane", "")).startswith("_")), []).append(file)
    return list(parts.values())


def grouped(files: list[AddFile], target: int) -> list[list[AddFile]]:
    groups: list[list[AddFile]] = []
    size = target
    for file in files:
        if size + file.size > target:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return groups


def tiered(files: list[AddFile], small: int) -> list[list[AddFile]]:
    """Files of about one size once there are several: each row is written again a few times in all, and few files are left to ask."""
    tiers: dict[int, list[AddFile]] = {}
    for file in files:
        tiers.setdefault(int(math.log(max(file.size / small, 1), TIER)), []).append(file)
    return [tier for tier in tiers.values() if len(tier) >= TIER]


def in_parts(
    group: list[AddFile], schema: pa.Schema, sort: Sequence[str], reduce: Callable[[pa.Table], pa.Table] | None
) -> Iterator[pa.Table]:
    """The rows of these files as they are written again: sorted, or one large file by itself as it lies, a portion at a time."""
    if len(group) == 1 and group[0].size > SMALL_BYTES:
        yield from (reduce(part) if reduce else part for part in _portions(group[0].path, schema))
        return
    rows = dataset(group, schema)
    for look in sliced(group, sort[0]):
        part = rows.to_table(filter=look)
        yield (reduce(part) if reduce else part).sort_by([(name, "ascending") for name in sort])


def _portions(path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Row groups, as many as make a portion. Both a dataset's scan and an iterator over batches hold the whole file in the end."""
    file = pq.ParquetFile(path)
    waiting: list[int] = []
    for group in range(file.num_row_groups):
        waiting.append(group)
        if group + 1 == file.num_row_groups or sum(map(_rows_of(file), waiting)) >= PORTION:
            found, waiting = file.read_row_groups(waiting), []
            columns = [
                found[one.name].cast(one.type) if one.name in found.column_names else pa.nulls(found.num_rows, one.type)
                for one in schema
            ]
            yield pa.table(columns, schema=schema)


def _rows_of(file: pq.ParquetFile) -> Callable[[int], int]:
    return lambda group: int(file.metadata.row_group(group).num_rows)


def sliced(group: list[AddFile], first: str) -> Iterator[ds.Expression | None]:
    """The parts in which a group is rewritten: all of it, or by its first sorted column when it is too much to hold at once."""
    found = [side.get(first) for f in group for side in (f.minimum, f.maximum)]
    numbers = [number for number in found if isinstance(number, int)]
    if sum(f.size for f in group) <= 2 * TARGET_BYTES or len(numbers) < len(found):
        yield None
        return
    for number in range(min(numbers), max(numbers) + 1):
        yield ds.field(first) == number


def placed(file: AddFile, sort: Sequence[str]) -> tuple[tuple[bool, Any], ...]:
    return tuple((name in file.minimum, file.minimum.get(name, 0)) for name in sort)
