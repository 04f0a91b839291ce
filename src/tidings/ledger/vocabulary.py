"""The entries of the ledger: one closed vocabulary, one canonical spelling.

An entry is RFC 8785 JSON of strings and integers, ASCII keys, no control characters, at most 65,535 bytes, and never
holds personal data. *decided* is computed natively where the row is written; `validate_entry` is what both sides share.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tidings.errors import Refused
from tidings.ledger.tiles import MAX_ENTRY

MAX_TEXT = 1024
MAX_KEY = 64
MAX_DEPTH = 5
MAX_INTEGER = 2**53 - 1

DECISIONS = ("allow", "deny", "defer")
ACK_STRENGTHS = ("A0", "A1", "A2", "A3", "A4")

Check = Callable[[Any], str]
Value = str | int | Sequence["Value"] | Mapping[str, "Value"]

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")
_HEX = re.compile(r"([0-9a-f]{2}){8,32}")
_HASH = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[!-~]{1,64}")
# What an operator calls its anchors is its own affair; the preset that says what they mean is named beside them.
_ANCHOR = re.compile(r"[a-z]+(-[a-z]+)*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value else "a text"


def _any(value: Any) -> str:
    return ""


def _integer(value: Any) -> str:
    return "" if isinstance(value, int) and value >= 0 else "an integer from 0 on"


def _matching(pattern: re.Pattern[str], what: str, value: Any) -> str:
    return "" if isinstance(value, str) and pattern.fullmatch(value) else what


def _one_of(allowed: Sequence[str], value: Any) -> str:
    return "" if value in allowed else "one of " + ", ".join(allowed)


def _totals(value: Any) -> str:
    good = isinstance(value, dict) and value and all(isinstance(n, int) and n > 0 for n in value.values())
    return "" if good else "outcomes with their counts"


def _steps(value: Any) -> str:
    return "" if isinstance(value, list) and value else "a list of steps"


def _decision(value: Any) -> str:
    anchors = value.get("anchors") if isinstance(value, dict) else None
    if not isinstance(anchors, dict) or not anchors or not all(_ANCHOR.fullmatch(name) for name in anchors):
        return "a result per anchor, anchors being named in small letters and dashes"
    return _one_of(DECISIONS, value.get("outcome", DECISIONS[0]))


_time: Check = partial(_matching, _TIME, "a UTC time such as 2026-11-15T09:30:00.000000Z")
_hex: Check = partial(_matching, _HEX, "8 to 32 bytes in lower-case hex")
_hash: Check = partial(_matching, _HASH, "32 bytes in lower-case hex")


DECIDED_REQUIRED: Mapping[str, Check] = {
    "event_id": _text,
    "change_type": _text,
    "subject_identifier": _hex,
    "schema_version": _text,
    "registry": _text,
    "asyncapi_version": _text,
    "policy_version": _text,
    "decision": _decision,
    "timestamp": _time,
    "chain_of_custody": _steps,
}
DECIDED_OPTIONAL: Mapping[str, Check] = {
    # Absent when there was no such state: an insert has none before, a delete none after.
    "before_state_hash": _hash,
    "after_state_hash": _hash,
    "capture": _any,
    "master_record_snapshot": _text,
    "outbox_transaction": _text,
    "clocks": _any,
    "envelope_digest": _hash,
    "idempotency_fingerprint": _hex,
    "retry_policy": _any,
    "vertical": _text,
    "window": _any,
    "ai_provenance": _any,
    "fria_reference": _text,
    "operation": _text,
    "entity": _text,
    "tenant": _text,
    "banner": _text,
    "location": _text,
    "routing_hint": _text,
    "locale": _text,
    "jurisdiction": _text,
    "flags": _any,
    "correlation": _text,
    "causation": _text,
}
_BY: Mapping[str, Check] = {"attestor": _text, "timestamp": _time}
# Of a step in a person's request: which it is, who did it, what was asked, and the recipients it names as a root.
_STEP: Mapping[str, Check] = {"step": _integer, "what": _text, "actor": _text, "asked": _any, "details": _any}
_STEP = {**_STEP, "parts_count": _integer, "parts_root": _hash, "deadline": _time, "reason": _text}
# kind → (fields it must have, fields it may have)
VOCABULARY: Mapping[str, tuple[Mapping[str, Check], Mapping[str, Check]]] = {
    "decided": (DECIDED_REQUIRED, DECIDED_OPTIONAL),
    "acknowledged": (
        {
            **_BY,
            "count": _integer,
            "outcomes": _totals,
            "members_root": _hash,
            "subscriber": _text,
            "destination": _text,
            "ack_strength": partial(_one_of, ACK_STRENGTHS),
            "retry_policy": _any,
            "idempotency_fingerprint": _hex,
        },
        {"attempt": _integer, "call": _text, "channel": _text, "lane": _text, "semantics": _text}
        | {"response_digest": _hex, "policy_version": _text},
    ),
    "settled": (
        {**_BY, "event_id": _text, "count": _integer},
        {"subscriber_ack_set": _any, "subscriber_ack_root": _hash},
    ),
    "lane_paused": ({**_BY, "lane": _text, "reason": _text}, {}),
    "lane_resumed": ({**_BY, "lane": _text, "reason": _text}, {}),
    "policy_changed": (
        {**_BY, "policy_version": _text, "previous_version": _text, "policy_digest": _hash, "reason": _text},
        {"bundles": _steps},
    ),
    "quarantine_released": (
        {**_BY, "source": _text, "count": _integer, "members_root": _hash, "reason": _text},
        {},
    ),
    "rights_transition": (
        {**_BY, "request": _text, "right": _text, "state": _text, "previous_state": _text},
        {"subject_identifier": _hex, **_STEP},
    ),
    "replayed": ({**_BY, "subscriber": _text, "range": _text, "count": _integer, "reason": _text}, {}),
    "exception_approved": (
        {**_BY, "event_id": _text, "subscriber": _text, "approver": _text, "reason": _text},
        {},
    ),
    "letter_expired": ({**_BY, "event_id": _text, "subscriber": _text, "reason": _text}, {}),
    "conflict_resolved": (
        {**_BY, "event_id": _text, "outcome": partial(_one_of, ("keep", "drop")), "reason": _text},
        {},
    ),
    "reviewed": (
        {**_BY, "event_id": _text, "outcome": partial(_one_of, ("release", "refuse")), "reason": _text},
        {},
    ),
    "erased": (
        {**_BY, "subject_identifier": _hex, "basis": _text, "generation": _integer, "keys_destroyed": _integer},
        {"request": _text, "right": _text, "state": _text, "previous_state": _text, **_STEP},
    ),
    "expired": (
        {
            **_BY,
            "record_class": _text,
            "records": _text,
            "goes": partial(_one_of, ("payload", "rows", "files")),
            "count": _integer,
            "files": _integer,
            "range": _text,
            "keep_until": _text,
            "duty": _text,
            "members_root": _hash,
            "policy_version": _text,
        },
        {"feeds": _any, "replaces": _integer},
    ),
    "keys_rotated": ({**_BY, "version": _integer, "previous": _integer, "count": _integer, "files": _integer}, {}),
    "checkpoint": ({"origin": _text, "size": _integer, "root": _hash, "signature": _text}, {}),
}


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(value: Value) -> bytes:
    """RFC 8785 bytes. With ASCII keys and no floats the standard encoder gives the same, four times as fast."""
    return _ENCODER.encode(value).encode()


def refused(path: str, found: str, expected: str) -> Refused:
    return Refused("ledger-entry", f"{path or 'the entry'}: {found}", expected, "Nothing was appended.")


def _check_value(value: Any, path: str, depth: int) -> None:
    """Strings, integers and their containers only; the value itself is never repeated in an error."""
    if depth > MAX_DEPTH:
        raise refused(path, "nesting too deep", f"at most {MAX_DEPTH} levels")
    if isinstance(value, str):
        if (len(value) > MAX_TEXT // 4 and len(value.encode(errors="surrogatepass")) > MAX_TEXT) or _CONTROL.search(
            value
        ):
            raise refused(path, "a text too long or with control characters", f"at most {MAX_TEXT} plain bytes")
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not _KEY.fullmatch(key):
                raise refused(path, "a key that is not plain ASCII", f"1 to {MAX_KEY} visible characters")
            _check_value(inner, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_value(inner, path + "[]", depth + 1)
    elif isinstance(value, bool) or not isinstance(value, int):
        raise refused(path, f"a {type(value).__name__}", "a string or an integer")
    elif abs(value) > MAX_INTEGER:
        raise refused(path, "an integer beyond 2^53", "it as a string")


def _check_fields(entry: Mapping[str, Any]) -> None:
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in VOCABULARY:
        raise refused("kind", "none that is known", ", ".join(VOCABULARY))
    required, optional = VOCABULARY[kind]
    for name, check in required.items():
        if name not in entry:
            raise refused(name, f"not there in {kind}", "it")
        if expected := check(entry[name]):
            raise refused(name, "something else", expected)
    for name in entry.keys() - required.keys() - {"kind"}:
        if name not in optional:
            raise refused(name if _KEY.fullmatch(name) else "a key", f"not a field of {kind}", "a known field")
        if expected := optional[name](entry[name]):
            raise refused(name, "something else", expected)


def encode_entry(entry: Mapping[str, Any]) -> bytes:
    """Canonical bytes of an entry that follows the vocabulary; Refused otherwise."""
    _check_value(entry, "", 0)
    _check_fields(entry)
    try:
        data = canonical(entry)
    except UnicodeEncodeError:
        raise refused("", "half a character (a lone surrogate)", "valid Unicode") from None
    if len(data) > MAX_ENTRY:
        raise refused("", f"{len(data)} bytes", f"at most {MAX_ENTRY}")
    return data


def _no_float(_: str) -> None:
    raise refused("", "a number with a fraction or an exponent", "integers")


_DECODER = json.JSONDecoder(parse_float=_no_float, parse_constant=_no_float)


def validate_entry(data: bytes) -> dict[str, Any]:
    """The entry in these bytes, if it follows the vocabulary and is spelled canonically; Refused otherwise."""
    if len(data) > MAX_ENTRY:
        raise refused("", f"{len(data)} bytes", f"at most {MAX_ENTRY}")
    try:
        entry = _DECODER.decode(data.decode())
    except (ValueError, RecursionError):
        raise refused("", "something that is not JSON", "a JSON object") from None
    if not isinstance(entry, dict):
        raise refused("", "something that is not an object", "a JSON object")
    # A key that comes twice is read once, so it cannot come back as the same bytes.
    if encode_entry(entry) != data:
        raise refused("", "another spelling of the same entry", "RFC 8785 bytes")
    return entry
