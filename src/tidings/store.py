"""The store: Spark writes Parquet into a fresh folder, one Delta transaction makes it part of a table, once.

What is on disk when `commit` returns stays there. A commit repeated under the same (app, version) is a no-op, because this
file decides so: delta-rs itself would commit twice and move versions back.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from tidings import crash, durable
from tidings.deltalog import Log
from tidings.errors import Damaged, Refused
from tidings.parquet import AddFile, dataset, describe, holding, write
from tidings.tables import SPARK_SETTINGS, TABLES

__all__ = ["SPARK_SETTINGS", "TABLES", "AddFile", "Store"]

SWEEP_AFTER_S = 3600
WRITING_S = 86_400
SMALL_BYTES = 16 << 20
TARGET_BYTES = 64 << 20
TIER = 4  # as many files of about one size are made one
VACUUM_HOURS = 48  # longer than the longest read of an older version

for _table in TABLES:
    crash.POINTS[f"{_table}.before_commit"] = f"{_table}: data files are durable, the log does not name them yet"
    crash.POINTS[f"{_table}.after_commit"] = f"{_table}: the log names the files, the log itself is not synced yet"
crash.POINTS["compact.before_commit"] = "compaction wrote its files, nothing refers to them yet"


class Store:
    """All tables under one folder. Safe for threads; another process may commit at the same time."""

    def __init__(self, root: str | Path) -> None:
        self.root = durable.local(root)
        self._logs: dict[str, Log] = {}
        self._lock = threading.Lock()
        self._writing: dict[Path, float] = {}
        self._failed: Damaged | None = None

    @property
    def decisions(self) -> Path:
        """The folder that the journal's decision references point into."""
        return self.root.parent / "decisions"

    def schema(self, table: str) -> str:
        """The table's Spark DDL."""
        return TABLES[table].ddl

    def fresh(self, table: str) -> str:
        """A folder nobody else writes to. It does not exist yet: the writer makes it."""
        folder = self._root(table) / durable.unique()
        self._writing[folder] = time.time()
        return str(folder)

    def commit(
        self,
        table: str,
        folder: str | None,
        *,
        app: str,
        version: int,
        cursors: Mapping[str, int] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> bool:
        """Make the Parquet files of `folder` part of the table, with (app, version) and the cursors, in one transaction.

        False when this (app, version) or a later one is already there: nothing was changed and the folder is dropped.
        Without a folder, or with no rows in it, the transaction is recorded all the same. On return all of it is durable.
        """
        if self._failed:
            raise self._failed
        try:
            return self._commit(table, folder, {app: version}, (dict(cursors or {}), dict(metadata or {})))
        except Damaged as error:
            # After a failed sync nothing this process believes about the disk is sure, so it commits nothing more.
            self._failed = error if error.code == "fsync_failed" else None
            raise

    def transaction_version(self, table: str, app: str) -> int | None:
        """None when the app never committed; 0 is a version."""
        log = self._log(table)
        with log.lock:
            return log.transaction(app) if log.refresh() else None

    def version(self, table: str) -> int | None:
        log = self._log(table)
        with log.lock:
            return log.version if log.refresh() else None

    def added(self, table: str, version: int) -> list[AddFile]:
        """The files exactly that commit added, in a fixed order. Compaction adds nothing new, so it adds none here."""
        return self._log(table).added(version)

    def files(
        self, table: str, column: str | None = None, above: object = None, *, where: Mapping[str, object] | None = None
    ) -> list[AddFile]:
        """Live files that may hold rows with `column` > `above` and every `where` value, by their statistics alone."""
        log = self._log(table)
        with log.lock:
            if not log.refresh():
                return []
            actions = log.actions()
        keep = pa.array([True] * actions.num_rows, pa.bool_())
        for name, limit in {column: above}.items() if column and above is not None else ():
            keep = pc.and_(keep, pc.fill_null(pc.greater(actions[f"max.{name}"], limit), True))
        for name, value in (where or {}).items():
            reach = pc.and_(
                pc.less_equal(actions[f"min.{name}"], value), pc.greater_equal(actions[f"max.{name}"], value)
            )
            keep = pc.and_(keep, pc.fill_null(reach, True))
        return log.described(actions.filter(keep))

    def arrow(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        *,
        files: Iterable[AddFile] | None = None,
        filter: Any = None,
    ) -> pa.Table:
        """Rows without a JVM. `filter` is a pyarrow expression; files whose statistics exclude it are not opened."""
        wanted = self.files(table) if files is None else list(files)
        return dataset(wanted, self._log(table).arrow_schema()).to_table(
            columns=list(columns) if columns else None, filter=filter
        )

    def lookup(self, table: str, values: Collection[bytes]) -> pa.Table:
        """Rows whose key is one of these; what is read grows with the values, hardly with the table."""
        key = TABLES[table].key
        assert key, f"{table} has no key"
        near = holding([f.path for f in self.files(table)], self._log(table).arrow_schema(), key, values)
        return near.to_table(filter=ds.field(key).isin(pa.array(sorted(values), pa.binary())))

    def compact(
        self,
        table: str,
        *,
        keep_above: int | None = None,
        small: int = SMALL_BYTES,
        target: int = TARGET_BYTES,
        reduce: Callable[[pa.Table], pa.Table] | None = None,
    ) -> int:
        """Rewrite small live files into few, rows and bytes as they are; returns how many files went.

        Files added after version `keep_above` stay (the sequencer has not read them). `reduce` may drop or blank rows of
        what is rewritten; it is how an erased person's rows leave the table.
        """
        log = self._log(table)
        with log.lock:
            if not log.refresh():
                return 0
            recent = log.added_after(keep_above)
        chosen = [f for f in self.files(table) if f.path not in recent and f.size < small]
        gone = 0
        groups = _groups(sorted(chosen, key=lambda f: _place(f, TABLES[table].sort)), target)
        if TABLES[table].key:
            groups += _tiers([f for f in self.files(table) if f.path not in recent and f.size >= small], small)
        for group in groups:
            if len(group) > 1 or reduce:
                gone += self._rewrite(table, group, reduce)
        return gone

    def checkpoint(self, table: str) -> None:
        """Fold the log into one file. Commits do this by themselves; maintenance may do it before a backup."""
        log = self._log(table)
        with log.lock:
            if log.refresh():
                log.checkpoint()

    def clean_up(self, table: str, *, keep_above: int | None = None) -> None:
        """Drop log files older than the retention and data files that compaction replaced long ago.

        With `keep_above` (a sequencer's cursor) nothing happens until that cursor has passed the last checkpoint.
        """
        log = self._log(table)
        with log.lock:
            if log.refresh():
                log.clean_up(keep_above, VACUUM_HOURS)

    def sweep(self, *, older_than: float = SWEEP_AFTER_S, settled: Iterable[str] = ()) -> list[str]:
        """Delete folders no version refers to, when nothing was written there for an hour or their batch is settled."""
        done = {durable.local(folder) for folder in settled}
        # A folder drawn and never committed (its rows were rewritten elsewhere) is protected for a day, not for ever.
        self._writing = {folder: at for folder, at in self._writing.items() if time.time() - at < WRITING_S}
        swept = []
        for table in TABLES:
            found = [p for p in self._root(table).iterdir() if p.is_dir()] if self._root(table).is_dir() else []
            # Listed first, then looked up: a folder committed in between is in the log by then.
            log = self._log(table)
            with log.lock:
                referred = log.referred() if log.refresh() else set()
            for folder in found:
                if folder.name.startswith("_") or folder.name in referred:
                    continue
                idle = folder not in self._writing and time.time() - durable.newest(folder) > older_than
                if idle or folder in done:
                    shutil.rmtree(folder)
                    swept.append(str(folder))
        return swept

    def _commit(
        self, table: str, folder: str | None, own: dict[str, int], extras: tuple[dict[str, int], dict[str, str]]
    ) -> bool:
        log = self._log(table)
        cursors, metadata = extras
        place = self._inside(table, folder) if folder else None
        with log.lock:
            log.refresh(create=True)
            repeated = log.settled(own, cursors)
        actions: list[AddAction] = [] if repeated or place is None else self._durable(table, place)
        crash.point(f"{table}.before_commit")
        with log.lock:
            log.catch_up()
            while not (repeated := log.settled(own, cursors)):
                try:
                    log.write(list(actions), own | cursors, metadata)
                    break
                except CommitFailedError as error:
                    log.overtaken(error)
            if repeated and place and place.name not in log.referred():
                shutil.rmtree(place, ignore_errors=True)
        if place:
            self._writing.pop(place, None)
        return not repeated

    def _durable(self, table: str, folder: Path) -> list[AddAction]:
        """Add-actions of the folder's files, every byte and every name of them on the disk."""
        if not folder.is_dir():
            raise Damaged(
                "folder_missing", f"{folder} is gone", "the folder this batch wrote", "Nothing was committed."
            )
        actions = []
        for path in sorted(folder.iterdir()):
            if path.suffix != ".parquet" or path.name.startswith((".", "_")):
                # Checksum files would have to be synced as well; a torn one makes a good data file unreadable.
                _drop(path)
                continue
            action = describe(path, self._root(table), TABLES[table])
            if action is None:
                _drop(path)
                continue
            durable.sync_file(path)
            actions.append(action)
        durable.sync_folder(folder)
        durable.sync_folder(folder.parent)
        return actions

    def _rewrite(self, table: str, group: list[AddFile], reduce: Callable[[pa.Table], pa.Table] | None) -> int:
        rows, sort = dataset(group, self._log(table).arrow_schema()), [(n, "ascending") for n in TABLES[table].sort]
        parts = (rows.to_table(filter=part) for part in _slices(group, TABLES[table].sort[0]))
        folder = Path(self.fresh(table))
        folder.mkdir()
        kept = ((reduce(part) if reduce else part).sort_by(sort) for part in parts)
        write(kept, folder / "part-0.parquet", TABLES[table])
        actions: list[AddAction | RemoveAction] = [*self._durable(table, folder)]
        for action in actions:
            action.data_change = False
        now = int(time.time() * 1000)
        actions += [
            RemoveAction(self._relative(table, f), data_change=False, deletion_timestamp=now, size=f.size)
            for f in group
        ]
        crash.point("compact.before_commit")
        log = self._log(table)
        with log.lock:
            log.refresh()
            live = set(log.actions()["path"].to_pylist())
            if not {self._relative(table, f) for f in group} <= live:
                return 0
            try:
                log.write(actions, {}, {"tidings": "compaction"})
            except CommitFailedError:
                return 0  # somebody else was faster; the folder is swept, the next round compacts again
        self._writing.pop(folder, None)
        return len(group)

    def _inside(self, table: str, folder: str) -> Path:
        """The folder under the table's root; one written elsewhere in the store is moved there by a rename."""
        place, root = durable.local(folder), self._root(table)
        if place.parent == root or not place.is_relative_to(self.root):
            if place.parent != root:
                raise Refused("folder_outside", f"{place}", f"a folder under {self.root}", "Nothing was committed.")
            return place
        if place.is_dir():
            durable.make_folder(root)
            moved = root / durable.unique()
            self._writing[moved] = time.time()
            place.rename(moved)
            return moved
        return place

    def _log(self, table: str) -> Log:
        if table not in TABLES:
            raise Refused("unknown_table", f"table {table}", f"one of {', '.join(TABLES)}")
        with self._lock:
            if table not in self._logs:
                self._logs[table] = Log(self._root(table), table)
            return self._logs[table]

    def _root(self, table: str) -> Path:
        return self.root / table

    def _relative(self, table: str, file: AddFile) -> str:
        return Path(file.path).relative_to(self._root(table)).as_posix()


def _groups(files: list[AddFile], target: int) -> list[list[AddFile]]:
    groups: list[list[AddFile]] = []
    size = target
    for file in files:
        if size + file.size > target:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return groups


def _tiers(files: list[AddFile], small: int) -> list[list[AddFile]]:
    """Files of about one size once there are several: each row is written again a few times in all, and few files are left to ask."""
    tiers: dict[int, list[AddFile]] = {}
    for file in files:
        tiers.setdefault(int(math.log(max(file.size / small, 1), TIER)), []).append(file)
    return [tier for tier in tiers.values() if len(tier) >= TIER]


def _slices(group: list[AddFile], first: str) -> Iterator[ds.Expression | None]:
    """The parts in which a group is rewritten: all of it, or by its first sorted column when it is too much to hold at once."""
    found = [side.get(first) for f in group for side in (f.minimum, f.maximum)]
    numbers = [number for number in found if isinstance(number, int)]
    if sum(f.size for f in group) <= 2 * TARGET_BYTES or len(numbers) < len(found):
        yield None
        return
    for number in range(min(numbers), max(numbers) + 1):
        yield ds.field(first) == number


def _place(file: AddFile, sort: Sequence[str]) -> tuple[tuple[bool, Any], ...]:
    return tuple((name in file.minimum, file.minimum.get(name, 0)) for name in sort)


def _drop(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
