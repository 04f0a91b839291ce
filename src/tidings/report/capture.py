"""What each source has seen, what of it is mapped and how far behind it is: from the progress of its last committed batch, no table is read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tidings.progress import Generations, Progress
from tidings.seen import HOUR, Lag, Seen
from tidings.settings import Settings
from tidings.shapes import Source
from tidings.store import Store


def capture(settings: Settings, store: Store, now: datetime) -> dict[str, Any]:
    """The report of every source, as of `now`."""
    found = [
        _source(settings, source, progress_of(settings, store, source.name), now)
        for source in settings.sources.values()
    ]
    return {"at": _iso(now), "sources": found}


def progress_of(settings: Settings, store: Store, name: str) -> Progress:
    """Progress after the source's last committed batch, of whichever generation."""
    generations = Generations(settings.data_path, name)
    newest = max(generations.all(), default="")
    return generations.after(newest, lambda one: store.transaction_version("journal", f"{name}/{one}"))


def _source(settings: Settings, source: Source, progress: Progress, now: datetime) -> dict[str, Any]:
    totals, seen = progress.totals, progress.seen
    return {
        "name": source.name,
        "kind": source.kind,
        "dialect": source.dialect,
        "dialects": seen.dialects,
        **{name: totals.get(name, 0) for name in ("messages", "batches", "events", "snapshots", "duplicates", "stale")},
        "changes": sum(seen.tables.values()) + sum(seen.unmapped.values()),
        "quarantined": dict(sorted(seen.codes.items())),
        "skipped": dict(sorted(seen.skips.items())),
        "first_seen": _moment(seen.first),
        "last_seen": _moment(seen.last),
        "lag": _lag(progress, now),
        "per_minute": _rate(totals.get("messages", 0), seen, now),
        "tables": [*_mapped(settings, source, seen), *_unmapped(seen)],
        "types": _types(settings, source, seen),
    }


def _lag(progress: Progress, now: datetime) -> dict[str, Any]:
    """Seconds. The p50 is the median of the batches' own, each with the weight of its changes; the p99 is the worst batch's."""
    lags = progress.seen.lags
    behind = (now - datetime.fromisoformat(progress.newest)).total_seconds() if progress.newest else None
    return {
        "newest_commit": progress.newest or None,
        "behind_s": None if behind is None else round(behind, 3),
        "p50_s": _median(lags),
        "p99_s": max(lag.p99 for lag in lags) / 1000 if lags else None,
        "batches": len(lags),
    }


def _median(lags: list[Lag]) -> float | None:
    half = sum(lag.changes for lag in lags) / 2
    for lag in sorted(lags, key=lambda lag: lag.p50):
        half -= lag.changes
        if half <= 0:
            return lag.p50 / 1000
    return None


def _rate(messages: int, seen: Seen, now: datetime) -> dict[str, float]:
    """Messages per minute: over the hour before now, and from the first arrival to the last."""
    since = int(now.timestamp()) // 60 - HOUR
    lately = sum(count for minute, count in seen.minutes.items() if int(minute) > since)
    whole = max(1.0, (seen.last - seen.first) / 60_000)
    return {"last_hour": round(lately / HOUR, 2), "whole": round(messages / whole, 2)}


def _mapped(settings: Settings, source: Source, seen: Seen) -> list[dict[str, Any]]:
    """Each configured table, also one that nothing was heard of."""
    found = []
    for table, contract in source.entities.items():
        named = {path.split(".")[0] for path in settings.entities[contract].compared}
        spare = [name for name in seen.fields.get(table, ()) if name not in named]
        found.append(
            {"table": table, "contract": contract, "changes": seen.tables.get(table, 0), "unnamed_fields": spare}
        )
    return found


def _unmapped(seen: Seen) -> list[dict[str, Any]]:
    ordered = sorted(seen.unmapped.items(), key=lambda pair: (-pair[1], pair[0]))
    return [{"table": table, "contract": None, "changes": count, "unnamed_fields": []} for table, count in ordered]


def _types(settings: Settings, source: Source, seen: Seen) -> list[dict[str, Any]]:
    """Events by contract and change type; what the contract can make and never did counts 0."""
    counts = {tuple(name.split("|")): count for name, count in seen.types.items()}
    for contract in dict.fromkeys(source.entities.values()):
        for kind in settings.entities[contract].event_types:
            counts.setdefault((contract, kind), 0)
    ordered = sorted(counts.items(), key=lambda pair: (pair[0][0], -pair[1], pair[0][1]))
    return [{"contract": contract, "type": kind, "events": count} for (contract, kind), count in ordered]


def _moment(millis: int) -> str | None:
    return _iso(datetime.fromtimestamp(millis / 1000, UTC)) if millis else None


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
