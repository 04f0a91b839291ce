"""Kafka topics as a source, read by Spark's own connector: the stream's checkpoint is our place, and no record is passed over in silence.

    topics ─Spark→ records → messages → journal ─commit→ the stream's checkpoint

A place is (topic id, partition, offset). Offsets mean something in one topic only, so the ids are written down beside the checkpoint,
and a topic that was made anew stops the source. What breaks the guarantee: records that retention or compaction removed before they were
read; the former stops the source with the remedy, the latter is what a compacted topic is for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings.durable import durable_write
from tidings.errors import SourceStopped
from tidings.jars import jars
from tidings.sources.kafkaserver import Cluster, Topic, properties
from tidings.sources.record import wants_record
from tidings.sources.tap import Log, Offset, Place
from tidings.stages.message import parse, whole

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source

MOST = 50_000  # records in a batch
USUAL_BYTES = 1_000  # of a record: only decides how a batch is worked on
AGAIN = (
    "Move the source's folder below data/checkpoints away and run: a new generation reads what the topics hold, and changes that"
    " come again are recognised."
)


@dataclass(frozen=True)
class Kafka(Log):
    """Some topics of one cluster, and where our place in them is written down."""

    cluster: Cluster
    names: tuple[str, ...]
    dialect: str
    checkpoint: Path
    ids: tuple[tuple[str, str], ...] = ()
    every: ClassVar[str] = "200 milliseconds"  # each look asks the brokers for offsets

    @property
    def source(self) -> str:
        return self.cluster.source

    def verify(self) -> str:
        topics = self.cluster.topics(self.names)
        self._the_same({name: topic.id for name, topic in topics.items()})
        place = Place(self.checkpoint / "stream")
        if (done := place.end(place.finished())) is not None:
            self._not_gone(done, topics)
        return ",".join(f"{name}/{topic.id}" for name, topic in topics.items())

    def verified(self) -> Kafka:
        self.verify()
        ids = self.cluster.ids(self.names)
        if ids != self._known():
            durable_write(self.checkpoint / "topics.json", json.dumps({**self._known(), **ids}, sort_keys=True))
        return replace(self, ids=tuple(sorted(ids.items())))

    def still(self) -> bool:
        try:
            self._the_same(self.cluster.ids(self.names))
        except SourceStopped as stopped:
            # Who cannot be asked cannot be read from either; the next batch asks again.
            if stopped.code != "source_unreachable":
                raise
            return False
        return True

    def _known(self) -> dict[str, str]:
        path = self.checkpoint / "topics.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def _the_same(self, ids: Mapping[str, str]) -> None:
        known = self._known()
        if anew := sorted(name for name, found in ids.items() if known.get(name, found) != found):
            raise self.cluster.stopped(
                f"the topic {', '.join(anew)} was deleted and made again: its offsets are used a second time",
                "the topic that was read before",
                AGAIN,
                "source_went_back",
            )

    def first(self) -> Offset:
        return {name: dict(topic.first) for name, topic in self.cluster.topics(self.names).items()}

    def latest(self, start: Offset) -> Offset:
        topics = self.cluster.topics(self.names)
        self._not_gone(start, topics)
        return {name: dict(topic.next) for name, topic in topics.items()}

    def _not_gone(self, start: Offset, topics: Mapping[str, Topic]) -> None:
        """Raises when the brokers no longer hold what comes after our place."""
        for name in sorted(set(start) - set(topics)):
            raise self.cluster.stopped(f"our place is in the topic {name} too", f"{name} in `streams:`", AGAIN)
        for name, topic in topics.items():
            for partition, first in topic.first.items():
                at = start.get(name, {}).get(partition, 0)
                if at > topic.next[partition]:
                    found = f"partition {partition} of {name} ends at {topic.next[partition]}, before our place {at}"
                    raise self.cluster.stopped(found, "a topic that only grows", AGAIN, "source_went_back")
                if at < first:
                    raise self._removed(name, partition, at, first)

    def _removed(self, name: str, partition: str, at: int, first: int) -> SourceStopped:
        return self.cluster.stopped(
            f"the records {at} to {first - 1} in partition {partition} of {name} were removed before they were read",
            "retention longer than the source is ever stopped",
            f"Load a snapshot of what the topic tells, for these records are lost. {AGAIN}",
        )

    def size(self, start: Offset, end: Offset) -> int:
        places = [(name, part, int(offset)) for name, parts in end.items() for part, offset in parts.items()]
        return sum(offset - int(start.get(name, {}).get(part, 0)) for name, part, offset in places) * USUAL_BYTES

    def messages(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("kafka").options(**options(self.cluster, self.names))
        return messages(reader.load(), self.source, self.dialect, dict(self.ids))


def options(cluster: Cluster, names: tuple[str, ...]) -> dict[str, str]:
    """How Spark reads: from the start of the topics, nothing twice, nothing that a producer took back."""
    own = {
        "subscribe": ",".join(names),
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(MOST),
    }
    client = {**cluster.properties, "isolation.level": "read_committed"}
    return own | {f"kafka.{name}": value for name, value in client.items()}


def messages(records: DataFrame, source: str, dialect: str, ids: Mapping[str, str]) -> DataFrame:
    """MESSAGE rows of Kafka's records. The time of arrival is the record's own: reading again must give the same row."""
    partition, offset = F.col("partition").cast("string"), F.col("offset").cast("string")
    topic_id = F.try_element_at(F.create_map(*[F.lit(text) for pair in ids.items() for text in pair]), F.col("topic"))
    return records.select(
        F.lit(source).alias("source"),
        F.concat_ws("/", topic_id, partition, offset).alias("place"),
        F.greatest("timestamp", F.timestamp_millis(F.lit(0))).alias("arrived"),
        F.concat_ws("-", F.lpad(partition, 10, "0"), F.lpad(offset, 19, "0")).alias("rank"),
        (record() if wants_record(dialect) else bare()).alias("body"),
        F.col("topic").alias("file"),
        F.col("offset").alias("line"),
    )


def bare() -> Column:
    """The value alone; a tombstone has none and is blank."""
    return F.coalesce(F.col("value").cast("string"), F.lit(""))


def record() -> Column:
    """The record as one JSON text, as record.py makes it; a value that is not JSON stands alone and is refused for what it is."""
    value = F.col("value").cast("string")
    headers = F.transform("headers", lambda h: F.struct(h["key"], h["value"].cast("string")))
    parts = {
        "topic": F.concat(F.lit('"'), F.col("topic"), F.lit('"')),
        "key": _key(F.col("key").cast("string")),
        "value": F.coalesce(value, F.lit("null")),
        "headers": F.to_json(F.map_from_entries(headers)),
        "timestamp": F.unix_millis("timestamp").cast("string"),
    }
    said = F.concat_ws(", ", *[F.concat(F.lit(f'"{name}": '), text) for name, text in parts.items()])
    return F.when(value.isNotNull() & ~_is_json(value), value).otherwise(F.concat(F.lit("{"), said, F.lit("}")))


def _key(key: Column) -> Column:
    """A key that is not JSON is a text; one that is no text makes the whole record unreadable, and is refused for that."""
    text = F.regexp_replace(F.to_json(F.array(key)), r"^\[|\]$", "")
    quoted = F.when(F.call_function("is_valid_utf8", key), text).otherwise(F.concat(F.lit('"'), key, F.lit('"')))
    return F.when(key.isNull(), "null").when(_is_json(key), key).otherwise(quoted)


def _is_json(text: Column) -> Column:
    return whole(parse(text), text)


def tap(settings: Settings, source: Source) -> Kafka:
    """The topics a source declares."""
    assert source.connection is not None, "checked with the folder"
    assert source.streams is not None, "checked with the folder"
    given = properties(settings.secret(source.connection).reveal())
    cluster = Cluster(source.name, given, lambda: jars(settings))
    return Kafka(cluster, source.streams, source.dialect, settings.data_path / "checkpoints" / source.name)
