"""Rows appended to a Delta table in a local or mounted folder: the channel `delta`.

Acknowledges: the commit of a call's rows, data and log both synced to the disk. Orders: the columns `call` and
`place`; files have no order of their own. Deduplicates: a call is committed once, under its number, in the same
commit as its rows; whether a doubtful call was committed is read off its rows, after a commit of its number without
rows has made sure that it cannot come later. An event that is sent in two calls has two rows, so at-least-once may
repeat.

The table is plain: Parquet files with statistics, no deletion vectors, no renamed columns, so that every reader of
Delta reads it. A reader that knows Iceberg alone does not: it needs the metadata of Iceberg beside the log, which
Apache XTable or Delta UniForm writes over the same files without copying them.

What breaks its guarantee: a file system without atomic "create if it is not there" (object stores mounted as
folders), somebody who restores the table to an earlier version or deletes its rows, and an erasure: it is appended
like any other event, and earlier rows of that person stay until the table's owner deletes them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tidings import durable
from tidings.channels.call import Call, Capabilities, Limits, Outcome, Strength, all_members, in_order, never_raises
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import Ready, written
from tidings.errors import Damaged, Refused

GUARANTEE = Guarantee(
    title="Delta table",
    ack="the commit of the rows, data and log synced",
    strength="A2",
    order="the columns `call` and `place`",
    dedup="a call is committed once under its number; a doubt is read off its rows",
    breaks="a file system that cannot create a file only if it is not there; a table restored or rows deleted;"
    " an erasure is appended, and earlier rows of that person stay until the table's owner deletes them",
    capabilities=Capabilities(probe=True),
)
SCHEMA = pa.schema(
    [
        ("call", pa.int64()),
        ("place", pa.int32()),
        ("event_id", pa.string()),
        ("subject", pa.string()),
        ("change_type", pa.string()),
        ("type", pa.string()),
        ("source", pa.string()),
        ("time", pa.string()),
        ("sequence", pa.string()),
        ("subjectseq", pa.string()),
        ("envelope", pa.string()),
    ]
)
ATTRIBUTES = ("type", "source", "time", "subjectseq")
# A lane's calls take turns under so many names, so that calls at once do not overtake one another; the log keeps the
# last number of each.
SLOTS = 64
CHECKPOINT_EVERY = 100


@dataclass
class Table:
    """The table's log. Others may commit at the same time: a commit is on exactly the version that was looked at."""

    root: Path
    _handle: Any = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def commit(self, app: str, number: int, rows: pa.Table | None, deadline: float) -> bool:
        """These rows under (app, number), durable on return; False when that number or a later one is there already."""
        with self._lock:
            added = [self._written(rows)] if rows is not None else []
            while time.monotonic() < deadline:
                if not self._behind(app, number):
                    for action in added:
                        (self.root / action.path).unlink(missing_ok=True)
                    return False
                if self._on_this_version(added, app, number):
                    return True
            raise TimeoutError

    def events(self, number: int, deadline: float) -> set[str]:
        """The events that a call brought; files without rows of it are not opened."""
        with self._lock:
            self._refresh()
            found = self._handle.to_pyarrow_dataset().to_table(columns=["event_id"], filter=ds.field("call") == number)
        return set(found["event_id"].to_pylist())

    def _behind(self, app: str, number: int) -> bool:
        self._refresh()
        there = self._handle.transaction_version(app)
        return there is None or there < number

    def _refresh(self) -> None:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        if self._handle is not None:
            self._handle.update_incremental()
            return
        log = self.root / "_delta_log"
        if not log.is_dir() or not any(log.iterdir()):
            durable.make_folder(self.root)
            try:
                DeltaTable.create(str(self.root), Schema.from_arrow(SCHEMA))
            except DeltaError:
                time.sleep(0.05)  # another process made it at the same moment; opening it decides
            self._synced(0)
        self._handle = DeltaTable(str(self.root))

    def _on_this_version(self, added: Sequence[Any], app: str, number: int) -> bool:
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties, PostCommitHookProperties, Transaction

        before = int(self._handle.version())
        once = CommitProperties(max_commit_retries=0, app_transactions=[Transaction(app, number)])
        # A checkpoint is made after the commit is synced, not before.
        no_hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        try:
            self._handle.create_write_transaction(
                list(added),
                "append",
                self._handle.schema(),
                commit_properties=once,
                post_commithook_properties=no_hooks,
            )
        except CommitFailedError:
            return False  # somebody else was first; whether this number is there is asked again
        self._synced(before + 1)
        if (before + 1) % CHECKPOINT_EVERY == 0:
            self._refresh()
            self._handle.create_checkpoint()
        return True

    def _written(self, rows: pa.Table) -> Any:
        """A data file, synced; the log does not name it yet."""
        from deltalake.transaction import AddAction

        durable.make_folder(self.root)
        name = f"{durable.unique()}.parquet"
        path = self.root / name
        pq.write_table(rows, path, compression="zstd")
        durable.sync_file(path)
        durable.sync_folder(self.root)
        calls = rows["call"].to_pylist()
        stats = {
            "numRecords": rows.num_rows,
            "minValues": {"call": min(calls)},
            "maxValues": {"call": max(calls)},
            "nullCount": {"call": 0},
        }
        return AddAction(name, path.stat().st_size, {}, int(time.time() * 1000), True, json.dumps(stats))

    def _synced(self, version: int) -> None:
        log = self.root / "_delta_log"
        durable.sync_file(log / f"{version:020d}.json")
        durable.sync_folder(log)


@dataclass(frozen=True)
class DeltaChannel:
    lane: str
    table: Table = field(repr=False)
    limits: Limits
    strength: Strength

    @property
    def capabilities(self) -> Capabilities:
        return GUARANTEE.capabilities

    @never_raises
    def send(self, call: Call) -> list[Outcome]:
        good, found = written(call.members, "structured", self.limits.max_bytes)
        if not good:
            return in_order(call, found)
        deadline = time.monotonic() + call.timeout_s
        try:
            fresh = self.table.commit(self._app(call.number), call.number, rows_of(call.number, good), deadline)
            there = {one.member.event_id for one in good} if fresh else self.table.events(call.number, deadline)
        except Exception as error:
            return in_order(call, [*found, *(one.outcome(*_failed(error)) for one in good)])
        return in_order(call, [*found, *(self._told(one.member.event_id, there, fresh) for one in good)])

    @never_raises
    def probe(self, call: Call) -> list[Outcome]:
        """Each doubtful call is first made impossible, then its rows are looked for."""
        deadline = time.monotonic() + call.timeout_s
        brought: dict[int, Collection[str]] = {}
        try:
            for number in {member.sent_in for member in call.members}:
                self.table.commit(self._app(number), number, None, deadline)
                brought[number] = self.table.events(number, deadline)
        except Exception as error:
            return all_members(call, Outcome("", "in_doubt", "probe_failed", detail=type(error).__name__))
        yes, no = Outcome("", "acknowledged", "probed", self.strength), Outcome("", "transient", "not_committed")
        return [
            replace(yes if one.event_id in brought[one.sent_in] else no, event_id=one.event_id) for one in call.members
        ]

    def ping(self) -> Outcome:
        """The folder, or the one it will be made in, is there."""
        near = next(place for place in (self.table.root, *self.table.root.parents) if place.exists())
        if not near.is_dir():
            return Outcome("ping", "refused", "not_a_folder", detail="there is a file where the table should be")
        return Outcome("ping", "acknowledged", "ok")

    def close(self) -> None:
        """Nothing is kept open."""

    def _app(self, number: int) -> str:
        return f"tidings/{self.lane}/{number % SLOTS}"

    def _told(self, event_id: str, there: Collection[str], fresh: bool) -> Outcome:
        if event_id in there:
            return Outcome(event_id, "acknowledged", "ok" if fresh else "already_delivered", self.strength)
        return Outcome(event_id, "transient", "overtaken", detail="a later call has taken this number's turn")


def rows_of(number: int, ready: Sequence[Ready]) -> pa.Table:
    rows = []
    for place, one in enumerate(ready):
        member = one.member
        row = {name: str(member.body[name]) for name in ATTRIBUTES if name in member.body}
        row |= {"event_id": member.event_id, "subject": member.subject, "change_type": member.change_type}
        row |= {"sequence": member.sequence, "envelope": one.body.decode()}
        rows.append({"call": number, "place": place, **row})
    return pa.Table.from_pylist(rows, SCHEMA)


def _failed(error: Exception) -> tuple[Any, str, str]:
    if isinstance(error, TimeoutError):
        return "transient", "not_reached", "others committed all the time there was"
    code = error.code if isinstance(error, Damaged | Refused) else "channel_error"
    return "in_doubt", code, type(error).__name__


def open_sink(opening: Opening) -> DeltaChannel:
    sink = opening.manifest.sink
    assert sink is not None
    return DeltaChannel(opening.name, Table(durable.local(opening.variables["path"])), opening.limits, sink.ack)
