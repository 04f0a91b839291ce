"""The vendors' books: every call and every effect, committed before the answer leaves. No personal data: subjects are digests."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Repeat = Literal["ignored", "harmless", "applied"]

TABLES = """
CREATE TABLE IF NOT EXISTS calls (
  id INTEGER PRIMARY KEY, at REAL NOT NULL, vendor TEXT NOT NULL, verb TEXT NOT NULL, status INTEGER NOT NULL,
  items INTEGER NOT NULL, reason TEXT NOT NULL, retry_after REAL);
CREATE TABLE IF NOT EXISTS effects (
  id INTEGER PRIMARY KEY, at REAL NOT NULL, call INTEGER NOT NULL, vendor TEXT NOT NULL, verb TEXT NOT NULL, key TEXT NOT NULL,
  subject TEXT NOT NULL, feed TEXT NOT NULL, sequence TEXT NOT NULL, content TEXT NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS effects_key ON effects (vendor, verb, key);
CREATE INDEX IF NOT EXISTS effects_subject ON effects (vendor, subject);
CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, vendor TEXT NOT NULL, verb TEXT NOT NULL, ready REAL NOT NULL, polls INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY, value REAL NOT NULL);
"""


def digest(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def subject_of(identity: object) -> str:
    """How the books name a person: never by their address."""
    return digest(str(identity).strip().lower())


@dataclass(frozen=True)
class Item:
    """One thing a caller asks for. `key` is what the vendor recognises a repeat by; empty when the verb has none."""

    subject: str
    content: str
    key: str = ""
    feed: str = ""  # where sequences can be compared
    sequence: str = ""
    wrong: str = ""  # why the vendor will not take it


@dataclass(frozen=True)
class Call:
    """One request and how it ended: 200 when it was served, whatever kind of 2xx the vendor's own answer was."""

    vendor: str
    verb: str
    status: int
    items: int = 0
    reason: str = ""
    retry_after: float | None = None


class Books:
    """One writer. `synchronous=FULL`: an effect the vendor admits to is on disk."""

    def __init__(self, path: str | Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(str(path), check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(TABLES)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def record(self, call: Call, items: Sequence[Item] = (), repeat: Repeat = "harmless") -> list[str]:
        """Write a call and what became of each item; the outcomes are applied, duplicate, unchanged or rejected."""
        with self._writing() as db:
            row = (time.time(), call.vendor, call.verb, call.status, call.items, call.reason, call.retry_after)
            done = db.execute(
                "INSERT INTO calls (at,vendor,verb,status,items,reason,retry_after) VALUES (?,?,?,?,?,?,?)", row
            )
            outcomes = []
            for item in items:
                outcome = "rejected" if item.wrong else self._outcome(call, item, repeat)
                effect = (time.time(), done.lastrowid, call.vendor, call.verb, item.key, item.subject)
                rest = (item.feed, item.sequence, item.content, outcome, item.wrong)
                db.execute(
                    "INSERT INTO effects (at,call,vendor,verb,key,subject,feed,sequence,content,outcome,reason)"
                    " VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                    (*effect, *rest),
                )
                outcomes.append(outcome)
            return outcomes

    def _outcome(self, call: Call, item: Item, repeat: Repeat) -> str:
        if repeat == "applied":
            return "applied"
        if item.key:
            known = "SELECT 1 FROM effects WHERE vendor=? AND verb=? AND key=? AND outcome='applied' LIMIT 1"
            return "duplicate" if self._db.execute(known, (call.vendor, call.verb, item.key)).fetchone() else "applied"
        # Without a key a repeat shows only as a state that does not move.
        last = "SELECT content FROM effects WHERE vendor=? AND subject=? AND verb=? AND outcome='applied' ORDER BY id DESC LIMIT 1"
        found = self._db.execute(last, (call.vendor, item.subject, call.verb)).fetchone()
        return "unchanged" if found and found[0] == item.content else "applied"

    def last_verb(self, vendor: str, subject: str) -> str:
        """The last thing done to this person here."""
        asked = "SELECT verb FROM effects WHERE vendor=? AND subject=? AND outcome<>'rejected' ORDER BY id DESC LIMIT 1"
        with self._lock:
            found = self._db.execute(asked, (vendor, subject)).fetchone()
        return str(found[0]) if found else ""

    def holds(self, vendor: str, key: str) -> bool:
        asked = "SELECT 1 FROM effects WHERE vendor=? AND key=? AND outcome='applied' LIMIT 1"
        with self._lock:
            return self._db.execute(asked, (vendor, key)).fetchone() is not None

    def new_job(self, vendor: str, verb: str, seconds: float) -> str:
        """An asynchronous job that will be done in a while."""
        with self._writing() as db:
            number = db.execute("SELECT COUNT(*) FROM jobs").fetchone()[0] + 1
            name = digest("job", vendor, str(number))[:24]
            db.execute("INSERT INTO jobs VALUES (?,?,?,?,0)", (name, vendor, verb, time.time() + seconds))
            return name

    def poll(self, vendor: str, job: str) -> str:
        """unknown, processing or complete."""
        with self._writing() as db:
            row = db.execute("SELECT ready FROM jobs WHERE id=? AND vendor=?", (job, vendor)).fetchone()
            if row is None:
                return "unknown"
            db.execute("UPDATE jobs SET polls = polls + 1 WHERE id=?", (job,))
            return "complete" if time.time() >= row[0] else "processing"

    def calls(self) -> dict[str, int]:
        """How many calls each vendor has met, so that a script goes on after a restart."""
        with self._lock:
            asked = "SELECT vendor, COUNT(*) FROM calls WHERE reason<>'unauthorised' GROUP BY vendor"
            return dict(self._db.execute(asked).fetchall())

    def first(self, name: str, value: float) -> float:
        """Keep the first value given under this name."""
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO marks VALUES (?,?)", (name, value))
        return self.seen(name)

    def seen(self, name: str) -> float:
        with self._lock:
            found = self._db.execute("SELECT value FROM marks WHERE name=?", (name,)).fetchone()
        return float(found[0]) if found else 0.0


def read(path: str | Path, question: str, *values: Any) -> list[sqlite3.Row]:
    """Ask closed or open books; for checkers, never for the server."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    try:
        return db.execute(question, values).fetchall()
    finally:
        db.close()


def twice_applied(path: str | Path) -> list[sqlite3.Row]:
    """Keyed effects that happened more than once: must be empty."""
    return read(
        path,
        "SELECT vendor, verb, key, COUNT(*) AS times FROM effects WHERE outcome='applied' AND key<>'' GROUP BY 1,2,3 HAVING COUNT(*)>1",
    )


def out_of_order(path: str | Path) -> list[sqlite3.Row]:
    """Applied effects whose sequence is lower than an earlier one of the same subject and feed at the same vendor: must be empty."""
    return read(
        path,
        "SELECT * FROM (SELECT vendor, subject, sequence, id, MAX(sequence) OVER (PARTITION BY vendor, subject, feed ORDER BY id"
        " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest FROM effects WHERE outcome='applied' AND sequence<>'')"
        " WHERE highest > sequence",
    )
