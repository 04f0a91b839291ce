"""Masters of the same records take turns: one looks up, writes and remembers before the next looks up.

Two that looked at the same moment would each miss what the other is about to say. After a crash one of them may have journalled a batch
and not yet remembered it; the others wait until it has, which is the first thing its stream does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tidings.errors import SourceStopped
from tidings.progress import Generations
from tidings.settings import Settings
from tidings.store import Store

PATIENCE_S = 120.0
_TURN = threading.Condition()


def rivals(settings: Settings, source: str) -> set[str]:
    """The sources that share a record with this one; none when its contracts declare no masters."""
    contracts = (settings.entities[name] for name in settings.sources[source].entities.values())
    return {other for one in contracts if one.masters for other in one.masters.sources} - {source}


@contextmanager
def turn(settings: Settings, store: Store, source: str) -> Iterator[None]:
    """The only one of its rivals that works; a source without any does not wait."""
    others = rivals(settings, source)
    if not others:
        yield
        return
    end = time.monotonic() + PATIENCE_S
    with _TURN:
        while late := [name for name in sorted(others) if _unfinished(settings, store, name)]:
            if time.monotonic() > end:
                found = f"a batch of {late[0]} that is journalled and not remembered"
                expected = f"{late[0]} to finish it first, because {source} writes the same records"
                raise SourceStopped("master_unfinished", found, expected, f"Run again with {late[0]} at work.")
            _TURN.wait(0.2)
        try:
            yield
        finally:
            _TURN.notify_all()


@contextmanager
def between_turns(settings: Settings, store: Store) -> Iterator[bool]:
    """True when no master is at work and none has anything to finish; nobody takes a turn meanwhile. Never waits."""
    if not _TURN.acquire(blocking=False):
        yield False
        return
    try:
        masters = {name for one in settings.entities.values() if one.masters for name in one.masters.sources}
        yield not any(_unfinished(settings, store, name) for name in sorted(masters))
    finally:
        _TURN.release()


def _unfinished(settings: Settings, store: Store, source: str) -> bool:
    mark = Generations(settings.data_path, source).checkpoint / "generation"
    if not mark.exists():
        return False
    app = f"{source}/{mark.read_text()}"
    journalled, kept = (store.transaction_version(table, app) for table in ("journal", "last_seen"))
    return journalled is not None and (kept is None or kept < journalled)
