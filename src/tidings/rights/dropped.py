"""Lines of dropped files that name people who are erased: emptied where they stand, so that line numbers stay what they are. No JVM.

    archive/, duplicates/   what nothing reads any more
    claimed/                what the journal holds already: all of it where a source says `after: keep`, else until it is put away

A file that no batch has read yet is left alone: what it says of an erased person ends at the tombstone. Each file is read once for all that is
looked for, a line at a time. What breaks the promise: a producer's own copy, and an export (`kind: exports`), which the next one is compared with.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tidings import durable
from tidings.expiry import FOLDERS, archived
from tidings.progress import Generations
from tidings.settings import Settings
from tidings.store import Store

WHOLE = (
    "journal",
    "last_seen",
    "subjects",
    "identities",
    "quarantine",
)  # a batch that all of these hold is never read again


def lying(settings: Settings, *, still: bool = False) -> Iterator[tuple[str, Path]]:
    """(source, file) of everything that was read; with `still` only what nobody moves while batches go on."""
    store = Store(settings.data_path / "tables")
    for name, source in settings.sources.items():
        if source.kind == "files":
            _tidy(settings.source_path(name))
            yield from ((name, path) for path in archived(settings, name))
            if source.after == "keep" or not still:
                yield from ((name, path) for path in read(settings, store, name))


def _tidy(drop: Path) -> None:
    """What a kill left half-written."""
    for draft in (one for folder in ("claimed", *FOLDERS) for one in (drop / folder).glob(".*.new")):
        draft.unlink(missing_ok=True)


def read(settings: Settings, store: Store, source: str) -> list[Path]:
    """Claimed files that this generation's batches have read and committed, by the stream's own log."""
    generations = Generations(settings.data_path, source)
    mark, log = generations.checkpoint / "generation", generations.checkpoint / "stream" / "sources" / "0"
    if not mark.exists() or not log.is_dir():
        return []
    app = f"{source}/{mark.read_text()}"
    versions = [store.transaction_version(table, app) for table in WHOLE]
    done = min((-1 if one is None else one for one in versions), default=-1)
    claimed = settings.source_path(source) / "claimed"
    names = {name for number, name in _logged(log) if number <= done}
    return sorted(path for path in claimed.iterdir() if path.name in names) if claimed.is_dir() else []


def _logged(log: Path) -> Iterator[tuple[int, str]]:
    """(batch, name) of every file that the stream was given; a compact file holds all that came before it."""
    folded = max((int(path.stem) for path in log.glob("*.compact") if path.stem.isdigit()), default=-1)
    later = [path for path in log.iterdir() if path.name.isdigit() and int(path.name) > folded]
    for path in [log / f"{folded}.compact", *later] if folded >= 0 else later:
        for line in path.read_text().splitlines():
            if line.startswith("{"):
                said = json.loads(line)
                yield int(said["batchId"]), str(said["path"]).rpartition("/")[2]


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Its lines by number, from 1 on."""
    try:
        with path.open("rb") as found:
            yield from enumerate(found, 1)
    except FileNotFoundError:  # its time was over, or it was put away and is looked at there
        return


def blanked(path: Path, theirs: Callable[[bytes], bool]) -> int:
    """Empty these lines of a file; returns how many there were."""
    found = {number for number, line in lines(path) if theirs(line)}
    if found:
        _without(path, found)
    return len(found)


def _without(path: Path, gone: set[int]) -> None:
    """The same file with these lines empty, and as old as it was: a stream takes a file for new by its age."""
    draft, then = path.with_name(f".{path.name}.new"), path.stat()
    with path.open("rb") as old, draft.open("wb") as new:
        for number, line in enumerate(old, 1):
            new.write(b"\n" * line.endswith(b"\n") if number in gone else line)
    os.utime(draft, ns=(then.st_atime_ns, then.st_mtime_ns))
    draft.chmod(then.st_mode & 0o7777)
    durable.sync_file(draft)
    durable.replace(draft, path)
