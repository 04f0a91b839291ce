"""Which signals were applied: a count and a digest for each day and meaning, as proof of consent that names nobody.

    data/rights/signals.sqlite      applied: day, place, what, known → how many, and a chained SHA-256 over them
                                    asked: who asked for what lately, as a keyed digest

A browser says Global Privacy Control with every page; a person who said the same within a day is counted and not asked about again.
What breaks it: a lost file loses counts and digests, never a request, which is durable in the desk's inbox before anything is counted.
"""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tidings import durable
from tidings.rights.asks import Ask
from tidings.rights.signals import Heard, Signal
from tidings.sqlite import transaction

if TYPE_CHECKING:
    from tidings.settings import Settings

AGAIN = timedelta(days=1)
MOST_ASKED = 1_000_000
_TABLES = (
    "CREATE TABLE IF NOT EXISTS applied (day TEXT, place TEXT, what TEXT, known INTEGER, many INTEGER, digest TEXT,"
    " PRIMARY KEY (day, place, what, known)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS asked (who TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS by_time ON asked (at)",
)


class Applied:
    def __init__(self, settings: Settings) -> None:
        folder = settings.data_path / "rights"
        durable.make_folder(folder, 0o700)
        self._path, self._key, self._lock = (
            folder / "signals.sqlite",
            settings.keyring.derive("signal"),
            threading.Lock(),
        )
        with self._open() as connection:
            for text in _TABLES:
                connection.execute(text)

    def fresh(self, asks: Sequence[Ask], now: datetime) -> list[Ask]:
        """Those that the same person did not ask for within a day."""
        with self._open() as connection:
            since = (now - AGAIN).timestamp()
            connection.execute("DELETE FROM asked WHERE at < ?", (since,))
            found = "SELECT 1 FROM asked WHERE who = ?"
            return [ask for ask in asks if not connection.execute(found, (self._who(ask),)).fetchone()]

    def note(self, signal: Signal, heard: Heard, asked: Sequence[Ask], now: datetime) -> None:
        """Count it, and remember what was asked for. What a person allows again is no longer remembered as withheld."""
        said = hashlib.sha256(f"{now.isoformat()}\x1f{signal.without_person()}".encode()).hexdigest()
        known = int(bool(signal.identifiers))
        with self._open() as connection:
            for what in [f"{one.kind}:{' '.join(one.scope)}" for one in heard.meanings] or ["nothing"]:
                row = (now.date().isoformat(), signal.jurisdiction, what, known)
                before = connection.execute(
                    "SELECT many, digest FROM applied WHERE day = ? AND place = ? AND what = ? AND known = ?", row
                ).fetchone() or (0, "")
                digest = hashlib.sha256(f"{before[1]}{said}".encode()).hexdigest()
                connection.execute(
                    "INSERT OR REPLACE INTO applied VALUES (?, ?, ?, ?, ?, ?)", (*row, before[0] + 1, digest)
                )
            self._remember(connection, asked, now)

    def forget(self) -> None:
        """Who asked lately, for everybody: after an erasure nothing here leads to the person. The next signal asks once more."""
        with self._open() as connection:
            connection.execute("DELETE FROM asked")

    def rows(self) -> list[dict[str, Any]]:
        names = ("day", "place", "what", "known", "count", "digest")
        with self._open() as connection:
            return [dict(zip(names, row, strict=True)) for row in connection.execute("SELECT * FROM applied")]

    def _remember(self, connection: sqlite3.Connection, asked: Sequence[Ask], now: datetime) -> None:
        for ask in asked:
            if ask.kind == "opt_in":
                connection.execute("DELETE FROM asked WHERE who LIKE ?", (self._person(ask) + ".%",))
            else:
                connection.execute("INSERT OR REPLACE INTO asked VALUES (?, ?)", (self._who(ask), now.timestamp()))
        over = connection.execute("SELECT count(*) FROM asked").fetchone()[0] - MOST_ASKED
        if over > 0:
            oldest = "DELETE FROM asked WHERE who IN (SELECT who FROM asked ORDER BY at LIMIT ?)"
            connection.execute(oldest, (over,))

    def _person(self, ask: Ask) -> str:
        said = "\x1f".join(sorted(f"{one.kind}\x1e{one.value.strip().lower()}" for one in ask.identifiers))
        return hmac.new(self._key, said.encode(), hashlib.sha256).hexdigest()

    def _who(self, ask: Ask) -> str:
        said = "\x1f".join((ask.kind, ask.jurisdiction, *ask.scope))
        return f"{self._person(ask)}.{hmac.new(self._key, said.encode(), hashlib.sha256).hexdigest()[:32]}"

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with self._lock, transaction(self._path) as connection:
            yield connection
