"""Tables → ledger: every committed version of a table is appended once, in order. No Spark, no clock."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa

from tidings.ledger.classes import Ledger, class_log
from tidings.ledger.opening import PURPOSE, origin
from tidings.settings import Settings
from tidings.store import Store

# Table → (columns that order its entries, the time that picks the year's log).
ATTESTED = {
    "journal": (("source", "generation", "offset"), "recorded"),
    "attempts": (("lane", "cycle", "call"), "finished"),
    "settled": (("source", "generation", "offset"), "time"),
    "rights_requests": (("request", "step"), "changed"),
}
RIGHTS = ("consent", "suppression", "delete")  # what proves a person's choice is kept longest


def ledger_of(settings: Settings) -> Ledger:
    """The operator's ledger, opened for writing; its origin names the tenant."""
    folder: Path = settings.data_path / "ledger"
    return Ledger(folder, origin(settings.tenant), settings.keyring.derive(PURPOSE))


def advance(store: Store, ledger: Ledger) -> int:
    """Append every version that is committed and not yet attested; returns how many."""
    done = 0
    pending = ledger.pending
    for table in sorted(ATTESTED, key=lambda name: pending is None or name != pending[0]):
        head, position = store.version(table), ledger.position(table)
        if head is None:
            continue
        for version in range(0 if position is None else position + 1, head + 1):
            ledger.append(table, version, routed(store, table, version))
            done += 1
    return done


def behind(store: Store, ledger: Ledger) -> bool:
    """Is a committed version not yet attested?"""
    return any((head := store.version(table)) is not None and head != ledger.position(table) for table in ATTESTED)


def routed(store: Store, table: str, version: int) -> dict[str, list[bytes]]:
    """The entries of one version by log, in an order that the rows themselves give."""
    files = store.added(table, version)
    if not files:
        return {}
    order, time = ATTESTED[table]
    extra = ["change_type"] if table == "journal" else []
    rows = store.arrow(table, [*order, time, "entry", *extra], files=files)
    rows = rows.filter(pa.compute.is_valid(rows["entry"])).sort_by([(name, "ascending") for name in order])
    logs: dict[str, list[bytes]] = defaultdict(list)
    kinds = rows["change_type"].to_pylist() if extra else [""] * rows.num_rows
    for entry, moment, kind in zip(rows["entry"].to_pylist(), rows[time].to_pylist(), kinds, strict=True):
        rights = table == "rights_requests" or kind in RIGHTS
        logs[class_log("rights" if rights else "standard", moment.year)].append(entry)
    return logs
