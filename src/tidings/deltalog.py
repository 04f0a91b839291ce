"""One table's Delta log through delta-rs: the only file that calls it to write, and the rules it does not keep by itself."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction, Transaction

from tidings import crash, durable
from tidings.errors import Damaged
from tidings.parquet import AddFile, values
from tidings.tables import TABLES

# Every look at the log reads all commits after the last checkpoint again (a millisecond each, several times per commit),
# so a short tail is worth the tenth of a second that a checkpoint takes.
CHECKPOINT_EVERY = 32
LOOK_EVERY_S = 60.0  # far less than a log is kept, so a name that is not there was never there
PROPERTIES = {
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 2 days",
}
# Checkpoints and clean-up are ours: a hook would do them before the commit itself is synced.
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class Log:
    """One long-lived handle. Hold `lock` around every call that says what is there and acts on it."""

    def __init__(self, root: Path, table: str) -> None:
        self.root, self.table, self.lock = root, table, threading.RLock()
        self._folder = root / "_delta_log"
        self._delta: DeltaTable | None = None
        self._extended = False
        self._behind = False
        self._looked = -math.inf
        self._updates = 0
        self._actions: tuple[int, pa.Table] | None = None
        self._transactions: tuple[int, dict[str, int | None]] = (-1, {})

    @property
    def version(self) -> int:
        return int(self._handle.version())

    @property
    def _handle(self) -> DeltaTable:
        assert self._delta is not None
        return self._delta

    def refresh(self, *, create: bool = False) -> bool:
        """See what others committed. False when there is no such table yet."""
        if self._delta is None and not self._open(create):
            return False
        if create and not self._extended:
            self._extend()
        before = self.version
        if self._unchanged(before):
            return True
        self._handle.update_incremental()
        self._looked = time.monotonic()
        if self.version < before:
            raise self._damaged(
                "log_went_back", f"version {self.version} after version {before}", "a log that only grows"
            )
        self._updates += self.version - before
        self._behind = False
        # A handle that took many updates gets slow (100 ms a commit after 800); opened again from a checkpoint it is not.
        if self._updates >= CHECKPOINT_EVERY:
            self._delta, self._updates = DeltaTable(str(self.root)), 0
        return True

    def _unchanged(self, version: int) -> bool:
        """By two names instead of a look through the log, which takes milliseconds."""
        if self._behind or time.monotonic() - self._looked > LOOK_EVERY_S:
            return False
        here, following = (self._folder / f"{number:020d}.json" for number in (version, version + 1))
        return here.exists() and not following.exists()

    def catch_up(self) -> None:
        """See at least what this process committed. What others did meanwhile makes the write fail, and is seen then."""
        if self._behind:
            self.refresh()

    def transaction(self, app: str) -> int | None:
        """The app's last version. Remembered while nobody else commits: asking the log takes a millisecond each."""
        seen, known = self._transactions
        if seen != self.version:
            seen, known = self._transactions = (self.version, {})
        if app not in known:
            known[app] = self._handle.transaction_version(app)
        return known[app]

    def settled(self, own: Mapping[str, int], cursors: Mapping[str, int]) -> bool:
        """True when this very commit, or a later one of the same app, is already there. Cursors must not go back."""
        for app, version in own.items():
            there = self.transaction(app)
            if there is not None and there >= version:
                return True
        for app, version in cursors.items():
            there = self.transaction(app)
            if there is not None and there > version:
                raise self._damaged(
                    "cursor_went_back", f"{app} at {version} after {there}", "cursors that only advance"
                )
        return False

    def write(
        self, actions: list[AddAction | RemoveAction], transactions: Mapping[str, int], metadata: Mapping[str, str]
    ) -> None:
        """One commit on exactly the version this handle saw; CommitFailedError when somebody else was first."""
        before = self.version
        changed = {app: version for app, version in transactions.items() if self.transaction(app) != version}
        properties = CommitProperties(
            custom_metadata=dict(metadata) or None,
            max_commit_retries=0,  # a retry inside delta-rs would not ask again whether this batch is already there
            app_transactions=[Transaction(app, version) for app, version in changed.items()],
        )
        self._handle.create_write_transaction(
            actions, "append", self._handle.schema(), commit_properties=properties, post_commithook_properties=NO_HOOKS
        )
        crash.point(f"{self.table}.after_commit")
        # The version before is synced too: another process may have written it and not have come to its own sync yet.
        self._sync_from(before - 1, before + 1)
        # The next look refreshes the handle. If it finds this very version, what was known of the transactions still holds.
        self._transactions, self._behind = (before + 1, {**self._transactions[1], **changed}), True
        if (before + 1) % CHECKPOINT_EVERY == 0:
            self.refresh()
            self.checkpoint()

    def overtaken(self, error: Exception) -> None:
        """After a failed commit: go on only if another commit is the reason."""
        before = self.version
        self.refresh()
        if self.version == before:
            raise self._damaged("commit_failed", f"{type(error).__name__} at version {before}", "a commit") from error

    def actions(self) -> pa.Table:
        """The live files with flattened statistics, as of the last refresh."""
        if self._actions is None or self._actions[0] != self.version:
            self._actions = (self.version, _with_all(pa.table(self._handle.get_add_actions(flatten=True)), self.table))
        return self._actions[1]

    def described(self, actions: pa.Table) -> list[AddFile]:
        found = []
        for row in actions.to_pylist():
            sides = {
                side: {n: row[f"{side}.{n}"] for n in TABLES[self.table].statistics if row[f"{side}.{n}"] is not None}
                for side in ("min", "max", "null_count")
            }
            path = str(self.root / row["path"])
            found.append(
                AddFile(path, row["size_bytes"], row["num_records"], sides["min"], sides["max"], sides["null_count"])
            )
        return sorted(found, key=lambda file: file.path)

    def added(self, version: int) -> list[AddFile]:
        """What one commit added that was not there before, from the commit itself."""
        try:
            text = (self._folder / f"{version:020d}.json").read_text()
        except FileNotFoundError:
            raise self._damaged("log_missing", f"no log of version {version}", "a log kept until it was read") from None
        adds = [json.loads(line).get("add") for line in text.splitlines()]
        found = []
        for add in filter(None, adds):
            if add["dataChange"]:
                stats = json.loads(add["stats"])
                low, high = (values(stats[side], TABLES[self.table]) for side in ("minValues", "maxValues"))
                path = str(self.root / add["path"])
                found.append(AddFile(path, add["size"], stats["numRecords"], low, high, stats["nullCount"]))
        return sorted(found, key=lambda file: file.path)

    def added_after(self, version: int | None) -> set[str]:
        if version is None:
            return set()
        return {file.path for v in range(version + 1, self.version + 1) for file in self.added(v)}

    def referred(self) -> set[str]:
        """Folders some readable version still refers to: live files, and files compaction replaced lately."""
        return {path.split("/")[0] for path in [*self.actions()["path"].to_pylist(), *self.replaced()]}

    def replaced(self) -> list[str]:
        """Files that were part of the table and are not any more, as far as the log still knows of them."""
        return list(self._handle.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False))

    def unlink_replaced(self) -> int:
        gone = [path for name in self.replaced() if (path := self.root / name).exists()]
        for path in gone:
            path.unlink(missing_ok=True)
            durable.sync_folder(path.parent)
        return len(gone)

    def checkpoint(self) -> None:
        self._handle.create_checkpoint()
        durable.sync_file(self._folder / f"{self.version:020d}.checkpoint.parquet")
        durable.sync_file(self._folder / "_last_checkpoint")
        durable.sync_folder(self._folder)
        self._delta, self._updates = DeltaTable(str(self.root)), 0

    def clean_up(self, keep_above: int | None, hours: int) -> None:
        pointer = self._folder / "_last_checkpoint"
        last = _pointed(pointer) if pointer.exists() else None
        if last is None or (keep_above is not None and keep_above < last):
            return
        before = self.version
        self._handle.vacuum(
            retention_hours=hours, dry_run=False, enforce_retention_duration=False, post_commithook_properties=NO_HOOKS
        )
        self._handle.cleanup_metadata()
        self._sync_from(before)
        self._delta, self._updates = DeltaTable(str(self.root)), 0

    def _sync_from(self, version: int, last: int | None = None) -> None:
        for number in range(max(0, version + 1), (self.version if last is None else last) + 1):
            durable.sync_file(self._folder / f"{number:020d}.json")
        durable.sync_folder(self._folder)

    def arrow_schema(self) -> pa.Schema:
        return pa.schema(Schema.from_json(TABLES[self.table].as_json()).to_arrow())

    def _open(self, create: bool) -> bool:
        if not any(self._folder.iterdir() if self._folder.is_dir() else ()):
            if not create:
                return False
            self._create()
        self._mend()
        self._delta = DeltaTable(str(self.root))
        return True

    def _extend(self) -> None:
        """Tell a table made by an earlier version of its new columns; older rows have no value there."""
        there = {column.name for column in self._handle.schema().fields}
        new = [column for column in Schema.from_json(TABLES[self.table].as_json()).fields if column.name not in there]
        if new:
            before = self.version
            self._handle.alter.add_columns(new, post_commithook_properties=NO_HOOKS)
            self._delta = DeltaTable(str(self.root))
            self._sync_from(before)
        self._extended = True

    def _mend(self) -> None:
        """Drop what a power loss tore: the last commit or checkpoint, renamed but never synced, so never relied on."""
        names = sorted(path.name for path in self._folder.iterdir())
        commits = [name for name in names if re.fullmatch(r"\d{20}\.json", name)]
        torn = [commits[-1]] if commits and not _whole(self._folder / commits[-1]) else []
        pointer = self._folder / "_last_checkpoint"
        if pointer.exists():
            last = f"{_pointed(pointer):020d}.checkpoint.parquet"
            if last not in names or not _readable(self._folder / last):
                older = any(name.endswith(".checkpoint.parquet") and name < last for name in names)
                if not older and f"{0:020d}.json" not in names:
                    raise self._damaged("log_unreadable", f"{last} does not read", "a checkpoint or the whole log")
                torn += [pointer.name, *({last} & set(names))]
        for name in torn:
            (self._folder / name).unlink()
        if torn:
            durable.sync_folder(self._folder)

    def _create(self) -> None:
        durable.make_folder(self.root)
        shape = TABLES[self.table]
        properties = PROPERTIES | {"delta.dataSkippingStatsColumns": ",".join(shape.statistics)}
        try:
            DeltaTable.create(str(self.root), Schema.from_json(shape.as_json()), configuration=dict(properties))
        except DeltaError:
            time.sleep(0.05)  # another process created it at the same moment; opening it decides
        durable.sync_file(self._folder / f"{0:020d}.json")
        durable.sync_folder(self._folder)
        durable.sync_folder(self.root)

    def _damaged(self, code: str, found: str, expected: str) -> Damaged:
        return Damaged(code, f"table {self.table}: {found}", expected, "Nothing was committed.")


def _whole(commit: Path) -> bool:
    try:
        return bool([json.loads(line) for line in commit.read_text().splitlines()])
    except ValueError:
        return False


def _pointed(pointer: Path) -> int:
    """The version of the last checkpoint; -1 when the pointer itself is torn."""
    try:
        return int(json.loads(pointer.read_text())["version"])
    except (ValueError, KeyError, TypeError):
        return -1


def _readable(checkpoint: Path) -> bool:
    try:
        return int(pq.read_metadata(checkpoint).num_rows) > 0
    except (OSError, pa.ArrowException):
        return False


def _with_all(actions: pa.Table, table: str) -> pa.Table:
    """Every statistic has its column, also when no file carries it yet."""
    for name in TABLES[table].statistics:
        for side in ("min", "max", "null_count"):
            if f"{side}.{name}" not in actions.column_names:
                actions = actions.append_column(f"{side}.{name}", pa.nulls(actions.num_rows))
    return actions
