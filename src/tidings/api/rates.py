"""How often somebody may ask: a bucket of tokens each, in memory, for a bounded number of askers."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field


def network_of(who: str) -> str:
    """The address, or of IPv6 the /64 that it is in, which is what one household has."""
    try:
        address = ipaddress.ip_address(who)
    except ValueError:
        return who
    if address.version == 4:
        return who
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address), 64), strict=False))


@dataclass
class Rates:
    """`per_second` on average, `burst` at once; with `networks` an asker is an address, and those of one household are one."""

    per_second: float
    burst: float
    most: int = 10_000
    clock: Callable[[], float] = time.monotonic
    networks: bool = False
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, who: str, cost: float = 1.0) -> float:
        """0 when it may ask now, else the seconds until it may. With `cost` 0 it only looks."""
        who = network_of(who) if self.networks else who
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
