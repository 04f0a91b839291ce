"""The ledger as a whole: one log per retention class and year, and a root log that records every head they sign.

The root log is what a witness outside would co-sign, and it orders everything: a version of a table has happened when
the root log covers it. A version enters the class logs first, so a crash in between leaves entries the root does not
know yet; the same version comes again and completes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import RLock

from tidings.errors import Damaged, Refused
from tidings.ledger.disk import Disk
from tidings.ledger.log import VKEY, Log
from tidings.ledger.note import Checkpoint, decode, encode, join, split
from tidings.ledger.sequencer import Sequencer
from tidings.ledger.tiles import WIDTH, Tiles
from tidings.ledger.vocabulary import encode_entry, validate_entry

ROOT = "root"
INDEX = "index"
_CLASS = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def class_log(retention_class: str, year: int) -> str:
    """The name of a class's log for a year; also its folder."""
    if not _CLASS.fullmatch(retention_class) or retention_class == ROOT or not 1970 <= year <= 9999:
        raise Refused("ledger-class", "a retention class of another form", "a lower-case word and a year")
    return f"{retention_class}/{year}"


def class_logs(folder: Path) -> list[str]:
    """The class logs that exist under a ledger folder."""
    return sorted(str(path.parent.relative_to(folder)) for path in folder.glob(f"*/*/{VKEY}"))


def checkpoint_entry(note: bytes) -> bytes:
    """A class log's signed head, as the root log records it."""
    text, signatures = split(note)
    head = Checkpoint.parse(text)
    signature = encode(signatures[0][1])
    values = {"origin": head.origin, "size": head.size, "root": head.root.hex(), "signature": signature}
    return encode_entry({"kind": "checkpoint", **values})


def checkpoint_note(entry: bytes) -> bytes:
    """The signed head back from the root log's entry, byte for byte."""
    values = validate_entry(entry)
    if values["kind"] != "checkpoint":
        raise Damaged("ledger-root", f"a {values['kind']} entry in the root log", "checkpoint entries", "Restore it.")
    head = Checkpoint(values["origin"], values["size"], bytes.fromhex(values["root"]))
    return join(head.text, [(head.origin, decode(values["signature"]))])


class Ledger:
    """The one writer of all logs under a folder; may be called from several threads."""

    def __init__(self, folder: Path, origin: str, signing_seed: bytes, disk: Disk | None = None) -> None:
        self.folder, self.origin = folder, origin
        self._seed, self._disk, self._turn = signing_seed, disk or Disk(), RLock()
        self._open: dict[str, tuple[Log, Sequencer]] = {}
        try:
            self._root_log, self._root = self._log(ROOT, dense=True)
            self._recorded = self._recent_heads()
            for name in class_logs(folder):
                self._class(name)
        except BaseException:
            self.close()
            raise

    @property
    def vkey(self) -> str:
        """The key to pin: the root log's. The class logs are signed by the same key under their own names."""
        return self._root_log.vkey

    def position(self, table: str) -> int | None:
        """The last version of a table that the ledger covers completely."""
        return self._root.position(table)

    @property
    def pending(self) -> tuple[str, int] | None:
        """The version a crash left half done; append it again before any other."""
        return next((found for _, sequencer in self._open.values() if (found := sequencer.pending)), None)

    def checkpoint(self) -> bytes:
        return self._root_log.checkpoint()

    def append(self, table: str, version: int, entries: Mapping[str, Sequence[bytes]]) -> None:
        """Record one version of a table; `entries` by log name (see `class_log`), possibly none.

        A repeat is a no-op; a gap between versions, or other entries than the first time, is Damaged.
        """
        with self._turn:
            if self.pending not in (None, (table, version)):
                first = "{} version {}".format(*(self.pending or ("", 0)))
                raise Refused(
                    "ledger-pending", f"{table} version {version}", f"{first} first", "A crash left it half done."
                )
            routed = {name: listed for name, listed in sorted(entries.items()) if listed}
            done = self._root.position(table)
            repeat = done is not None and version <= done
            if not repeat:
                self._root.admit(table, version)
            for name, listed in routed.items():
                self._class(name)[1].append(table, version, listed)
            if repeat:
                self._check_repeat(table, version, len(routed))
            else:
                heads = [checkpoint_entry(self._open[name][0].checkpoint()) for name in routed]
                self._root.append(table, version, heads)

    def close(self) -> None:
        for log, _ in self._open.values():
            log.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_repeat(self, table: str, version: int, logs: int) -> None:
        span = self._root.find(table, version)
        if span is None or span.count != logs:
            found = f"{table} version {version} came again for {logs} logs"
            raise Damaged(
                "ledger-changed", found, str(span.count if span else "a recorded version"), "The table was altered."
            )

    def _class(self, name: str) -> tuple[Log, Sequencer]:
        if name not in self._open:
            retention_class, _, year = name.partition("/")
            log, _ = self._log(class_log(retention_class, int(year) if year.isdigit() else 0), dense=False)
            if log.size < self._recorded.get(log.origin, 0):
                found = f"{name} has {log.size} entries, the root log saw {self._recorded[log.origin]}"
                raise Damaged(
                    "ledger-rollback", found, "a log that never shrinks", "Restore the newer copy of this log."
                )
        return self._open[name]

    def _log(self, name: str, dense: bool) -> tuple[Log, Sequencer]:
        folder = self.folder / name
        log = Log(folder, f"{self.origin}/{name}", self._seed, self._disk)
        try:
            self._open[name] = (log, Sequencer(folder / INDEX, log, dense, self._disk))
        except BaseException:
            log.close()
            raise
        return self._open[name]

    def _recent_heads(self) -> dict[str, int]:
        """The newest recorded size per log among the last bundle of the root log: catches a class log put back."""
        size = self._root_log.size
        number = max(0, size - 1) // WIDTH
        entries = Tiles(self._root_log.folder).bundle(number, size - number * WIDTH) if size else []
        heads = (Checkpoint.parse(split(checkpoint_note(entry))[0]) for entry in entries)
        return {head.origin: head.size for head in heads}
