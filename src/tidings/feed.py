"""One source at work: its folder, its rows as a stream, its batches."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidings.emit import Emitter, Unheard
from tidings.flow import reading
from tidings.progress import Generations
from tidings.seal.columns import keys_frame
from tidings.settings import Settings
from tidings.shapes import Source
from tidings.sources import files, inbox, postgresql
from tidings.stages.once import building


@dataclass
class Feeding:
    """One source at work: its folder, its query, its emitter."""

    source: Source
    emitter: Emitter
    drop: files.DropFolder | None
    query: StreamingQuery | None = None
    retired: int = -1
    news: bool = False  # a dialect was heard for the first time: the query must be started again

    def batch(self, rows: DataFrame, number: int) -> None:
        checkpoint = self.emitter.generations.checkpoint / "stream"
        sizes = [size for _, size in files.batch_files(checkpoint, number)]
        if self.source.kind == "postgresql":
            sizes = [postgresql.batch_bytes(self.capture, checkpoint, number)]
        try:
            self.emitter.emit(rows, number, sum(sizes))
        except Unheard as new:
            self.emitter.generations.heard(*new.names)
            self.news = True
            raise

    @property
    def capture(self) -> postgresql.Capture:
        return postgresql.capture_of(self.emitter.settings, self.source)

    def waiting(self) -> bool:
        """Is there input that no finished batch has read?"""
        if self.source.kind == "postgresql":
            checkpoint = self.emitter.generations.checkpoint / "stream"
            return postgresql.behind(self.capture, checkpoint)
        status = self.query.status if self.query else {}
        busy = status.get("isTriggerActive") or status.get("isDataAvailable")
        return bool(busy or (self.drop and self.drop.waiting()))

    def retire(self) -> None:
        """Put away the files of batches that the stream itself has recorded as done."""
        if self.drop is None:
            return
        checkpoint = self.emitter.generations.checkpoint / "stream"
        done = max((int(p.name) for p in (checkpoint / "commits").glob("[0-9]*")), default=-1)
        for number in range(self.retired + 1, done + 1):
            self.drop.retire([name for name, _ in files.batch_files(checkpoint, number)])
        self.retired = max(self.retired, done)


def source_rows(spark: SparkSession, settings: Settings, source: Source, drop: files.DropFolder | None) -> DataFrame:
    """A source's SUBJECT rows as a stream."""
    keys = keys_frame(spark, {f"k_{name}": settings.keyring.derive(name) for name in ("tag", "inbox")})
    most = settings.run.batch_files
    if source.kind == "postgresql":
        messages = postgresql.messages(spark, postgresql.capture_of(settings, source))
    elif drop is not None:
        messages = files.messages(files.read(spark, drop.claimed, max_files=most), source.name)
    else:
        folder = settings.data_path / "inbox" / source.name
        messages = inbox.messages(inbox.read(spark, folder, max_files=most), source.name, keys.select("k_inbox"))
    with building():
        heard = Generations(settings.data_path, source.name).heard()
        return reading(messages, settings, source, keys.select("k_tag"), heard)
