"""A MySQL or MariaDB server we may talk to: the connection is a secret and shows in no plan, log or error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from tidings.errors import Refused, SourceStopped

if TYPE_CHECKING:
    from pymysql import Connection

    Db = Connection[Any]

# What servers answer when a person must act; everything else of a connection may end by itself.
DENIED = {1044, 1045, 1049, 1130, 1131, 1142, 1143, 1227, 1370, 1698, 1820, 1862, 3118, 3159, 4151}
LOG_GONE = 1236
NOT_KNOWN = {1064, 1193}  # a statement or variable that this server does not have
OPTIONS = {"ssl_ca", "ssl_cert", "ssl_key"}


@dataclass(frozen=True)
class Status:
    """The end of the server's log."""

    file: str
    pos: int
    gtid: str
    only: str
    without: str


@dataclass(frozen=True)
class Server:
    """Where a source's database is: mysql://user:password@host:port/?ssl_ca=…"""

    source: str
    connection: str = field(repr=False)

    def arguments(self) -> dict[str, Any]:
        """What the client is called with. Nothing of it may be shown."""
        try:
            parts = urlsplit(self.connection.strip())
            more = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
            port = parts.port or 3306
        except ValueError:
            parts, more, port = urlsplit(""), {}, 0
        if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or not set(more) <= OPTIONS:
            raise SourceStopped(
                "source_not_ready",
                f"source {self.source}: a connection that cannot be read",
                "mysql://user:password@host:port/, with ssl_ca, ssl_cert and ssl_key as options",
                "Correct it behind the reference; characters like @ and / in a password are written %40 and %2F.",
            )
        made = {"host": parts.hostname, "port": port, "charset": "utf8mb4", "connect_timeout": 15, "read_timeout": 120}
        made |= {"user": unquote(parts.username or ""), "password": unquote(parts.password or "")}
        if more:
            made |= {**more, "ssl_verify_cert": True, "ssl_verify_identity": True}
        return made

    @contextmanager
    def connected(self) -> Iterator[Db]:
        """A connection whose statements take effect at once and whose times are UTC."""
        pymysql = client()
        with self.minded():
            connection = pymysql.connect(**self.arguments(), autocommit=True, init_command="SET time_zone = '+00:00'")
            try:
                yield connection
            finally:
                connection.close()

    @contextmanager
    def minded(self) -> Iterator[None]:
        """A server that is away comes back by itself; one that does not let us in, or lost its log, needs a person."""
        pymysql = client()
        try:
            yield
        except (pymysql.err.OperationalError, pymysql.err.InterfaceError, OSError) as error:
            raise self._stopped(error) from None

    def _stopped(self, error: Exception) -> SourceStopped:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        # What the server says may name the user or the host, so only its number is repeated.
        said = f"source {self.source}: {type(error).__name__} {number}"
        if number == LOG_GONE:
            return self.gone("the log that follows what was read last")
        if number in DENIED:
            what_now = "Renew the user, password or right behind the reference, and run again."
            return SourceStopped("source_denied", said, "a server that lets us in", what_now)
        what_now = "Check that it runs and that the address behind the reference is right."
        return SourceStopped("source_unreachable", said, "a server that answers", what_now)

    def gone(self, what: str) -> SourceStopped:
        what_now = f"Keep it longer (binlog_expire_logs_seconds). {self._anew()}"
        found = f"source {self.source}: the server no longer has {what}"
        return SourceStopped("source_not_ready", found, "a log that is kept until it is read", what_now)

    def unreadable(self, found: str, setting: str) -> SourceStopped:
        what_now = f"Set it for what is written from now on. {self._anew()}"
        return SourceStopped("source_not_ready", f"source {self.source}: the log {found}", setting, what_now)

    def went_back(self, found: str) -> SourceStopped:
        what_now = f"The server was restored, or its log was reset. {self._anew()}"
        expected = "a log that goes on where it was read last"
        return SourceStopped("source_went_back", f"source {self.source}: {found}", expected, what_now)

    def _anew(self) -> str:
        return (
            f"Move data/checkpoints/{self.source} away and run: a new generation and a new epoch start at the log's end, and the tables"
            " are read anew (snapshot: state). What was deleted in between is not told."
        )

    def execute(self, statements: Sequence[str]) -> None:
        """Run statements that were shown; what fails says so in the server's words."""
        pymysql = client()
        with self.connected() as connection, connection.cursor() as cursor:
            try:
                for statement in statements:
                    cursor.execute(statement)
            except pymysql.err.MySQLError as error:
                raise SourceStopped(
                    "source_not_ready",
                    f"the server says: {error.args[-1]}",
                    "the SQL to run",
                    "Mend it, or let somebody with the right run what was shown, and run the verb again.",
                ) from None


def client() -> Any:
    try:
        import pymysql
        import pymysqlreplication  # noqa: F401
    except ImportError:
        raise Refused("extra_missing", "no MySQL client", "the extra `mysql`", "pip install 'tidings[mysql]'") from None
    return pymysql


def rows(connection: Db, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, tuple(values))
        return list(cursor.fetchall())


class Here(NamedTuple):
    """Who answers: the name that places in the log belong to, and the family."""

    name: str
    mariadb: bool


def here(connection: Db) -> Here:
    """MariaDB has no other name of itself than the number its replicas know it by."""
    known = variables(connection)
    uuid = known.get("server_uuid")
    return Here(uuid or f"mariadb-{known['server_id']}", uuid is None)


def variables(connection: Db) -> dict[str, str]:
    """The server's settings that say how it writes its log; a server that is too old lacks some."""
    names = (
        "log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_checksum", "log_bin_compress",
        "binlog_transaction_compression", "binlog_row_value_options", "gtid_mode", "gtid_strict_mode", "server_id", "server_uuid",
    )  # fmt: skip
    marks = ", ".join(["%s"] * len(names))
    found = rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
    return {name.lower(): value for name, value in found}


def status(connection: Db) -> Status | None:
    """Where the log ends and what it holds; None when there is no log."""
    pymysql = client()
    try:
        found = rows(connection, "SHOW BINARY LOG STATUS")
    except pymysql.err.ProgrammingError as error:
        if error.args[0] not in NOT_KNOWN:
            raise
        found = rows(connection, "SHOW MASTER STATUS")
    if not found:
        return None
    file, pos, only, without, *gtid = found[0]
    if gtid:
        return Status(file, pos, gtid[0].replace("\n", ""), only, without)
    return Status(file, pos, str(rows(connection, "SELECT @@gtid_binlog_pos")[0][0]), only, without)


def gtid_at(connection: Db, at: Status) -> str:
    """What the log holds up to this very place."""
    if not here(connection).mariadb:
        return at.gtid
    return str(rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (at.file, at.pos))[0][0] or "")
