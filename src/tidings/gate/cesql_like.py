"""Does a text match a LIKE pattern? For the plain evaluator, in time that no pattern can stretch; Spark has its own regular expression."""

from __future__ import annotations

import re
from collections.abc import Callable

Part = tuple[str, ...]


def like(text: str, pattern: Part, spend: Callable[[int], None]) -> bool:
    """`pattern` is what `like_tokens` made of it; `spend` is told of every step that grows with text times pattern."""
    first, *rest = _parts(pattern)
    if not rest:
        return len(text) == len(first) and _stands(text, first, 0)
    *middle, last = rest
    end = len(text) - len(last)
    if end < len(first) or not _stands(text, first, 0) or not _stands(text, last, end):
        return False
    at = len(first)
    for part in middle:
        # What stands between two `%` is taken at its first place; a later one could only leave less for the rest.
        at = _found(text, part, (at, end), spend)
        if at < 0:
            return False
    return True


def _parts(pattern: Part) -> list[Part]:
    """What stands between the `%`."""
    parts: list[list[str]] = [[]]
    for one in pattern:
        if one == "%":
            parts.append([])
        else:
            parts[-1].append(one)
    return [tuple(part) for part in parts]


def _stands(text: str, part: Part, at: int) -> bool:
    return all(one == "_" or text[at + number] == one[1:] for number, one in enumerate(part))


def _found(text: str, part: Part, within: tuple[int, int], spend: Callable[[int], None]) -> int:
    """Where the first place of `part` ends, or -1."""
    start, end = within
    if "_" not in part:
        place = text.find("".join(one[1:] for one in part), start, end)
        return -1 if place < 0 else place + len(part)
    if set(part) == {"_"}:
        return start + len(part) if start + len(part) <= end else -1
    spend((end - start) * len(part))
    letters = "".join("." if one == "_" else re.escape(one[1:]) for one in part)
    found = re.compile(letters, re.DOTALL).search(text, start, end)
    return found.end() if found else -1
