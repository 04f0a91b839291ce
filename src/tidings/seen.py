"""What a source has seen, as running counts that travel with its progress: a batch that comes again is counted once. No Spark.

Everything here is bounded: names beyond NAMES of a kind are counted together, minutes older than an hour and lags older than LAGS
batches are forgotten, and a name that does not look like one is counted and never shown.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

NAMES = 200
LAGS = 32
HOUR = 60  # minutes of which arrivals are remembered
# A table or a field; a vendor's message can say anything here, and an address or a number is no name.
NAME = r"^[A-Za-z_/$][A-Za-z0-9_./$:-]{0,127}$"
UNSHOWN, OTHERS = "(not a name)", "(others)"
_NAME = re.compile(NAME)

Counts = Mapping[str, int]


@dataclass(frozen=True)
class Lag:
    """Arrival after commit in one batch, in milliseconds, of as many changes as told their commit time."""

    changes: int
    p50: int
    p99: int


@dataclass(frozen=True)
class Seen:
    """Counts by name. `tables` and `unmapped` count changes, `codes` and `skips` what made none, `types` events by contract|type."""

    tables: Counts = field(default_factory=dict)
    unmapped: Counts = field(default_factory=dict)
    codes: Counts = field(default_factory=dict)
    skips: Counts = field(default_factory=dict)
    types: Counts = field(default_factory=dict)
    minutes: Counts = field(default_factory=dict)  # minute of arrival → messages
    fields: Mapping[str, list[str]] = field(default_factory=dict)  # table → names, from the longest image of each batch
    dialects: list[str] = field(default_factory=list)
    first: int = 0  # arrivals, milliseconds since 1970
    last: int = 0
    lags: list[Lag] = field(default_factory=list)

    def plus(self, more: Seen) -> Seen:
        last = max(self.last, more.last)
        minutes = _sum(self.minutes, more.minutes)
        tables = {*self.fields, *more.fields}
        return Seen(
            tables=_sum(self.tables, more.tables),
            unmapped=_bounded(_sum(self.unmapped, more.unmapped)),
            codes=_sum(self.codes, more.codes),
            skips=_sum(self.skips, more.skips),
            types=_sum(self.types, more.types),
            minutes={name: count for name, count in minutes.items() if int(name) > last // 60_000 - HOUR},
            fields={name: _names([*self.fields.get(name, ()), *more.fields.get(name, ())]) for name in sorted(tables)},
            dialects=sorted({*self.dialects, *more.dialects}),
            first=min(filter(None, (self.first, more.first)), default=0),
            last=last,
            lags=[*self.lags, *more.lags][-LAGS:],
        )

    def dump(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Seen:
        return cls(**{**data, "lags": [Lag(**lag) for lag in data.get("lags", ())]})


def _sum(some: Counts, more: Counts) -> dict[str, int]:
    return dict(Counter(some) + Counter(more))


def _bounded(counts: Mapping[str, int]) -> dict[str, int]:
    if len(counts) <= NAMES:
        return dict(counts)
    named = Counter({name: count for name, count in counts.items() if name != OTHERS}).most_common(NAMES - 1)
    return dict(named) | {OTHERS: sum(counts.values()) - sum(count for _, count in named)}


def _names(found: Iterable[str]) -> list[str]:
    return sorted({name for name in found if _NAME.match(name)})[:NAMES]


def written(folder: Path) -> tuple[Counts, Counts, Counts]:
    """(events by contract|type, refused by code, changes by unmapped table) of the files a batch has just written."""
    types = _grouped(folder / "out=journal", ["entity", "change_type"])
    refused = _grouped(folder / "out=quarantine", ["code", "entity"])
    codes: Counter[str] = Counter()
    unmapped: Counter[str] = Counter()
    for (code, table), count in refused.items():
        codes[code] += count
        if code == "unknown_table":
            unmapped[table or UNSHOWN] += count
    return {"|".join(names): count for names, count in types.items()}, codes, unmapped


def _grouped(part: Path, columns: list[str]) -> dict[tuple[str, ...], int]:
    if not part.exists():
        return {}
    rows = ds.dataset(str(part), format="parquet").to_table(columns=columns)
    counts = rows.group_by(columns).aggregate([([], "count_all")]).to_pylist()
    return {tuple(row[name] for name in columns): row["count_all"] for row in counts}


def keys_of(listed: str | Iterable[str] | None) -> list[str]:
    """Field names as Spark lists them."""
    return _names(json.loads(listed) if isinstance(listed, str) else listed or ())
