"""Rooms that a run of the small operator does not pass, entered one at a time: `python rooms.py POINT FOLDER`. No JVM.

Each room does its work twice in the same way: the first process is killed inside, the second must find what it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import Keyring, kid, subject_key
from tidings.sources import inbox
from tidings.store import Store

KEYRING = Keyring(bytes(range(32)))
NOW = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
MOMENT = pa.timestamp("us", "UTC")
MESSAGES = [f'{{"id": {n}}}' for n in range(3)]
SECRET = bytes(32)


def rows(table: str, number: int) -> pa.Table:
    """One row of a table that is committed by hand."""
    if table == "counts":
        return pa.table({"source": ["crm"], "generation": ["g1"], "batch": [number], "counter": ["rows"], "value": [1]})
    if table == "journal":
        names = {"offset": [number], "source": ["crm"], "generation": ["g1"], "event_id": [f"e{number}"]}
        return pa.table({**names, "batch": [number], "time": pa.array([NOW], MOMENT)})
    names = {"request": [f"r{number}"], "state": ["opened"], "step": [number]}
    return pa.table({**names, "opened": pa.array([NOW], MOMENT)})


def commit(store: Store, table: str, number: int) -> bool:
    folder = Path(store.fresh(table))
    folder.mkdir(parents=True)
    pq.write_table(rows(table, number), folder / "part-0.parquet")
    return store.commit(table, str(folder), app="room", version=number)


def committing(table: str) -> Callable[[Path], None]:
    return lambda folder: [commit(Store(folder / "tables"), table, n) for n in range(2)] and None


def compacting(folder: Path) -> None:
    store = Store(folder / "tables")
    for number in range(3):
        commit(store, "journal", number)
    store.compact("journal")


def key_files(folder: Path) -> KeyFiles:
    return KeyFiles(folder / "keys", KEYRING.derive("kek"))


def person(number: int) -> bytes:
    return KEYRING.tag("small", "customer", str(number))


def compacting_keys(folder: Path) -> None:
    files = key_files(folder)
    if not (folder / "keys" / "new").exists():
        for number in range(3):
            tag = person(number)
            row = {"tag": tag, "kid": kid(SECRET, tag), "key": subject_key(SECRET, tag)}
            files.write(pa.Table.from_pylist([row]), f"batch-{number}")
    files.compact(minimum=1)


def accepting(folder: Path) -> None:
    inbox.accept(folder / "inbox", KEYRING, MESSAGES)


ROOMS: dict[str, Callable[[Path], None]] = {
    "inbox.synced": accepting,
    "keys.compacting": compacting_keys,
    "compact.before_commit": compacting,
    **{
        f"{table}.{step}": committing(table)
        for table in ("counts", "rights_requests")
        for step in ("before_commit", "after_commit")
    },
}

if __name__ == "__main__":
    ROOMS[sys.argv[1]](Path(sys.argv[2]))
