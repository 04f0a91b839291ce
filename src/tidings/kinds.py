"""The kinds of source: what the YAML of each must and may say, what it speaks by itself, and where its reader is. No Spark here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """`tap` is the module whose `tap(settings, source)` makes the log, `queue` the one that empties a queue into the inbox.

    Kinds with neither are folders. `jars` names what Spark needs for it and PySpark does not bring (jars.py).
    """

    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    dialect: str = "auto"
    tap: str = ""
    jars: str = ""
    queue: str = ""
    after: str = "keep"  # what becomes of what was read, unless the source says otherwise


KINDS: Mapping[str, Kind] = {
    "files": Kind(needs=("path",)),
    "inbox": Kind(),
    "exports": Kind(needs=("path",), may=("max_deletes",), dialect="table_diff"),
    "kafka": Kind(needs=("connection", "streams"), tap="tidings.sources.kafka", jars="kafka"),
    "mysql": Kind(needs=("connection",), dialect="mysql_rows", tap="tidings.sources.mysql"),
    "postgresql": Kind(
        needs=("connection",), may=("slot",), dialect="postgresql_wal", tap="tidings.sources.postgresql"
    ),
    "dynamodb": Kind(may=("connection",), dialect="dynamodb_streams", tap="tidings.sources.dynamodb"),
    "kinesis": Kind(needs=("streams",), may=("connection",), tap="tidings.sources.kinesis"),
    "sqs": Kind(needs=("streams",), may=("connection",), queue="tidings.sources.sqs"),
    "mongodb": Kind(needs=("connection",), dialect="mongodb_changestream", tap="tidings.sources.mongodb"),
    "sqlserver": Kind(needs=("connection",), dialect="sqlserver_cdc", tap="tidings.sources.sqlserver"),
    "cockroachdb": Kind(needs=("connection",), dialect="cockroachdb_wrapped", tap="tidings.sources.cockroachdb"),
    "redis": Kind(needs=("connection", "streams"), may=("slot",), tap="tidings.sources.redis"),
    "rabbitmq": Kind(needs=("connection", "streams"), may=("slot",), tap="tidings.sources.rabbitmq"),
    "nats": Kind(needs=("connection", "streams"), tap="tidings.sources.nats"),
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
    "streams": "the topics, streams or queues to read, like [customers]",
    "column": "the column that says when a row was last changed, like updated_at",
    "connection": "a reference to the connection, like env:CRM_DATABASE",
}
