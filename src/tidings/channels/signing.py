"""Standard Webhooks signatures (v1, HMAC-SHA256), several secrets at once while one replaces another.

A secret is `whsec_` and 24 to 64 bytes in base64. A file may hold several, one to a line or separated by spaces: the first
is the newest, and every one signs, so that a receiver on either side of a rotation can check.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence

from tidings.errors import Refused

TOLERANCE_S = 300
_PREFIX = "whsec_"
_ID = re.compile(r"[\x21-\x7e]{1,256}")


class BadSignature(Exception):
    """A message that did not come from a holder of the secret, or came at another time. `code` says which check failed."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


def new_secret() -> str:
    """A fresh 32-byte secret in its written form."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def decode_secrets(text: str) -> tuple[bytes, ...]:
    """Every secret in a text, newest first; refused when one is not a secret. The text is never repeated."""
    found = []
    for word in text.split():
        try:
            key = base64.b64decode(word.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not word.startswith(_PREFIX) or not 24 <= len(key) <= 64:
            raise Refused(
                "signing_secret",
                "a signing secret of another form",
                "whsec_ and 24 to 64 bytes in base64",
                "Make one with `tidings init`, or take the receiver's.",
            )
        found.append(key)
    if not found:
        raise Refused("signing_secret", "an empty signing secret", "whsec_ and 24 to 64 bytes in base64", "Fill it in.")
    return tuple(found)


def sign(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers. `timestamp` is the attempt's own; `message_id` stays the same over attempts."""
    if not _ID.fullmatch(message_id) or "." in message_id:
        raise Refused(
            "signing_id", "a message id that cannot be signed", "printable ASCII without a dot", "Use the event id."
        )
    signatures = " ".join(_v1(key, message_id, str(timestamp), body) for key in keys)
    return {"webhook-id": message_id, "webhook-timestamp": str(timestamp), "webhook-signature": signatures}


def verify(
    keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float, tolerance: int = TOLERANCE_S
) -> None:
    """Raise BadSignature unless one v1 signature fits one key and the time is near; unknown versions are passed over."""
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp, given = (lower[f"webhook-{part}"] for part in ("id", "timestamp", "signature"))
    except KeyError:
        raise BadSignature("missing_header") from None
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise BadSignature("bad_timestamp")
    if abs(now - int(timestamp)) > tolerance:
        raise BadSignature("outside_tolerance")
    if not keys or any(len(key) == 0 for key in keys):
        raise BadSignature("no_secret")
    expected = [_v1(key, message_id, timestamp, body) for key in keys]
    # Every pair is compared, so that the time taken does not tell which key or signature was near.
    fits = [hmac.compare_digest(one.encode(), word.encode()) for one in expected for word in given.split(" ")]
    if not any(fits):
        raise BadSignature("no_match")


def _v1(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    mac = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return "v1," + base64.b64encode(mac.digest()).decode()
