"""Numbers that are missing among those of visible rows: still to come, or never? Pure; the memory of one reader.

    seen: which ranges are missing  →  waited: who could still fill them  →  horizon: how far nothing can appear any more

A range settles when none of those is at work who were when it was first seen; losing this memory costs time and no row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

Range = tuple[int, int]


def missing(begin: int, numbers: Sequence[int]) -> list[Range]:
    """The ranges that lack between `begin` and the last of these rising numbers."""
    found, last = [], begin
    for number in numbers:
        if number > last + 1:
            found.append((last + 1, number - 1))
        last = number
    return found


@dataclass
class Gaps:
    """First missing number → the last one of its range, and who could still fill it."""

    known: dict[int, tuple[int, frozenset[str]]] = field(default_factory=dict)

    def seen(self, begin: int, numbers: Sequence[int]) -> list[Range]:
        found = missing(begin, numbers)
        still = {first for first, _ in found}
        self.known = {first: gap for first, gap in self.known.items() if first in still}
        return found

    def waited(self, gaps: Sequence[Range], writers: Collection[str]) -> None:
        """`writers` are at work now. A range that grew is a new one."""
        for first, last in gaps:
            upto, held = self.known.get(first, (0, frozenset()))
            self.known[first] = (upto, held & set(writers)) if last <= upto else (last, frozenset(writers))

    def horizon(self, begin: int, numbers: Sequence[int]) -> int:
        """The last number before the first range that somebody may still fill; `begin` when that range is the first thing there."""
        for first, last in missing(begin, numbers):
            upto, held = self.known.get(first, (0, frozenset()))
            if held or last > upto:
                return max((number for number in numbers if number < first), default=begin)
        return max(numbers, default=begin)
