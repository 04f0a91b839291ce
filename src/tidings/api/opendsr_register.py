"""What controllers and agents asked under which id, and which callbacks they are owed. One SQLite file, shared by all processes.

    data/rights/callbacks/register.sqlite

Who the person is stands nowhere here. What could tie a row to somebody (the keyed likeness of their identities, the salted digest of
the body) goes when the request is worked on; addresses of callbacks are sealed. A request is noted after it is durable in the desk's
inbox: a crash between the two lets the caller ask again, and asking again is asking once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidings import durable
from tidings.rights.asks import Identifier
from tidings.seal.keyring import associated, open_payload, seal_payload
from tidings.sqlite import transaction

if TYPE_CHECKING:
    from tidings.settings import Settings

TABLES = (
    "CREATE TABLE IF NOT EXISTS asked (request TEXT PRIMARY KEY, protocol TEXT, version TEXT, agent TEXT, reference TEXT,"
    " kind TEXT, received REAL, expected REAL, salt BLOB, digest BLOB, likeness BLOB, grouped BLOB, sealed BLOB,"
    " told TEXT DEFAULT '', ended REAL)",
    "CREATE INDEX IF NOT EXISTS by_reference ON asked (agent, reference)",
    "CREATE INDEX IF NOT EXISTS by_group ON asked (agent, grouped)",
    "CREATE INDEX IF NOT EXISTS by_likeness ON asked (likeness)",
    "CREATE TABLE IF NOT EXISTS owed (number INTEGER PRIMARY KEY, request TEXT, place INTEGER, status TEXT,"
    " tries INTEGER DEFAULT 0, at REAL, over TEXT DEFAULT '')",
    "CREATE INDEX IF NOT EXISTS by_time ON owed (over, at)",
)


@dataclass(frozen=True)
class Row:
    """One request as its asker knows it."""

    request: str
    protocol: str
    version: str
    agent: str
    reference: str
    kind: str
    received: datetime
    expected: datetime | None
    callbacks: tuple[str, ...] = ()
    group: str = ""
    told: str = ""
    ended: float | None = None
    salt: bytes | None = None
    digest: bytes | None = None

    def same_body(self, body: bytes) -> bool:
        """False as well once the digest is gone."""
        return bool(self.salt and self.digest) and hmac.compare_digest(
            _digest(self.salt or b"", body), self.digest or b""
        )


class Register:
    def __init__(self, settings: Settings) -> None:
        folder = settings.data_path / "rights" / "callbacks"
        durable.make_folder(folder, 0o700)
        self.path, self._ring = folder / "register.sqlite", settings.keyring
        with self.open() as connection:
            for text in TABLES:
                connection.execute(text)

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        with transaction(self.path) as connection:
            connection.row_factory = sqlite3.Row
            yield connection

    def note(self, connection: sqlite3.Connection, row: Row, body: bytes, likeness: bytes) -> None:
        salt = secrets.token_bytes(16)
        said = json.dumps({"callbacks": row.callbacks, "group": row.group}).encode()
        place = associated("callbacks", row.request, "asked")
        sealed = seal_payload(said, self._ring.derive("callbacks"), self._ring.derive("iv"), place)
        grouped = self._mac("group", row.group) if row.group else None
        expected = row.expected.timestamp() if row.expected else None
        head = (row.request, row.protocol, row.version, row.agent, row.reference, row.kind, row.received.timestamp())
        rest = (expected, salt, _digest(salt, body), likeness, grouped, sealed)
        names = "request, protocol, version, agent, reference, kind, received, expected, salt, digest, likeness, grouped, sealed"
        connection.execute(f"INSERT INTO asked ({names}) VALUES ({', '.join('?' * 13)})", (*head, *rest))  # noqa: S608

    def by_reference(self, connection: sqlite3.Connection, agent: str, reference: str) -> Row | None:
        found = connection.execute("SELECT * FROM asked WHERE agent = ? AND reference = ?", (agent, reference))
        return next(iter(self._rows(found.fetchall())), None)

    def by_group(self, connection: sqlite3.Connection, agent: str, group: str) -> list[Row]:
        known = (agent, self._mac("group", group))
        return self._rows(
            connection.execute(
                "SELECT * FROM asked WHERE agent = ? AND grouped = ? ORDER BY received LIMIT 1000", known
            ).fetchall()
        )

    def alike(self, connection: sqlite3.Connection, likeness: bytes) -> bool:
        found = connection.execute("SELECT 1 FROM asked WHERE likeness = ? AND ended IS NULL", (likeness,))
        return found.fetchone() is not None

    def open_rows(self, connection: sqlite3.Connection) -> list[Row]:
        return self._rows(connection.execute("SELECT * FROM asked WHERE ended IS NULL").fetchall())

    def one(self, connection: sqlite3.Connection, request: str) -> Row | None:
        found = connection.execute("SELECT * FROM asked WHERE request = ?", (request,))
        return next(iter(self._rows(found.fetchall())), None)

    def likeness(self, agent: str, kind: str, people: Sequence[Identifier]) -> bytes:
        said = sorted(f"{one.kind}\x1f{one.value.strip().lower()}" for one in people)
        return self._mac("likeness", "\x1e".join([agent, kind, *said]))

    def _mac(self, purpose: str, text: str) -> bytes:
        return hmac.new(self._ring.derive(f"callbacks-{purpose}"), text.encode(), hashlib.sha256).digest()[:16]

    def _rows(self, found: Sequence[sqlite3.Row]) -> list[Row]:
        return [self._row(one) for one in found]

    def _row(self, one: sqlite3.Row) -> Row:
        opened = {"callbacks": [], "group": ""}
        if one["sealed"]:
            place = associated("callbacks", one["request"], "asked")
            opened = json.loads(open_payload(self._ring.derive("callbacks"), place, one["sealed"]))
        names = ("request", "protocol", "version", "agent", "reference", "kind", "told", "ended", "salt", "digest")
        said: dict[str, Any] = {name: one[name] for name in names}
        said["received"] = datetime.fromtimestamp(one["received"], UTC)
        said["expected"] = datetime.fromtimestamp(one["expected"], UTC) if one["expected"] else None
        return Row(**said, callbacks=tuple(opened["callbacks"]), group=str(opened["group"]))


def _digest(salt: bytes, body: bytes) -> bytes:
    return hmac.new(salt, body, hashlib.sha256).digest()
