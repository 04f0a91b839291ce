"""The transactional outbox: the application writes what changed into a table, in the transaction that changes it.

Three ways to read the same table: `poll` looks, `push` is woken by a notification and looks, `tail` reads the rows from the server's
log through a slot. What breaks the guarantee: a change whose transaction writes no row here. With `tail`, also rows that were written before
the slot was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidings.sources.change_table import ChangeTable, own_table
from tidings.sources.pgoutput import begun, begun_by
from tidings.sources.pgserver import Server
from tidings.sources.postgresql import BEGINS, Capture
from tidings.sources.tap import Offset, Tap

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source

SNIPPET = """\
import json

def tell(connection, entity, op, key, after):  # in the transaction that makes the change; op: insert, update, upsert, delete, erase
    row = (entity, op, json.dumps(key), json.dumps(after))
    connection.cursor().execute("INSERT INTO {table} (entity, op, key, after) VALUES (%s, %s, %s, %s)", row)
"""


@dataclass(frozen=True)
class Outbox(ChangeTable):
    """The outbox read as a table."""

    def snippet(self) -> str:
        return SNIPPET.format(table=self.quoted().replace('"', '\\"'))


@dataclass(frozen=True)
class Tail(Capture):
    """The outbox read from the log: a slot keeps the place, and the rows are deleted after it moved on."""

    outbox: Outbox | None = None

    @property
    def rows(self) -> Outbox:
        assert self.outbox is not None
        return self.outbox

    def snippet(self) -> str:
        return self.rows.snippet()

    def verify(self) -> str:
        self.rows.verify()
        return super().verify()

    def verified(self) -> Tail:
        return replace(self, origin=self.verify())

    def statements(self) -> list[tuple[str, str]]:
        from psycopg.sql import SQL, Identifier

        (publish, unpublish), *rest = super().statements()
        only = SQL("ALTER PUBLICATION {} SET (publish = 'insert')").format(Identifier(self.publication)).as_string()
        return [*self.rows.statements(), (f"{publish};\n{only}", unpublish), *rest]

    def done(self, end: Offset) -> None:
        """First the rows, then the slot: between the two, the next call finds the same transactions again."""
        if not self.rows.keeps:
            with self.server.connected() as connection:
                records = self.records(connection, BEGINS, end["lsn"], None)
                told = [begun_by(data) for data in records if (begun(data) or 0) <= end["lsn"]]
                top = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
                assert top is not None
                gone = "DELETE FROM {table} WHERE txid = ANY(%s::text[]::xid8[])"
                connection.execute(self.rows.about(gone), (list(_whole_numbers(told, int(top[0]))),))
        super().done(end)


def _whole_numbers(xids: list[int], top: int) -> Iterator[str]:
    """The log has the lower half of a transaction's number; the upper half follows from what the server gives out now."""
    for xid in xids:
        number = (top >> 32 << 32) | xid
        yield str(number if number < top else number - (1 << 32))


def tap(settings: Settings, source: Source) -> Tap:
    """The reader an outbox source declares."""
    assert source.connection is not None, "checked with the folder"
    server = Server(source.name, settings.secret(source.connection).reveal())
    outbox = Outbox(server, own_table(source.name, source.table), source.after == "keep", source.mode == "push")
    if source.mode != "tail":
        return outbox
    name = source.slot or f"tidings_{re.sub('[^a-z0-9]', '_', source.name)}"
    return Tail(server, name, name, (outbox.table,), outbox=outbox)
