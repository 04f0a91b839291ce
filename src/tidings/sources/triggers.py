"""Triggers as a source: each change of a table is written to a table of changes by the server itself, in the transaction that makes it.

For databases whose log may not be read. The price is paid by the writer: one more row, with both images, per changed row. What it
cannot see: changes while a trigger is disabled, changes by a session that replays another server's log
(`session_replication_role = replica`), a new table under an old name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

from tidings.sources.change_table import ChangeTable, Problem, own_table
from tidings.sources.pgserver import Server

if TYPE_CHECKING:
    from psycopg import Connection

    from tidings.settings import Settings
    from tidings.shapes import Source

# The table's declared name comes as an argument: on a partition the trigger runs under the partition's name.
WRITE: LiteralString = """\
BEGIN
  INSERT INTO {table} (entity, op, before, after) VALUES (TG_ARGV[0], lower(TG_OP), to_jsonb(OLD), to_jsonb(NEW));
  RETURN NULL;
END"""
# With the definer's rights: whoever may change the table need not be able to read the changes of others. Nobody else may put the
# function on a table of their own and tell what never was.
FUNCTION: LiteralString = (
    "CREATE OR REPLACE FUNCTION {write}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
    " SET search_path = pg_catalog, pg_temp AS {body};\nREVOKE ALL ON FUNCTION {write}() FROM PUBLIC"
)
ON: LiteralString = "CREATE TRIGGER {name} AFTER {when} EXECUTE FUNCTION {write}({said})"
OFF: LiteralString = "DROP TRIGGER IF EXISTS {name} ON {on}"
ROW: LiteralString = "INSERT OR UPDATE OR DELETE ON {on} FOR EACH ROW"
WHOLE: LiteralString = "TRUNCATE ON {on} FOR EACH STATEMENT"


@dataclass(frozen=True)
class Triggers(ChangeTable):
    """A table of changes and the triggers that fill it."""

    tables: tuple[str, ...] = ()

    def statements(self) -> list[tuple[str, str]]:
        from psycopg.sql import SQL, Identifier, Literal

        schema, name = self.table.split(".", 1)
        write = Identifier(schema, f"{name[:57]}_write")
        made = SQL(FUNCTION).format(write=write, body=Literal(self.about(WRITE).as_string())).as_string()
        undo = SQL("DROP FUNCTION IF EXISTS {write}()").format(write=write).as_string()
        both = [*super().statements(), (made, undo)]
        for table in self.tables:
            for trigger, when in self._triggers():
                on = Identifier(*table.split(".", 1))
                said = {"name": Identifier(trigger), "write": write, "on": on, "said": Literal(table)}
                off = SQL(OFF).format(**said).as_string()
                begin = SQL(ON).format(**said, when=SQL(when).format(on=on)).as_string()
                both.append((f"{off};\n{begin}", off))
        return both

    def _triggers(self) -> list[tuple[str, LiteralString]]:
        name = f"tidings_{self.source.replace('-', '_')}"
        return [(f"{name[:58]}_row", ROW), (f"{name[:58]}_all", WHOLE)]

    def problems(self, connection: Connection[Any]) -> Iterator[Problem]:
        from psycopg.sql import Identifier

        yield from super().problems(connection)
        for table in self.tables:
            quoted = Identifier(*table.split(".", 1)).as_string()
            missing = [name for name, _ in self._triggers() if not self.has_trigger(connection, quoted, name)]
            if missing:
                yield (
                    "source_not_ready",
                    f"{table} lacks the trigger {missing[0]}, or it is disabled",
                    "a trigger that writes every change",
                    f"Run `tidings source install {self.source}`. Changes made meanwhile were not written down: load a snapshot of"
                    " the table.",
                )


def tap(settings: Settings, source: Source) -> Triggers:
    """The reader a source with triggers declares."""
    assert source.connection is not None, "checked with the folder"
    server = Server(source.name, settings.secret(source.connection).reveal())
    table = own_table(source.name, source.table)
    return Triggers(server, table, source.after == "keep", tables=tuple(sorted(source.entities)))
