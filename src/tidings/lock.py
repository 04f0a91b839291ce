"""One runner per data folder: the second is refused and told who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from tidings import durable
from tidings.errors import Refused


class RunLock:
    """`with RunLock(data):`. The kernel holds the lock, so it ends with its process; the file's text only says whose it is."""

    def __init__(self, data: str | Path) -> None:
        self.path = durable.local(data) / "lock"
        self._handle: int | None = None

    def __enter__(self) -> RunLock:
        durable.make_folder(self.path.parent)
        # Python opens it close-on-exec: a JVM started from here must not keep the lock when this process dies.
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        for tries_left in (2, 1, 0):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if not tries_left:
                    os.close(handle)
                    raise _refused(self.path) from error
                time.sleep(0.05)  # somebody may only be asking who holds it
        self._handle = handle
        text = json.dumps(
            {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
        )
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)
        durable.sync_file(self.path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            # Emptied, not unlinked: a runner that waits on the old file and one that makes a new file would both hold a lock.
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = None


def holder(data: str | Path) -> Mapping[str, object] | None:
    """Who runs on this data now (pid, host, since), or None."""
    path = durable.local(data) / "lock"
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _said(path)
    finally:
        os.close(handle)
    return None


def _said(path: Path) -> Mapping[str, object]:
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError):
        said = {}
    return {name: said.get(name, "unknown") for name in ("pid", "host", "since")}


def _refused(path: Path) -> Refused:
    said = _said(path)
    return Refused(
        "already_running",
        f"{path.parent} is held by process {said['pid']} on {said['host']} since {said['since']}",
        "no other runner on the same data",
        "Stop that one first, or give this one its own data folder. Nothing was started.",
    )
