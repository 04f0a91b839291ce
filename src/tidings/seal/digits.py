"""Digits, and what people put between them, in every spelling a message can hold: plain, of another script, as a JSON escape.

An escape may be escaped again (JSON inside a JSON string), so it begins with any number of backslashes. The patterns mean the same to
Java and to Python, which is why scripts are listed here: the two know different versions of Unicode. What breaks that promise is a
script that is not on the list; a test compares it with the Unicode version of the interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

# The zero of every script that writes decimal numbers; its nine other digits follow it.
_ZEROS = [
    0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6, 0x0D66, 0x0DE6, 0x0E50,
    0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40, 0x1C50,
    0x2080, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10, 0x104A0, 0x10D30, 0x10D40, 0x11066,
    0x110F0, 0x11136, 0x111D0, 0x112F0, 0x11450, 0x114D0, 0x11650, 0x116C0, 0x116D0, 0x116DA, 0x11730, 0x118E0,
    0x11950, 0x11BF0, 0x11C50, 0x11D50, 0x11DA0, 0x11DE0, 0x11F50, 0x16A60, 0x16AC0, 0x16B50, 0x16D70, 0x1CCF0,
    0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1E140, 0x1E2F0, 0x1E4F0, 0x1E5F1, 0x1E950, 0x1FBF0,
]  # fmt: skip
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_CIRCLED = "⓪①②③④⑤⑥⑦⑧⑨"
_ASCII = "0123456789"
_WRITTEN = "".join(chr(zero + n) for zero in _ZEROS for n in range(10)) + _SUPERSCRIPTS + _CIRCLED
_MEANT = _ASCII * (len(_WRITTEN) // 10)

# Blanks, hyphens, dots and what has no width. No comma and no colon: coordinates and times would become one long number.
_SEPARATORS = [
    *range(0x09, 0x0E), 0xA0, 0xAD, 0xB7, 0x034F, 0x061C, 0x1680, 0x180E, *range(0x2000, 0x2016), 0x2022, 0x2024, *range(0x2027, 0x2030),
    0x2043, *range(0x205F, 0x2070), 0x2212, 0x22C5, 0x3000, 0x30FB, 0xFE58, 0xFE63, 0xFEFF, 0xFF0D, 0xFF0E, 0xFF0F, 0xFF3F, 0xFF65,
]  # fmt: skip
_ASCII_SEPARATORS = " ._/-"
LONGEST_GAP = 4


def _class(points: Iterable[int]) -> str:
    """A character class of these code points, as few ranges as they make."""
    ranges: list[list[int]] = []
    for point in sorted(points):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "[" + "".join(f"{chr(a)}-{chr(b)}" if b > a else chr(a) for a, b in ranges) + "]"


def _units(point: int) -> list[str]:
    """The hexadecimal units of one code point in UTF-16: one, or two for a surrogate pair."""
    text = chr(point).encode("utf-16-be").hex()
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def _escaped(points: Iterable[int]) -> str:
    """What follows `\\u` in the escape of one of these; those that differ in the last digit only stand together."""
    groups: dict[str, list[str]] = {}
    for point in sorted(points):
        spelled = r"\\++u".join(_units(point))
        groups.setdefault(spelled[:-1], []).append(spelled[-1])
    return "(?i:" + "|".join(f"{start}[{''.join(ends)}]" for start, ends in groups.items()) + ")"


# The look ahead spares ASCII, which is nearly everything, the walk through a long class.
_ABROAD = "(?=[^\\x00-\\x7f])"
# Begun at the first of them only, or a long row of backslashes would be walked from each.
BACKSLASHES = r"(?<!\\)\\++"
# A digit that is part of an escape is none.
_FREE = "".join(rf"(?<!\\u[0-9a-fA-F]{{{n}}})" for n in range(1, 5))
DIGIT = rf"(?:[0-9]{_FREE}|{_ABROAD}{_class(map(ord, _WRITTEN))}|{BACKSLASHES}u{_escaped(map(ord, _ASCII + _WRITTEN))})"
_LETTERED = rf"\\++(?:[bfnrt/]|u{_escaped([*map(ord, _ASCII_SEPARATORS), *_SEPARATORS])})"
_WIDE_GAP = rf"(?:[ ._/\t-\r-]|{_ABROAD}{_class(p for p in _SEPARATORS if p > 0x7F)}|{_LETTERED})"
GAP = rf"{_WIDE_GAP}{{0,{LONGEST_GAP}}}+"
# For a text without escapes and other scripts; it finds what GAP and DIGIT find there.
PLAIN_GAP = rf"[ ._/\t-\r-]{{0,{LONGEST_GAP}}}+"
# Whether the plain patterns are not enough.
ODD = r"[^\x00-\x7f]|\\"
_SPELLED = r"[^\x00-\x7f]|\\u"
_ESCAPE = r"\\++u"


def digits_of(run: Column, units: Column) -> Column:
    """The digits of a run as ASCII; `units` are its digits as they are spelled."""
    plain = F.regexp_replace(run, "[^0-9]", "")
    return F.when(run.rlike(_SPELLED), F.array_join(F.transform(units, _digit), "")).otherwise(plain)


def _digit(unit: Column) -> Column:
    meant = F.decode(F.unhex(F.regexp_replace(unit, _ESCAPE, "")), "UTF-16BE")
    return F.translate(F.when(F.startswith(unit, F.lit("\\")), meant).otherwise(unit), _WRITTEN, _MEANT)


def python(pattern: str) -> re.Pattern[str]:
    """The same pattern without possessive quantifiers: Java needs them, and Python before 3.11.5 gets groups of them wrong.

    ASCII, as Java reads white space.
    """
    return re.compile(re.sub(r"(?<=[*+?}])\+", "", pattern), re.ASCII)


_ESCAPE_RE = python(_ESCAPE)
_TRANSLATED = str.maketrans(_WRITTEN, _MEANT)


def digit(unit: str) -> str:
    """The Python twin of `_digit`."""
    if unit.startswith("\\"):
        unit = bytes.fromhex(_ESCAPE_RE.sub("", unit)).decode("utf-16-be")
    return unit.translate(_TRANSLATED)
