"""The store: Spark writes Parquet into a fresh folder, one Delta transaction makes it part of a table, once.

What is on disk when `commit` returns stays there. A commit repeated under the same (app, version) is a no-op, because this
file decides so: delta-rs itself would commit twice and move versions back.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from tidings.grouping import (
    BARE,
    KEPT,
    SMALL_BYTES,
    TARGET_BYTES,
    apart,
    grouped,
    in_parts,
    is_bare,
    placed,
    tiered,
    worn,
)
from tidings.parquet import AddFile, dataset, describe, holding, steadily, write
from tidings.tables import SPARK_SETTINGS, TABLES

__all__ = ["SPARK_SETTINGS", "TABLES", "AddFile", "Store", "is_bare", "worn"]

SWEEP_AFTER_S = 3600
WRITING_S = 86_400
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

        def read() -> pa.Table:
            wanted, named = self.files(table) if files is None else list(files), list(columns) if columns else None
            return dataset(wanted, self._log(table).arrow_schema()).to_table(columns=named, filter=filter)

        return steadily(read)

    def lookup(self, table: str, values: Collection[bytes], files: Iterable[AddFile] | None = None) -> pa.Table:
        """Rows whose key is one of these, of all files or some; what is read grows with the values, hardly with the table."""
        key = TABLES[table].key
        assert key, f"{table} has no key"

        def read() -> pa.Table:
            paths = [f.path for f in (self.files(table) if files is None else files)]
            near = holding(paths, self._log(table).arrow_schema(), key, values)
            return near.to_table(filter=ds.field(key).isin(pa.array(sorted(values), pa.binary())))

        return steadily(read)

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
        ordered = sorted(chosen, key=lambda f: placed(f, TABLES[table].sort))
        groups = [group for part in apart(ordered, TABLES[table]) for group in grouped(part, target)]
        if TABLES[table].key:
            groups += tiered([f for f in self.files(table) if f.path not in recent and f.size >= small], small)
        for group in groups:
            if len(group) > 1 or reduce:
                gone += self._rewrite(table, group, reduce)
        return gone

    def crowd(self, table: str) -> int:
        """How many live files there are beyond the fewest that compaction could leave."""
        found = self.files(table)
        return len(found) - len(apart(found, TABLES[table]))

    def remove(self, table: str, paths: Collection[str]) -> int:
        """Take whole files out of a table, as far as they are still in it; returns how many went. Durable on return."""
        log = self._log(table)
        with log.lock:
            while log.refresh():
                gone = [f for f in log.described(log.actions()) if f.path in paths]
                if not gone:
                    break
                now = int(time.time() * 1000)
                actions: list[AddAction | RemoveAction] = [
                    RemoveAction(self._relative(table, f), data_change=True, deletion_timestamp=now, size=f.size)
                    for f in gone
                ]
                try:
                    log.write(actions, {}, {"tidings": "expiry"})
                    return len(gone)
                except CommitFailedError as error:
                    log.overtaken(error)
        return 0

    def rewritten(self, table: str, files: Iterable[AddFile], reduce: Callable[[pa.Table], pa.Table]) -> None:
        """Write these files again, each by itself; when others rewrite them at the same time, what they became is written again."""
        for file in files:
            while file.path in {one.path for one in self.files(table)} and not self._rewrite(table, [file], reduce):
                time.sleep(0.01)

    def unlink_replaced(self, table: str) -> int:
        """Delete files that no live version holds, at once. Whoever opened one keeps it; whoever only listed it lists again."""
        log = self._log(table)
        with log.lock:
            return log.unlink_replaced() if log.refresh() else 0

    def bare(self, table: str, paths: Mapping[str, Collection[str]], column: str, by: str = "change_type") -> int:
        """Write these files again without the values of a column, as far as they are still in the table.

        Rows whose `by` is among those that the path names keep theirs.
        """

        def blank(spared: Collection[str]) -> Callable[[pa.Table], pa.Table]:
            def without(rows: pa.Table) -> pa.Table:
                at = rows.schema.get_field_index(column)
                stays = pc.fill_null(pc.is_in(rows[by], pa.array(sorted(spared), pa.string())), False)
                values = pc.if_else(stays, rows[column], pa.scalar(None, rows.schema.field(at).type))
                return rows.set_column(at, rows.schema.field(at), values)

            return without

        live = [(f, paths[f.path]) for f in self.files(table) if f.path in paths]
        return sum(self._rewrite(table, [f], blank(spared), KEPT if spared else BARE) for f, spared in live)

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

    def _rewrite(
        self, table: str, group: list[AddFile], reduce: Callable[[pa.Table], pa.Table] | None, prefix: str = ""
    ) -> int:
        parts = in_parts(group, self._log(table).arrow_schema(), TABLES[table].sort, reduce)
        folder = Path(self.fresh(table))
        folder.mkdir()
        prefix = prefix or (worn(group[0]) or "part-")
        write(parts, folder / f"{prefix}0.parquet", TABLES[table])
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


def _drop(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
