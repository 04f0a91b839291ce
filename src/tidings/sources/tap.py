"""A server's log read by position: what every reader has in common, as one Spark data source.

    tap.latest → offsets ─Spark→ tap.read → messages → journal ─commit→ tap.done

Reading looks and does not take: between two offsets there are the same messages however often they are read. A place is given up
(`done`) only after the journal holds what was read. What breaks the guarantee: a server that forgets on its own what was not read yet;
`verify` and `read` stop the source then, with the remedy.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tidings.errors import Refused
from tidings.kinds import KINDS

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source

Offset = dict[str, Any]
SCHEMA = "place string, arrived timestamp, rank string, body string, line bigint"
_ARROW = pa.schema(
    [
        ("place", pa.string()),
        ("arrived", pa.timestamp("us", tz="UTC")),
        ("rank", pa.string()),
        ("body", pa.string()),
        ("line", pa.int64()),
    ]
)
AT_ONCE = 2_000  # messages handed on at a time
LOOK_EVERY_S = 0.2


class Taken(NamedTuple):
    """One message as it was found. Reading again must give the same, so `micros` is the server's time, never ours."""

    place: str  # unique within the source, also after a server was set up anew
    micros: int
    rank: str  # sorts as the server ordered them
    body: str
    line: int = 0


class Log(ABC):
    """A server's log, with places in it that can be compared: what is asked of it while a source is at work."""

    every: ClassVar[str] = ""  # how often Spark looks for more; a log that says nothing is looked at all the time

    @property
    @abstractmethod
    def source(self) -> str:
        """The name of the source."""

    @abstractmethod
    def verify(self) -> str:
        """The name of what is read (server, timeline, topic: a new one is a new epoch); raises what stands in the way, with the remedy."""

    @abstractmethod
    def verified(self) -> Self:
        """The same, knowing the name of what it reads."""

    def still(self) -> bool:
        """Before a batch: is this what was verified? Raises when it is not. A log whose offsets hold its name need not ask."""
        return True

    @abstractmethod
    def first(self) -> Offset:
        """Where a source that never ran begins."""

    @abstractmethod
    def latest(self, start: Offset) -> Offset:
        """How far one batch may go from here: `start` itself when there is nothing new."""

    def unread(self, start: Offset) -> bool:
        """Is there something after `start`, be it readable already or not?"""
        return self.latest(start) != start

    @abstractmethod
    def size(self, start: Offset, end: Offset) -> int:
        """About how many bytes lie between: decides whether a batch's rows are held in hand."""

    @abstractmethod
    def messages(self, spark: SparkSession) -> DataFrame:
        """MESSAGE rows of a verified log, as a stream."""

    def wait(self, start: Offset) -> None:
        """There was nothing new. Spark asks again at once, and a look is not free for the server."""
        time.sleep(LOOK_EVERY_S)

    def remarks(self) -> list[str]:
        """What a person should know of a source that is ready: what holds it back, what it will not see."""
        return []

    def statements(self) -> list[tuple[str, str]]:
        """(what is done, what undoes it), for a person to read and the server to run; empty when nothing needs to be installed."""
        return []

    def execute(self, statements: Sequence[str]) -> None:
        """Run what `statements` shows; a log that shows nothing has nothing to run."""
        if statements:
            raise Refused("unknown_source", f"the source {self.source}", "a source with something to install")


class Tap(Log):
    """A log that we read ourselves. It is sent to Spark's workers, so it holds what it needs to connect and no connection."""

    @abstractmethod
    def read(self, start: Offset, end: Offset) -> Iterator[Taken]:
        """The messages after `start`, up to and with `end`."""

    @abstractmethod
    def done(self, end: Offset) -> None:
        """Everything up to here is in the journal: the server may forget it."""

    def messages(self, spark: SparkSession) -> DataFrame:
        made = data_source(self)
        spark.dataSource.register(made)
        rows = spark.readStream.format(made.name()).load()
        told = ("place", "arrived", "rank", "body")
        return rows.select(F.lit(self.source).alias("source"), *told, F.lit(self.source).alias("file"), "line")


class Place:
    """A stream's own record of how far it has come."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint

    def finished(self) -> int:
        """The number of the last finished batch; -1 before the first."""
        return max((int(p.name) for p in (self.checkpoint / "commits").glob("[0-9]*")), default=-1)

    def end(self, batch: int) -> Offset | None:
        path = self.checkpoint / "offsets" / str(batch)
        return dict(json.loads(path.read_text().splitlines()[-1])) if path.exists() else None

    def size(self, log: Log, batch: int) -> int:
        end = self.end(batch)
        return 0 if end is None else log.size(self.end(batch - 1) or log.first(), end)

    def behind(self, log: Log) -> bool:
        """Is there something that no finished batch has read?"""
        done = self.end(self.finished())
        start = log.first() if done is None else done
        return log.unread(start)

    def readable(self, log: Log) -> None:
        """Raises what reading on would stumble over, also in a batch that was planned and never finished."""
        done = self.finished()
        start = self.end(done) or log.first()
        log.latest(start)
        if isinstance(log, Tap) and (planned := self.end(done + 1)) is not None:
            next(log.read(start, planned), None)


class _Range(InputPartition):
    def __init__(self, start: Offset, end: Offset) -> None:
        self.start, self.end = start, end


class _Reader(DataSourceStreamReader):
    """Spark's side of a tap."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap

    def initialOffset(self) -> Offset:
        return self.tap.first()

    def latestOffset(self, start: Offset, limit: Any = None) -> Offset:
        latest = self.tap.latest(start)
        if latest == start:
            self.tap.wait(start)
        return latest

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [_Range(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Range)
        held: list[Taken] = []
        for message in self.tap.read(partition.start, partition.end):
            held.append(message)
            if len(held) == AT_ONCE:
                yield _batch(held)
                held = []
        if held:
            yield _batch(held)

    def commit(self, end: Offset) -> None:
        self.tap.done(end)


def _batch(messages: list[Taken]) -> pa.RecordBatch:
    columns = zip(zip(*messages, strict=True), _ARROW, strict=True)
    return pa.record_batch([pa.array(values, field.type) for values, field in columns], schema=_ARROW)


def data_source(tap: Tap) -> type[DataSource]:
    """A data source that carries its tap inside, where no option and no plan shows the connection."""

    class Tapped(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"tidings_{tap.source}".replace("-", "_")

        def schema(self) -> str:
            return SCHEMA

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return _Reader(tap)

    return Tapped


def tap_of(settings: Settings, source: Source) -> Log | None:
    """The log of a source's server; None when a source is a folder."""
    module = KINDS[source.kind].tap
    made: Log | None = import_module(module).tap(settings, source) if module else None
    return made
