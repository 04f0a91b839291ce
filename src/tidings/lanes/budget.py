"""The retry budget: how much of what a lane may call is spent on what failed before. It delays, it never drops.

A first call adds a share of a retry to the budget, a retry takes one, and a retry that is answered gives two back: retries
that fail stay a small part of all calls, retries that succeed are held up by nothing for long. Some come with time alone, so
that a lane with nothing new still tries again.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidings.lanes.member import Rules

LEAST = 10.0  # retries a lane can always save up
SAVED_S = 10.0  # of the lane's rate: what can be saved up at most
GIVEN_BACK = 2.0


@dataclass
class Budget:
    """Soft state: a restart begins with the floor."""

    tokens: float = LEAST
    filled: float | None = None

    def most(self, rules: Rules) -> float:
        rate = rules.per_second or 10.0 * rules.concurrency
        return max(LEAST, SAVED_S * rules.retry_share * rate)

    def fill(self, rules: Rules, now: float) -> None:
        """What time alone adds."""
        if self.filled is not None:
            self._add(rules, max(0.0, now - self.filled) * rules.retry_floor)
        self.filled = now

    def allows(self, planned: int) -> bool:
        """Whether one more retry may be planned beside these."""
        return self.tokens >= planned + 1

    def spent(self, rules: Rules, first: int, again: int) -> None:
        """Calls that were planned."""
        self._add(rules, first * rules.retry_share)
        self.tokens -= again

    def answered(self, rules: Rules) -> None:
        """A retry had an answer."""
        self._add(rules, GIVEN_BACK)

    def ready(self, rules: Rules) -> float:
        """When time alone will allow the next retry."""
        if self.filled is None or self.tokens >= 1:
            return 0.0
        return self.filled + (1 - self.tokens) / rules.retry_floor

    def _add(self, rules: Rules, tokens: float) -> None:
        self.tokens = min(self.most(rules), self.tokens + tokens)
