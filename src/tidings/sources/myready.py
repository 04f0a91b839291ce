"""What a MySQL or MariaDB server must be set to so that its log tells everything, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tidings.sources.myserver import Status, here, rows, status, variables

if TYPE_CHECKING:
    from tidings.sources.myserver import Db

Problem = tuple[str, str, str]
# What can be set while the server runs. `/*M!` is read by MariaDB alone.
INSTALL = (
    "SET GLOBAL binlog_format = 'ROW', GLOBAL binlog_row_image = 'FULL', GLOBAL binlog_row_metadata = 'FULL'"
    " /*M!100500 , GLOBAL gtid_strict_mode = ON */"
)
WANTED = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "binlog_checksum": "CRC32",
}
MARIADB = {"gtid_strict_mode": "ON", "log_bin_compress": "OFF"}
MYSQL = {"gtid_mode": "ON", "binlog_transaction_compression": "OFF", "binlog_row_value_options": ""}
UNKNOWN = (
    "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
    " AND (data_type = 'vector' OR column_type LIKE '%%COMPRESSED%%')"
)
FIXED = ("log_bin",)  # only with a restart
LATER = (
    "binlog_transaction_compression",
    "binlog_row_value_options",
    "log_bin_compress",
)  # absent in older servers, which is fine


def problems(connection: Db, tables: Sequence[str]) -> Iterator[Problem]:
    """(found, expected, what now), most basic first."""
    known = variables(connection)
    for name, value in {**WANTED, **(MARIADB if here(connection).mariadb else MYSQL)}.items():
        found = known.get(name)
        if found is None and name not in LATER:
            yield f"no setting {name}", f"{name} = {value}", "Use MariaDB 10.5 or MySQL 8.0.14, or newer."
        elif found is not None and found.upper() != value:
            how = "Set it in the server's configuration" + (
                " and restart it." if name in FIXED else _at_once(name, value)
            )
            yield f"{name} is {found or 'empty'}", f"{name} = {value or 'empty'}", how
    now = status(connection)
    for table in tables:
        yield from _table(connection, table, now)


def _at_once(name: str, value: str) -> str:
    if name == "gtid_mode":
        return "; the server's manual says in which steps."
    return f", and at once with SET GLOBAL {name} = '{value}'. Sessions that are open keep the old value."


def _table(connection: Db, table: str, now: Status | None) -> Iterator[Problem]:
    schema, _, name = table.partition(".")
    found = (
        "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s AND table_type <> 'VIEW'"
    )
    if not rows(connection, found, (schema, name)):
        how = "Name it schema.table as the server spells it, and grant SELECT on it."
        yield f"no table {table}, or no right to see it", "every table of the source", how
    if odd := rows(connection, UNKNOWN, (schema, name)):
        how = "Change the type, or leave the table out of the source."
        yield (
            f"{table}.{odd[0][0]} is of a type that cannot be read from the log",
            "no COMPRESSED or VECTOR columns",
            how,
        )
    if now is not None and (schema in now.without.split(",") or (now.only and schema not in now.only.split(","))):
        how = "Take it out of binlog_ignore_db, or into binlog_do_db, and restart the server."
        yield f"changes of {schema} are not logged", "every schema of the source in the log", how
