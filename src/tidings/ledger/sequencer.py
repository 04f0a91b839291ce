"""The deterministic projection of table versions into a log.

Before any tile is written, an intent (version, start, count, digest) is fsynced to the table's index. The index is
the intent log and, afterwards, the way from (table, version) to the entries: fixed-width records, found by bisection.
A crash leaves at most one record that the signed head does not cover. That version must come again first; its digest
must be the same, so the tail is rewritten byte for byte.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tidings import crash
from tidings.errors import Damaged, Refused
from tidings.ledger.disk import Disk
from tidings.ledger.log import Log
from tidings.ledger.merkle import leaf_hash, root_of

RECORD = 64
_FIELDS = struct.Struct(">QQQ32s")
_TABLE = re.compile(r"[a-z0-9_-]{1,64}(/[a-z0-9_-]{1,64}){0,3}")
_SUFFIX = ".index"

crash.POINTS["ledger.intent"] = "the intent is durable, no tile of it is written"


@dataclass(frozen=True)
class Span:
    """Where one version of a table lies in a log."""

    version: int
    start: int
    count: int
    digest: bytes

    @property
    def end(self) -> int:
        return self.start + self.count

    def pack(self) -> bytes:
        fields = _FIELDS.pack(self.version, self.start, self.count, self.digest)
        return fields + sha256(fields).digest()[: RECORD - len(fields)]

    @classmethod
    def unpack(cls, record: bytes) -> Span | None:
        """None for a record that was never completely written."""
        fields = record[: _FIELDS.size]
        if len(record) != RECORD or sha256(fields).digest()[: RECORD - len(fields)] != record[_FIELDS.size :]:
            return None
        return cls(*_FIELDS.unpack(fields))


class Index:
    """Reads the spans of one table; needs no lock."""

    def __init__(self, folder: Path, table: str) -> None:
        if not _TABLE.fullmatch(table):
            raise Refused(
                "ledger-table", "a table name of another form", "lower-case words, at most four, between slashes"
            )
        self.table, self.path = table, folder / (table + _SUFFIX)

    def __len__(self) -> int:
        return self.path.stat().st_size // RECORD if self.path.exists() else 0

    def __getitem__(self, number: int) -> Span:
        with self.path.open("rb") as file:
            file.seek(number * RECORD)
            span = Span.unpack(file.read(RECORD))
        if span is None:
            found = f"record {number} of the index of {self.table} is unreadable"
            raise Damaged("ledger-index", found, "its checksum", "Restore the index from a copy.")
        return span

    def __iter__(self) -> Iterator[Span]:
        """All spans; a torn last one is left out, as `mend` would."""
        data = self.path.read_bytes() if self.path.exists() else b""
        for number, at in enumerate(range(0, len(data), RECORD)):
            span = Span.unpack(data[at : at + RECORD])
            if span is not None:
                yield span
            elif at + RECORD < len(data):
                found = f"record {number} of the index of {self.table} is unreadable"
                raise Damaged("ledger-index", found, "its checksum", "Restore the index from a copy.")

    def last(self) -> Span | None:
        return self[len(self) - 1] if len(self) else None

    def find(self, version: int) -> Span | None:
        at = bisect_left(self, version, key=lambda span: span.version)
        if at == len(self):
            return None
        span = self[at]
        return span if span.version == version else None

    def mend(self, disk: Disk) -> None:
        """Cut off a torn last record: its intent was never durable, so no tile of it exists."""
        whole = len(self)
        torn = self.path.stat().st_size != whole * RECORD
        if whole and not torn:
            with self.path.open("rb") as file:
                file.seek((whole - 1) * RECORD)
                torn = Span.unpack(file.read(RECORD)) is None
            whole -= torn
        if torn:
            disk.cut(self.path, whole * RECORD)


def indexed_tables(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder))[: -len(_SUFFIX)] for path in folder.rglob("*" + _SUFFIX))


class Sequencer:
    """Feeds one log. `dense` wants every version of a table; otherwise a version without entries leaves no trace."""

    def __init__(self, folder: Path, log: Log, dense: bool = True, disk: Disk | None = None) -> None:
        self._folder, self._log, self._dense = folder, log, dense
        self._disk = disk or Disk()
        self._last: dict[str, Span] = {}
        self._pending: tuple[str, Span] | None = None
        self._open()

    def position(self, table: str) -> int | None:
        """The last version of the table that the log covers."""
        span = self._covered(table)
        return span.version if span else None

    @property
    def pending(self) -> tuple[str, int] | None:
        """The version a crash left half done; it must come again before any other."""
        return (self._pending[0], self._pending[1].version) if self._pending else None

    def append(self, table: str, version: int, entries: Iterable[bytes]) -> Span | None:
        """Project one version of a table. A repeat is a no-op; a gap, or other entries than before, is Damaged."""
        listed = list(entries)
        wanted = Span(version, self._log.size, len(listed), root_of(map(leaf_hash, listed)))
        last = self._last.get(table)
        if last is not None and version <= last.version:
            return self._again(table, wanted, listed)
        self.admit(table, version)
        if not listed and not self._dense:
            return None
        path = Index(self._folder, table).path
        self._log.check(listed)
        with self._log.stops_on_failure():
            self._disk.append(path, wanted.pack())
        self._last[table] = wanted
        self._pending = (table, wanted) if listed else None
        crash.point("ledger.intent")
        self._log.append(listed)
        self._pending = None
        return wanted

    def _again(self, table: str, wanted: Span, entries: list[bytes]) -> Span | None:
        span = Index(self._folder, table).find(wanted.version)
        if span is None and not entries and not self._dense:
            return None
        if span is None or (span.count, span.digest) != (wanted.count, wanted.digest):
            found = f"{table} version {wanted.version} came again with other entries"
            raise Damaged(
                "ledger-changed", found, "the entries of the first time", "The table or the ledger was altered."
            )
        if self._pending and self._pending == (table, span):
            self._log.append(entries)
            self._pending = None
        else:
            self._refuse_while_pending(table, wanted.version)
        return span

    def _refuse_while_pending(self, table: str, version: int) -> None:
        if self._pending:
            first = f"{self._pending[0]} version {self._pending[1].version}"
            raise Refused(
                "ledger-pending", f"{table} version {version}", f"{first} first", "A crash left it half done."
            )

    def find(self, table: str, version: int) -> Span | None:
        return Index(self._folder, table).find(version)

    def admit(self, table: str, version: int) -> None:
        """Raise unless this version may come next."""
        if (table, version) == self.pending:
            return
        self._refuse_while_pending(table, version)
        last = self._last.get(table)
        if version < 0:
            raise Damaged("ledger-gap", f"{table} version {version}", "a version from 0 on", "The table was altered.")
        if not self._dense:
            return
        allowed = (0, 1) if last is None else (last.version + 1,)
        if version not in allowed:
            expected = " or ".join(map(str, allowed))
            raise Damaged("ledger-gap", f"{table} version {version}", f"version {expected}", "Sequence every version.")

    def _covered(self, table: str) -> Span | None:
        last = self._last.get(table)
        if last is None or not (self._pending and self._pending == (table, last)):
            return last
        index = Index(self._folder, table)
        return index[len(index) - 2] if len(index) > 1 else None

    def _open(self) -> None:
        for table in indexed_tables(self._folder) if self._folder.is_dir() else []:
            index = Index(self._folder, table)
            index.mend(self._disk)
            if (span := index.last()) is not None:
                self._last[table] = span
        ahead = [(table, span) for table, span in self._last.items() if span.end > self._log.size]
        if ahead:
            self._pending = ahead[0]
        covered = max((span.end for table in self._last if (span := self._covered(table))), default=0)
        if len(ahead) > 1 or covered != self._log.size or (ahead and ahead[0][1].start != self._log.size):
            found = f"the index of {self._log.origin} covers {covered} of {self._log.size} entries"
            raise Damaged(
                "ledger-index", found, "all of them and at most one intent", "Restore the log and its index together."
            )
