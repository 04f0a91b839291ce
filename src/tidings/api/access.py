"""Who may ask: one or several tokens per subscriber or scope, of 256 random bits, shown once and kept only as SHA-256.

    data/api/tokens.json        subscriber → [{id, digest, made}]

A plain digest is enough: nobody can guess 256 bits, and there is nothing to look up in a table. What breaks it: a token in other
hands, until it is taken back with `tidings serve revoke`.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tidings import durable
from tidings.errors import Damaged, Refused

PREFIX = "tdgs_"
MOST_TOKENS = 20  # of one subscriber
# What a token that is no subscriber's is for; its holder is SCOPE:NAME, and the name is who answers for what is done with it.
SCOPES = {
    "ask": "hand in requests of people",
    "vouch": "the same, for people whose identity the holder has checked",
    "desk": "answer for requests of people",
    "signals": "hand in what browsers and consent tools say",
}


@dataclass(frozen=True)
class Token:
    """What is kept of a token; `id` is its public name."""

    id: str
    digest: str
    made: str


class Tokens:
    """Read again whenever the file changed, so that a token made or taken back holds at once."""

    def __init__(self, data: Path) -> None:
        self.path = data / "api" / "tokens.json"
        self._mark: tuple[int, int] | None = None
        self._known: dict[str, tuple[Token, ...]] = {}

    def known(self) -> dict[str, tuple[Token, ...]]:
        try:
            state = self.path.stat()
        except FileNotFoundError:
            return {}
        if (mark := (state.st_mtime_ns, state.st_ino)) != self._mark:
            self._known, self._mark = self._read(), mark
        return self._known

    def holder(self, given: str) -> str | None:
        """The subscriber this token belongs to. Every digest is compared, so the time taken tells nothing."""
        digest = _digest(given)
        found = None
        for subscriber, tokens in self.known().items():
            for token in tokens:
                if hmac.compare_digest(token.digest, digest):
                    found = subscriber
        return found

    def make(self, subscriber: str) -> tuple[str, Token]:
        """A new token: its text, which is not kept, and what is."""
        text = PREFIX + secrets.token_urlsafe(32)
        token = Token(secrets.token_hex(4), _digest(text), datetime.now(UTC).isoformat(timespec="seconds"))
        with self._changing() as known:
            if len(known.get(subscriber, ())) >= MOST_TOKENS:
                found = f"{MOST_TOKENS} tokens of {subscriber}"
                raise Refused("too_many_tokens", found, f"fewer than {MOST_TOKENS}", "Take one back first.")
            known[subscriber] = (*known.get(subscriber, ()), token)
        return text, token

    def revoke(self, subscriber: str, name: str = "") -> list[Token]:
        """Take back one token by its id, or all of a subscriber; those that were taken back."""
        with self._changing() as known:
            gone = [token for token in known.get(subscriber, ()) if name in ("", token.id)]
            known[subscriber] = tuple(token for token in known.get(subscriber, ()) if token not in gone)
        return gone

    @contextmanager
    def _changing(self) -> Iterator[dict[str, tuple[Token, ...]]]:
        durable.make_folder(self.path.parent, 0o700)
        with self.path.with_name("tokens.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self._read() if self.path.exists() else {}
            yield known
            document = {name: [asdict(token) for token in tokens] for name, tokens in known.items() if tokens}
            durable.durable_write(self.path, json.dumps(document, indent=1) + "\n")

    def _read(self) -> dict[str, tuple[Token, ...]]:
        try:
            document = json.loads(self.path.read_text())
            return {name: tuple(Token(**one) for one in tokens) for name, tokens in document.items()}
        except (ValueError, TypeError, AttributeError):
            raise Damaged(
                "token_file", f"{self.path} cannot be read", "tokens", "Restore it, or make new ones."
            ) from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
