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


KINDS: Mapping[str, Kind] = {
    "files": Kind(needs=("path",)),
    "inbox": Kind(),
    "mysql": Kind(needs=("connection",), dialect="mysql_rows", tap="tidings.sources.mysql"),
    "postgresql": Kind(
        needs=("connection",), may=("slot",), dialect="postgresql_wal", tap="tidings.sources.postgresql"
    ),
}
OPTIONS = tuple(sorted({name for kind in KINDS.values() for name in (*kind.needs, *kind.may)}))
EXPECTED = {
    "path": "the drop folder",
    "connection": "a reference to the connection, like env:CRM_DATABASE",
}
