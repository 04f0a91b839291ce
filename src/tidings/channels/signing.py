"""Standard Webhooks signatures: v1 (HMAC-SHA256) and v1a (Ed25519), several keys at once while one replaces another.

A secret file holds one or several words, one to a line or separated by spaces; the first is the newest.

    whsec_…   24 to 64 bytes in base64, known to both sides: signs what we send, checks what they send back
    whsk_…    an Ed25519 key of ours (32 bytes, or 64 with the public half): signs what we send
    whpk_…    an Ed25519 public key of theirs: checks what they send back

Every key that can sign signs, so that a receiver on either side of a rotation can check.
What breaks it: a secret that more than the two of us know, and a clock that is off by more than the tolerance.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tidings.errors import Refused

TOLERANCE_S = 300
_FORM = "whsec_ and 24 to 64 bytes in base64, whsk_ and 32 or 64 bytes, or whpk_ and 32 bytes"
_ID = re.compile(r"[\x21-\x7e]{1,256}")

Signer = bytes | Ed25519PrivateKey
Checker = bytes | Ed25519PublicKey


class BadSignature(Exception):
    """A message that did not come from a holder of the secret, or came at another time. `code` says which check failed."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


def new_secret() -> str:
    """A fresh 32-byte secret in its written form."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def new_pair() -> tuple[str, str]:
    """A fresh Ed25519 key of ours and the public half that a receiver is given, in their written forms."""
    key = Ed25519PrivateKey.generate()
    written = (key.private_bytes_raw(), key.public_key().public_bytes_raw())
    return "whsk_" + base64.b64encode(written[0]).decode(), "whpk_" + base64.b64encode(written[1]).decode()


def decode_secrets(text: str) -> tuple[Signer, ...]:
    """What we sign with, newest first; refused when one is not a secret or none is there. The text is never repeated."""
    found = tuple(key for key in _decoded(text) if not isinstance(key, Ed25519PublicKey))
    if not found:
        raise Refused("signing_secret", "no secret to sign with", _FORM, "Fill it in.")
    return found


def decode_checks(text: str) -> tuple[Checker, ...]:
    """What the other side signs with. Our own private key says nothing about them, so it is left out."""
    return tuple(key for key in _decoded(text) if not isinstance(key, Ed25519PrivateKey))


def _decoded(text: str) -> list[bytes | Ed25519PrivateKey | Ed25519PublicKey]:
    return [_key(word) for word in text.split()]


def _key(word: str) -> bytes | Ed25519PrivateKey | Ed25519PublicKey:
    prefix, _, rest = word.partition("_")
    try:
        key = base64.b64decode(rest, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if prefix == "whsec" and 24 <= len(key) <= 64:
        return key
    if prefix == "whsk" and len(key) in (32, 64):
        found = Ed25519PrivateKey.from_private_bytes(key[:32])
        if key[32:] in (b"", found.public_key().public_bytes_raw()):
            return found
    if prefix == "whpk" and len(key) == 32:
        return Ed25519PublicKey.from_public_bytes(key)
    now = "Make one with `tidings init`, or take the receiver's."
    raise Refused("signing_secret", "a signing secret of another form", _FORM, now)


def sign(keys: Sequence[Signer], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers. `timestamp` is the attempt's own; `message_id` stays the same over attempts."""
    if not _ID.fullmatch(message_id) or "." in message_id:
        raise Refused(
            "signing_id", "a message id that cannot be signed", "printable ASCII without a dot", "Use the event id."
        )
    signatures = " ".join(_signature(key, _signed(message_id, str(timestamp), body)) for key in keys)
    return {"webhook-id": message_id, "webhook-timestamp": str(timestamp), "webhook-signature": signatures}


def verify(
    keys: Sequence[Checker], headers: Mapping[str, str], body: bytes, now: float, tolerance: int = TOLERANCE_S
) -> None:
    """Raise BadSignature unless one signature fits one key and the time is near; unknown versions are passed over."""
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp, given = (lower[f"webhook-{part}"] for part in ("id", "timestamp", "signature"))
    except KeyError:
        raise BadSignature("missing_header") from None
    check_time(timestamp, now, tolerance)
    if not keys or any(key == b"" for key in keys):
        raise BadSignature("no_secret")
    content = _signed(message_id, timestamp, body)
    # Every pair is compared, so that the time taken does not tell which key or signature was near.
    fits = [_fits(key, word, content) for key in keys for word in given.split(" ")[:20]]
    if not any(fits):
        raise BadSignature("no_match")


def check_time(timestamp: str, now: float, tolerance: int = TOLERANCE_S) -> None:
    """Raise BadSignature unless a moment in whole seconds is near."""
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise BadSignature("bad_timestamp")
    if abs(now - int(timestamp)) > tolerance:
        raise BadSignature("outside_tolerance")


def raw_signature(key: Signer, content: bytes) -> bytes:
    """HMAC-SHA256 or Ed25519, by the kind of key."""
    return key.sign(content) if isinstance(key, Ed25519PrivateKey) else hmac.digest(key, content, hashlib.sha256)


def raw_fits(key: Checker, signature: bytes, content: bytes) -> bool:
    if not isinstance(key, Ed25519PublicKey):
        return hmac.compare_digest(hmac.digest(key, content, hashlib.sha256), signature)
    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _signed(message_id: str, timestamp: str, body: bytes) -> bytes:
    return f"{message_id}.{timestamp}.".encode() + body


def _signature(key: Signer, content: bytes) -> str:
    version = "v1a" if isinstance(key, Ed25519PrivateKey) else "v1"
    return f"{version},{base64.b64encode(raw_signature(key, content)).decode()}"


def _fits(key: Checker, word: str, content: bytes) -> bool:
    version, _, text = word.partition(",")
    if version != ("v1a" if isinstance(key, Ed25519PublicKey) else "v1"):
        return False
    try:
        return raw_fits(key, base64.b64decode(text, validate=True), content)
    except (binascii.Error, ValueError):
        return False
