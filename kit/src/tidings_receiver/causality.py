"""Which of two events knew of the other. `causality` is a version vector, `crm=12,shop=5`: a count per master."""

from __future__ import annotations

from typing import Literal
from urllib.parse import unquote

Order = Literal["before", "after", "equal", "concurrent"]


def read_vector(text: str) -> dict[str, int]:
    """The counts of a token; ValueError when it is none."""
    found: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, mark, count = part.rpartition("=")
        if not mark or not count.isascii() or not count.isdigit() or len(count) > 19:
            raise ValueError("a causality token is name=count,…")
        found[unquote(name)] = int(count)
    return found


def compare(one: str, other: str) -> Order:
    """Where `one` stands to `other`; concurrent when neither includes the other."""
    left, right = read_vector(one), read_vector(other)
    names = set(left) | set(right)
    behind = any(left.get(name, 0) < right.get(name, 0) for name in names)
    ahead = any(left.get(name, 0) > right.get(name, 0) for name in names)
    if behind and ahead:
        return "concurrent"
    return "before" if behind else "after" if ahead else "equal"
