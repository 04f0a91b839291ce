"""One source at work: its folder, its rows as a stream, its batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidings.emit import Emitter, Unheard
from tidings.errors import SourceStopped
from tidings.flow import reading
from tidings.progress import Generations
from tidings.rights import fence
from tidings.seal.columns import keys_frame
from tidings.settings import Settings
from tidings.shapes import Source
from tidings.sources import files, inbox
from tidings.sources.exports import Exports
from tidings.sources.pump import Pump
from tidings.sources.tap import Log, Place
from tidings.stages.once import building

UNREACHABLE = "source_unreachable"  # the one trouble that may end by itself
LONGEST_REST_S = 60.0
MOST_FALLS = 5  # of a server that says it is well; then it is not the server


@dataclass
class Rest:
    """A source whose server failed us: asked again, less often each time, until it answers or says what a person must do."""

    falls: int = 0  # without a finished batch between them
    finished: int = -2
    until: float | None = None
    since: float = 0.0
    trouble: SourceStopped | None = None

    def after(self, tap: Log, place: Place) -> Literal["start", "rest", "stop"]:
        now, finished = time.monotonic(), place.finished()
        if self.until is None:
            self.falls = 1 if finished > self.finished else self.falls + 1
            self.finished, self.until = finished, now + min(2.0 ** (self.falls - 2), LONGEST_REST_S)
        if now < self.until:
            return "rest"
        self.until = None
        try:
            with self.minded():
                place.readable(tap.verified())
                self.trouble = None
                return "start" if self.falls <= MOST_FALLS else "stop"
            return "rest"
        except SourceStopped as stopped:
            self.trouble = stopped
            return "stop"

    @contextmanager
    def minded(self) -> Iterator[None]:
        """A server that cannot be reached is asked again later; whatever else it says is for a person."""
        try:
            yield
        except SourceStopped as stopped:
            if stopped.code != UNREACHABLE:
                raise
            now = time.monotonic()
            self.since = self.since if self.trouble is not None else now
            self.trouble, self.until = stopped, now + LONGEST_REST_S / 12

    def waited(self) -> float:
        """Seconds since the server stopped answering; 0 while it answers."""
        return time.monotonic() - self.since if self.trouble is not None else 0.0


@dataclass
class Feeding:
    """One source at work: its folder, its query, its emitter."""

    source: Source
    emitter: Emitter
    drop: files.DropFolder | None
    tap: Log | None = None
    pump: Pump | Exports | None = None
    query: StreamingQuery | None = None
    retired: int = -1
    news: bool = False  # a dialect was heard for the first time: the query must be started again
    rest: Rest = field(default_factory=lambda: Rest())

    def batch(self, rows: DataFrame, number: int) -> None:
        try:
            self.emitter.emit(rows, number, self._size(number))
        except Unheard as new:
            self.emitter.generations.heard(*new.names)
            self.news = True
            raise

    def _size(self, number: int) -> int:
        """About how many bytes a batch has, of a log that still is what it was."""
        if self.tap is None:
            return sum(size for _, size in files.batch_files(self.place.checkpoint, number))
        self.tap.still()
        return self.place.size(self.tap, number)

    @property
    def place(self) -> Place:
        return Place(self.emitter.generations.checkpoint / "stream")

    def waiting(self) -> bool:
        """Is there input that no finished batch has read?"""
        if self.tap is not None:
            with self.rest.minded():
                behind = self.place.behind(self.tap)
                self.rest.trouble = None
                return behind or self.query is None or not self.query.isActive
            return True
        if self.pump is not None and self.pump.waiting():
            return True
        status = self.query.status if self.query else {}
        busy = status.get("isTriggerActive") or status.get("isDataAvailable")
        return bool(busy or (self.drop and self.drop.waiting()))

    def lacking(self, patience: float) -> SourceStopped | None:
        """What a server that has not answered for so long said last."""
        given_up = [one.trouble for one in (self.rest, self.pump) if one is not None and one.waited() > patience]
        return next(iter(given_up), None)

    def fallen(self) -> Literal["start", "rest", "stop"]:
        """What to do after the query ended by an error: a server may restart, and only it knows whether a person is needed."""
        return "stop" if self.tap is None else self.rest.after(self.tap, self.place)

    def retire(self) -> None:
        """Put away the files of batches that the stream itself has recorded as done."""
        if self.tap is not None:
            return
        inside = inbox.Folder(self.emitter.settings.data_path / "inbox" / self.source.name)
        folder = self.drop or self.pump or inside
        done = self.place.finished()
        for number in range(self.retired + 1, done + 1):
            with fence.passing():  # an erasure may be at work on these files
                folder.retire([name for name, _ in files.batch_files(self.place.checkpoint, number)])
        self.retired = max(self.retired, done)


def source_rows(
    spark: SparkSession, settings: Settings, source: Source, drop: files.DropFolder | None, tap: Log | None = None
) -> DataFrame:
    """A source's SUBJECT rows as a stream."""
    keys = keys_frame(spark, {f"k_{name}": settings.keyring.derive(name) for name in ("tag", "inbox")})
    most = settings.run.batch_files
    if tap is not None:
        messages = tap.messages(spark)
    elif drop is not None:
        messages = files.messages(files.read(spark, drop.claimed, max_files=most), source.name)
    else:
        folder = settings.data_path / "inbox" / source.name
        messages = inbox.messages(inbox.read(spark, folder, max_files=most), source.name, keys.select("k_inbox"))
    with building():
        heard = Generations(settings.data_path, source.name).heard()
        return reading(messages, settings, source, keys.select("k_tag"), heard)
