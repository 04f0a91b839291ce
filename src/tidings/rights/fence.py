"""A batch and an erasure do not cross: whoever looks at the tombstones writes its keys and its rows before the next ones are set.

Batches pass side by side; an erasure waits until those under way are through and holds back the next. Both are threads of one process:
the data folder has one runner. After a crash nobody is under way, and a batch that comes again looks at the tombstones again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_CHANGED = threading.Condition()
_state = {"passing": 0, "closed": 0}


@contextmanager
def passing() -> Iterator[None]:
    """For a batch, from its look at what is known until it is committed."""
    with _CHANGED:
        _CHANGED.wait_for(lambda: not _state["closed"])
        _state["passing"] += 1
    try:
        yield
    finally:
        with _CHANGED:
            _state["passing"] -= 1
            _CHANGED.notify_all()


@contextmanager
def closed() -> Iterator[None]:
    """For an erasure, from the commit of its tombstone until the person's keys are gone."""
    with _CHANGED:
        _state["closed"] += 1
        _CHANGED.wait_for(lambda: not _state["passing"])
    try:
        yield
    finally:
        with _CHANGED:
            _state["closed"] -= 1
            _CHANGED.notify_all()
