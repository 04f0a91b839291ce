"""The two databases an event can be written to, where they differ: how to connect, to quote a name, to read an error.

A connection is only ever opened to an address that the guard let pass, and outside `network.allow` only with TLS.
Names from settings are quoted by the database's own rule and values are always parameters. Nothing a server says is
repeated: its text may hold what it was given, so its code alone is told.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from tidings.channels.addresses import BadTarget, canonical, is_allowed
from tidings.channels.reach import reachable
from tidings.errors import Refused

DELIVERED, SUBJECTS = "tidings_delivered", "tidings_subjects"
CONNECT_S = 10.0
UNAUTHORISED = "unauthorised"
TURNED_AWAY = ("authentication failed", "no pg_hba.conf entry", "no password supplied")


class Database(Protocol):
    """One server. `%s` stands for a value in both of them."""

    def connect(self, seconds: float) -> Any:
        """A connection where every statement is true at once until BEGIN. BadTarget when it may not be reached."""
        ...

    def quoted(self, *name: str) -> str: ...

    def upsert(self, table: str, key: str, columns: Sequence[str]) -> str: ...

    def remember(self) -> str:
        """One row where the event is new and none where it is not: (event_id, lane, subject, sequence)."""
        ...

    def advance(self) -> str:
        """A row or more where the sequence is newer than the subject's, else none: (lane, subject, sequence)."""
        ...

    def bad_row(self, error: Exception) -> bool:
        """The values are wrong for this table: a repeat cannot help."""
        ...

    def code(self, error: Exception) -> str: ...

    def answered(self, error: Exception) -> bool:
        """The server said so, in an answer to the statement; otherwise the line broke and nobody knows."""
        ...

    def socket_of(self, connection: Any) -> int: ...


@dataclass(frozen=True)
class PostgreSql:
    connection: str = field(repr=False)
    network: Sequence[str] = ()

    def connect(self, seconds: float) -> Any:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        try:
            told = conninfo_to_dict(self.connection)
        except psycopg.ProgrammingError:
            raise _unreadable() from None
        host, port = str(told.get("host") or ""), str(told.get("port") or "5432")
        if not host or host.startswith(("/", "@")) or "," in host or told.get("hostaddr") or not port.isdigit():
            raise _unreadable()
        address = reachable(host, int(port), self.network)
        if not _inside(address, self.network):
            told.setdefault("sslmode", "verify-full")
            told.setdefault("sslrootcert", "system")
            if told["sslmode"] in ("disable", "allow", "prefer"):
                raise BadTarget("cleartext", "outside network.allow a database is reached with TLS only")
        wait = max(2, int(min(seconds, CONNECT_S)))
        arguments: dict[str, Any] = {**told, "hostaddr": address, "connect_timeout": wait}
        # Statements prepared in a session are lost behind a pooler that hands sessions around.
        return psycopg.connect(**arguments, autocommit=True, prepare_threshold=None)

    def quoted(self, *name: str) -> str:
        from psycopg.sql import Identifier

        return Identifier(*name).as_string().replace("%", "%%")

    def upsert(self, table: str, key: str, columns: Sequence[str]) -> str:
        places = ", ".join(["%s"] * (len(columns) + 1))
        change = ", ".join(f"{column} = excluded.{column}" for column in columns)
        then = f"DO UPDATE SET {change}" if columns else "DO NOTHING"
        names = ", ".join([key, *columns])
        return f"INSERT INTO {table} ({names}) VALUES ({places}) ON CONFLICT ({key}) {then}"  # noqa: S608

    def remember(self) -> str:
        names = "tidings_delivered (event_id, lane, subject, sequence)"
        return f"INSERT INTO {names} VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"  # noqa: S608

    def advance(self) -> str:
        return (
            "INSERT INTO tidings_subjects (lane, subject, sequence) VALUES (%s, %s, %s) ON CONFLICT (lane, subject)"
            " DO UPDATE SET sequence = excluded.sequence WHERE tidings_subjects.sequence < excluded.sequence"
        )

    def bad_row(self, error: Exception) -> bool:
        import psycopg

        return isinstance(error, psycopg.DataError | psycopg.IntegrityError)

    def code(self, error: Exception) -> str:
        state = getattr(error, "sqlstate", None)
        # A connection that was turned away has no state, only words; they are looked at and not repeated.
        if state in ("28000", "28P01") or (state is None and any(words in str(error) for words in TURNED_AWAY)):
            return UNAUTHORISED
        return f"sql_{state or type(error).__name__}"

    def answered(self, error: Exception) -> bool:
        # 08: the connection; 57P: the server is being stopped; XX: its own fault.
        state = getattr(error, "sqlstate", None)
        return bool(state) and not str(state).startswith(("08", "57P", "XX"))

    def socket_of(self, connection: Any) -> int:
        return int(connection.fileno())


@dataclass(frozen=True)
class MariaDb:
    connection: str = field(repr=False)
    network: Sequence[str] = ()

    def connect(self, seconds: float) -> Any:
        import pymysql

        try:
            parts = urlsplit(self.connection.strip())
            more, port = dict(parse_qsl(parts.query)), parts.port or 3306
        except ValueError:
            raise _unreadable() from None
        database = unquote(parts.path.strip("/"))
        if not parts.hostname or not database or not set(more) <= {"ssl_ca"}:
            raise _unreadable()
        address = reachable(parts.hostname, port, self.network)
        context = ssl.create_default_context(cafile=more.get("ssl_ca"))
        bare = _inside(address, self.network) and not more
        wait = max(1.0, min(seconds, CONNECT_S))
        made = pymysql.connect(
            host=parts.hostname,
            port=port,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=database,
            charset="utf8mb4",
            autocommit=True,
            ssl=None if bare else context,
            read_timeout=max(1.0, seconds),
            write_timeout=max(1.0, seconds),
            # A value that does not fit is an error here, whatever the server's own mode is.
            init_command="SET sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE', time_zone = '+00:00'",
            defer_connect=True,
        )
        made.connect(socket.create_connection((address, port), timeout=wait))
        return made

    def quoted(self, *name: str) -> str:
        return ".".join(f"`{part.replace('`', '``')}`" for part in name).replace("%", "%%")

    def upsert(self, table: str, key: str, columns: Sequence[str]) -> str:
        places = ", ".join(["%s"] * (len(columns) + 1))
        change = ", ".join(f"{column} = VALUES({column})" for column in columns or [key])
        names = ", ".join([key, *columns])
        return f"INSERT INTO {table} ({names}) VALUES ({places}) ON DUPLICATE KEY UPDATE {change}"  # noqa: S608

    def remember(self) -> str:
        # The update changes nothing, so that an event that is there counts no row; IGNORE would swallow other errors.
        names = "tidings_delivered (event_id, lane, subject, sequence)"
        return f"INSERT INTO {names} VALUES (%s, %s, %s, %s) ON DUPLICATE KEY UPDATE lane = lane"  # noqa: S608

    def advance(self) -> str:
        return (
            "INSERT INTO tidings_subjects (lane, subject, sequence) VALUES (%s, %s, %s)"
            " ON DUPLICATE KEY UPDATE sequence = GREATEST(sequence, VALUES(sequence))"
        )

    def bad_row(self, error: Exception) -> bool:
        import pymysql

        checks = {3819, 4025}  # a CHECK of the table; the client calls it an operational error
        return isinstance(error, pymysql.DataError | pymysql.IntegrityError) or _number(error) in checks

    def code(self, error: Exception) -> str:
        number = _number(error)
        return UNAUTHORISED if number in (1044, 1045, 1698) else f"sql_{number or type(error).__name__}"

    def answered(self, error: Exception) -> bool:
        # From 2000 on the client speaks; 1053 and 1927 are a server that stops and a session that was killed.
        number = _number(error)
        return number >= 3000 or (1000 <= number < 2000 and number not in (1053, 1927))

    def socket_of(self, connection: Any) -> int:
        return int(connection._sock.fileno())


def database_of(connection: str, network: Sequence[str]) -> Database:
    """By its scheme: postgresql://…, a `host=… dbname=…` text, mysql://… or mariadb://…"""
    scheme = connection.strip().partition("://")[0]
    if scheme in ("mysql", "mariadb"):
        import pymysql  # noqa: F401  a package that is missing is named when the channel is opened

        return MariaDb(connection, network)
    if scheme in ("postgresql", "postgres") or "host=" in connection:
        import psycopg  # noqa: F401

        return PostgreSql(connection, network)
    raise _unreadable()


TABLES = (
    f"CREATE TABLE {DELIVERED} (event_id varchar(64) NOT NULL, lane varchar(64) NOT NULL,"
    " subject varchar(255) NOT NULL, sequence bigint NOT NULL, delivered timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (event_id, lane))",
    f"CREATE TABLE {SUBJECTS} (lane varchar(64) NOT NULL, subject varchar(255) NOT NULL, sequence bigint NOT NULL,"
    " PRIMARY KEY (lane, subject))",
)


@contextmanager
def cut_off(descriptor: int, seconds: float) -> Iterator[None]:
    """Break the connection when the time is over: no driver limits a whole transaction, and a hung server needs it."""
    line = socket.socket(fileno=os.dup(descriptor))

    def cut() -> None:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, seconds), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.close()


def _inside(address: str, network: Sequence[str]) -> bool:
    return is_allowed(canonical(address), [ipaddress.ip_network(text) for text in network])


def _number(error: Exception) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def _unreadable() -> Refused:
    return Refused(
        "sink_connection",
        "a connection that cannot be read",
        "postgresql://user:password@host:5432/database or mariadb://user:password@host:3306/database, one host",
        "Correct it behind `connection`; @ and / in a password are written %40 and %2F.",
    )
