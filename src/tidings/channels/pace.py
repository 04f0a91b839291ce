"""A vendor's windows: so many requests in a second, in a minute and in a day, all at once.

Kept in memory by each worker process, so a lane that sends from several may meet the vendor's own 429 first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence


class Pace:
    """The requests of the last windows; `take` says how long the next one must wait, or counts it as made."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        self._windows = [(max(1, int(many)), many, seconds) for many, seconds in spans]
        self._made: deque[float] = deque()
        self._most = max((count for count, _, _ in self._windows), default=0)
        self._lock = threading.Lock()

    def take(self, now: float) -> float:
        """0 and the request counts; or the seconds until every window has room for it, and it does not."""
        with self._lock:
            wait = max((self._until(now, *window) for window in self._windows), default=0.0)
            if wait > 0:
                return wait
            self._made.append(now)
            while len(self._made) > self._most:
                self._made.popleft()
            return 0.0

    def _until(self, now: float, count: int, many: float, seconds: float) -> float:
        """When the oldest of the last `count` requests leaves the window; less than one a window stretches the window."""
        if len(self._made) < count:
            return 0.0
        return self._made[-count] + seconds * max(1.0, count / many) - now
