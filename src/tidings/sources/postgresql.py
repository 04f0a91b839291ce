"""PostgreSQL's write-ahead log as a source: a logical slot is read by position and advanced only after the journal holds what was read.

    slot ─peek→ records ─pgoutput→ messages ─Spark→ journal ─commit→ slot advanced

Reading looks and does not take, so a batch that is repeated reads the same rows; a row's order is (commit position, number in its
transaction). What it cannot see: rows of before the slot was made, and tables outside its publication.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tidings.errors import Refused, SourceStopped
from tidings.sources.pgoutput import Decoder, Message, begun

if TYPE_CHECKING:
    from psycopg import Connection

    from tidings.settings import Settings
    from tidings.shapes import Source

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
PEEK: LiteralString = (
    "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s, %s, 'proto_version', '1', 'publication_names', %s)"
)
BEGINS: LiteralString = PEEK + " WHERE get_byte(data, 0) = 66"  # B
MOST = 50_000  # changes in a batch; a transaction is never divided, so one may be larger
AT_ONCE = 2_000  # records fetched, and messages handed on, at a time
LOOK_EVERY_S = 0.2
BUSY_S = 60.0  # how long a slot may be held by a reader that is about to end


@dataclass(frozen=True)
class Capture:
    """Where to read: the connection is a secret and shows in no plan, log or error."""

    source: str
    slot: str
    publication: str
    tables: tuple[str, ...]
    connection: str = field(repr=False)

    @contextmanager
    def connected(self) -> Iterator[Connection[Any]]:
        try:
            import psycopg
        except ImportError:
            raise Refused(
                "extra_missing", "no PostgreSQL client", "the extra `postgresql`", "pip install 'tidings[postgresql]'"
            ) from None
        try:
            connection = psycopg.connect(self.connection, autocommit=True, connect_timeout=15)
        except psycopg.OperationalError as error:
            said = type(error).__name__
            raise SourceStopped(
                "source_unreachable",
                f"source {self.source}: {said}",
                "a PostgreSQL server that lets us in",
                "Check that it runs and that the connection's user and password are right.",
            ) from None
        try:
            yield connection
        finally:
            connection.close()

    def verify(self) -> str:
        """The name of this server and timeline; raises what stands in the way of reading, with the remedy."""
        with self.connected() as connection:
            for problem in self._problems(connection):
                raise SourceStopped("source_not_ready", f"source {self.source}: {problem[0]}", *problem[1:])
            row = connection.execute(
                "SELECT system_identifier::text || '-' || timeline_id FROM pg_control_system(), pg_control_checkpoint()"
            ).fetchone()
        assert row is not None
        return str(row[0])

    def _problems(self, connection: Connection[Any]) -> Iterator[tuple[str, str, str]]:
        install = f"Run `tidings source install {self.source}`."
        level = connection.execute("SHOW wal_level").fetchone()
        if level != ("logical",):
            yield f"wal_level is {level[0] if level else '?'}", "wal_level logical", "Set it and restart the server."
        slot = connection.execute(
            "SELECT plugin, wal_status FROM pg_replication_slots WHERE slot_name = %s", (self.slot,)
        ).fetchone()
        if slot is None:
            yield (
                f"no slot {self.slot}",
                "the slot that keeps our place",
                f"{install} Changes since the slot was dropped are not in it: load a snapshot of the tables first.",
            )
        elif slot[0] != "pgoutput":
            yield f"the slot {self.slot} speaks {slot[0]}", "pgoutput", "Name another slot."
        elif slot[1] == "lost":
            yield (
                f"the slot {self.slot} lost its place: the server removed the log it needed",
                "a slot that is read in time",
                f"`tidings source remove {self.source}`, then install it and load a snapshot of the tables.",
            )
        held = connection.execute(
            "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s", (self.publication,)
        ).fetchall()
        if missing := sorted(set(self.tables) - {row[0] for row in held}):
            yield f"the publication {self.publication} lacks {', '.join(missing)}", "every table of the source", install

    def statements(self) -> list[tuple[str, str]]:
        """(what is done, what undoes it), as SQL for a person to read and a server to run."""
        from psycopg.sql import SQL, Identifier, Literal

        tables = SQL(", ").join(Identifier(*table.split(".", 1)) for table in self.tables)
        made = [
            ("CREATE PUBLICATION {name} FOR TABLE {tables}", "DROP PUBLICATION IF EXISTS {name}"),
            (
                "SELECT pg_create_logical_replication_slot({slot}, 'pgoutput')",
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = {slot}",
            ),
        ]
        named = {"name": Identifier(self.publication), "slot": Literal(self.slot), "tables": tables}
        return [(SQL(do).format(**named).as_string(), SQL(undo).format(**named).as_string()) for do, undo in made]


def capture_of(settings: Settings, source: Source) -> Capture:
    """The capture a source declares; slot and publication have one name."""
    assert source.connection is not None, "checked with the folder"
    name = source.slot or f"tidings_{re.sub('[^a-z0-9]', '_', source.name)}"
    return Capture(source.name, name, name, tuple(sorted(source.entities)), settings.secret(source.connection).reveal())


def committed(capture: Capture) -> int:
    """The position of the last commit among the next changes of the slot; 0 when there are none."""
    with capture.connected() as connection:
        begins = _records(connection, capture, BEGINS, None, MOST)
        return max((found for data in begins if (found := begun(data)) is not None), default=0)


def behind(capture: Capture, checkpoint: Path) -> bool:
    """Does the slot hold a commit that no finished batch has read?"""
    done = max((int(p.name) for p in (checkpoint / "commits").glob("[0-9]*")), default=-1)
    return committed(capture) > (_offset(checkpoint, done) or 0)


def batch_bytes(capture: Capture, checkpoint: Path, number: int) -> int:
    """How much log a batch spans: what decides whether its rows are held in hand. The first one starts where the slot does."""
    end, start = _offset(checkpoint, number), _offset(checkpoint, number - 1)
    return (end or 0) - (_Reader(capture, "").initialOffset()["lsn"] if start is None else start)


def _offset(checkpoint: Path, batch: int) -> int | None:
    path = checkpoint / "offsets" / str(batch)
    return int(json.loads(path.read_text().splitlines()[-1])["lsn"]) if path.exists() else None


def lsn(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def position(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def _records(
    connection: Connection[Any], capture: Capture, query: LiteralString, upto: int | None, most: int | None
) -> Iterator[bytes]:
    """Records from the slot's place on, not taken; whole transactions up to `upto`, or until there are `most`."""
    import psycopg

    bounds = (capture.slot, None if upto is None else lsn(upto + 1), most, capture.publication)
    end = time.monotonic() + BUSY_S
    while True:
        try:
            with connection.transaction(), connection.cursor("records") as cursor:
                cursor.itersize = AT_ONCE
                cursor.execute(query, bounds)
                for (data,) in cursor:
                    yield bytes(data)
            return
        except psycopg.errors.ObjectInUse:  # before the first record: a reader that was killed is still there
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


class _Range(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class _Reader(DataSourceStreamReader):
    """Offsets are commit positions. `commit` comes after the batch is in the journal."""

    def __init__(self, capture: Capture, origin: str) -> None:
        self.capture, self.origin = capture, origin

    def initialOffset(self) -> dict[str, int]:
        with self.capture.connected() as connection:
            row = connection.execute(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (self.capture.slot,)
            ).fetchone()
        return {"lsn": position(row[0]) - 1 if row and row[0] else 0}

    def latestOffset(self, start: dict[str, int], limit: Any = None) -> dict[str, int]:
        latest = max(start["lsn"], committed(self.capture))
        if latest == start["lsn"]:
            time.sleep(LOOK_EVERY_S)  # Spark asks again at once, and each look makes the server read its log
        return {"lsn": latest}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [_Range(start["lsn"], end["lsn"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Range)
        decoder = Decoder(self.origin)
        held: list[Message] = []
        with self.capture.connected() as connection:
            for message in decoder.messages(_records(connection, self.capture, PEEK, partition.end, None)):
                if partition.start < message.commit_lsn <= partition.end:
                    held.append(message)
                if len(held) == AT_ONCE:
                    yield self._batch(held)
                    held = []
        if held:
            yield self._batch(held)

    def _batch(self, messages: list[Message]) -> pa.RecordBatch:
        # The time of arrival is the commit's: reading again must give the same row.
        columns = [
            [f"{self.capture.slot}/{m.commit_lsn}/{m.at}" for m in messages],
            [m.micros for m in messages],
            [f"{m.commit_lsn:020d}-{m.at:010d}" for m in messages],
            [m.body for m in messages],
            [m.at for m in messages],
        ]
        return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, _ARROW, strict=True)], schema=_ARROW)

    def commit(self, end: dict[str, int]) -> None:
        with self.capture.connected() as connection:
            connection.execute("SELECT pg_replication_slot_advance(%s, %s)", (self.capture.slot, lsn(end["lsn"])))


def data_source(capture: Capture, origin: str) -> type[DataSource]:
    """A data source that carries its connection inside, where no option and no plan shows it."""

    class Wal(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"tidings_wal_{capture.source}".replace("-", "_")

        def schema(self) -> str:
            return SCHEMA

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return _Reader(capture, origin)

    return Wal


def messages(spark: SparkSession, capture: Capture) -> DataFrame:
    """MESSAGE rows as a stream."""
    made = data_source(capture, capture.verify())
    spark.dataSource.register(made)
    rows = spark.readStream.format(made.name()).load()
    return rows.select(
        F.lit(capture.source).alias("source"),
        "place",
        "arrived",
        "rank",
        "body",
        F.lit(capture.slot).alias("file"),
        "line",
    )
