"""From a manifest's templates to one HTTP request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from tidings.channels.call import Member
from tidings.channels.client import Request
from tidings.channels.mapping import Scope
from tidings.channels.normalise import ABSENT
from tidings.channels.verbs import Batch, Encoding

_TYPES: dict[Encoding, str] = {"json": "application/json", "form": "application/x-www-form-urlencoded", "none": ""}


@dataclass(frozen=True)
class Form:
    """A request before its values are known."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    encoding: Encoding = "none"
    timeout_s: float = 30.0
    verb: str = ""  # whose windows it counts in


@dataclass(frozen=True)
class Filled:
    """A member's part of a batched body."""

    member: Member
    item: Any
    size: int


def build(form: Form, scope: Scope, base: str, body: bytes) -> Request:
    """The request with every parameter encoded; raises Unusable for one that may not travel."""
    url = base.rstrip("/") + scope.fill_path(form.path)
    query = scope.fill(dict(form.query)) if form.query else {}
    if query is not ABSENT and query:
        url += "?" + urlencode({name: _flat(value) for name, value in query.items()}, quote_via=quote, safe="")
    headers = {name: str(value) for name, text in form.headers.items() if (value := scope.fill(text)) is not ABSENT}
    if _TYPES[form.encoding]:
        headers["Content-Type"] = _TYPES[form.encoding]
    return Request(form.method, url, headers, body)


def encode(form: Form, scope: Scope, template: Any, items: tuple[str, list[Any]] | None) -> bytes:
    """The body's bytes, with a batch's items put at their place."""
    if form.encoding == "none":
        return b""
    body = scope.fill(template) if template is not None else {}
    body = {} if body is ABSENT else body
    if items is not None:
        body = _placed(body, *items)
    if form.encoding == "form":
        return _form(body)
    return _json(body)


def item_size(item: Any) -> int:
    """How many bytes an item takes in a body; raises ValueError for one that is not JSON."""
    return len(_json(item)) + 1


def batches(filled: Sequence[Filled], batch: Batch, most_bytes: int) -> Iterator[list[Filled]]:
    """Chunks within the vendor's number and bytes, in order."""
    chunk: list[Filled] = []
    size = 0
    for one in filled:
        if chunk and (len(chunk) >= batch.max or size + one.size > most_bytes):
            yield chunk
            chunk, size = [], 0
        chunk.append(one)
        size += one.size
    if chunk:
        yield chunk


def _placed(body: Any, at: str, items: list[Any]) -> Any:
    if not at:
        return items
    target = body
    *steps, last = at.split(".")
    for step in steps:
        target = target.setdefault(step, {})
    target[last] = items
    return body


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _flat(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _form(body: Mapping[str, Any]) -> bytes:
    """A list repeats its key; an object inside is JSON."""
    pairs = [
        (name, _flat(one)) for name, value in body.items() for one in (value if isinstance(value, list) else [value])
    ]
    return urlencode(pairs, quote_via=quote, safe="").encode()
