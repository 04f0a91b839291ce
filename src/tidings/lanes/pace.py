"""How fast a lane calls: a bucket of tokens at the subscriber's rate, slower after every throttled answer, and a pause it asked for.

Soft state, learned again after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidings.lanes.member import Rules

SLOWEST = 1 / 16  # of the allowed rate, after many throttled answers
LONGEST_HOLD_S = 3600.0  # one absurd Retry-After must not stop everybody else for days


@dataclass
class Pace:
    tokens: float = 0.0
    filled: float | None = None
    factor: float = 1.0
    hold: float = 0.0

    def fill(self, rules: Rules, now: float) -> None:
        """What time adds, up to one second's worth."""
        rate = rules.per_second * self.factor
        burst = max(1.0, rate)
        self.tokens = burst if self.filled is None else min(burst, self.tokens + max(0.0, now - self.filled) * rate)
        self.filled = now

    def ready(self, rules: Rules) -> float:
        """When the next call may be made."""
        rate = rules.per_second * self.factor
        if not rate or self.filled is None or self.tokens >= 1:
            return self.hold
        return max(self.hold, self.filled + (1 - self.tokens) / rate)

    def throttled(self, wait_s: float, now: float) -> None:
        """A limit is the account's, not the subject's: the whole lane waits, and goes on at half the rate."""
        self.hold = max(self.hold, now + min(wait_s, LONGEST_HOLD_S))
        self.factor = max(SLOWEST, self.factor / 2)

    def eased(self) -> None:
        self.factor = min(1.0, self.factor * 1.1)
