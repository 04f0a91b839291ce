"""How often somebody may ask: a bucket of tokens each, in memory, for a bounded number of askers."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Rates:
    """`per_second` on average, `burst` at once."""

    per_second: float
    burst: float
    most: int = 10_000
    clock: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, who: str, cost: float = 1.0) -> float:
        """0 when it may ask now, else the seconds until it may. With `cost` 0 it only looks."""
        with self._lock:
            now = self.clock()
            left, at = self._buckets.get(who, (self.burst, now))
            left = min(self.burst, left + (now - at) * self.per_second)
            if left < max(cost, 1.0):
                return (max(cost, 1.0) - left) / self.per_second
            self._buckets[who] = (left - cost, now)
            self._buckets.move_to_end(who)
            while len(self._buckets) > self.most:
                self._buckets.popitem(last=False)
            return 0.0
