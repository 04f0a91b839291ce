"""A PostgreSQL server we may talk to: the connection is a secret and shows in no plan, log or error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidings.errors import SourceStopped
from tidings.sources.stops import extra_missing

if TYPE_CHECKING:
    from psycopg import Connection


DENIED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "not permitted", "no password supplied")


@dataclass(frozen=True)
class Server:
    """Where a source's database is."""

    source: str
    connection: str = field(repr=False)

    @contextmanager
    def connected(self) -> Iterator[Connection[Any]]:
        """A connection whose statements take effect at once."""
        try:
            import psycopg
        except ImportError:
            raise extra_missing("PostgreSQL", "postgresql") from None
        try:
            connection = psycopg.connect(self.connection, autocommit=True, connect_timeout=15)
        except psycopg.OperationalError as error:
            raise self._stopped(error) from None
        try:
            yield connection
        except psycopg.OperationalError as error:
            if connection.closed or connection.broken:
                raise self._stopped(error) from None
            raise
        finally:
            connection.close()

    def _stopped(self, error: Exception) -> SourceStopped:
        """A server that is away comes back by itself; one that does not let us in does not."""
        # What the server says may name the user or the database, so it is not repeated.
        denied = any(words in str(error) for words in DENIED)
        said = "the server does not let us in" if denied else f"no connection ({type(error).__name__})"
        return SourceStopped(
            "source_denied" if denied else "source_unreachable",
            f"source {self.source}: {said}",
            "a PostgreSQL server that lets us in",
            "Renew the user, password or right to connect behind the reference, and run again."
            if denied
            else "Check that it runs and that the address behind the reference is right.",
        )

    def identity(self, connection: Connection[Any]) -> str:
        """The name of this server and timeline: what positions belong to."""
        row = connection.execute(
            "SELECT system_identifier::text || '-' || timeline_id FROM pg_control_system(), pg_control_checkpoint()"
        ).fetchone()
        assert row is not None
        return str(row[0])

    def execute(self, statements: Sequence[str]) -> None:
        """Run statements that were shown; what fails says so in the server's words."""
        with self.connected() as connection:
            import psycopg

            try:
                for statement in statements:
                    connection.execute(statement.encode())
            except psycopg.Error as error:
                said = error.diag.message_primary or type(error).__name__
                what_now = "Mend it and run the verb again; what was done stays until `tidings source remove`."
                raise SourceStopped(
                    "source_not_ready", f"the server says: {said}", "the SQL to run", what_now
                ) from None


def lsn(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def position(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)
