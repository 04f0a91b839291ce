"""Tables as they are, read in pieces beside the log: without a lock, without a gap, and again from the last piece after a kill.

A piece is the rows of a range of keys. A row whose key the log names between the batch's start and the moment after the piece was read
is left out, because the log tells it; every other row is what it was when the batch began, so it may stand at the batch's end.
What it cannot see: rows of a table without a primary key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidings.errors import SourceStopped
from tidings.sources.pgoutput import as_json
from tidings.sources.pgserver import position

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composed

PIECE = 20_000  # rows: what one batch holds beside its log
FLUSHED_S = 30.0
COLUMNS = """
SELECT a.attname, a.atttypid::int, format_type(a.atttypid, a.atttypmod), array_position(i.indkey::int2[], a.attnum)
FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum
"""

Key = tuple[str, ...]


@dataclass(frozen=True)
class Column:
    name: str
    oid: int
    type: str
    in_key: int | None  # its place in the primary key


@dataclass(frozen=True)
class Piece:
    """Rows of one table with keys after `after` and up to `upto`; values are the server's own text."""

    table: str
    columns: tuple[Column, ...]
    after: Sequence[str]
    upto: Sequence[str]

    @property
    def key(self) -> tuple[Column, ...]:
        return tuple(sorted((c for c in self.columns if c.in_key is not None), key=lambda c: c.in_key or 0))

    def rows(self, connection: Connection[Any]) -> Iterator[dict[str, str]]:
        """Column → JSON text, in the order of the key."""
        from psycopg.sql import SQL

        found = _ranged(self, _names(self.columns), SQL(" ORDER BY {}").format(_names(self.key)))
        for row in texts(connection, found, [*self.after, *self.upto]):
            pairs = zip(self.columns, row, strict=True)
            yield {c.name: "null" if text is None else as_json(text, c.oid) for c, text in pairs}

    def key_of(self, row: dict[str, str]) -> Key:
        return tuple(row[c.name] for c in self.key)


def piece_of(connection: Connection[Any], table: str, after: Sequence[str], upto: Sequence[str]) -> Piece:
    columns = tuple(Column(*row) for row in connection.execute(COLUMNS, (quoted(table),)))
    return Piece(table, columns, after, upto)


def next_piece(connection: Connection[Any], source: str, table: str, after: Sequence[str]) -> Piece | None:
    """The piece that follows; None when the table has no more rows."""
    from psycopg.sql import SQL, Identifier

    piece = piece_of(connection, table, after, ())
    if not piece.key:
        raise SourceStopped(
            "source_not_ready",
            f"source {source}: the table {table} has no primary key",
            "a key to read its rows by",
            "Add one, or say `snapshot: none`.",
        )
    order = SQL(", ").join(SQL("{} DESC").format(Identifier(c.name)) for c in piece.key)
    page = _ranged(piece, _names(piece.key), SQL(" ORDER BY {} LIMIT {}").format(_names(piece.key), PIECE))
    last = SQL("SELECT {} FROM ({}) page ORDER BY {} LIMIT 1").format(_names(piece.key), page, order)
    upto = next(texts(connection, last, list(after)), None)
    return None if upto is None else replace(piece, upto=[str(text) for text in upto])


def texts(connection: Connection[Any], query: Composed, values: list[str]) -> Iterator[list[str | None]]:
    """Rows in the server's own spelling, which is the log's: a cast to text spells some types differently."""
    found = connection.execute(query, values).pgresult
    assert found is not None
    for row in range(found.ntuples):
        yield [None if (raw := found.get_value(row, at)) is None else raw.decode() for at in range(found.nfields)]


def flushed(connection: Connection[Any]) -> int:
    """The end of the log now, once it is readable: everything a query has seen before this is below it."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    end, give_up = position(row[0]), time.monotonic() + FLUSHED_S
    while position(connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()[0]) < end:  # type: ignore[index]
        if time.monotonic() > give_up:
            raise SourceStopped("source_unreachable", "a log that is not written out", "a server at work", "Run again.")
        time.sleep(0.05)
    return end


def quoted(table: str) -> str:
    """`schema.table` as the server parses it."""
    return ".".join('"{}"'.format(part.replace('"', '""')) for part in table.split(".", 1))


def _names(columns: Sequence[Column]) -> Composed:
    from psycopg.sql import SQL, Identifier

    return SQL(", ").join(Identifier(c.name) for c in columns)


def _ranged(piece: Piece, select: Composed, end: Composed) -> Composed:
    """A select over the piece's range; an empty bound is none."""
    from psycopg.sql import SQL, Identifier

    values = SQL(", ").join(SQL("%s::{}").format(SQL(c.type)) for c in piece.key)
    bounds = [SQL(sign) for sign, bound in ((">", piece.after), ("<=", piece.upto)) if bound]
    tests = [SQL("({}) {} ({})").format(_names(piece.key), sign, values) for sign in bounds]
    where = SQL(" WHERE ") + SQL(" AND ").join(tests) if tests else SQL("")
    return SQL("SELECT {} FROM {}").format(select, Identifier(*piece.table.split(".", 1))) + where + end
