"""JSON from strangers, read in one way only: what two readers could understand differently is not read at all. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def strict_value(raw: bytes) -> Any:
    """The value; ValueError for a name that stands twice, a number that is none, half a character or too deep a nesting."""
    try:
        said = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_once, parse_constant=_never)
        json.dumps(said, ensure_ascii=False).encode()  # halves of characters cannot be written down again
    except RecursionError:
        raise ValueError from None
    return said


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError
    return dict(pairs)


def _never(_: str) -> Any:
    raise ValueError
