"""The kinds of source: what the YAML of each must and may say, what it speaks by itself, and where its reader is. No Spark here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """`tap` is the module whose `tap(settings, source)` makes the log; kinds without one are folders.

    `jars` names what Spark needs for it and PySpark does not bring (jars.py).
    """

    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    dialect: str = "auto"
    tap: str = ""
    jars: str = ""


KINDS: Mapping[str, Kind] = {
    "files": Kind(needs=("path",)),
    "inbox": Kind(),
    "kafka": Kind(needs=("connection", "streams"), tap="tidings.sources.kafka", jars="kafka"),
    "postgresql": Kind(
        needs=("connection",), may=("slot",), dialect="postgresql_wal", tap="tidings.sources.postgresql"
    ),
}
OPTIONS = tuple(sorted({name for kind in KINDS.values() for name in (*kind.needs, *kind.may)}))
EXPECTED = {
    "path": "the drop folder",
    "streams": "the topics, streams or queues to read, like [crm.public.customers]",
    "connection": "a reference to the connection, like env:CRM_DATABASE",
}
