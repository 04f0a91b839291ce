"""The breaker: a subscriber that fails call after call is left alone, then asked with one call.

A call the breaker holds back is not an attempt: nothing is counted against the delivery's schedule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from tidings.lanes.member import Rules

ANSWERS = frozenset({"acknowledged", "refused", "terminal"})
FAILURES = frozenset({"transient", "in_doubt"})


@dataclass(frozen=True)
class Breaker:
    state: Literal["closed", "open"] = "closed"
    failures: int = 0
    opens: int = 0
    until: float = 0.0

    def look(self, now: float) -> Literal["closed", "open", "half-open"]:
        if self.state == "closed":
            return "closed"
        return "half-open" if now >= self.until else "open"


def after_call(breaker: Breaker, rules: Rules, results: Iterable[str], now: float) -> Breaker:
    """An answer of any kind closes it; a call in which every member failed counts towards opening it."""
    seen = set(results)
    if seen & ANSWERS:
        return Breaker()
    if not seen & FAILURES:
        return breaker
    failures = breaker.failures + 1
    if breaker.state == "closed" and failures < rules.breaker_after:
        return replace(breaker, failures=failures)
    if breaker.state == "open" and now < breaker.until:
        return breaker  # calls made before it opened, answering late
    opens = breaker.opens + 1
    cool = min(rules.breaker_cool_s * 2 ** (opens - 1), rules.breaker_cool_max_s)
    return Breaker("open", failures, opens, now + cool)
