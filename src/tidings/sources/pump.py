"""A queue that keeps no place and hands out what it likes: its messages are made durable with us before the queue may forget them.

    queue ─receive→ inbox (sealed, fsynced) ─forget→ queue
                      └─Spark→ messages → journal ─commit→ segment removed

A message that was kept and not forgotten in time comes again, under the same name: the name is its place, so it is recognised.
What breaks the guarantee: a queue that hands a message out again under another name.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidings.errors import SourceStopped
from tidings.kinds import KINDS
from tidings.seal.keyring import Keyring
from tidings.sources.exports import Exports, exports_of
from tidings.sources.inbox import Named, accept

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source

UNREACHABLE = "source_unreachable"
LONGEST_REST_S = 30.0


class Received(NamedTuple):
    """One message, and what the queue wants to hear when it may forget it."""

    message: Named
    receipt: tuple[str, ...]


class Queue(ABC):
    """One source's queues."""

    @property
    @abstractmethod
    def source(self) -> str:
        """The name of the source."""

    @abstractmethod
    def verify(self) -> str:
        """The name of what is read; raises what stands in the way, with the remedy."""

    @abstractmethod
    def receive(self) -> list[Received]:
        """Some messages, in the queue's order; none when a patient look found nothing."""

    @abstractmethod
    def forget(self, received: Sequence[Received]) -> None:
        """They are durable with us."""


@dataclass
class Pump:
    """Moves messages from a queue to the inbox of its source."""

    queue: Queue
    folder: Path
    keyring: Keyring
    dry: bool = False  # the last look found nothing
    trouble: SourceStopped | None = None
    since: float = 0.0
    rest: float = 0.5

    def step(self) -> None:
        """One look; a queue that cannot be reached is asked again, less often each time."""
        try:
            received = self.queue.receive()
            if received:
                accept(self.folder, self.keyring, [one.message for one in received])
                self.queue.forget(received)
            self.dry, self.trouble, self.rest = not received, None, 0.5
        except SourceStopped as stopped:
            if stopped.code != UNREACHABLE:
                raise
            self.since = time.monotonic() if self.trouble is None else self.since
            self.trouble, self.rest = stopped, min(2 * self.rest, LONGEST_REST_S)
            time.sleep(self.rest)

    def waited(self) -> float:
        """Seconds since the queue stopped answering; 0 while it answers."""
        return time.monotonic() - self.since if self.trouble is not None else 0.0

    def waiting(self) -> bool:
        """Is there something in the queue, or something of it that no finished batch has read?"""
        return not self.dry or self.trouble is not None or next(self.folder.glob("*.parquet"), None) is not None

    def retire(self, names: Sequence[str]) -> None:
        """The journal holds what was in these segments."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)


def queue_of(settings: Settings, source: Source) -> Queue | None:
    """The queues of a source; None when it is read by other means."""
    module = KINDS[source.kind].queue
    made: Queue | None = import_module(module).queue(settings, source) if module else None
    return made


def pump_of(settings: Settings, source: Source) -> Pump | Exports | None:
    """What moves a source's messages into its inbox; None when nothing has to."""
    if source.kind == "exports":
        return exports_of(settings, source)
    queue = queue_of(settings, source)
    folder = settings.data_path / "inbox" / source.name
    return Pump(queue, folder, settings.keyring) if queue else None
