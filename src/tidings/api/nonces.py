"""Which signed messages were taken already: on disk, so that a restart forgets none, and bounded by time and number.

A message is remembered for twice the tolerance of its timestamp: after that its own age refuses it. A message is noted in the same
transaction in which its effect is made durable, effect first: a crash between the two lets the sender try again, and the effect,
which counts once by itself, happens once.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidings import durable
from tidings.channels.signing import TOLERANCE_S
from tidings.sqlite import transaction

KEEP_S = 2 * TOLERANCE_S
MOST = 1_000_000


class Replayed(Exception):
    """This message was taken before."""


class Full(Exception):
    """More messages came within the tolerance than are remembered; none is taken until some are old enough."""


class Nonces:
    def __init__(self, data: Path, most: int = MOST) -> None:
        folder = data / "api"
        durable.make_folder(folder, 0o700)
        self._path, self._most, self._lock = folder / "callbacks.sqlite", most, threading.Lock()
        with self._open() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS seen (name TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID"
            )
            connection.execute("CREATE INDEX IF NOT EXISTS by_time ON seen (at)")

    @contextmanager
    def once(self, subscriber: str, message_id: str, now: float) -> Iterator[None]:
        """Run the body for a message that is new; noted when the body ends well. Callers of all processes take turns."""
        with self._lock, self._open() as connection:
            connection.execute("DELETE FROM seen WHERE at < ?", (now - KEEP_S,))
            name = f"{subscriber}\x1f{message_id}"
            if connection.execute("SELECT 1 FROM seen WHERE name = ?", (name,)).fetchone():
                raise Replayed
            if connection.execute("SELECT count(*) FROM seen").fetchone()[0] >= self._most:
                raise Full
            yield
            connection.execute("INSERT INTO seen VALUES (?, ?)", (name, now))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with transaction(self._path) as connection:
            yield connection
