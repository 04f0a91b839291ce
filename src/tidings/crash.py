"""Named crash points: TIDINGS_CRASH_AT=name:n kills this process with SIGKILL at the n-th pass of that point."""

from __future__ import annotations

import os
import signal
from collections import Counter

POINTS: dict[str, str] = {}
_passes: Counter[str] = Counter()


def point(name: str) -> None:
    """Die here when asked to. A point is declared in POINTS so that the recovery suite can run each once."""
    wanted, _, nth = os.environ.get("TIDINGS_CRASH_AT", "").partition(":")
    if wanted != name:
        return
    _passes[name] += 1
    if _passes[name] == int(nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)
