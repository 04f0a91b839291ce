"""A broker's message as the one JSON text a dialect reads: the whole record where its topic and key mean something, else the bare value.

    {"topic": "crm.public.customers", "key": {"id": 7}, "value": {…}, "headers": {…}, "timestamp": 1772442965123}

What is not JSON or not UTF-8 becomes a text that the change stage refuses with a code; nothing here raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from tidings.stages.change import AUTO
from tidings.stages.dialect import load

# With the backslashes before it, or the escape put in its place could be read as text.
_NO_TEXT = re.compile("\\\\*([\ud800-\udfff])")


def wants_record(dialect: str) -> bool:
    """Does the dialect read topic, key and value, or the value alone? `auto` finds a bare value inside a record."""
    return dialect == AUTO or load(dialect).record


def record_body(
    dialect: str,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    *,
    timestamp_ms: int | None,
    headers: Mapping[str, str],
) -> str:
    """The body of a message that came from a broker; no value at all is a tombstone, which only a record can carry."""
    if not wants_record(dialect):
        return _text(value or b"")
    if value is not None and not _is_json(value):
        return _text(value)
    parts = {
        "topic": json.dumps(topic),
        "key": _key(key),
        "value": "null" if value is None else _text(value),
        "headers": json.dumps(dict(headers)) if headers else None,
        "timestamp": None if timestamp_ms is None else str(timestamp_ms),
    }
    return "{" + ", ".join(f'"{name}": {text}' for name, text in parts.items() if text is not None) + "}"


def _key(key: bytes | None) -> str:
    """A key that is not JSON is a text."""
    if key is None:
        return "null"
    return _text(key) if _is_json(key) else json.dumps(key.decode("utf-8", "surrogateescape"))


def _is_json(data: bytes) -> bool:
    """Whether these bytes are one JSON value and nothing else; put into a record, anything else could pose as more fields of it."""
    try:
        json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return True


def _text(data: bytes) -> str:
    """A byte that is no text becomes the escape of half a character, which no reader of JSON takes: refused, and still readable."""
    return _NO_TEXT.sub(lambda found: f"\\u{ord(found[1]):04x}", data.decode("utf-8", "surrogateescape"))
