"""Where a reader is: a place among what its lane offered, signed, so that nobody makes one up and none works for another subscriber."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from typing import NamedTuple

MAC_BYTES = 16


class Place(NamedTuple):
    """The call in which the lane offered an event, and the event's place in that call. Places of a lane only grow."""

    call: int
    at: int


START = Place(0, -1)


class BadCursor(Exception):
    """A cursor that we did not give to this subscriber."""


def written(key: bytes, subscriber: str, place: Place) -> str:
    raw = struct.pack(">Qq", *place)
    return base64.urlsafe_b64encode(raw + _mac(key, subscriber, raw)).decode().rstrip("=")


def read(key: bytes, subscriber: str, text: str) -> Place:
    """The place; no text is the start."""
    if not text:
        return START
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadCursor from None
    if len(raw) != 16 + MAC_BYTES or not hmac.compare_digest(_mac(key, subscriber, raw[:16]), raw[16:]):
        raise BadCursor
    return Place(*struct.unpack(">Qq", raw[:16]))


def _mac(key: bytes, subscriber: str, raw: bytes) -> bytes:
    return hmac.digest(key, b"cursor\x1f" + subscriber.encode() + b"\x1f" + raw, hashlib.sha256)[:MAC_BYTES]
