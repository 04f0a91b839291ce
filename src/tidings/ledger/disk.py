"""How the ledger reaches the disk: nothing counts as written before its file and its folder are fsynced.

One seam for the whole ledger, so that a test can cut the power at any step. An error from fsync is never retried:
the kernel may have dropped the pages and would answer the second call with success.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

OPEN_AT_ONCE = 64
_SYNCERS = 8


class Disk:
    """Durable operations; each has happened completely when it returns."""

    def store(self, files: Mapping[Path, bytes]) -> None:
        """Write every file and make them all durable; folders are made as needed."""
        folders = {path.parent for path in files}
        for folder in sorted(folders):
            self.make_folder(folder)
        waiting = list(files.items())
        for start in range(0, len(waiting), OPEN_AT_ONCE):
            self._store_some(waiting[start : start + OPEN_AT_ONCE])
        self.sync_all(folders)

    def append(self, path: Path, data: bytes) -> None:
        """Add to the end of a file, durably."""
        new = not path.exists()
        if new:
            self.make_folder(path.parent)
        handle = self.write(path, data, os.O_APPEND)
        try:
            self.sync(handle)
        finally:
            os.close(handle)
        if new:
            self.sync_folder(path.parent)

    def replace(self, path: Path, data: bytes) -> None:
        """Put new content under a name; a reader sees the old or the new, never a part."""
        self.make_folder(path.parent)
        fresh = path.with_name(path.name + ".new")
        self._store_some([(fresh, data)])
        self.rename(fresh, path)
        self.sync_folder(path.parent)

    def cut(self, path: Path, size: int) -> None:
        """Drop the torn end of an append-only file, durably."""
        handle = os.open(path, os.O_WRONLY)
        try:
            self.truncate(handle, path, size)
            self.sync(handle)
        finally:
            os.close(handle)

    def make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        self.mkdir(folder)
        self.sync_folder(folder.parent)

    def remove(self, folder: Path) -> None:
        """Forget a folder of superseded files. Not durable: one that survives a crash is only litter."""
        with contextlib.suppress(FileNotFoundError):
            for path in folder.iterdir():
                path.unlink(missing_ok=True)
            folder.rmdir()

    def _store_some(self, files: Iterable[tuple[Path, bytes]]) -> None:
        handles: list[int] = []
        try:
            for path, data in files:
                handles.append(self.write(path, data, os.O_TRUNC))
            self.sync_handles(handles)
        finally:
            for handle in handles:
                os.close(handle)

    def sync_handles(self, handles: list[int]) -> None:
        """Together, because concurrent fsyncs share one journal commit; the handle that wrote reports the error."""
        if len(handles) < 3:
            for handle in handles:
                self.sync(handle)
            return
        with ThreadPoolExecutor(_SYNCERS) as pool:
            list(pool.map(self.sync, handles))

    def sync_all(self, folders: Iterable[Path]) -> None:
        for folder in sorted(folders):
            self.sync_folder(folder)

    # The calls below, and `remove`, are the only ones that change the disk; a simulated disk replaces them.

    def mkdir(self, folder: Path) -> None:
        with contextlib.suppress(FileExistsError):
            folder.mkdir()

    def write(self, path: Path, data: bytes, flag: int) -> int:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
        except BaseException:
            os.close(handle)
            raise
        return handle

    def sync(self, handle: int) -> None:
        os.fsync(handle)

    def truncate(self, handle: int, path: Path, size: int) -> None:
        os.ftruncate(handle, size)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def sync_folder(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
