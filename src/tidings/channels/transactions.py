"""Transactions on a database: sessions that are kept, cut when the time is over, and what a failure means.

A failure before the end is a rollback and so transient; one at the end is a doubt unless the server itself said no.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from tidings.channels.addresses import BadTarget
from tidings.channels.call import Outcome
from tidings.channels.databases import Database, cut_off


class Lost(Exception):
    """The transaction did not happen, or nobody knows whether it did; the outcome says which."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(outcome.code)


@dataclass
class Sessions:
    """Connections of one channel, each used by one call at a time."""

    database: Database
    prepare: Callable[[Any], None] = lambda connection: None
    _idle: list[Any] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begun(self, deadline: float) -> Any:
        """A connection inside a new transaction; one that died while idle is replaced."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._opened(deadline)
            try:
                with self.within(connection, deadline):
                    run(connection, "BEGIN")
                return connection
            except Exception:
                self.drop(connection)

    def within(self, connection: Any, deadline: float) -> AbstractContextManager[None]:
        return cut_off(self.database.socket_of(connection), deadline - time.monotonic())

    def give(self, connection: Any) -> None:
        with self._lock:
            self._idle.append(connection)

    def drop(self, connection: Any) -> None:
        with suppress(Exception):
            connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self.drop(connection)

    def _opened(self, deadline: float) -> Any:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection = self.database.connect(left)
        try:
            with self.within(connection, deadline):
                self.prepare(connection)
                run(connection, "BEGIN")
        except Exception:
            self.drop(connection)
            raise
        return connection


def run(connection: Any, statement: str, values: Sequence[Any] = ()) -> tuple[int, list[Any]]:
    """How many rows a statement touched, and the rows it gave."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        rows = list(cursor.fetchall()) if cursor.description else []
        return int(cursor.rowcount), rows


def in_transaction(sessions: Sessions, deadline: float, work: Callable[[Any], Any], end: str = "COMMIT") -> Any:
    """Begin, work, end; Lost says what a failure means. The connection is cut when the time is over."""
    database = sessions.database
    if time.monotonic() >= deadline:
        raise Lost(Outcome("", "transient", "not_reached", detail="the call's time was over before its turn"))
    try:
        connection = sessions.begun(deadline)
    except BadTarget as reason:
        raise Lost(Outcome("", "refused", reason.code, detail=reason.detail)) from None
    except ImportError:
        raise
    except Exception as error:
        raise Lost(Outcome("", "transient", database.code(error), detail="no connection")) from None
    ending = False
    try:
        with sessions.within(connection, deadline):
            found = work(connection)
            ending = True
            run(connection, end)
    except Exception as error:
        sessions.drop(connection)
        raise Lost(_failed(database, error, ending)) from None
    sessions.give(connection)
    return found


def _failed(database: Database, error: Exception, ending: bool) -> Outcome:
    code = database.code(error)
    if ending and not database.answered(error):
        return Outcome("", "in_doubt", code, detail="the connection broke while it was committed")
    if ending and database.bad_row(error):  # a constraint that is checked at the end; the lane finds the member
        return Outcome("", "terminal", code, detail="the table refuses the values")
    return Outcome("", "transient", code, detail="rolled back")
