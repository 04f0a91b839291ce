"""The breaker: a subscriber that fails is left alone, then asked with one call, then taken up again step by step.

It opens after so many failed calls in a row, or when half of the last calls failed and there were enough of them to say so.
A call the breaker holds back is not an attempt: nothing is counted against the delivery's schedule, so an outage of hours
ends nothing that was never offered. After the first answer calls at a time rise by one with every answer, which doubles them
from round to round, until the lane's own number is reached: what has piled up does not fall on a subscriber that just stood up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from tidings.lanes.member import Rules

ANSWERS = frozenset({"acknowledged", "accepted", "refused", "terminal"})
FAILURES = frozenset({"transient", "in_doubt"})


@dataclass(frozen=True)
class Breaker:
    state: Literal["closed", "open"] = "closed"
    failures: int = 0  # in a row
    opens: int = 0
    until: float = 0.0
    recent: tuple[bool, ...] = ()  # of the last calls, whether each failed
    step: int = 0  # calls at a time while it is taken up again; 0 means the lane's own number

    def look(self, now: float) -> Literal["closed", "open", "half-open"]:
        if self.state == "closed":
            return "closed"
        return "half-open" if now >= self.until else "open"

    def most(self, now: float) -> int | None:
        """Calls that may be in flight at once; None when the breaker has no say."""
        look = self.look(now)
        if look == "closed":
            return self.step or None
        return 1 if look == "half-open" else 0


def after_call(breaker: Breaker, rules: Rules, results: Iterable[str], now: float) -> Breaker:
    """What one call says: any answer is an answer, and a call in which every member failed is a failure."""
    seen = set(results)
    if seen & ANSWERS:
        return _answered(breaker, rules)
    if not seen & FAILURES:
        return breaker
    if breaker.state == "open" and now < breaker.until:
        return breaker  # calls made before it opened, answering late
    failures, recent = breaker.failures + 1, _latest(breaker, rules, True)
    if breaker.state == "closed" and failures < rules.breaker_after and not _mostly(recent, rules):
        return replace(breaker, failures=failures, recent=recent, step=max(1, breaker.step // 2) if breaker.step else 0)
    opens = breaker.opens + 1
    cool = min(rules.breaker_cool_s * 2 ** (opens - 1), rules.breaker_cool_max_s)
    return Breaker("open", failures, opens, now + cool)


def _answered(breaker: Breaker, rules: Rules) -> Breaker:
    if breaker.state == "open":
        return Breaker(opens=breaker.opens, step=_normal(2, rules))
    step = _normal(breaker.step + 1, rules) if breaker.step else 0
    # Until it is at full strength again the next outage counts as the same one, so the waits go on growing.
    return Breaker(opens=breaker.opens if step else 0, recent=_latest(breaker, rules, False), step=step)


def _normal(step: int, rules: Rules) -> int:
    return 0 if step >= rules.concurrency else step


def _latest(breaker: Breaker, rules: Rules, failed: bool) -> tuple[bool, ...]:
    return (*breaker.recent, failed)[-rules.breaker_window :]


def _mostly(recent: tuple[bool, ...], rules: Rules) -> bool:
    return len(recent) >= rules.breaker_least and sum(recent) >= rules.breaker_share * len(recent)
