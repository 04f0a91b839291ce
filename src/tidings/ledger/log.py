"""One log: an append-only tree in a folder, whose every signed head is on disk before anyone can read it.

    tile/ …         C2SP tlog-tiles
    checkpoint      the published head
    checkpoints     every head ever signed, oldest first, a base64 line each
    vkey            the public key, one line
    lock            held by the one writer

What is lost when the process dies: before `checkpoints` is fsynced, the append (it never happened: no head covers
its tiles, and the next append writes over them); after it, nothing (opening publishes that head).
"""

from __future__ import annotations

import fcntl
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidings import crash
from tidings.errors import Damaged, Refused
from tidings.ledger.disk import Disk
from tidings.ledger.note import Checkpoint, Signer, Verifier
from tidings.ledger.tiles import MAX_ENTRY, Edge, Tiles, grow

CHECKPOINT, ARCHIVE, VKEY, LOCK = "checkpoint", "checkpoints", "vkey", "lock"
_TAIL = 1 << 20

crash.POINTS.update(
    {
        "ledger.tiles": "tiles are durable, no head covers them yet",
        "ledger.checkpoint_persisted": "the signed head is durable, not yet published",
        "ledger.published": "the head is published, superseded partial tiles still lie there",
    }
)


class Log:
    """The one writer of a log."""

    def __init__(self, folder: Path, origin: str, signing_seed: bytes, disk: Disk | None = None) -> None:
        self.folder, self.origin = folder, origin
        self._disk = disk or Disk()
        self._signer = Signer(origin, signing_seed)
        self._stopped = ""
        self._disk.make_folder(folder)
        self._lock = _hold(folder / LOCK)
        try:
            self._edge, self._head, self._archived = self._open()
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        return self._edge.size

    @property
    def root(self) -> bytes:
        return self._edge.root()

    @property
    def vkey(self) -> str:
        return self._signer.verifier.vkey

    def checkpoint(self) -> bytes:
        """The signed head, as published."""
        return self._head

    def append(self, entries: Sequence[bytes]) -> int:
        """Add entries and publish the head over them; the index of the first. Durable when it returns."""
        self.check(entries)
        start = self.size
        if not entries:
            return start
        growth = grow(self._edge, entries)
        with self.stops_on_failure():
            self._fence()
            self._disk.store({self.folder / name: data for name, data in growth.files.items()})
            crash.point("ledger.tiles")
            self._sign(growth.edge)
            for name in growth.superseded:
                self._disk.remove(self.folder / name)
        return start

    def check(self, entries: Sequence[bytes]) -> None:
        """Raise what `append` would raise, before anything is promised."""
        if self._stopped:
            raise Damaged(
                "ledger-stopped", f"{self.origin} stopped: {self._stopped}", "a log that is open", "Start again."
            )
        for entry in entries:
            if len(entry) > MAX_ENTRY:
                raise Refused("ledger-entry-size", f"an entry of {len(entry)} bytes", f"at most {MAX_ENTRY}")

    def close(self) -> None:
        self._stopped = self._stopped or "it was closed"
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sign(self, edge: Edge) -> None:
        """Sign, make durable, publish: in this order, so that no reader ever holds a head we could forget."""
        head = self._signer.sign(Checkpoint(self.origin, edge.size, edge.root()).text)
        line = b64encode(head) + b"\n"
        self._disk.append(self.folder / ARCHIVE, line)
        self._archived += len(line)
        self._edge, self._head = edge, head
        crash.point("ledger.checkpoint_persisted")
        self._disk.replace(self.folder / CHECKPOINT, head)
        crash.point("ledger.published")

    def _open(self) -> tuple[Edge, bytes, int]:
        """Find the last head this log signed, hold the tiles and the published head against it, publish it again."""
        verifier = self._signer.verifier
        _check_key(self.folder / VKEY, verifier)
        head, archived = self._last_archived()
        published = _read(self.folder / CHECKPOINT)
        if not head:
            if published or (self.folder / "tile").exists():
                raise Damaged(
                    "ledger-archive", f"{self.origin} has tiles but no archive of heads", "both", "Restore it."
                )
            self._disk.replace(self.folder / VKEY, (verifier.vkey + "\n").encode())
            self._archived = archived
            self._sign(Edge())
            return self._edge, self._head, self._archived
        signed = Checkpoint.open(head, verifier)
        edge = Tiles(self.folder).edge(signed.size)
        if edge.root() != signed.root:
            raise Damaged(
                "ledger-tree", f"the tiles of {self.origin} at size {signed.size}", "the root it signed", "Restore it."
            )
        if published != head:
            self._refuse_a_newer(published, signed, verifier)
            self._disk.replace(self.folder / CHECKPOINT, head)
        return edge, head, archived

    def _refuse_a_newer(self, published: bytes, signed: Checkpoint, verifier: Verifier) -> None:
        if not published:
            return
        shown = Checkpoint.open(published, verifier)
        if shown.size >= signed.size:
            found = f"{self.origin} published size {shown.size}, its archive ends at {signed.size}"
            raise Damaged(
                "ledger-rollback", found, "an archive that holds every published head", "Restore the archive."
            )

    def _last_archived(self) -> tuple[bytes, int]:
        """The last whole head and the archive's length; a torn end was never published and is cut off."""
        path = self.folder / ARCHIVE
        if not path.exists():
            return b"", 0
        length = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, length - _TAIL))
            tail = file.read()
        lines = tail[: tail.rfind(b"\n") + 1].splitlines(keepends=True)
        if lines and not _opens(lines[-1], self._signer.verifier):
            lines.pop()
        kept = length - len(tail) + sum(map(len, lines))
        if kept != length:
            self._disk.cut(path, kept)
        return (b64decode(lines[-1]) if lines else b""), kept

    def _fence(self) -> None:
        """Another writer that got past the lock (a file system without locks) has moved the archive: never sign beside it."""
        found = (self.folder / ARCHIVE).stat().st_size
        if found != self._archived:
            raise Damaged(
                "ledger-fence", f"the archive of {self.origin} is {found} bytes", str(self._archived), "Stop both."
            )

    @contextmanager
    def stops_on_failure(self) -> Iterator[None]:
        """After a failed write nobody knows what the disk holds: this log is used again only after it is opened again."""
        try:
            yield
        except BaseException as error:
            self._stopped = type(error).__name__
            if isinstance(error, OSError):
                found = f"writing {self.origin} failed: {error.strerror}"
                raise Damaged(
                    "ledger-disk", found, "a disk that takes it", "Nothing was acknowledged; start again."
                ) from error
            raise


def archived(folder: Path) -> Iterator[bytes]:
    """Every head in a log's archive, oldest first; a torn end is left out."""
    for line in _read(folder / ARCHIVE).splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield b64decode(line)


def _opens(line: bytes, verifier: Verifier) -> bool:
    try:
        Checkpoint.open(b64decode(line), verifier)
    except (Damaged, ValueError):
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _check_key(path: Path, verifier: Verifier) -> None:
    stored = _read(path).decode().strip()
    if stored and stored != verifier.vkey:
        raise Damaged(
            "ledger-key", f"{path.name} names {stored[:80]}", verifier.vkey, "Use the key that began this log."
        )


def _hold(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise Refused("ledger-locked", f"process {holder} writes this log", "one writer", "Stop it first.") from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle
