"""MySQL's tables as they are, read in pieces beside the log: without a lock, without a gap, and again from the last piece after a kill.

A piece is the rows of a range of primary keys. A row whose key the log names between the batch's start and the moment after the piece was
read is left out, because the log tells it; every other row is what it was when the batch began, so it may stand at the batch's end.
What it cannot see: rows of a table without a primary key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidings.errors import SourceStopped
from tidings.sources.binlog import Walk
from tidings.sources.myrows import JSON, as_json
from tidings.sources.myserver import Status
from tidings.sources.myserver import rows as fetched

if TYPE_CHECKING:
    from tidings.sources.myserver import Db

PIECE = 20_000  # rows: what one batch holds beside its log
# Stored as bytes and logged as bytes; a query would spell them out.
BYTES = {"uuid": 16, "inet6": 16, "inet4": 4}
DATES = (7, 10, 12)
COLUMNS = """
SELECT c.column_name, c.data_type, k.ordinal_position FROM information_schema.columns c
LEFT JOIN information_schema.key_column_usage k ON k.table_schema = c.table_schema AND k.table_name = c.table_name
  AND k.column_name = c.column_name AND k.constraint_name = 'PRIMARY'
WHERE c.table_schema = %s AND c.table_name = %s ORDER BY c.ordinal_position
"""
Key = Sequence[Any]


@dataclass(frozen=True)
class Piece:
    """Rows of one table with keys after `after` and up to `upto`; an empty bound is none."""

    table: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    after: Key
    upto: Key

    def rows(self, connection: Db) -> Iterator[dict[str, str]]:
        """Column → JSON text, in the order of the key."""
        select = ", ".join(_column(name, kind) for name, kind in self.columns)
        where, values = self.within()
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {select} FROM {quoted(self.table)}{where} ORDER BY {_names(self.key)}", values)  # noqa: S608 (names are quoted)
            kinds = [told[1] for told in cursor.description]
            for row in cursor:
                found = zip(self.columns, kinds, row, strict=True)
                yield {name: _spelled(value, kind) for (name, _), kind, value in found}

    def within(self) -> tuple[str, list[Any]]:
        """The range as SQL. The first column is bounded on its own, so that the server seeks instead of reading from the start."""
        tests: list[str] = []
        values: list[Any] = []
        for bound, first, strict, last in ((self.after, ">=", ">", ">"), (self.upto, "<=", "<", "<=")):
            if bound:
                text, more = _beyond(self.key, bound, strict, last)
                tests += [f"{_names(self.key[:1])} {first} %s", text]
                values += [bound[0], *more]
        return (" WHERE " + " AND ".join(tests) if tests else ""), values


@dataclass
class Beside:
    """A piece's rows by key, less those that the log tells."""

    piece: Piece
    rows: dict[tuple[str, ...], dict[str, str]]
    named: set[tuple[str, ...]] = field(default_factory=set)  # by the transaction under way
    emptied: bool = False

    def hear(self, table: str, images: Sequence[dict[str, str]]) -> None:
        """A row of a transaction whose end is not known yet."""
        if table == self.piece.table:
            keys = (tuple(image.get(name, "") for name in self.piece.key) for image in images)
            self.named.update(key for key in keys if key in self.rows)

    def settle(self, became_true: bool) -> None:
        if became_true:
            for key in self.named:
                self.rows.pop(key, None)
        self.named.clear()


@dataclass(frozen=True)
class Aside:
    """What a reader of the log does for the rows beside it; nothing when there are none."""

    rows: Beside | None
    upto: Status | None

    def hear(self, table: str, images: Sequence[dict[str, str]]) -> None:
        if self.rows is not None:
            self.rows.hear(table, images)

    def settle(self, became_true: bool) -> None:
        if self.rows is not None:
            self.rows.settle(became_true)

    def empty(self, table: str) -> None:
        if self.rows is not None and table == self.rows.piece.table:
            self.rows.emptied = True

    def over(self, walk: Walk) -> bool:
        """Has the log told everything that the rows' query can have seen?"""
        return self.upto is None or walk.reached(self.upto.file, self.upto.pos)


def beside(connection: Db, piece: Piece) -> Beside:
    return Beside(piece, {tuple(row[name] for name in piece.key): row for row in piece.rows(connection)})


def piece_of(connection: Db, table: str, after: Key, upto: Key) -> Piece:
    found = fetched(connection, COLUMNS, table.split(".", 1))
    key = sorted((at, name) for name, _, at in found if at is not None)
    return Piece(table, tuple((name, kind) for name, kind, _ in found), tuple(name for _, name in key), after, upto)


def next_piece(connection: Db, source: str, table: str, after: Key) -> Piece | None:
    """The piece that follows; None when the table has no more rows."""
    piece = piece_of(connection, table, after, ())
    if not piece.key:
        raise SourceStopped(
            "source_not_ready",
            f"source {source}: the table {table} has no primary key",
            "a key to read its rows by",
            "Add one, or say `snapshot: none`.",
        )
    where, values = piece.within()
    page = f"SELECT {_names(piece.key)} FROM {quoted(table)}{where} ORDER BY "  # noqa: S608 (names are quoted)
    last = fetched(connection, f"{page}{_names(piece.key)} LIMIT 1 OFFSET {PIECE - 1}", values)
    last = last or fetched(connection, f"{page}{_names(piece.key, ' DESC')} LIMIT 1", values)
    return replace(piece, upto=last[0]) if last else None


def packed(key: Key) -> str:
    """A key as text that gives it back: what JSON has no word for is marked."""
    return json.dumps([_packed(value) for value in key])


def unpacked(text: str) -> Key:
    return tuple(_unpacked(value) for value in json.loads(text)) if text else ()


def _packed(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    return json.loads(as_json(value, 0)) if isinstance(value, date | timedelta) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"]) if "bytes" in value else Decimal(value["decimal"])
    return value


def _spelled(value: Any, kind: int) -> str:
    if isinstance(value, str) and kind == JSON:
        return json.dumps(json.loads(value), ensure_ascii=False)
    if isinstance(value, str) and kind in DATES:
        return "null"  # a day that is none, like 0000-00-00; the log's reader says null too
    return as_json(value, kind)


def _beyond(key: Sequence[str], bound: Key, strict: str, last: str) -> tuple[str, list[Any]]:
    """(a, b) > (x, y) as a > x OR (a = x AND b > y), which servers find by the index."""
    if len(key) == 1:
        return f"{_names(key)} {last} %s", [bound[0]]
    rest, values = _beyond(key[1:], bound[1:], strict, last)
    name = _names(key[:1])
    return f"({name} {strict} %s OR ({name} = %s AND {rest}))", [bound[0], bound[0], *values]


def _column(name: str, kind: str) -> str:
    return f"CAST({_names([name])} AS BINARY({BYTES[kind]}))" if kind in BYTES else _names([name])


def _names(names: Sequence[str], more: str = "") -> str:
    return ", ".join(f"`{name.replace('`', '``')}`".replace("%", "%%") + more for name in names)


def quoted(table: str) -> str:
    return ".".join(_names([part]) for part in table.split(".", 1))
