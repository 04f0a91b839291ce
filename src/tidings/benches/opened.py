"""Which files this process opens, counted by the kernel (inotify) and not by the code that is measured. Linux."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OPEN, _FOLDER, _NONBLOCK = 0x20, 0x40000000, 0o4000
_EVENT = struct.Struct("iIII")


@contextmanager
def opened(*roots: Path) -> Iterator[set[str]]:
    """Fills the set with the Parquet files under these folders that are opened inside; folders made meanwhile are not seen."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(_NONBLOCK)
    if watch < 0:
        raise OSError(ctypes.get_errno(), "inotify")
    found: set[str] = set()
    try:
        folders = {}
        for folder in (path for root in roots for path in [root, *root.rglob("*")] if path.is_dir()):
            number = libc.inotify_add_watch(watch, os.fsencode(folder), _OPEN)
            if number < 0:
                raise OSError(ctypes.get_errno(), "inotify: fs.inotify.max_user_watches is too small")
            folders[number] = folder
        yield found
        found |= {path for path in _events(watch, folders) if path.endswith(".parquet")}
    finally:
        os.close(watch)


def files_in(*roots: Path) -> int:
    """How many there are to open."""
    return sum(1 for root in roots for _ in root.rglob("*.parquet"))


def _events(watch: int, folders: dict[int, Path]) -> Iterator[str]:
    while True:
        try:
            raw = os.read(watch, 1 << 20)
        except BlockingIOError:
            return
        place = 0
        while place < len(raw):
            number, mask, _, size = _EVENT.unpack_from(raw, place)
            name = raw[place + _EVENT.size : place + _EVENT.size + size].rstrip(b"\0")
            place += _EVENT.size + size
            if number in folders and not mask & _FOLDER:
                yield str(folders[number] / os.fsdecode(name))
