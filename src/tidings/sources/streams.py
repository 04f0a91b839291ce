"""Streams of a broker, each with a place of its own: what the readers of Redis, RabbitMQ and NATS have in common.

    offset = {stream: {epoch, place}, …}

The epoch is the name of one life of a stream. A stream that was deleted and made anew has another one and is read from its own
beginning; the first offset of an epoch holds no messages, so that a batch never depends on where the server says we were.
What breaks the guarantee: a broker that deletes messages before they are read, which stops the source.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from tidings.errors import Refused, SourceStopped
from tidings.sources.record import record_body
from tidings.sources.tap import Offset, Taken, Tap

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source

Client = TypeVar("Client")
At = dict[str, Any]
MOST = 50_000  # messages of a stream in one batch
USUAL_BYTES = 1_024  # of a message, when nobody counted
PATIENCE_S = 15.0  # for one answer of a broker
LAST_MICROS = 253_402_300_799_999_999  # the year 9999: producers may write any number where a time belongs


@dataclass(frozen=True)
class Wanted:
    """What a source says of its broker."""

    source: str
    streams: tuple[str, ...]
    slot: str
    dialect: str
    connection: str = field(repr=False)

    def body(self, topic: str, value: bytes | None, key: bytes | None, micros: int, headers: dict[str, str]) -> str:
        return record_body(self.dialect, topic, key, value, timestamp_ms=micros // 1000, headers=headers)


def wanted(settings: Settings, source: Source) -> Wanted:
    assert source.connection is not None, "checked with the folder"
    slot = source.slot or f"tidings_{re.sub('[^a-z0-9]', '_', source.name)}"
    connection = settings.secret(source.connection).reveal()
    return Wanted(source.name, tuple(source.streams or ()), slot, source.dialect, connection)


@dataclass(frozen=True)
class Streams(Tap, Generic[Client]):
    """Several streams of one broker, read over one connection."""

    wanted: Wanted
    number: ClassVar[str]  # the part of a place that counts messages

    @property
    def source(self) -> str:
        return self.wanted.source

    @abstractmethod
    def opened(self) -> AbstractContextManager[Client]:
        """A connection; what the broker says against it is raised as SourceStopped."""

    @abstractmethod
    def begin(self, client: Client, stream: str) -> At:
        """The stream's epoch, and where a reader begins who never read it; raises what stands in the way."""

    @abstractmethod
    def ahead(self, client: Client, stream: str, start: At) -> At:
        """How far a batch may go; `start` when there is nothing new. Raises when messages after `start` are gone."""

    @abstractmethod
    def between(self, client: Client, stream: str, start: At, end: At) -> Iterator[Taken]:
        """The messages after `start`, up to and with `end`, of one epoch."""

    @abstractmethod
    def keep(self, client: Client, stream: str, end: At) -> None:
        """Let the broker know how far we are, where it has a place for that."""

    def verify(self) -> str:
        with self.opened() as client:
            return ", ".join(f"{stream} {self.begin(client, stream)['epoch']}" for stream in self.wanted.streams)

    def verified(self) -> Streams[Client]:
        self.verify()
        return self

    def first(self) -> Offset:
        with self.opened() as client:
            return {stream: self.begin(client, stream) for stream in self.wanted.streams}

    def latest(self, start: Offset) -> Offset:
        with self.opened() as client:
            return {**start, **{name: self._ahead(client, name, start.get(name)) for name in self.wanted.streams}}

    def _ahead(self, client: Client, stream: str, start: At | None) -> At:
        known = self.begin(client, stream)
        if start is None or start["epoch"] != known["epoch"]:
            return known
        return self.ahead(client, stream, start)

    def read(self, start: Offset, end: Offset) -> Iterator[Taken]:
        moved = [name for name, at in end.items() if _epoch(start.get(name)) == at["epoch"] and start[name] != at]
        if not moved:
            return
        with self.opened() as client:
            for stream in moved:
                if self.begin(client, stream)["epoch"] != end[stream]["epoch"]:
                    raise self.made_anew(stream)
                yield from self.between(client, stream, start[stream], end[stream])

    def done(self, end: Offset) -> None:
        with self.opened() as client:
            for stream in self.wanted.streams:
                if stream in end and self.begin(client, stream)["epoch"] == end[stream]["epoch"]:
                    self.keep(client, stream, end[stream])

    def size(self, start: Offset, end: Offset) -> int:
        moved = [int(at[self.number] - start[name][self.number]) for name, at in end.items() if name in start]
        return sum(max(0, count) for count in moved) * USUAL_BYTES

    def stopped(self, code: str, found: str, expected: str, what_now: str) -> SourceStopped:
        return SourceStopped(code, f"source {self.source}: {found}", expected, what_now)

    def unreachable(self, error: BaseException, broker: str) -> SourceStopped:
        # What a client library says may hold the address or the user; the class of its error does not.
        found, what_now = type(error).__name__, "Check that it runs and that the connection names it."
        return self.stopped("source_unreachable", found, f"a {broker} server that answers", what_now)

    def denied(self, error: BaseException, broker: str) -> SourceStopped:
        what_now = "Renew what is behind the reference, or give its user the right to read the streams."
        found = f"{broker} does not let us in: {type(error).__name__}"
        return self.stopped("source_denied", found, "a user that may read", what_now)

    def refused(self, error: BaseException, broker: str) -> SourceStopped:
        found = f"{broker} cannot do what we ask: {type(error).__name__}"
        return self.stopped("source_not_ready", found, "one server with these streams", "Look at its version and kind.")

    def no_address(self, like: str) -> SourceStopped:
        found, what_now = "the connection is no address", "Mend what is behind the reference."
        return self.stopped("source_not_ready", found, f"one like {like}", what_now)

    def missing(self, stream: str, what_now: str) -> SourceStopped:
        return self.stopped("source_not_ready", f"no stream {stream}", "a stream of that name", what_now)

    def went_back(self, stream: str, what_now: str) -> SourceStopped:
        found = f"the stream {stream} ends before the place that was read last"
        return self.stopped("source_went_back", found, "a stream that only grows", what_now)

    def lost(self, stream: str, count: int, what_now: str) -> SourceStopped:
        found = f"{count} messages of the stream {stream} were removed before they were read"
        return self.stopped("source_not_ready", found, "a stream that keeps what is unread", what_now)

    def made_anew(self, stream: str) -> SourceStopped:
        found = f"the stream {stream} was made anew while a batch of it was being read"
        what_now = "Move the source's checkpoint folder away and run: the new stream is read from its beginning."
        return self.stopped("source_went_back", found, "the stream that the batch was planned on", what_now)


def _epoch(at: At | None) -> str | None:
    return None if at is None else str(at["epoch"])


def extra_missing(broker: str, extra: str) -> Refused:
    return Refused("extra_missing", f"no {broker} client", f"the extra `{extra}`", f"pip install 'tidings[{extra}]'")
