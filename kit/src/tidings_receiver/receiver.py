"""A request on its way to a handler: who sent it, is it new, is it still true; and what the sender is told.

    OPTIONS                          200 when the origin is allowed, 403 otherwise (the validation handshake)
    no good signature                401  bad_signature, missing_header, outside_tolerance, …
    larger than the cap              413  too_large
    not what its headers say         400  not_json, not_an_event, too_many
    handled, duplicate or stale      200  with a result per event
    the handler says no for good     422  rejected
    the handler failed               500  handler_failed; nothing of that event is kept, and the sender tries again

Each event is one turn of the store: claimed, compared with the newest of its subject, handled, kept together.
What breaks it: a handler that answers for work it has not done, or writes past the turn's connection.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from tidings_receiver.causality import compare
from tidings_receiver.events import BadEvent, Event, read_events
from tidings_receiver.messages import verify_message
from tidings_receiver.signatures import TOLERANCE_S, BadSignature, read_keys, verify
from tidings_receiver.stores import MemoryStore, Store, Turn

MAX_BYTES = 1_000_000
Result = Literal["ok", "duplicate", "stale", "rejected", "failed"]
# The event and the turn's connection, which is None where there is no database.
Handler = Callable[[Event, Any], None]


class Reject(Exception):
    """A handler's no for good. The reason goes to the sender: no personal data in it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True)
class Request:
    """`target` is the path with its query, or the whole address."""

    method: str
    target: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


@dataclass(frozen=True)
class Taken:
    """What became of one event."""

    id: str
    result: Result
    reason: str = ""


@dataclass
class Receiver:
    """One endpoint. `line` says what an older event is compared with: the newest of its subject, or of its subject and type."""

    secrets: Sequence[str] = field(repr=False)
    handler: Handler
    store: Store = field(default_factory=MemoryStore)
    url: str = ""  # the address the sender has, where a proxy changes it (RFC 9421 covers the address)
    line: Literal["subject", "type"] = "subject"
    origins: Sequence[str] = ()  # who may send here, for the handshake; "*" is everybody
    per_minute: int = 0  # the rate the handshake allows; 0 is any
    max_bytes: int = MAX_BYTES
    tolerance: int = TOLERANCE_S
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._keys = read_keys(self.secrets)

    def answer(self, request: Request) -> Answer:
        """What the sender is told. Raises nothing for a request, however bad."""
        if request.method == "OPTIONS":
            return self._handshake(request)
        if request.method != "POST":
            return _error(405, "method_not_allowed")
        if len(request.body) > self.max_bytes:
            return _error(413, "too_large")
        try:
            message_id = self._verified(request)
        except BadSignature as bad:
            return _error(401, bad.code)
        try:
            events = read_events(request.headers, request.body, message_id)
        except BadEvent as bad:
            return _error(400, bad.code)
        taken = [self.take(event) for event in events]
        results = {one.result for one in taken}
        status = 500 if "failed" in results else 422 if "rejected" in results else 200
        return _json(status, {"results": [asdict(one) for one in taken]})

    def take(self, event: Event) -> Taken:
        """One event, already known to come from the sender; also for what was pulled."""
        try:
            with self.store.turn() as turn:
                return self._turn(event, turn)
        except Reject as no:
            return Taken(event.id, "rejected", no.reason[:200])
        except Exception as error:  # the text may be personal, its kind is not
            return Taken(event.id, "failed", type(error).__name__)

    def _turn(self, event: Event, turn: Turn) -> Taken:
        if not turn.claim(event.key):
            return Taken(event.id, "duplicate")
        line = self._line(event)
        if line and is_stale(event, turn.newest(line)):
            return Taken(event.id, "stale")  # remembered, so that a repeat is a duplicate
        self.handler(event, turn.connection)
        if line:
            turn.advance(line, event.sequence, event.causality)
        return Taken(event.id, "ok")

    def _line(self, event: Event) -> str:
        if not event.subject or not (event.sequence or event.causality):
            return ""
        parts = [event.source, event.subject, event.type if self.line == "type" else ""]
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()

    def _verified(self, request: Request) -> str:
        names = {name.lower() for name in request.headers}
        if "webhook-signature" in names or "signature-input" not in names:
            return verify(self._keys, request.headers, request.body, self.clock(), self.tolerance)
        message = (request.method, self._target(request), request.headers, request.body)
        return verify_message(self._keys, message, self.clock(), self.tolerance)

    def _target(self, request: Request) -> str:
        if self.url:
            return self.url
        if urlsplit(request.target).scheme:
            return request.target
        host = next((value for name, value in request.headers.items() if name.lower() == "host"), "")
        return f"http://{host}{request.target}"

    def _handshake(self, request: Request) -> Answer:
        lower = {name.lower(): value for name, value in request.headers.items()}
        origin = lower.get("webhook-request-origin", "").strip().lower()
        if not origin or not {origin, "*"} & set(self.origins):
            return _error(403, "origin_not_allowed")
        rate = str(self.per_minute or "*")
        allowed = {"Allow": "OPTIONS, POST", "WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": rate}
        return Answer(200, b"", allowed)


def is_stale(event: Event, newest: tuple[str, str] | None) -> bool:
    """Older than what was applied last: by causality where both have it and one includes the other, else by sequence."""
    if newest is None:
        return False
    sequence, causality = newest
    if event.causality and causality:
        try:
            order = compare(event.causality, causality)
        except ValueError:
            order = "concurrent"
        if order in ("before", "after"):
            return order == "before"
    return bool(event.sequence and sequence and event.sequence < sequence)


def _json(status: int, document: Any) -> Answer:
    return Answer(status, json.dumps(document, separators=(",", ":")).encode())


def _error(status: int, code: str) -> Answer:
    return _json(status, {"error": {"code": code}})
