"""One replay: its order, its end, its cursor, and what was prepared of it. Pure: no table is read here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidings.lanes.buffer import Buffer, Candidate, Newly, Order
from tidings.lanes.member import Feed

Verdicts = Mapping[tuple[str, str], Any]
Judge = Callable[[Sequence[Mapping[str, Any]]], Verdicts]


class Late(NamedTuple):
    """How a subscriber that was added later is decided about: what it is owed, and again before anything leaves."""

    newly: Callable[[str], Newly]
    judge: Judge


@dataclass
class Replay:
    """One order under way. `cursors` is what is committed, `read` how far candidates were prepared."""

    name: str
    serial: int
    lane: str
    order: Order
    upto: dict[Feed, int]
    cursors: dict[Feed, int]
    paused: bool = False
    buffer: Buffer | None = None
    read: dict[Feed, int] = field(default_factory=dict)
    ready: dict[Feed, deque[Candidate]] = field(default_factory=dict)
    work: Future[None] | None = None
    kept: bool = False  # it was over, and that is committed
    tokens: float = 1.0
    filled: float | None = None

    @property
    def done(self) -> bool:
        return all(self.cursors.get(feed, -1) >= end for feed, end in self.upto.items())

    def transactions(self) -> dict[str, int]:
        found = {f"replay/{self.name}/{feed}/upto": end for feed, end in self.upto.items()}
        return found | {f"replay/{self.name}/{feed}": at for feed, at in self.cursors.items() if at >= 0}

    def next_feed(self) -> Feed | None:
        """The feed whose next candidate is the oldest; None when there is nothing prepared."""
        filled = [feed for feed, found in self.ready.items() if found]
        return min(filled, key=lambda feed: (self.ready[feed][0].entry.since, feed), default=None)

    def lacking(self) -> Feed | None:
        """A feed whose next slice must be prepared before anything goes on."""
        return next((f for f, end in self.upto.items() if not self.ready.get(f) and self.read.get(f, -1) < end), None)

    def advance(self) -> None:
        """What was prepared and is used up moves the cursor over rows that were not wanted."""
        for feed in self.upto:
            if not self.ready.get(feed):
                self.cursors[feed] = max(self.cursors.get(feed, -1), self.read.get(feed, -1))

    def fill(self, now: float) -> None:
        rate = self.order.rate
        passed = 0.0 if self.filled is None else max(0.0, now - self.filled)
        self.tokens = min(max(1.0, rate), self.tokens + passed * rate)
        self.filled = now


@dataclass(frozen=True)
class Member:
    """A replayed delivery in a lane, as the gate at send looks at it."""

    replay: str
    feed: Feed
    who: bytes
    place: tuple[int, int]
    bootstrap: bool
    recovered: bool = False
