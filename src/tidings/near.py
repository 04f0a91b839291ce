"""Which journal files may hold the rows of a person, by statistics alone: a key file is named after its batch, and batches have statistics.

The names are sorted once and each file asks for its own stretch of them, so many people cost hardly more than one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence

from tidings.parquet import AddFile

_NAME = re.compile(r"(.+)-([^-]+)-([0-9]+)-[^-]+")  # source, generation, batch, and what makes it unique


def holding_batches(files: Iterable[AddFile], names: Collection[str]) -> list[AddFile]:
    """Files that may hold rows whose key file is one of these; a name that says no batch may be anywhere."""
    if not names:
        return []
    feeds: dict[tuple[str, str], set[int]] = {}
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None:
            return list(files)
        feeds.setdefault((found[1], found[2]), set()).add(int(found[3]))
    numbers = {feed: sorted(many) for feed, many in feeds.items()}
    return [file for file in files if any(_feed(file, feed) and _any(file, "batch", n) for feed, n in numbers.items())]


def holding_numbers(files: Iterable[AddFile], column: str, values: Collection[int]) -> list[AddFile]:
    """Files in which one of these values may stand."""
    wanted = sorted(values)
    return [file for file in files if _any(file, column, wanted)]


def _feed(file: AddFile, feed: tuple[str, str]) -> bool:
    parts = zip(("source", "generation"), feed, strict=True)
    return all(file.minimum.get(name, value) <= value <= file.maximum.get(name, value) for name, value in parts)


def _any(file: AddFile, column: str, wanted: Sequence[int]) -> bool:
    low, high = file.minimum.get(column), file.maximum.get(column)
    if low is None or high is None:
        return True
    place = bisect_left(wanted, low)
    return place < len(wanted) and wanted[place] <= high
