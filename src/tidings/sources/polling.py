"""Tables that say when a row was last changed, asked again and again for what is newer.

    rows with place < (column, key), column < horizon ─spool→ messages ─Spark→ journal

A row may carry the time at which its transaction began and be committed much later. So rows are read up to the start of the oldest
transaction that is open, whether it has written yet or not; a prepared one, of which nobody knows the start, holds back everything. A row that
changes between two looks is told once, as it is then, under its new time: what was read is spooled, so that reading again gives the same.

What it cannot see: deleted rows, states between two looks, changes that leave the column alone, rows without a time. What breaks the guarantee: a
time that is not the server's at the change (an application's clock, a restored or loaded row with an old time): such a row may be behind the
place that was read. A row with a time in the future is read when that time has come.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, LiteralString

from tidings.errors import SourceStopped
from tidings.sources.pgserver import Server
from tidings.sources.pgsnapshot import quoted
from tidings.sources.spool import FIRST, Spool
from tidings.sources.tap import Offset, Taken, Tap

if TYPE_CHECKING:
    from psycopg import Connection

    from tidings.settings import Settings
    from tidings.shapes import Source

MOST = 10_000  # rows in a batch
ABOUT = 500  # bytes of a row, to guess a batch by
Place = dict[
    str, tuple[str, list[str]]
]  # table and its identity → time and key of the last row read, as the server writes them
OLDEST: LiteralString = """\
SELECT min(xact_start)::text FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()
AND backend_type NOT IN ('autovacuum worker', 'walsender')"""
PREPARED: LiteralString = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
TYPES: LiteralString = """\
SELECT attname, format_type(atttypid, atttypmod), atttypid::regtype::text FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"""
NEXT: LiteralString = """\
SELECT {column}::text, (extract(epoch FROM {column}) * 1000000)::bigint, ARRAY[{texts}], to_jsonb(t)::text FROM {table} AS t
WHERE ({column}, {key}) > ({since}) AND {column} < {horizon}::timestamptz ORDER BY {column}, {key} LIMIT {most}"""
INDEXED: LiteralString = """\
SELECT 1 FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
WHERE indrelid = to_regclass(%s) AND attname = %s AND indisvalid AND indpred IS NULL"""


@dataclass(frozen=True)
class Polling(Tap):
    """Tables, their keys and the column of times; what was read waits in a spool."""

    server: Server
    tables: tuple[tuple[str, tuple[str, ...]], ...]  # with the key of their contract
    column: str
    lag: float
    spool: Spool

    @property
    def source(self) -> str:
        return self.server.source

    def verify(self) -> str:
        with self.server.connected() as connection:
            for found, expected, what_now in self._problems(connection):
                raise SourceStopped("source_not_ready", f"source {self.source}: {found}", expected, what_now)
            return self.server.identity(connection)

    def verified(self) -> Polling:
        self.verify()
        return replace(self)

    def _problems(self, connection: Connection[Any]) -> Iterator[tuple[str, str, str]]:
        if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            yield "the server is a standby", "the server that is written to", "Connect to the primary."
        if connection.execute("SELECT pg_has_role('pg_read_all_stats', 'USAGE')").fetchone() != (True,):
            yield (
                "the connection's user cannot see when others' transactions began",
                "a member of pg_read_all_stats",
                "GRANT pg_read_all_stats to it; without, rows committed late would be passed over.",
            )
        for table, key in self.tables:
            types = {row[0]: row[2] for row in connection.execute(TYPES, (quoted(table),))}
            if not types:
                yield f"no table {table}", "the tables of the source", "Mend `entities`, or grant the right to read it."
            elif missing := sorted({self.column, *key} - set(types)):
                yield f"{table} has no column {missing[0]}", "the time's and the contract's key columns", "Mend them."
            elif (kind := types[self.column]) != "timestamp with time zone":
                yield (
                    f"{table}.{self.column} is {kind}",
                    "timestamp with time zone",
                    "Change the column's type: another does not say which moment it means.",
                )

    def remarks(self) -> list[str]:
        """What holds rows back now, and rows that do not come when a person would expect them."""
        from psycopg.sql import SQL, Identifier

        said = []
        with self.server.connected() as connection:
            if (count := _one(connection, PREPARED)) != 0:
                said.append(f"nothing is read while {count} prepared transactions are open")
            for table, _ in self.tables:
                named = {"table": Identifier(*table.split(".", 1)), "column": Identifier(self.column)}
                if connection.execute(INDEXED, (quoted(table), self.column)).fetchone() is None:
                    said.append(
                        f"{table} has no index that begins with {self.column}: every look reads the whole table"
                    )
                ahead = "SELECT 1 FROM {table} WHERE {column} > clock_timestamp() + interval '1 minute' LIMIT 1"
                if connection.execute(SQL(ahead).format(**named)).fetchone():
                    said.append(f"{table} has rows with a time in the future, which are read when it has come")
                timeless = "SELECT 1 FROM {table} WHERE {column} IS NULL OR {column} = '-infinity' LIMIT 1"
                if connection.execute(SQL(timeless).format(**named)).fetchone():
                    said.append(f"{table} has rows without a time, which are not read")
        return said

    def first(self) -> Offset:
        return FIRST

    def latest(self, start: Offset) -> Offset:
        waiting = self.spool.end(start)
        if waiting is not None:
            return waiting
        with self.server.connected() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("SET DateStyle = 'ISO'")
            place: Place = dict(self.spool.place(start) or {})
            self._not_before(connection, place)
            horizon = self._horizon(connection)
            taken: list[Taken] = []
            for table, key in self.tables if horizon else ():
                if len(taken) < MOST:
                    taken += self._fetch(connection, (table, key), place, str(horizon), MOST - len(taken))
        name = self.spool.name(start)
        numbered = [m._replace(place=f"{name}/{line}", line=line) for line, m in enumerate(taken)]
        return self.spool.put(start, place, numbered) if numbered else start

    def _horizon(self, connection: Connection[Any]) -> str | None:
        """No row with an earlier time can appear. The clock first, then who is at work, then who is prepared: each may become the next."""
        now = connection.execute(
            "SELECT (clock_timestamp() - make_interval(secs => %s))::text", (float(self.lag),)
        ).fetchone()
        oldest = _one(connection, OLDEST)
        if _one(connection, PREPARED):
            return None
        assert now is not None
        least = connection.execute("SELECT least(%s::timestamptz, %s::timestamptz)::text", (now[0], oldest)).fetchone()
        return str(least[0]) if least else None

    def _not_before(self, connection: Connection[Any], place: Place) -> None:
        newest = max((time for time, _ in place.values()), default=None)
        behind = "SELECT clock_timestamp() < %s::timestamptz"
        if newest is not None and connection.execute(behind, (newest,)).fetchone() == (True,):
            raise SourceStopped(
                "source_went_back",
                f"source {self.source}: the server's clock is before the time of the last row that was read",
                "a clock that only grows",
                f"Set the clock right and run again. Rows that were changed meanwhile carry times that were passed: set their"
                f" {self.column} anew.",
            )

    def _fetch(
        self, connection: Connection[Any], of: tuple[str, tuple[str, ...]], place: Place, horizon: str, most: int
    ) -> Iterator[Taken]:
        """The next rows of one table; `place` moves with them. A table made anew has another identity and is read from its start."""
        from psycopg.sql import SQL, Identifier, Literal

        table, key = of
        oid = connection.execute("SELECT to_regclass(%s)::oid::text", (quoted(table),)).fetchone()
        known = f"{table}/{oid[0] if oid else ''}"
        for old in [name for name in place if name.startswith(f"{table}/") and name != known]:
            del place[old]
        types = {row[0]: row[1] for row in connection.execute(TYPES, (quoted(table),))}
        time, last = place.get(known, ("-infinity", []))
        since = [SQL("{}::timestamptz").format(Literal(time))]
        since += [SQL("{}::{}").format(Literal(v), SQL(types[k])) for k, v in zip(key, last, strict=False)]
        names = [Identifier(name) for name in key]
        query = SQL(NEXT if last else NEXT.replace("({column}, {key}) > ({since})", "{column} > {since}")).format(
            column=Identifier(self.column),
            texts=SQL(", ").join(SQL("{}::text").format(name) for name in names),
            key=SQL(", ").join(names),
            table=Identifier(*table.split(".", 1)),
            since=SQL(", ").join(since),
            horizon=Literal(horizon),
            most=Literal(most),
        )
        for time, micros, values, row in connection.execute(query).fetchall():
            place[known] = (time, values)
            body = f'{{"polled": {json.dumps(table)}, "changed_micros": {micros}, "row": {row}}}'
            yield Taken("", micros, f"{micros:020d}", body)

    def read(self, start: Offset, end: Offset) -> Iterator[Taken]:
        yield from self.spool.read(start, end)

    def done(self, end: Offset) -> None:
        self.spool.forget(end)

    def wait(self, start: Offset) -> None:
        """Spark asks for more only when all before is finished: what was told need not stay until the next batch."""
        self.done(start)
        super().wait(start)

    def size(self, start: Offset, end: Offset) -> int:
        return int(end["messages"]) * ABOUT


def _one(connection: Connection[Any], query: LiteralString) -> Any:
    row = connection.execute(query).fetchone()
    return row[0] if row else None


def tap(settings: Settings, source: Source) -> Polling:
    """The reader a polling source declares; the contracts say which columns are the keys."""
    assert source.connection is not None, "checked with the folder"
    assert source.column is not None, "checked with the folder"
    server = Server(source.name, settings.secret(source.connection).reveal())
    tables = tuple((table, tuple(settings.entities[name].key)) for table, name in sorted(source.entities.items()))
    keys = (settings.keyring.derive("offset"), settings.keyring.derive("iv"))
    spool = Spool(source.name, settings.data_path / "spool" / source.name, keys)
    return Polling(server, tables, source.column, float(source.lag), spool)
