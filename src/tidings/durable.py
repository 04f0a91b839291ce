"""The one seam to the file system: what these functions return from is on the disk, or the error says that it is not."""

from __future__ import annotations

import os
import re
import secrets
import time
from pathlib import Path

from tidings.errors import Damaged, Refused


def local(place: str | os.PathLike[str]) -> Path:
    """The absolute local path behind `place`; other file systems are refused by name, not failed on later."""
    text = os.fspath(place)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", text)
    if scheme and scheme[1].lower() != "file":
        raise Refused(
            "storage_scheme",
            f"data on {scheme[1]}:",
            "a local path or file:",
            "Put the data folder on a local or mounted file system. Nothing was started.",
        )
    return Path(os.path.abspath(re.sub(r"^file:(//)?(?=/)", "", text)))


def unique() -> str:
    """A name nobody else draws, sortable by the time it was drawn."""
    return f"{time.time_ns() // 1_000_000:012x}-{secrets.token_hex(6)}"


def sync_file(path: Path) -> None:
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Create `path` and its parents; every new name is on the disk before this returns."""
    missing = []
    here = path
    while not here.exists():
        missing.append(here)
        here = here.parent
    for folder in reversed(missing):
        folder.mkdir(mode=mode, exist_ok=True)
        sync_folder(folder.parent)


def replace(source: Path, target: Path) -> None:
    """Put `source` (already synced) at `target`, over whatever was there, and make the name durable."""
    source.replace(target)
    sync_folder(target.parent)


def durable_write(path: Path, text: str) -> None:
    """Write a small file so that readers see the old text or the new one, never half, and a power cut loses neither."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    sync_file(temporary)
    replace(temporary, path)


def newest(folder: Path) -> float:
    """When anything in the folder last changed. A file that vanishes meanwhile proves that somebody is at work there."""
    latest = folder.stat().st_mtime
    for entry in os.scandir(folder):
        try:
            inner = newest(Path(entry.path)) if entry.is_dir(follow_symlinks=False) else entry.stat().st_mtime
        except FileNotFoundError:
            return time.time()
        latest = max(latest, inner)
    return latest


def _sync(path: Path, flags: int) -> None:
    # After a failed fsync the kernel may drop the pages and call the next one a success, so it is never tried again.
    try:
        handle = os.open(path, flags)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise Damaged(
            "fsync_failed",
            f"the disk did not confirm {path}: {error.strerror}",
            "every written byte confirmed before it is relied on",
            "Nothing was acknowledged and nothing is retried. Check the disk, then start again.",
        ) from error
