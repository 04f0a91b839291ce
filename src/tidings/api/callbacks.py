"""Signed callbacks: a subscriber that took an event says later, under its own signature, what became of it.

The signature is checked over the bytes as they came, before anything reads them: Standard Webhooks or RFC 9421, under any key that the
subscriber's signing secret holds now (two while one replaces the other). A timestamp off by more than the tolerance is stale, and a
`webhook-id` that was taken before is a replay, also after a restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidings.api.answers import BadAnswer, Said, read_acks, take
from tidings.api.errors import ApiError
from tidings.api.nonces import Full, Nonces, Replayed
from tidings.api.shelf import Shelf
from tidings.channels.message_signatures import Message, verify_message
from tidings.channels.signing import BadSignature, decode_checks, verify
from tidings.errors import Refused


@dataclass(frozen=True)
class Callbacks:
    shelf: Shelf
    nonces: Nonces
    clock: Callable[[], float]

    def take(self, subscriber: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        """Status and answer. Who cannot be checked (no such subscriber, no secret) is told the same as who signed wrongly."""
        now = self.clock()
        self._verify(subscriber, Message("POST", target, headers, body), now)
        message_id = headers["webhook-id"]
        try:
            acks = read_acks(body)
        except BadAnswer as bad:
            raise ApiError(bad.code) from None
        proof = hashlib.sha256(message_id.encode() + b"\x1f" + body).hexdigest()
        said = Said(f"callback of {subscriber}", "A4", proof)
        try:
            with self.nonces.once(subscriber, message_id, now):
                results = take(self.shelf, subscriber, acks, said)
        except Replayed:
            raise ApiError("replayed") from None
        except Full:
            raise ApiError("busy", 30) from None
        if all(one["result"] == "unknown" for one in results):
            raise ApiError("unknown_id")
        return 202, {"results": results}

    def _verify(self, subscriber: str, message: Message, now: float) -> None:
        known = self.shelf.settings.subscribers.get(subscriber)
        if known is None or not known.signing_secret:
            raise ApiError("wrong_signature")
        try:
            keys = decode_checks(self.shelf.settings.secret(known.signing_secret).reveal())
            if "webhook-signature" in message.headers or "signature-input" not in message.headers:
                verify(keys, message.headers, message.body, now)
            else:
                verify_message(keys, message, now)
        except BadSignature as bad:
            raise ApiError("stale" if bad.code == "outside_tolerance" else "wrong_signature") from None
        except Refused:
            raise ApiError("wrong_signature") from None
