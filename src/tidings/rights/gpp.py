"""Strings of the Global Privacy Platform: a header that lists sections, and the sections, with a tilde between them.

A header that cannot be read ends the reading. A section that cannot be read is named with its reason and the others still count, so
that one broken section does not undo what the person said in another. What breaks this: a section in a newer version than is known
here; it is among `unread`, never guessed at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tidings.rights import layouts, tcf
from tidings.rights.bits import MOST_CHARACTERS, BadSignal, Bits

TYPE, VERSION, USP = 3, 1, 6
MOST_SECTIONS = 64
_USP = re.compile(r"1([YN-])([YN-])([YN-])", re.IGNORECASE)
_WORDS = {"Y": True, "N": False, "-": None}


@dataclass(frozen=True)
class Section:
    """One section: its id and name, where its law holds, and its fields as the specification names them."""

    id: int
    name: str
    place: str
    fields: dict[str, Any]
    tcf: tcf.Tcf | None = None

    @property
    def gpc(self) -> bool | None:
        """The person's browser sent Global Privacy Control; None when the section does not say."""
        return self.fields.get("Gpc")


@dataclass(frozen=True)
class Gpp:
    sections: tuple[Section, ...]
    unread: dict[int, str] = field(default_factory=dict)  # section id → reason


def decode(text: str) -> Gpp:
    """Read a whole string."""
    if len(text) > MOST_CHARACTERS:
        raise BadSignal("too_long", "gpp")
    header, *parts = text.split("~")
    ids = _listed(header)
    if len(ids) != len(parts):
        raise BadSignal("sections_differ", "gpp")
    read, unread = [], {}
    for number, part in zip(ids, parts, strict=True):
        try:
            read.append(section(number, part))
        except BadSignal as bad:
            unread[number] = bad.reason
    return Gpp(tuple(read), unread)


def section(number: int, text: str) -> Section:
    """Read one section on its own."""
    if number == USP:
        return Section(USP, "uspv1", "US", us_privacy(text))
    if number in layouts.tcf():
        said = tcf.decode(text, number)
        return Section(number, said.name, said.place, said.fields(), said)
    if number not in layouts.us():
        raise BadSignal("unknown_section", f"section {number}")
    layout = layouts.us()[number]
    return Section(number, layout.name, layout.place, _state(layout, text))


def us_privacy(text: str) -> dict[str, Any]:
    """The older string of four characters, such as 1YNN: notice given, opted out of sale, covered by the industry's agreement."""
    found = _USP.fullmatch(text)
    if not found:
        raise BadSignal("bad_word", "uspv1")
    notice, opted_out, covered = (_WORDS[word.upper()] for word in found.groups())
    return {"Version": 1, "Notice": notice, "OptOutSale": opted_out, "LspaCovered": covered}


def _listed(header: str) -> list[int]:
    bits = Bits(header, "gpp")
    if bits.number(6) != TYPE:
        raise bits.bad("not_gpp")
    if bits.number(6) != VERSION:
        raise bits.bad("unknown_version")
    ids = bits.fibonacci_ranges()
    bits.end()
    if len(ids) > MOST_SECTIONS:
        raise bits.bad("number_too_large")
    return list(ids)


def _state(layout: layouts.UsLayout, text: str) -> dict[str, Any]:
    parts = text.split(".")
    if layout.header and Bits(parts[0], layout.name).number(6) == layout.id:
        head = Bits(parts.pop(0), layout.name)
        head.number(6)
        if head.number(6) not in layout.versions:
            raise head.bad("unknown_version")
    if not parts or len(parts) > 1 + len(layout.subsections):
        raise BadSignal("unknown_segment" if parts else "cut_short", layout.name)
    core, *others = (Bits(part, layout.name) for part in parts)
    version = Bits(parts[0], layout.name).number(6)
    if version not in layout.versions:
        raise core.bad("unknown_version")
    values = layouts.read(layout.versions[version], core)
    for name, bits in zip(layout.subsections, others, strict=False):
        said = layouts.read(layouts.subsections()[name], bits)
        if said.pop("SubsectionType", 1) != 1:
            raise bits.bad("unknown_segment")
        values |= said
    return values
