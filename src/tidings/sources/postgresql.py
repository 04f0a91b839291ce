"""PostgreSQL's write-ahead log as a source: a logical slot is read by position and advanced only after the journal holds what was read.

    slot ─peek→ records ─pgoutput→ messages ─Spark→ journal ─commit→ slot advanced

Reading looks and does not take, so a batch that is repeated reads the same rows; a row's order is (commit position, number in its
transaction). Rows that were there before the slot come in pieces beside the log (pgsnapshot.py). What it cannot see: tables outside
its publication.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar

from tidings.errors import SourceStopped
from tidings.seal.keyring import open_payload, seal_payload
from tidings.sources.pgoutput import Decoder, Message, begun
from tidings.sources.pgserver import Server, lsn, position
from tidings.sources.pgsnapshot import PIECE, Piece, flushed, next_piece, piece_of
from tidings.sources.tap import AT_ONCE, Offset, Taken, Tap

if TYPE_CHECKING:
    from psycopg import Connection

    from tidings.settings import Settings
    from tidings.shapes import Source

T = TypeVar("T")
PEEK: LiteralString = (
    "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s, %s, 'proto_version', '1', 'publication_names', %s)"
)
ADVANCE: LiteralString = (
    "SELECT pg_replication_slot_advance(slot_name, %(to)s) FROM pg_replication_slots"
    " WHERE slot_name = %(slot)s AND confirmed_flush_lsn < %(to)s"
)
BEGINS: LiteralString = PEEK + " WHERE get_byte(data, 0) = 66"  # B
MOST = 50_000  # changes in a batch; a transaction is never divided, so one may be larger
BESIDE = 1_000_000_000  # rows that stand beside the log come after all of its rows at their position
ABOUT = 500  # bytes of a row, to guess a batch by
_AAD = b"tidings/offset"
BUSY_S = 60.0  # how long a slot may be held by a reader that is about to end


@dataclass(frozen=True)
class Capture(Tap):
    """A slot and its publication on one server."""

    server: Server
    slot: str
    publication: str
    tables: tuple[str, ...]
    origin: str = ""
    # Of the keys in offsets; without it only the log is read.
    seal: tuple[bytes, bytes] | None = field(default=None, repr=False)

    @property
    def source(self) -> str:
        return self.server.source

    def verify(self) -> str:
        with self.server.connected() as connection:
            for problem in self._problems(connection):
                raise SourceStopped("source_not_ready", f"source {self.source}: {problem[0]}", *problem[1:])
            return self.server.identity(connection)

    def verified(self) -> Capture:
        return replace(self, origin=self.verify())

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
            (
                "DO $do$ BEGIN IF EXISTS (SELECT FROM pg_publication WHERE pubname = {text}) THEN\n"
                "  ALTER PUBLICATION {name} SET TABLE {tables};\n"
                "ELSE\n  CREATE PUBLICATION {name} FOR TABLE {tables};\nEND IF; END $do$",
                "DROP PUBLICATION IF EXISTS {name}",
            ),
            (
                "SELECT pg_create_logical_replication_slot({slot}, 'pgoutput')\n"
                "  WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = {slot})",
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = {slot}",
            ),
        ]
        named = {
            "name": Identifier(self.publication),
            "text": Literal(self.publication),
            "slot": Literal(self.slot),
            "tables": tables,
        }
        return [(SQL(do).format(**named).as_string(), SQL(undo).format(**named).as_string()) for do, undo in made]

    def execute(self, statements: Sequence[str]) -> None:
        self.server.execute(statements)

    def first(self) -> Offset:
        with self.server.connected() as connection:
            row = connection.execute(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (self.slot,)
            ).fetchone()
        start: Offset = {"lsn": position(row[0]) - 1 if row and row[0] else 0, "origin": self.origin}
        return start | {"rows": 0, "tables": [], "left": {}} if self.seal else start

    def latest(self, start: Offset) -> Offset:
        """The last commit among the next changes of the slot, and the next piece of a table that is not read yet."""
        with self.server.connected() as connection:
            self._not_before(connection, start)
            begins = self.records(connection, BEGINS, None, MOST)
            found = max((at for data in begins if (at := begun(data)) is not None), default=0)
            end: Offset = {"lsn": max(self._from(start), found), "origin": self.origin}
            return end | (self._next_piece(connection, start) if self.seal else {})

    def _next_piece(self, connection: Connection[Any], start: Offset) -> Offset:
        tables = sorted({*start.get("tables", []), *self.tables})
        new = dict.fromkeys((name for name in tables if name not in start.get("tables", [])), "")
        left: dict[str, str] = start.get("left", {}) | new
        told = {"tables": tables, "rows": start.get("rows", 0)}
        if not left:
            return {**told, "left": {}}
        table, after = next(iter(left.items()))
        del left[table]
        piece = next_piece(connection, self.source, table, self._opened(after))
        if piece is None:
            return {**told, "left": left}
        now = connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchone()
        assert now is not None
        left = {table: self._sealed(piece.upto), **left}
        return {"tables": tables, "rows": told["rows"] + PIECE, "left": left, "micros": now[0]}

    def _sealed(self, key: Sequence[str]) -> str:
        """A key may be an address; the stream's checkpoint holds none in clear."""
        assert self.seal is not None
        return seal_payload(json.dumps(key).encode(), *self.seal, _AAD).hex()

    def _opened(self, sealed: str) -> Sequence[str]:
        assert self.seal is not None
        return tuple(json.loads(open_payload(self.seal[0], _AAD, bytes.fromhex(sealed)))) if sealed else ()

    def _piece(self, connection: Connection[Any], start: Offset, end: Offset) -> Piece | None:
        """The piece between two offsets, if there is one."""
        for table, upto in end.get("left", {}).items():
            if (after := start.get("left", {}).get(table, "")) != upto:
                return piece_of(connection, table, self._opened(after), self._opened(upto))
        return None

    def _from(self, start: Offset) -> int:
        """Positions of another server or timeline say nothing here: what is read then begins at the slot's own place."""
        return int(start["lsn"]) if start["origin"] == self.origin else 0

    def _not_before(self, connection: Connection[Any], start: Offset) -> None:
        row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        if row is not None and position(row[0]) < self._from(start):
            raise SourceStopped(
                "source_went_back",
                f"source {self.source}: the server's log ends before the place that was read last",
                "a log that only grows",
                "The database was restored from a copy. Move the source's checkpoint folder away and run: a new generation starts"
                " at the slot's place, and what comes again is recognised.",
            )

    def read(self, start: Offset, end: Offset) -> Iterator[Taken]:
        decoder = Decoder(self.origin)
        with self.server.connected() as connection:
            piece = self._piece(connection, start, end)
            upto, rows = end["lsn"], []
            if piece is not None:
                names = tuple(c.name for c in piece.key)
                decoder.watched = {piece.table: names}
                rows = list(piece.rows(connection))
                upto = max(upto, flushed(connection))
            for message in decoder.messages(self.records(connection, PEEK, upto, None)):
                if self._from(start) < message.commit_lsn <= end["lsn"]:
                    yield self._taken(message)
            if piece is not None and not decoder.emptied:
                first = BESIDE + start["rows"]
                kept = (row for row in rows if piece.key_of(row) not in decoder.touched)
                for at, row in enumerate(kept, first):
                    yield self._taken(decoder.standing(piece.table, row, names, (end["lsn"], at, end["micros"])))

    def _taken(self, m: Message) -> Taken:
        # The time of arrival is the commit's: reading again must give the same row.
        place, rank = f"{self.slot}/{m.commit_lsn}/{m.at}", f"{m.commit_lsn:020d}-{m.at:010d}"
        return Taken(place, m.micros, rank, m.body, m.at)

    def done(self, end: Offset) -> None:
        with self.server.connected() as connection:
            to = {"slot": self.slot, "to": lsn(end["lsn"])}
            list(_patiently(lambda: iter(connection.execute(ADVANCE, to).fetchall())))

    def size(self, start: Offset, end: Offset) -> int:
        beside = int(end.get("rows", 0)) - int(start.get("rows", 0))
        return int(end["lsn"]) - self._from(start) + max(beside, 0) * ABOUT

    def records(
        self, connection: Connection[Any], query: LiteralString, upto: int | None, most: int | None
    ) -> Iterator[bytes]:
        """Records from the slot's place on, not taken; whole transactions up to `upto`, or until there are `most`."""
        bounds = (self.slot, None if upto is None else lsn(upto + 1), most, self.publication)

        def look() -> Iterator[bytes]:
            with connection.transaction(), connection.cursor("records") as cursor:
                cursor.itersize = AT_ONCE
                cursor.execute(query, bounds)
                for (data,) in cursor:
                    yield bytes(data)

        yield from _patiently(look)


def _patiently(work: Callable[[], Iterator[T]]) -> Iterator[T]:
    """One at a time may use a slot: a reader that was killed may still hold it, and our own supervisor looks too."""
    import psycopg

    end = time.monotonic() + BUSY_S
    while True:
        try:
            yield from work()  # refused before the first record, so none is given twice
            return
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def tap(settings: Settings, source: Source) -> Capture:
    """The capture a source declares; slot and publication have one name."""
    assert source.connection is not None, "checked with the folder"
    name = source.slot or f"tidings_{re.sub('[^a-z0-9]', '_', source.name)}"
    server = Server(source.name, settings.secret(source.connection).reveal())
    keys = (settings.keyring.derive("offset"), settings.keyring.derive("iv"))
    seal = keys if source.snapshot != "none" else None
    return Capture(server, name, name, tuple(sorted(source.entities)), seal=seal)
