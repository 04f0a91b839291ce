"""The kinds of source: what the YAML of each must and may say, what it speaks by itself, and where its reader is. No Spark here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """`tap` is the module whose `tap(settings, source)` makes the reader; kinds without one are read by Spark itself."""

    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    dialect: str = "auto"
    tap: str = ""
    after: str = "keep"  # what becomes of what was read, unless the source says otherwise


KINDS: Mapping[str, Kind] = {
    "files": Kind(needs=("path",)),
    "inbox": Kind(),
    "postgresql": Kind(
        needs=("connection",), may=("slot",), dialect="postgresql_wal", tap="tidings.sources.postgresql"
    ),
    "outbox": Kind(
        needs=("connection",),
        may=("table", "mode", "slot"),
        dialect="change_table",
        tap="tidings.sources.outbox",
        after="delete",
    ),
    "triggers": Kind(
        needs=("connection",), may=("table",), dialect="change_table", tap="tidings.sources.triggers", after="delete"
    ),
    "polling": Kind(needs=("connection", "column"), may=("lag",), dialect="table_row", tap="tidings.sources.polling"),
}
OPTIONS = tuple(sorted({name for kind in KINDS.values() for name in (*kind.needs, *kind.may)}))
EXPECTED = {
    "path": "the drop folder",
    "column": "the column that says when a row was last changed, like updated_at",
    "connection": "a reference to the connection, like env:CRM_DATABASE",
}
