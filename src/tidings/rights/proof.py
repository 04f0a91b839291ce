"""Proof that somebody reads the e-mail they gave: a code, sent to that address and to no other.

    data/rights/proof.sqlite     request → keyed digest of its code, tries, until when; the mail itself, sealed, until it is sent

A code works once, for 24 hours and 5 tries. It is compared in constant time, also where there is none, so nobody learns whether a
request waits for one. Address and code are overwritten when the mail has left; nothing here is derived from a person.

What breaks it: somebody else who reads the person's mail. It proves the address alone, so the request must name nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidings import durable
from tidings.rights.asks import ASSURANCES, Word
from tidings.rights.intake import say
from tidings.seal.keyring import associated, open_payload, seal_payload
from tidings.sqlite import transaction

if TYPE_CHECKING:
    from tidings.settings import Settings

GOOD_S = 24 * 3600.0
TRIES = 5
LETTERS = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"  # without those that look alike
LENGTH = 10
RETRY_S = 30.0


@dataclass(frozen=True)
class Due:
    """A mail that has not left yet."""

    request: str
    to: str
    code: str


class Proofs:
    """Safe to use from several threads and processes."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.settings, self.clock, self._lock = settings, clock, threading.Lock()
        folder = settings.data_path / "rights"
        durable.make_folder(folder, 0o700)
        self._path = folder / "proof.sqlite"
        ring = settings.keyring
        self._key, self._seal, self._iv = ring.derive("proof"), ring.derive("proof-mail"), ring.derive("iv")
        with self._open() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS proofs (request TEXT PRIMARY KEY, digest BLOB NOT NULL,"
                " tries INTEGER NOT NULL, until REAL NOT NULL, mail BLOB, next REAL NOT NULL) WITHOUT ROWID"
            )

    def begin(self, request: str, to: str, send: bool = True) -> None:
        """Draw a code for a request, once; without `send` a code is waited for that nobody gets, so that all look alike."""
        code = "".join(secrets.choice(LETTERS) for _ in range(LENGTH))
        text = json.dumps({"to": to, "code": code}).encode()
        mail = seal_payload(text, self._seal, self._iv, _place(request)) if send else None
        now = self.clock()
        with self._open() as connection:
            connection.execute("DELETE FROM proofs WHERE until < ?", (now,))
            row = (request, self._digest(request, code), 0, now + GOOD_S, mail, now)
            connection.execute("INSERT OR IGNORE INTO proofs VALUES (?, ?, ?, ?, ?, ?)", row)

    def due(self) -> list[Due]:
        """Mails that have to leave now."""
        with self._open() as connection:
            found = connection.execute(
                "SELECT request, mail FROM proofs WHERE mail IS NOT NULL AND next <= ? AND until > ? ORDER BY next"
                " LIMIT 100",
                (now := self.clock(), now),
            ).fetchall()
        return [Due(name, **json.loads(open_payload(self._seal, _place(name), bytes(mail)))) for name, mail in found]

    def sent(self, request: str, again: bool = False) -> None:
        """The mail left, or never can; with `again` it is tried once more later."""
        change = "next = ?" if again else "mail = NULL, next = ?"
        with self._open() as connection:
            connection.execute(f"UPDATE proofs SET {change} WHERE request = ?", (self.clock() + RETRY_S, request))  # noqa: S608

    def waits(self, request: str) -> bool:
        """Does this request wait for a code that can still be given?"""
        with self._open() as connection:
            look = "SELECT 1 FROM proofs WHERE request = ? AND until > ? AND tries < ?"
            return connection.execute(look, (request, self.clock(), TRIES)).fetchone() is not None

    def give(self, request: str, code: str) -> bool:
        """Is this the code? Then the person is who they say, and the code is used up. The word is on disk first."""
        with self._open() as connection:
            row = connection.execute(
                "SELECT digest, tries, until FROM proofs WHERE request = ?", (request,)
            ).fetchone() or (bytes(32), TRIES, 0.0)
            fits = hmac.compare_digest(bytes(row[0]), self._digest(request, code))
            if not (fits and row[1] < TRIES and row[2] > self.clock()):
                connection.execute("UPDATE proofs SET tries = tries + 1 WHERE request = ?", (request,))
                return False
            say(self.settings, verified(request, "proof by e-mail", "verified"))
            connection.execute("DELETE FROM proofs WHERE request = ?", (request,))
            return True

    def _digest(self, request: str, code: str) -> bytes:
        plain = "".join(one for one in code.upper() if one in LETTERS)[: 2 * LENGTH]
        return hmac.new(self._key, f"{request}\x1f{plain}".encode(), hashlib.sha256).digest()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with self._lock, transaction(self._path) as connection:
            yield connection


def verified(request: str, by: str, assurance: str, evidence: str = "") -> Word:
    """The word that somebody proved who they are."""
    assert assurance in ASSURANCES
    return Word(request, "verify", by, evidence=evidence, says={"assurance": assurance})


def _place(request: str) -> bytes:
    return associated("rights", request, "proof")
