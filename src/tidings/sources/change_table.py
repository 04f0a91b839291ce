"""A table of changes in the writer's own database, read by position: what the outbox and the triggers have in common.

    INSERT … (with the change itself, in its transaction) ─(txid, id)→ messages ─Spark→ journal ─commit→ DELETE

Numbers of rows are given before the commit, so a lower number may become visible after a higher one was read. Therefore a row is read
only when its transaction is older than every transaction still running (`txid < pg_snapshot_xmin`): numbers of transactions only grow, so
below that line nothing can appear any more, and what is read in the order (txid, id) is never overtaken. Rows of one transaction keep
their order. Two transactions about one subject come in the order of their numbers; that is the order of their changes when the writer locks
the subject's row before its transaction writes anything else, and otherwise the database gives them no order either.

What breaks the guarantee: a writer who sets `txid`, `id` or `event` itself. A transaction that writes and stays open holds back every later
row; `tidings check --connect` says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, LiteralString

from tidings.errors import SourceStopped
from tidings.sources.pgserver import Server
from tidings.sources.tap import AT_ONCE, Offset, Taken, Tap

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composed

MOST = 20_000  # rows in a batch
WAKE_S = 2.0  # how long a lost notification can delay a row; also how long a stop may have to wait
LONG_S = 10  # a transaction open for longer is worth a word
OLDEST_SERVER = 130_000  # xid8 and gen_random_uuid
TABLE: LiteralString = """\
CREATE TABLE IF NOT EXISTS {table} (
  id bigint GENERATED ALWAYS AS IDENTITY,
  txid xid8 NOT NULL DEFAULT pg_current_xact_id(),
  event uuid NOT NULL DEFAULT gen_random_uuid(),
  created timestamptz NOT NULL DEFAULT clock_timestamp(),
  entity text NOT NULL,
  op text NOT NULL CHECK (op IN ('insert', 'update', 'upsert', 'delete', 'erase', 'truncate')),
  key jsonb,
  before jsonb,
  after jsonb,
  PRIMARY KEY (txid, id)
)"""
RING: LiteralString = "BEGIN PERFORM pg_notify({channel}, ''); RETURN NULL; END"
LOOK: LiteralString = """\
SELECT txid::text, id, sum(bytes) OVER () FROM (
  SELECT txid, id, pg_column_size(t) AS bytes FROM {table} AS t
  WHERE (txid, id) > (%s::xid8, %s) AND txid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY txid, id LIMIT %s
) AS found ORDER BY txid DESC, id DESC LIMIT 1"""
READ: LiteralString = """\
SELECT txid::text, id, event::text, (extract(epoch FROM created) * 1000000)::bigint, to_jsonb(t)::text FROM {table} AS t
WHERE (txid, id) > (%s::xid8, %s) AND (txid, id) <= (%s::xid8, %s) ORDER BY txid, id"""
Problem = tuple[str, str, str, str]


@dataclass(frozen=True)
class ChangeTable(Tap):
    """A table of changes on one server. `rings`: a notification wakes the reader; it is never the data."""

    server: Server
    table: str
    keeps: bool = False
    rings: bool = False
    origin: str = ""

    @property
    def source(self) -> str:
        return self.server.source

    def sql(self, text: LiteralString) -> Composed:
        """A statement about our table; every name in it is quoted."""
        from psycopg.sql import SQL, Identifier, Literal

        schema, name = self.table.split(".", 1)
        function = Identifier(schema, f"{name[:58]}_ring")
        return SQL(text).format(table=Identifier(schema, name), ring=function, channel=Literal(self.channel))

    @property
    def channel(self) -> str:
        return self.table[:63]

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
        if connection.info.server_version < OLDEST_SERVER:
            yield ready, f"the server's version is {connection.info.server_version}", "PostgreSQL 13 or later", ""
        if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            yield ready, "the server is a standby", "the server that is written to", "Connect to the primary."
        columns = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (self.quoted(),),
        ).fetchall()
        found = {row[0] for row in columns}
        if missing := {"id", "txid", "event", "created", "entity", "op", "key", "before", "after"} - found:
            lacks = f"the table {self.table} lacks {', '.join(sorted(missing))}" if found else f"no table {self.table}"
            yield ready, lacks, "the table of changes", install
        if self.rings and not self.has_trigger(connection, self.quoted(), "tidings_ring"):
            yield ready, f"nothing rings when {self.table} gets a row", "the trigger that notifies", install
        yield from self._from_the_future(connection)

    def _from_the_future(self, connection: Connection[Any]) -> Iterator[Problem]:
        """Rows that came with a copy of another server have numbers this one has not reached: they would wait, perhaps for ever."""
        ahead = "SELECT 1 FROM {table} WHERE txid >= pg_snapshot_xmax(pg_current_snapshot()) LIMIT 1"
        if connection.execute(self.sql(ahead)).fetchone():
            renumber = "UPDATE {table} SET txid = pg_current_xact_id() WHERE txid >= pg_snapshot_xmax(pg_current_snapshot())"
            yield (
                "source_went_back",
                f"rows of {self.table} carry transaction numbers that this server has not given out",
                "rows written on this server",
                f"They came with a copy of another. Run: {self.sql(renumber).as_string()}",
            )

    def quoted(self) -> str:
        return self.sql("{table}").as_string()

    @staticmethod
    def has_trigger(connection: Connection[Any], table: str, name: str) -> bool:
        found = connection.execute(
            "SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname = %s AND tgenabled IN ('O', 'A')",
            (table, name),
        )
        return found.fetchone() is not None

    def remarks(self) -> list[str]:
        """A transaction that wrote and stays open holds back what was committed after it, in whatever database of the server it is."""
        waiting = "SELECT count(*) FROM {table} WHERE txid >= pg_snapshot_xmin(pg_current_snapshot())"
        with self.server.connected() as connection:
            held = connection.execute(self.sql(waiting)).fetchone()
            oldest = connection.execute(
                "SELECT extract(epoch FROM clock_timestamp() - min(since))::bigint FROM ("
                " SELECT xact_start AS since FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
                " UNION ALL SELECT prepared FROM pg_prepared_xacts) AS open"
            ).fetchone()
        rows, age = (held or (0,))[0], (oldest or (None,))[0]
        if not rows or age is None or age < LONG_S:
            return []
        return [f"{rows} rows wait for a transaction that has been open for {age} s"]

    def statements(self) -> list[tuple[str, str]]:
        from psycopg.sql import Literal

        made = [(self.sql(TABLE).as_string(), self.sql("DROP TABLE IF EXISTS {table}").as_string())]
        if self.rings:
            body = Literal(self.sql(RING).as_string()).as_string()
            function = self.sql("CREATE OR REPLACE FUNCTION {ring}() RETURNS trigger LANGUAGE plpgsql AS ").as_string()
            made.append((function + body, self.sql("DROP FUNCTION IF EXISTS {ring}()").as_string()))
            off = self.sql("DROP TRIGGER IF EXISTS tidings_ring ON {table}").as_string()
            on = "CREATE TRIGGER tidings_ring AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {ring}()"
            made.append((f"{off};\n{self.sql(on).as_string()}", off))
        return made

    def execute(self, statements: Sequence[str]) -> None:
        self.server.execute(statements)

    def first(self) -> Offset:
        return {"txid": "0", "id": 0, "bytes": 0, "origin": self.origin}

    def latest(self, start: Offset) -> Offset:
        with self.server.connected() as connection:
            self._not_before(connection, start)
            found = connection.execute(self.sql(LOOK), (*self._from(start), MOST)).fetchone()
        if found is None:
            return start
        return {"txid": found[0], "id": found[1], "bytes": int(found[2]), "origin": self.origin}

    def _from(self, start: Offset) -> tuple[str, int]:
        """Numbers of another server say nothing here: everything is read then, and what was told is recognised by its `event`."""
        return (start["txid"], start["id"]) if start["origin"] == self.origin else ("0", 0)

    def _not_before(self, connection: Connection[Any], start: Offset) -> None:
        row = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
        if row is not None and int(row[0]) <= int(self._from(start)[0]):
            raise SourceStopped(
                "source_went_back",
                f"source {self.source}: the server's transactions end before the place that was read last",
                "transaction numbers that only grow",
                "The database was restored from a copy. Move the source's checkpoint folder away and run: a new generation reads"
                " the whole table, and what comes again is recognised.",
            )

    def wait(self, start: Offset) -> None:
        """Until somebody rings, and never long: a notification can be lost. Rows that wait for an older transaction ring no more."""
        held = "SELECT 1 FROM {table} WHERE txid >= pg_snapshot_xmin(pg_current_snapshot()) LIMIT 1"
        if not self.rings:
            return super().wait(start)
        with self.server.connected() as connection:
            connection.execute(self.sql("LISTEN ").as_string().encode() + self._channel_name())
            if self.latest(start) != start:
                return None
            if connection.execute(self.sql(held)).fetchone():
                return super().wait(start)
            for _ in connection.notifies(timeout=WAKE_S, stop_after=1):
                pass
        return None

    def _channel_name(self) -> bytes:
        from psycopg.sql import Identifier

        return Identifier(self.channel).as_string().encode()

    def read(self, start: Offset, end: Offset) -> Iterator[Taken]:
        with self.server.connected() as connection, connection.transaction(), connection.cursor("rows") as cursor:
            cursor.itersize = AT_ONCE
            cursor.execute(self.sql(READ), (*self._from(start), end["txid"], end["id"]))
            for txid, number, event, micros, row in cursor:
                body = f'{{"table": {json.dumps(self.table)}, "micros": {micros}, "after": {row}}}'
                yield Taken(event, micros, f"{int(txid):020d}-{number:020d}", body)

    def done(self, end: Offset) -> None:
        if self.keeps or end["origin"] != self.origin:
            return
        with self.server.connected() as connection:
            gone = "DELETE FROM {table} WHERE (txid, id) <= (%s::xid8, %s)"
            connection.execute(self.sql(gone), (end["txid"], end["id"]))

    def size(self, start: Offset, end: Offset) -> int:
        return int(end["bytes"])


def own_table(source: str, table: str | None) -> str:
    """The table of changes a source names, or the one we name after it."""
    return table or f"public.tidings_{source.replace('-', '_')}"[:63]
