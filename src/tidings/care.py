"""Housekeeping while running: few files instead of many, newest state instead of all, nothing deleted that somebody may still read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import ConfigurationError
from tidings.expiry import Expiry, Step
from tidings.gate.retention import Schedule
from tidings.keeping import Keeping, retention_of
from tidings.lanes.letters import ask, dead_letters, overage
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings, load
from tidings.store import Store

MANY = 64  # live files of a table beyond one a month before they are compacted
STATE = ("last_seen", "subjects")
ATTESTED = ("journal", "attempts", "settled", "rights_requests")
OTHERS = ("quarantine", "identities")
REPEATABLE = 2  # the last batches of a feed may be computed again and must find what they found


def tend(store: Store, keys: KeyFiles, attested: Callable[[str], int | None] = lambda table: None) -> int:
    """Compact what has grown; `attested` says how far the ledger has read a table. Returns how many files went."""
    gone = 0
    for table in (*ATTESTED, *OTHERS, *STATE):
        if store.crowd(table) <= MANY:
            continue
        reduce = newest_only if table in STATE else None
        above = attested(table) if table in ATTESTED else None
        gone += store.compact(table, keep_above=above, reduce=reduce)
        store.clean_up(table, keep_above=above)
    keys.compact()
    return gone


def expire(directory: Path, store: Store, attested: Callable[[str], int | None], now: float) -> list[Step]:
    """Let go of what is over, by the folder as it is now: a hold counts from the moment it is written, not from the next start.

    A folder that cannot be read may have lost a hold, so nothing goes.
    """
    try:
        settings = load(directory, secrets=False)
        retention = retention_of(settings)
    except ConfigurationError:
        return []
    if not any(schedule.named for schedule in retention.schedules.values()):
        return []
    for table in (*ATTESTED, "quarantine"):  # what went days ago leaves the disk
        head = store.version(table)
        if head is not None and (table not in ATTESTED or attested(table) == head):
            store.checkpoint(table)
            store.clean_up(table, keep_above=head)
    today = datetime.fromtimestamp(now, UTC).date()
    expire_letters(settings, store, retention["dead_letters"], today)
    return Expiry(Keeping(settings, store, retention, attested, today)).run(now)


def expire_letters(settings: Settings, store: Store, schedule: Schedule, today: date) -> int:
    """End dead letters that nobody answered for within their time; the lanes attest it when they take the request up."""
    if not schedule.named or store.version("attempts") is None:
        return 0
    over = overage(dead_letters(store, settings.data_path), schedule, today)
    reason = f"open for longer than {schedule.decides(today)}"[:500]
    return ask(settings.data_path, over, "expire", reason, f"tidings/{settings.tenant}")


def newest_only(rows: pa.Table) -> pa.Table:
    """One row per subject among older batches; rows of batches that may be repeated stay as they are."""
    feed = rows.select(["source", "generation", "batch"])
    last = feed.group_by(["source", "generation"]).aggregate([("batch", "max")])
    limits = {(row["source"], row["generation"]): row["batch_max"] - REPEATABLE for row in last.to_pylist()}
    recent = pa.repeat(False, rows.num_rows)
    for (source, generation), limit in limits.items():
        mine = pc.and_(pc.equal(feed["source"], source), pc.equal(feed["generation"], generation))
        recent = pc.or_(recent, pc.and_(mine, pc.greater(feed["batch"], limit)))
    old = rows.filter(pc.invert(recent))
    order = pc.sort_indices(old, sort_keys=[("tag", "ascending"), ("version", "ascending")])
    old = old.take(order)
    tags = old["tag"].combine_chunks()
    last = pc.not_equal(tags.slice(0, max(len(tags) - 1, 0)), tags.slice(1))
    keep = pa.concat_arrays(
        [last, pa.repeat(True, min(len(tags), 1))]
    )  # the newest of each subject, and the very last row
    return pa.concat_tables([old.filter(keep), rows.filter(recent)])
