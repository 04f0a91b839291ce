"""What goes wrong at a vendor, and when: a script, counted in calls, that a restart continues."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from .books import Books, digest

Kind = Literal["down", "hang", "reset", "lost_answer", "reject_item", "garbage"]


@dataclass(frozen=True)
class Fault:
    """`at`: these calls (counted from 1). `every`: each n-th call. `chance`: each call with this probability, drawn from the seed.

    `seconds`: how long an outage or a hang lasts.


    down         503 for a window that opens at the call
    hang         the vendor is silent for a while, then closes; nothing happened
    reset        the connection is reset before anything happened
    lost_answer  it happened, and then the connection is reset
    reject_item  success, with an error for the first item inside
    garbage      200 with a page of HTML instead of an answer; nothing happened
    """

    vendor: str
    kind: Kind
    at: tuple[int, ...] = ()
    every: int = 0
    chance: float = 0.0
    seconds: float = 5.0

    def due(self, number: int, seed: int) -> bool:
        drawn = int(digest(str(seed), self.vendor, self.kind, str(number))[:8], 16) / 2**32
        return number in self.at or bool(self.every and number % self.every == 0) or drawn < self.chance

    @classmethod
    def read(cls, data: dict[str, Any]) -> Fault:
        return cls(**{**data, "at": tuple(data.get("at", ()))})


@dataclass
class Faults:
    """Which fault, if any, the next call of a vendor meets."""

    books: Books
    script: tuple[Fault, ...] = ()
    seed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _calls: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._calls = Counter(self.books.calls())

    def replace(self, script: Iterable[Fault]) -> None:
        with self._lock:
            self.script = tuple(script)

    def meet(self, vendor: str) -> Fault | None:
        """Counts the call and says what it meets."""
        with self._lock:
            self._calls[vendor] += 1
            number, script = self._calls[vendor], self.script
        for index, fault in enumerate(script):
            if fault.vendor != vendor:
                continue
            due = fault.due(number, self.seed)
            if fault.kind == "down":
                if self._down(f"down/{vendor}/{index}", fault, due):
                    return fault
            elif due:
                return fault
        return None

    def _down(self, name: str, fault: Fault, due: bool) -> bool:
        """The window opens once, at the first call that is due, and a restart does not open it again."""
        opened = self.books.first(name, time.time()) if due else self.books.seen(name)
        return bool(opened) and time.time() < opened + fault.seconds


@dataclass
class Bucket:
    """A token bucket; `take` gives the seconds to wait, zero when the call may go."""

    per_second: float
    burst: float
    _tokens: float = -1.0
    _then: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> float:
        with self._lock:
            now = time.monotonic()
            held = self.burst if self._tokens < 0 else self._tokens + (now - self._then) * self.per_second
            self._tokens, self._then = min(self.burst, held), now
            if self._tokens >= 1:
                self._tokens -= 1
                return 0.0
            return (1 - self._tokens) / self.per_second
