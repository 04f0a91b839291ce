"""What a receiver remembers: which events it took, and how far it is with each subject.

A store gives *turns*. All of a turn is kept or none of it: with `DatabaseStore` the handler writes through the same connection, so
an event's effect and the memory of it are one transaction, and a crash between them is impossible. That is what turns "at least
once" on the wire into once in the receiver's database.

What breaks it: a handler that writes elsewhere than through the turn's connection, and a memory that is lost (`MemoryStore` after
a restart).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

KEEP_S = 90 * 86_400.0  # longer than any sender's schedule, and long enough for a replay of a quarter


class Turn(Protocol):
    """One event's transaction."""

    @property
    def connection(self) -> Any:
        """What the handler writes through; None where there is no database."""
        ...

    def claim(self, key: str) -> bool:
        """True for whoever comes first with this event."""
        ...

    def newest(self, line: str) -> tuple[str, str] | None:
        """Sequence and causality of the newest event applied on this line."""
        ...

    def advance(self, line: str, sequence: str, causality: str) -> None:
        """This event is now the newest of its line."""
        ...


class Store(Protocol):
    def turn(self) -> AbstractContextManager[Turn]:
        """Kept when the body ends, undone when it raises."""
        ...


class MemoryStore:
    """For tests and for receivers whose effects are harmless to repeat. Bounded; forgets the oldest, and all at a restart."""

    def __init__(self, most: int = 100_000) -> None:
        self._most, self._lock = most, threading.Lock()
        self._seen: dict[str, None] = {}
        self._lines: dict[str, tuple[str, str]] = {}

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        with self._lock:
            turn = _MemoryTurn(self._seen, self._lines)
            yield turn
            self._seen.update(dict.fromkeys(turn.claimed))
            self._lines.update(turn.moved)
            for kept in (self._seen, self._lines):
                while len(kept) > self._most:
                    del kept[next(iter(kept))]


class _MemoryTurn:
    connection = None

    def __init__(self, seen: dict[str, None], lines: dict[str, tuple[str, str]]) -> None:
        self._seen, self._lines = seen, lines
        self.claimed: list[str] = []
        self.moved: dict[str, tuple[str, str]] = {}

    def claim(self, key: str) -> bool:
        first = key not in self._seen and key not in self.claimed
        self.claimed += [key] if first else []
        return first

    def newest(self, line: str) -> tuple[str, str] | None:
        return self.moved.get(line) or self._lines.get(line)

    def advance(self, line: str, sequence: str, causality: str) -> None:
        self.moved[line] = (sequence, causality)


CREATE = (
    "CREATE TABLE IF NOT EXISTS tidings_seen (event TEXT PRIMARY KEY, at DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE IF NOT EXISTS tidings_newest (line TEXT PRIMARY KEY, sequence TEXT NOT NULL, causality TEXT NOT NULL)",
)


class DatabaseStore:
    """In the receiver's own database: SQLite, or PostgreSQL with `mark="%s"`. `connect` gives a DB-API connection per turn."""

    def __init__(self, connect: Callable[[], Any], mark: str = "?", keep_s: float = KEEP_S) -> None:
        if mark not in ("?", "%s"):
            raise ValueError("a parameter is written ? or %s")
        self._connect, self._mark, self._keep_s = connect, mark, keep_s
        connection = connect()
        try:
            cursor = connection.cursor()
            for statement in CREATE:
                cursor.execute(statement)
            connection.commit()
        finally:
            connection.close()

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        connection = self._connect()
        try:
            yield _DatabaseTurn(connection, self._mark)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()

    def forget(self, now: float | None = None) -> int:
        """Drop the memory of events older than the store keeps; run it daily."""
        connection = self._connect()
        try:
            cursor = connection.cursor()
            oldest = (time.time() if now is None else now) - self._keep_s
            cursor.execute(f"DELETE FROM tidings_seen WHERE at < {self._mark}", (oldest,))  # noqa: S608
            connection.commit()
            return int(cursor.rowcount)
        finally:
            connection.close()


class _DatabaseTurn:
    def __init__(self, connection: Any, mark: str) -> None:
        self.connection, self._mark = connection, mark

    def _run(self, statement: str, *values: object) -> Any:
        cursor = self.connection.cursor()
        cursor.execute(statement.replace("?", self._mark), values)
        return cursor

    def claim(self, key: str) -> bool:
        # Two at once: the second waits for the first one's transaction and then finds the key taken.
        statement = "INSERT INTO tidings_seen (event, at) VALUES (?, ?) ON CONFLICT (event) DO NOTHING"
        return int(self._run(statement, key, time.time()).rowcount) == 1

    def newest(self, line: str) -> tuple[str, str] | None:
        # SQLite has one writer at a time; elsewhere the row is held until the turn ends.
        hold = " FOR UPDATE" if self._mark == "%s" else ""
        row = self._run(f"SELECT sequence, causality FROM tidings_newest WHERE line = ?{hold}", line).fetchone()  # noqa: S608
        return None if row is None else (str(row[0]), str(row[1]))

    def advance(self, line: str, sequence: str, causality: str) -> None:
        self._run(
            "INSERT INTO tidings_newest (line, sequence, causality) VALUES (?, ?, ?)"
            " ON CONFLICT (line) DO UPDATE SET sequence = excluded.sequence, causality = excluded.causality",
            line,
            sequence,
            causality,
        )


class SqliteStore(DatabaseStore):
    """A file. The handler gets the same connection and may keep its own tables there."""

    def __init__(self, path: str | Path, keep_s: float = KEEP_S) -> None:
        def connect() -> sqlite3.Connection:
            # IMMEDIATE: writers queue at the start of a turn instead of failing in the middle of it.
            connection = sqlite3.connect(str(path), timeout=30, isolation_level="IMMEDIATE")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            return connection

        super().__init__(connect, "?", keep_s)
