"""Standard Webhooks: v1 (HMAC-SHA256) always, v1a (Ed25519) when the package `cryptography` is installed.

A key is written `whsec_…` (shared, 24 to 64 bytes in base64) or `whpk_…` (the sender's public key). Give two while one replaces
the other: a message is good when one signature fits one key. What is checked is the bytes as they came, before anything reads them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TOLERANCE_S = 300
MOST_SIGNATURES = 20


class BadSignature(Exception):
    """Not from the sender, or from another time. `code`: missing_header, bad_timestamp, outside_tolerance, no_match, …"""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


@dataclass(frozen=True)
class Key:
    """One key, read from its written form; shows nothing of itself."""

    kind: str
    raw: bytes = field(repr=False)

    @classmethod
    def read(cls, text: str) -> Key:
        kind, _, rest = text.strip().partition("_")
        try:
            raw = base64.b64decode(rest, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        good = {"whsec": 24 <= len(raw) <= 64, "whpk": len(raw) == 32}
        if not good.get(kind, False):
            raise ValueError("a key is whsec_ and 24 to 64 bytes in base64, or whpk_ and 32 bytes")
        if kind == "whpk":
            _public(raw)  # a missing package is found now, not at the first message
        return cls(kind, raw)

    @property
    def version(self) -> str:
        return "v1a" if self.kind == "whpk" else "v1"

    @property
    def algorithm(self) -> str:
        return "ed25519" if self.kind == "whpk" else "hmac-sha256"

    def fits(self, signature: bytes, content: bytes) -> bool:
        if self.kind == "whsec":
            return hmac.compare_digest(hmac.digest(self.raw, content, hashlib.sha256), signature)
        try:
            _public(self.raw).verify(signature, content)
        except Exception:  # cryptography has one exception for it, which may not be importable here
            return False
        return True


def _public(raw: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise ValueError(
            "a whpk_ key needs the package cryptography: pip install 'tidings-receiver[ed25519]'"
        ) from None
    return Ed25519PublicKey.from_public_bytes(raw)


def read_keys(secrets: Sequence[str]) -> tuple[Key, ...]:
    """Keys from their written forms; at least one."""
    keys = tuple(Key.read(word) for text in secrets for word in text.split())
    if not keys:
        raise ValueError("no key was given; without one anybody could send")
    return keys


def verify(
    keys: Sequence[Key], headers: Mapping[str, str], body: bytes, now: float, tolerance: int = TOLERANCE_S
) -> str:
    """The message's id; raises BadSignature unless one signature fits one key and the time is near."""
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp, given = (lower[f"webhook-{part}"] for part in ("id", "timestamp", "signature"))
    except KeyError:
        raise BadSignature("missing_header") from None
    check_time(timestamp, now, tolerance)
    content = f"{message_id}.{timestamp}.".encode() + body
    words = [word.partition(",") for word in given.split(" ")[:MOST_SIGNATURES]]
    # Every pair is compared, so that the time taken does not tell which was near.
    fits = [key.version == version and key.fits(_decoded(text), content) for key in keys for version, _, text in words]
    if not any(fits):
        raise BadSignature("no_match")
    return message_id


def sign(key: Key, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers of a callback, under a shared key."""
    if key.kind != "whsec":
        raise ValueError("a callback is signed with a whsec_ key")
    made = hmac.digest(key.raw, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    signature = f"v1,{base64.b64encode(made).decode()}"
    return {"webhook-id": message_id, "webhook-timestamp": str(timestamp), "webhook-signature": signature}


def check_time(timestamp: str, now: float, tolerance: int) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise BadSignature("bad_timestamp")
    if abs(now - int(timestamp)) > tolerance:
        raise BadSignature("outside_tolerance")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
