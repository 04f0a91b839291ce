"""Reading strings of bits that people's browsers and consent tools send: base64url text, fixed fields, Fibonacci numbers, ranges of ids.

Everything here comes from strangers. Work is bounded by the length of the text, which is bounded itself: a range is kept as its two ends
and never counted out, a number larger than any id ends the reading. Whatever cannot be read has a reason, and its value is never shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tidings.errors import TidingsError

MOST_CHARACTERS = 16_384
LARGEST_ID = 65_535
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_SIX = {letter: f"{number:06b}" for number, letter in enumerate(_LETTERS)}

REASONS: Mapping[str, str] = {
    "too_long": f"more than {MOST_CHARACTERS} characters",
    "empty": "nothing in it",
    "not_base64url": "a character outside A–Z a–z 0–9 - _",
    "cut_short": "it ends in the middle of a field",
    "left_over": "more bits than the fields of its version",
    "not_gpp": "the first field is not that of a GPP string",
    "not_tcf": "the first field is not that of a TCF string of version 2",
    "unknown_version": "a version whose fields are not known here",
    "unknown_section": "a section that is not known here",
    "unknown_segment": "a part of a section that is not known here",
    "repeated": "the same part twice",
    "sections_differ": "another number of sections than the header says",
    "number_too_large": "a number above every id",
    "range_backwards": "a range that ends before it begins",
    "unknown_value": "a value that the field does not have",
    "bad_time": "a time that is none",
    "bad_word": "a word that the signal does not have",
}


class BadSignal(TidingsError):
    """A signal that cannot be read; `reason` says why, `where` in which part."""

    exit_code = 3

    def __init__(self, reason: str, where: str = "") -> None:
        self.reason, self.where = reason, where
        found = f"{where}: {REASONS[reason]}" if where else REASONS[reason]
        super().__init__("bad_signal", f"{found} ({reason})", "a signal as its specification writes it", "")


@dataclass(frozen=True)
class Ids:
    """A set of ids as ranges that neither touch nor overlap, in order."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Ids:
        joined: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
            else:
                joined.append((first, last))
        return cls(tuple(joined))

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def __contains__(self, wanted: int) -> bool:
        return any(first <= wanted <= last for first, last in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)

    def __str__(self) -> str:
        return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in self.ranges)


@dataclass(frozen=True)
class Restriction:
    """What a publisher forbids: a purpose, how (0 not at all, 1 only by consent, 2 only by legitimate interest), to whom."""

    purpose: int
    kind: int
    vendors: Ids


class Bits:
    """A text of base64url, read bit by bit from the front. `plain`: see `fibonacci_vendors`."""

    def __init__(self, text: str, where: str = "", plain: bool = False) -> None:
        self.where, self.plain, self._at = where, plain, 0
        if len(text) > MOST_CHARACTERS:
            raise self.bad("too_long")
        if not text:
            raise self.bad("empty")
        try:
            self._bits = "".join([_SIX[letter] for letter in text])
        except KeyError:
            raise self.bad("not_base64url") from None

    def bad(self, reason: str) -> BadSignal:
        return BadSignal(reason, self.where)

    def left(self) -> int:
        return len(self._bits) - self._at

    def take(self, width: int) -> str:
        if width > self.left():
            raise self.bad("cut_short")
        self._at += width
        return self._bits[self._at - width : self._at]

    def number(self, width: int) -> int:
        return int(self.take(width) or "0", 2)

    def flag(self) -> bool:
        return self.take(1) == "1"

    def time(self) -> datetime:
        try:
            return datetime.fromtimestamp(self.number(36) / 10, UTC)
        except (ValueError, OverflowError, OSError):
            raise self.bad("bad_time") from None

    def letters(self, many: int) -> str:
        numbers = [self.number(6) for _ in range(many)]
        if max(numbers) > 25:
            raise self.bad("unknown_value")
        return "".join(chr(ord("A") + number) for number in numbers)

    def set_bits(self, width: int) -> Ids:
        """The places of the bits that are set, the first being 1."""
        bits = self.take(width)
        return Ids.of((place, place) for place, bit in enumerate(bits, 1) if bit == "1")

    def fibonacci(self) -> int:
        total, value, following, before = 0, 1, 2, False
        while True:
            bit = self.flag()
            if bit and before:
                return total
            total += value if bit else 0
            if value > LARGEST_ID or total > LARGEST_ID:
                raise self.bad("number_too_large")
            value, following, before = following, value + following, bit

    def fibonacci_ranges(self) -> Ids:
        """How many; then each as the distance from the last one, and for a group its length."""
        ranges, last = [], 0
        for _ in range(self.number(12)):
            group = self.flag()
            first = last + self.fibonacci()
            last = first + self.fibonacci() if group else first
            if last > LARGEST_ID:
                raise self.bad("number_too_large")
            ranges.append((first, last))
        return Ids.of(ranges)

    def fixed_ranges(self) -> Ids:
        ranges = []
        for _ in range(self.number(12)):
            group, first = self.flag(), self.number(16)
            last = self.number(16) if group else first
            if last < first:
                raise self.bad("range_backwards")
            ranges.append((first, last))
        return Ids.of(ranges)

    def vendors(self) -> Ids:
        """As TCF for Europe writes them: the largest id, then ranges or one bit each."""
        largest = self.number(16)
        return self.fixed_ranges() if self.flag() else self.set_bits(largest)

    def fibonacci_vendors(self) -> Ids:
        """As newer sections write them: IAB Tech Lab's encoders begin with the largest id, its specification (`plain`) does not."""
        largest = 0 if self.plain else self.number(16)
        if self.flag():
            return self.fibonacci_ranges()
        return self.set_bits(self.number(16) if self.plain else largest)

    def restrictions(self, fibonacci: bool) -> tuple[Restriction, ...]:
        found = []
        for _ in range(self.number(12)):
            purpose, kind = self.number(6), self.number(2)
            found.append(Restriction(purpose, kind, self.fibonacci_vendors() if fibonacci else self.fixed_ranges()))
        return tuple(found)

    def end(self) -> None:
        """Nothing but filling may follow."""
        if "1" in self._bits[self._at :]:
            raise self.bad("left_over")
