"""From a manifest's templates to one HTTP request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from tidings.channels.call import Limits, Member
from tidings.channels.client import Request
from tidings.channels.manifest import Batch, Encoding
from tidings.channels.mapping import Scope
from tidings.channels.normalise import ABSENT

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
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def batches(
    filled: Sequence[tuple[Member, Any]], batch: Batch, limits: Limits
) -> Iterator[tuple[list[tuple[Member, Any]], list[Member]]]:
    """Chunks within the vendor's number and bytes, in order; and beside each the members too large for any chunk."""
    most_bytes = min(batch.max_bytes, limits.max_bytes)
    chunk: list[tuple[Member, Any]] = []
    size = 0
    for member, item in filled:
        length = len(json.dumps(item, ensure_ascii=False, default=str).encode("utf-8", "replace")) + 2
        if length > most_bytes:
            yield [], [member]
            continue
        if chunk and (len(chunk) >= batch.max or size + length > most_bytes):
            yield chunk, []
            chunk, size = [], 0
        chunk.append((member, item))
        size += length
    if chunk:
        yield chunk, []


def _placed(body: Any, at: str, items: list[Any]) -> Any:
    if not at:
        return items
    target = body
    *steps, last = at.split(".")
    for step in steps:
        target = target.setdefault(step, {})
    target[last] = items
    return body


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
