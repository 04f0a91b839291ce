"""Streams cut into shards (DynamoDB Streams, Kinesis) read by position: a number per shard, parents before their children.

    listed shards ─look→ offsets ─Spark→ read → messages → journal

A shard is begun when those it came from were read to their end, so what belongs together stays in order. Offsets count what was read,
so a batch that is read again and finds less stops instead of going on. What breaks the guarantee: a service that forgets records
before they are read. An offset says when it was made (`seen`), also of a quiet stream, so a pause longer than records are kept is
known and stops the source, with the remedy.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidings.sources.aws import Account, code_of
from tidings.sources.stops import purged
from tidings.sources.tap import Offset, Taken, Tap

MOST = 20_000  # records of one shard in a batch
PAGES = 50  # asked for in one look at a shard; a page may be empty though more follows
LOOK_EVERY_S = 1.0  # services count requests per shard and second
LIST_EVERY_S = 15.0
RENEW_S = 3_600  # how old the place of a quiet stream may get
SHORTEST_S = 24 * 3600 - 1  # no service keeps records for less, so within it nobody is asked
PATIENCE_S = 120.0  # for records that were there when the batch was planned


class Shard(NamedTuple):
    """One part of a stream; `id` is unique over every stream that ever had this name."""

    id: str
    parents: tuple[str, ...] = ()


class Record(NamedTuple):
    """One record: its number in the shard, the service's own time, and the message it carries."""

    number: str
    micros: int
    body: str


class Page(NamedTuple):
    records: list[Record]
    following: str | None  # where to go on; None at the end of a closed shard
    all: bool = False  # whether there was nothing more when it was asked for


@dataclass(frozen=True)
class Position:
    """How far a shard was read; the numbers grow with the shard and are never compared with another's."""

    number: str = ""
    count: int = 0
    size: int = 0
    ended: bool = False

    @classmethod
    def of(cls, told: list[Any] | None) -> Position:
        return cls(*told) if told else cls()

    def told(self) -> list[Any]:
        return [self.number, self.count, self.size, self.ended]

    def after(self, page: Page) -> Position:
        number = page.records[-1].number if page.records else self.number
        size = self.size + sum(len(record.body) for record in page.records)
        return Position(number, self.count + len(page.records), size, page.following is None)


@dataclass
class _Memory:
    """What one process knows of a source beside its offsets; only saves questions."""

    looked: tuple[float, Offset] = (float("-inf"), {})
    listed: tuple[float, dict[str, Shard]] = (float("-inf"), {})


_memories: dict[Tap, _Memory] = {}
_iterators: dict[tuple[Tap, str, str], str] = {}


@dataclass(frozen=True)
class Sharded(Tap):
    """A source that is read shard by shard."""

    account: Account
    names: tuple[str, ...]
    dialect: str = "auto"

    @property
    def source(self) -> str:
        return self.account.source

    @abstractmethod
    def shards(self) -> list[Shard]:
        """Every shard that is kept now."""

    @abstractmethod
    def keeps_s(self) -> int:
        """How many seconds a record is kept."""

    @abstractmethod
    def iterator(self, shard: str, after: str) -> str:
        """Where reading begins: after this number, or at the oldest record."""

    @abstractmethod
    def page(self, shard: str, iterator: str) -> Page:
        """The next records."""

    def verified(self) -> Sharded:
        self.verify()
        return self

    def first(self) -> Offset:
        return {"shards": {}, "seen": 0}

    def done(self, end: Offset) -> None:
        """The service forgets by age; there is nothing to tell it."""

    def size(self, start: Offset, end: Offset) -> int:
        return sum(
            Position.of(told).size - Position.of(start["shards"].get(name)).size for name, told in end["shards"].items()
        )

    def latest(self, start: Offset) -> Offset:
        memory = _memories.setdefault(self, _Memory())
        if memory.looked[1] == start and time.monotonic() - memory.looked[0] < LOOK_EVERY_S:
            return start
        now = int(time.time())
        with self.account.asked():
            listed = self._listed(memory)
            self._not_forgotten(start, listed, now)
            shards = self._begun(start["shards"], listed)
            for name, at in shards.items():
                shards[name] = at if at.ended else self._ahead(name, at)
        told = {name: at.told() for name, at in shards.items()}
        if told == start["shards"] and now - start["seen"] < RENEW_S:
            memory.looked = (time.monotonic(), start)
            return start
        if any(at.ended and not Position.of(start["shards"].get(name)).ended for name, at in shards.items()):
            memory.listed = _Memory().listed  # what came of it is asked for at once
        return {"shards": told, "seen": now}

    def _listed(self, memory: _Memory) -> dict[str, Shard]:
        if time.monotonic() - memory.listed[0] > LIST_EVERY_S:
            memory.listed = (time.monotonic(), {shard.id: shard for shard in self.shards()})
        return memory.listed[1]

    def _not_forgotten(self, start: Offset, listed: Mapping[str, Shard], now: int) -> None:
        unread = [name for name, at in start["shards"].items() if not Position.of(at).ended and name not in listed]
        if unread:
            raise purged(self.source, f"{unread[0]} was not read to its end and is gone; or its stream was made anew")
        pause = now - (start["seen"] or now)
        if pause > SHORTEST_S and pause > self.keeps_s():
            raise purged(self.source, "the last look was longer ago than records are kept")

    def _begun(self, started: Mapping[str, list[Any]], listed: Mapping[str, Shard]) -> dict[str, Position]:
        """Shards that were begun and are still kept, and those whose turn has come."""
        begun = {name: Position.of(at) for name, at in started.items() if name in listed}
        for name, shard in listed.items():
            waits = [parent for parent in shard.parents if parent in listed]
            if name not in begun and all(parent in started and begun[parent].ended for parent in waits):
                begun[name] = Position()
        return begun

    def _ahead(self, name: str, at: Position) -> Position:
        """How far this shard can be read now; where the look ended is kept, because pages without records may go before the next one."""
        begun, iterator = at, _iterators.pop((self, name, at.number), None)
        for _ in range(PAGES):
            page, iterator = self._page(name, at, iterator)
            at = at.after(page)
            if at.ended or page.all or at.count - begun.count >= MOST:
                break
        if iterator is not None:
            _iterators[self, name, at.number] = iterator
        return at

    def _page(self, name: str, at: Position, iterator: str | None) -> tuple[Page, str | None]:
        from botocore.exceptions import ClientError

        try:
            page = self.page(name, iterator or self.iterator(name, at.number))
        except ClientError as error:
            if iterator is None or code_of(error) != "ExpiredIteratorException":
                raise
            page = self.page(name, self.iterator(name, at.number))
        return page, page.following

    def read(self, start: Offset, end: Offset) -> Iterator[Taken]:
        for name, told in end["shards"].items():
            yield from self._between(name, Position.of(start["shards"].get(name)), Position.of(told))

    def _between(self, name: str, at: Position, upto: Position) -> Iterator[Taken]:
        iterator, patience = None, time.monotonic() + PATIENCE_S
        while at.count < upto.count:
            with self.account.asked():
                page, iterator = self._page(name, at, iterator)
            page = page._replace(records=page.records[: upto.count - at.count])
            at = at.after(page)
            yield from (self._taken(name, record) for record in page.records)
            if page.records:
                patience = time.monotonic() + PATIENCE_S
            elif at.ended or time.monotonic() > patience:
                break
            else:
                time.sleep(0.2)
        if (at.number, at.count) != (upto.number, upto.count):
            raise purged(self.source, "records of a batch that was begun are no longer kept")

    def _taken(self, name: str, record: Record) -> Taken:
        return Taken(f"{self.short(name)}/{record.number}", record.micros, f"{record.number:0>60}", record.body)

    def short(self, shard: str) -> str:
        """The shard's name in a message's place."""
        return shard
