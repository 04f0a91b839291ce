"""SQL Server's change tables as a source: the rows the server itself copied from its log, read from one log position to the next.

    log ─capture job→ change tables ─range→ rows ─Spark→ journal

What breaks the guarantee: the cleanup job, which removes rows by age; where it went beyond our place the source stops with the remedy.
What it cannot see: rows of before capture was enabled, and what the capture job has not copied yet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidings.errors import SourceStopped
from tidings.sources.stops import denied, extra_missing, not_ready, purged, unreachable
from tidings.sources.tap import AT_ONCE, Offset, Taken, Tap

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source

MOST = 5_000  # transactions of a batch
DENIED = ("Invalid authorization specification", "Syntax error or access violation")
NOTHING = b"\x00" * 10
ORIGIN = "SELECT CONCAT(database_guid, '/', recovery_fork_guid) FROM sys.database_recovery_status WHERE database_id = DB_ID()"
# Before 2022 a server does not say in which zone its clock is.
ZONE = "SELECT CASE WHEN CAST(SERVERPROPERTY('ProductMajorVersion') AS int) >= 16 THEN 1 ELSE 0 END"
INSTANCES = (
    "SELECT CONCAT(s.name, '.', t.name), c.capture_instance, sys.fn_cdc_get_min_lsn(c.capture_instance)"
    " FROM cdc.change_tables c JOIN sys.tables t ON t.object_id = c.source_object_id"
    " JOIN sys.schemas s ON s.schema_id = t.schema_id ORDER BY c.create_date DESC"
)
UPTO = (
    "SELECT MAX(start_lsn), COUNT(*) FROM"
    " (SELECT TOP (?) start_lsn FROM cdc.lsn_time_mapping WHERE start_lsn > ? ORDER BY start_lsn) AS some"
)
ROWS = (
    "SELECT c.*, {time} AS tran_end_time FROM cdc.{function}(?, ?, N'all update old') c"
    " JOIN cdc.lsn_time_mapping m ON m.start_lsn = c.[__$start_lsn]"
    " ORDER BY c.[__$start_lsn], c.[__$seqval], c.[__$operation]"
)


@dataclass(frozen=True)
class Changes(Tap):
    """The change tables of one database."""

    name: str
    tables: tuple[str, ...]
    connection: str = field(repr=False)
    origin: str = ""

    @property
    def source(self) -> str:
        return self.name

    @contextmanager
    def asked(self) -> Iterator[Any]:
        """A cursor; whatever the server says besides an answer, as the error a person can act on."""
        try:
            import mssql_python
        except ImportError:
            raise extra_missing("SQL Server", "sqlserver") from None
        try:
            connection = mssql_python.connect(self.connection, autocommit=True)
            try:
                yield connection.cursor()
            finally:
                connection.close()
        except mssql_python.ConnectionStringParseError as error:
            expected, what_now = "a connection string", "Mend the secret behind `connection`."
            raise not_ready(self.name, type(error).__name__, expected, what_now) from None
        except mssql_python.Error as error:
            raise self.stopped(type(error).__name__, error.driver_error) from None

    def stopped(self, kind: str, said: str) -> SourceStopped:
        """The error of a failed statement, by the driver's own words for its SQLSTATE; the server's words may name what is secret."""
        if said in DENIED:
            return denied(self.name, said)
        return unreachable(self.name, kind, "a SQL Server that lets us in")

    def verify(self) -> str:
        with self.asked() as cursor:
            cursor.execute("SELECT is_cdc_enabled FROM sys.databases WHERE database_id = DB_ID()")
            held = self._instances(cursor) if cursor.fetchval() else {}
            if missing := [table for table in self.tables if table not in held]:
                found = f"capture is not enabled for {', '.join(missing)}"
                what_now = f"Run `tidings source install {self.name}`; the SQL Server Agent must run."
                raise not_ready(self.name, found, "change tables for every table of the source", what_now)
            cursor.execute(ORIGIN)
            return str(cursor.fetchval())

    def verified(self) -> Changes:
        return replace(self, origin=self.verify())

    def _instances(self, cursor: Any) -> dict[str, tuple[str, bytes]]:
        """Table → (its capture instance, the first position that is kept); of two the older one, which is the one that was read so far."""
        cursor.execute(INSTANCES)
        return {str(table): (str(name), bytes(least)) for table, name, least in cursor.fetchall()}

    def statements(self) -> list[tuple[str, str]]:
        named = [dict(zip(("schema", "table"), table.split(".", 1), strict=True)) for table in self.tables]
        made = [
            (
                f"EXEC sys.sp_cdc_enable_table @source_schema = {quoted(one['schema'])}, @source_name = {quoted(one['table'])},"
                " @role_name = NULL",
                f"EXEC sys.sp_cdc_disable_table @source_schema = {quoted(one['schema'])}, @source_name = {quoted(one['table'])},"
                " @capture_instance = N'all'",
            )
            for one in named
        ]
        return [("EXEC sys.sp_cdc_enable_db", "EXEC sys.sp_cdc_disable_db"), *made]

    def execute(self, statements: Sequence[str]) -> None:
        with self.asked() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def first(self) -> Offset:
        """Begins with the oldest row that is kept; the first batch is empty and says where that was."""
        return {"origin": "", "lsn": "", "since": {}, "transactions": 0}

    def latest(self, start: Offset) -> Offset:
        with self.asked() as cursor:
            held = self._instances(cursor)
            if not start["lsn"]:
                return self._begun(held)
            self._kept(start, held)
            cursor.execute(UPTO, (MOST, unhex(start["lsn"])))
            upto, count = cursor.fetchone()
        if upto is None:
            return start
        return {**start, "lsn": hexed(bytes(upto)), "transactions": start["transactions"] + int(count)}

    def _begun(self, held: Mapping[str, tuple[str, bytes]]) -> Offset:
        since = {held[table][0]: hexed(held[table][1]) for table in self.tables}
        least = min(unhex(one) for one in since.values())
        return {"origin": self.origin, "lsn": hexed(before(least)), "since": since, "transactions": 0}

    def _kept(self, start: Offset, held: Mapping[str, tuple[str, bytes]]) -> None:
        """Nothing that was not read yet may be gone."""
        if start["origin"] != self.origin:
            raise SourceStopped(
                "source_went_back",
                f"source {self.name}: the database is another one than the one that was read last, or was restored",
                "the database that the place belongs to",
                "Move the source's checkpoint folder away and run: reading begins with the oldest row that is kept, as a new epoch.",
            )
        for table in self.tables:
            instance, least = held.get(table, ("", NOTHING))
            if least == NOTHING or least > from_lsn(start, instance):
                raise purged(
                    self.name, f"the cleanup removed rows of {table} that were not read, or its capture was made anew"
                )

    def read(self, start: Offset, end: Offset) -> Iterator[Taken]:
        if not start["lsn"]:
            return
        with self.asked() as cursor:
            held = self._instances(cursor)
            self._kept(start, held)
            cursor.execute(ZONE)
            zoned = bool(cursor.fetchval())
            for table in self.tables:
                least, upto = from_lsn(start, held[table][0]), unhex(end["lsn"])
                if least <= upto:
                    cursor.execute(rows_sql(held[table][0], zoned), (least, upto))
                    yield from self._rows(cursor, table)

    def _rows(self, cursor: Any, table: str) -> Iterator[Taken]:
        names = [column[0] for column in cursor.description]
        while some := cursor.fetchmany(AT_ONCE):
            for row in some:
                yield taken(self.origin, table, dict(zip(names, row, strict=True)))

    def done(self, end: Offset) -> None:
        """The cleanup job removes rows by age; there is nothing to tell it."""

    def size(self, start: Offset, end: Offset) -> int:
        """A transaction is taken for two kilobytes: the server does not say."""
        return int(end["transactions"] - start["transactions"]) * 2_048


def from_lsn(start: Offset, instance: str) -> bytes:
    """The first position that was not read; not before the instance was made."""
    return max(after(unhex(start["lsn"])), unhex(start["since"].get(instance, hexed(NOTHING))))


def rows_sql(instance: str, zoned: bool) -> str:
    """An instance's rows in log order, with the time of their commit in UTC."""
    time = "m.tran_end_time AT TIME ZONE CURRENT_TIMEZONE_ID() AT TIME ZONE 'UTC'" if zoned else "m.tran_end_time"
    return ROWS.format(time=time, function=bracketed(f"fn_cdc_get_all_changes_{instance}"))


def taken(origin: str, table: str, row: Mapping[str, Any]) -> Taken:
    """A change table's row as a message. The row before an update has the same numbers as the one after it, and goes first."""
    told = {name: plain(value) for name, value in row.items()}
    numbers = [str(told.get(name) or 0) for name in ("__$start_lsn", "__$seqval", "__$command_id", "__$operation")]
    when = row["tran_end_time"]
    micros = round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1_000_000)
    body = json.dumps({"origin": origin, "table": table, "row": told}, ensure_ascii=False)
    rank = "-".join([numbers[0], numbers[1], numbers[2].rjust(10, "0"), numbers[3]])
    return Taken("/".join([origin, table, *numbers]), micros, rank, body)


def plain(value: Any) -> Any:
    """A column's value as JSON has it: exact numbers as numbers where they fit, bytes as 0x…, times in ISO 8601."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return hexed(bytes(value))
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else str(value)
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    return value.isoformat() if isinstance(value, date | time_of_day) else str(value)


def hexed(value: bytes) -> str:
    return f"0x{value.hex().upper()}"


def unhex(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def after(lsn: bytes) -> bytes:
    """The next position: positions are numbers of ten bytes."""
    return (int.from_bytes(lsn) + 1).to_bytes(10)


def before(lsn: bytes) -> bytes:
    return (int.from_bytes(lsn) - 1).to_bytes(10) if lsn > NOTHING else NOTHING


def quoted(text: str) -> str:
    return "N'" + text.replace("'", "''") + "'"


def bracketed(name: str) -> str:
    return "[" + name.replace("]", "]]") + "]"


def tap(settings: Settings, source: Source) -> Changes:
    """The tables that the source names, as schema.table."""
    assert source.connection is not None, "checked with the folder"
    if wrong := [name for name in source.entities if not re.fullmatch(r"[^.]+\.[^.]+", name)]:
        raise not_ready(source.name, f"the table {wrong[0]}", "names like dbo.customers", "Name the schema too.")
    return Changes(source.name, tuple(sorted(source.entities)), settings.secret(source.connection).reveal())
