"""A table of changes in the writer's own database, read by position: what the outbox and the triggers have in common.

    INSERT … (in the transaction of the change itself) ─id→ messages ─Spark→ journal ─commit→ DELETE

A row's number is drawn before its transaction commits, so a lower number may appear after a higher one; it may also never appear. Who
reads past a missing number may lose a row. So every missing number is waited for: whoever drew it holds a lock on the table until its
transaction ends, thus once all who held one when the gap was first seen are gone, the number is there or never will be (gaps.py). Rows are read
in the order of their numbers, and that is a subject's own order when the row is written while the subject is locked: after the change, in
its transaction. (The order of transaction numbers is not: a transaction may draw its number early and change the subject late.)

What breaks the guarantee: a writer who sets `id` or `event` itself, or a sequence with a cache. A transaction that has written here and stays
open holds back every later row; `tidings check --connect` says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, LiteralString

from tidings.errors import SourceStopped
from tidings.sources.gaps import Gaps
from tidings.sources.pgserver import Server
from tidings.sources.tap import AT_ONCE, Offset, Taken, Tap

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composed

MOST = 20_000  # rows in a batch
WAKE_S = 2.0  # how long a lost notification can delay a row; also how long a stop may have to wait
LONG_S = 10  # a transaction open for longer is worth a word
PATIENCE_S = (
    60  # rows behind a transaction that has been open for longer are not waited for by a run that ends when idle
)
OLDEST_SERVER = 130_000  # xid8 and gen_random_uuid
COLUMNS = ("id", "txid", "event", "created", "entity", "op", "key", "before", "after")
# The first number is the time, so that a table made anew goes on above the numbers of the old one.
TABLE: LiteralString = """\
CREATE TABLE IF NOT EXISTS {table} (
  id bigint GENERATED ALWAYS AS IDENTITY (START WITH {now}) PRIMARY KEY,
  txid xid8 NOT NULL DEFAULT pg_current_xact_id(),
  event uuid NOT NULL DEFAULT gen_random_uuid(),
  created timestamptz NOT NULL DEFAULT clock_timestamp(),
  entity text NOT NULL,
  op text NOT NULL CHECK (op IN ('insert', 'update', 'upsert', 'delete', 'erase', 'truncate')),
  key jsonb,
  before jsonb,
  after jsonb
)"""
RING: LiteralString = "BEGIN PERFORM pg_notify({channel}, ''); RETURN NULL; END"
LOOK: LiteralString = "SELECT id, pg_column_size(t) FROM {table} AS t WHERE id > %s ORDER BY id LIMIT %s"
WRITERS: LiteralString = (
    "SELECT virtualtransaction FROM pg_locks WHERE relation = to_regclass(%s) AND mode = 'RowExclusiveLock' AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
READ: LiteralString = """\
SELECT id, event::text, (extract(epoch FROM created) * 1000000)::bigint, to_jsonb(t)::text FROM {table} AS t
WHERE id > %s AND id <= %s ORDER BY id"""
LAST: LiteralString = "SELECT pg_sequence_last_value(pg_get_serial_sequence(%s, 'id')::regclass)"
CACHE: LiteralString = "SELECT seqcache FROM pg_sequence WHERE seqrelid = pg_get_serial_sequence(%s, 'id')::regclass"
START: LiteralString = "SELECT seqstart FROM pg_sequence WHERE seqrelid = pg_get_serial_sequence(%s, 'id')::regclass"
OPEN: LiteralString = """\
SELECT extract(epoch FROM clock_timestamp() - min(coalesce(xact_start, prepared)))::bigint FROM pg_locks
LEFT JOIN pg_stat_activity USING (pid) LEFT JOIN pg_prepared_xacts ON virtualtransaction = '-1/' || transaction::text
WHERE relation = to_regclass(%s) AND mode = 'RowExclusiveLock' AND granted"""
Problem = tuple[str, str, str, str]


@dataclass(frozen=True)
class ChangeTable(Tap):
    """A table of changes on one server. `rings`: a notification wakes the reader; it is never the data."""

    server: Server
    table: str
    keeps: bool = False
    rings: bool = False
    origin: str = ""
    gaps: Gaps = field(default_factory=Gaps, repr=False, compare=False)
    given_up: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def source(self) -> str:
        return self.server.source

    def about(self, text: LiteralString) -> Composed:
        """A statement about our table; every name in it is quoted."""
        from psycopg.sql import SQL, Identifier, Literal

        schema, name = self.table.split(".", 1)
        channel, ring = self.table[:63], Identifier(schema, f"{name[:58]}_ring")
        named = {"table": Identifier(schema, name), "ring": ring, "now": Literal(time.time_ns() // 1000)}
        return SQL(text).format(**named, channel=Literal(channel), heard=Identifier(channel))

    def quoted(self) -> str:
        return self.about("{table}").as_string()

    def verify(self) -> str:
        with self.server.connected() as connection:
            for code, *said in self.problems(connection):
                raise SourceStopped(code, f"source {self.source}: {said[0]}", *said[1:])
            return self.server.identity(connection)

    def verified(self) -> ChangeTable:
        return replace(self, origin=self.verify())

    def problems(self, connection: Connection[Any]) -> Iterator[Problem]:
        """(code, found, expected, what now), the first that stands in the way first."""
        install, ready = f"Run `tidings source install {self.source}`.", "source_not_ready"
        if (version := connection.info.server_version) < OLDEST_SERVER:
            yield ready, f"the server's version is {version}", "PostgreSQL 13 or later", "Name another server."
        if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            yield ready, "the server is a standby", "the server that is written to", "Connect to the primary."
        columns = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (self.quoted(),),
        ).fetchall()
        found = {row[0] for row in columns}
        if missing := sorted(set(COLUMNS) - found):
            lacks = f"the table {self.table} lacks {', '.join(missing)}" if found else f"no table {self.table}"
            yield ready, lacks, "the table of changes", install
        if connection.execute(CACHE, (self.quoted(),)).fetchone() != (1,):
            ask = f"Run: {self.about('ALTER TABLE {table} ALTER COLUMN id SET CACHE 1').as_string()}"
            yield ready, f"the numbers of {self.table} are drawn in advance", "numbers drawn one by one", ask
        if self.rings and not self.has_trigger(connection, self.quoted(), "tidings_ring"):
            yield ready, f"nothing rings when {self.table} gets a row", "the trigger that notifies", install

    @staticmethod
    def has_trigger(connection: Connection[Any], table: str, name: str) -> bool:
        found = connection.execute(
            "SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname = %s AND tgenabled IN ('O', 'A')",
            (table, name),
        )
        return found.fetchone() is not None

    def _open(self, connection: Connection[Any]) -> int | None:
        """For how many seconds the oldest transaction that writes to the table has been at work; our own deletions count too."""
        found = connection.execute(OPEN, (self.quoted(),)).fetchone()
        return found[0] if found else None

    def remarks(self) -> list[str]:
        with self.server.connected() as connection:
            age = self._open(connection)
        if age is None or age < LONG_S:
            return []
        return [f"rows wait for a transaction that wrote to {self.table} and has been open for {age} s"]

    def statements(self) -> list[tuple[str, str]]:
        from psycopg.sql import Literal

        made = [(self.about(TABLE).as_string(), self.about("DROP TABLE IF EXISTS {table}").as_string())]
        if self.rings:
            body = Literal(self.about(RING).as_string()).as_string()
            function = self.about(
                "CREATE OR REPLACE FUNCTION {ring}() RETURNS trigger LANGUAGE plpgsql AS "
            ).as_string()
            made.append((function + body, self.about("DROP FUNCTION IF EXISTS {ring}()").as_string()))
            off = self.about("DROP TRIGGER IF EXISTS tidings_ring ON {table}").as_string()
            on = "CREATE TRIGGER tidings_ring AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {ring}()"
            made.append((f"{off};\n{self.about(on).as_string()}", off))
        return made

    def execute(self, statements: Sequence[str]) -> None:
        self.server.execute(statements)

    def first(self) -> Offset:
        with self.server.connected() as connection:
            row = connection.execute(START, (self.quoted(),)).fetchone()
        return {"id": row[0] - 1 if row else 0, "bytes": 0, "origin": self.origin}

    def latest(self, start: Offset) -> Offset:
        """The last row before the first number that may still appear."""
        begin = self._from(start)
        with self.server.connected() as connection:
            self._not_before(connection, begin)
            rows = dict(connection.execute(self.about(LOOK), (begin, MOST)).fetchall())
            gaps = self.gaps.seen(begin, list(rows))
            if gaps:
                # In this order: who is still at work, then what is there now. Who is gone by the first is visible to the second.
                writers = {row[0] for row in connection.execute(WRITERS, (self.quoted(),)).fetchall()}
                self.gaps.waited(gaps, writers)
                rows = dict(connection.execute(self.about(LOOK), (begin, MOST)).fetchall())
            end = self.gaps.horizon(begin, list(rows))
        size = sum(size for number, size in rows.items() if number <= end)
        return start if end == begin else {"id": end, "bytes": size, "origin": self.origin}

    def unread(self, start: Offset) -> bool:
        """Also rows behind a number that may still appear, unless who draws it takes too long."""
        if self.latest(start) != start:
            return True
        with self.server.connected() as connection:
            there = connection.execute(self.about(LOOK), (self._from(start), 1)).fetchone()
            return there is not None and (self._open(connection) or 0) < PATIENCE_S

    def _from(self, start: Offset) -> int:
        """Numbers of another server say nothing here: everything is read then, and what was told is recognised by its `event`."""
        return int(start["id"]) if start["origin"] == self.origin else 0

    def _not_before(self, connection: Connection[Any], begin: int) -> None:
        row = connection.execute(LAST, (self.quoted(),)).fetchone()
        if begin and row is not None and (row[0] or begin) < begin:
            raise SourceStopped(
                "source_went_back",
                f"source {self.source}: the numbers of {self.table} end before the place that was read last",
                "numbers that only grow",
                "The database was restored from a copy. Move the source's checkpoint folder away and run: a new generation reads"
                " the whole table, and what comes again is recognised.",
            )

    def wait(self, start: Offset) -> None:
        """Until somebody rings, and never long: a notification can be lost, and rows behind a gap ring no more.

        Spark asks for more only when all before is finished, and gives it up with the next batch; rows about people need not stay until then.
        """
        if self.given_up.get("id") != start["id"]:
            self.done(start)
            self.given_up["id"] = start["id"]
        if not self.rings:
            return super().wait(start)
        with self.server.connected() as connection:
            connection.execute(self.about("LISTEN {heard}"))
            if connection.execute(self.about(LOOK), (self._from(start), 1)).fetchone():
                return super().wait(start)
            for _ in connection.notifies(timeout=WAKE_S, stop_after=1):
                pass
        return None

    def read(self, start: Offset, end: Offset) -> Iterator[Taken]:
        with self.server.connected() as connection, connection.transaction(), connection.cursor("rows") as cursor:
            cursor.itersize = AT_ONCE
            cursor.execute(self.about(READ), (self._from(start), end["id"]))
            for number, event, micros, row in cursor:
                body = f'{{"table": {json.dumps(self.table)}, "micros": {micros}, "after": {row}}}'
                yield Taken(event, micros, f"{number:020d}", body)

    def done(self, end: Offset) -> None:
        if self.keeps or end["origin"] != self.origin:
            return
        with self.server.connected() as connection:
            connection.execute(self.about("DELETE FROM {table} WHERE id <= %s"), (end["id"],))

    def size(self, start: Offset, end: Offset) -> int:
        return int(end["bytes"])


def own_table(source: str, table: str | None) -> str:
    """The table of changes a source names, or the one we name after it."""
    return table or f"public.tidings_{source.replace('-', '_')[:50]}"
