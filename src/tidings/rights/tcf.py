"""Strings of the Transparency and Consent Framework: Europe's version 2 (2.0 to 2.3 write the same fields) and Canada's version 1.

A string is a core part and up to three others, in any order, with a dot between them. What a string says holds for the site that made
it and for the vendors it names; nothing here decides, it only reads. Canada's vendors are written in two ways (see bits.py): the way
of the encoders is tried first. The two differ in the vendors alone; purposes stand before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidings.rights import layouts
from tidings.rights.bits import MOST_CHARACTERS, BadSignal, Bits

EUROPE, CANADA = 2, 5
CORE = 0  # the first three bits of a core part; other parts have their number there
MOST_SEGMENTS = 8


@dataclass(frozen=True)
class Tcf:
    """What a string says: `core` and the other parts by their number, under the field names of the specification."""

    name: str
    id: int
    place: str
    core: layouts.Values
    segments: dict[int, layouts.Values]

    def allowed(self) -> tuple[set[int], set[int]]:
        """Purposes with consent, and purposes on another ground (legitimate interest, implied consent)."""
        europe = self.id == EUROPE
        first = "PurposesConsent" if europe else "PurposesExpressConsent"
        second = "PurposesLegitimateInterest" if europe else "PurposesImpliedConsent"
        return set(self.core[first]), set(self.core[second])

    def fields(self) -> dict[str, Any]:
        said = {name: value for part in self.segments.values() for name, value in part.items() if name != "SegmentType"}
        return self.core | said


def decode(text: str, section: int = EUROPE) -> Tcf:
    """Read a whole string, or say why it cannot be read."""
    layout = layouts.tcf()[section]
    if len(text) > MOST_CHARACTERS:
        raise BadSignal("too_long", layout.name)
    parts = text.split(".")
    if len(parts) > MOST_SEGMENTS:
        raise BadSignal("unknown_segment", layout.name)
    read = [_part(layout, part) for part in parts]
    kinds = [kind for kind, _ in read]
    if len(set(kinds)) < len(kinds):
        raise BadSignal("repeated", layout.name)
    found = dict(read)
    if CORE not in found:
        raise BadSignal("cut_short", layout.name)
    return Tcf(layout.name, layout.id, layout.place, found.pop(CORE), found)


def _part(layout: layouts.TcfLayout, text: str) -> tuple[int, layouts.Values]:
    kind = Bits(text, layout.name).number(3)
    if kind == CORE and Bits(text, layout.name).number(6) != layout.version:
        raise BadSignal("not_tcf" if layout.id == EUROPE else "unknown_version", layout.name)
    if kind != CORE and kind not in layout.segments:
        raise BadSignal("unknown_segment", layout.name)
    fields = layout.core if kind == CORE else layout.segments[kind]
    try:
        return kind, layouts.read(fields, Bits(text, layout.name))
    except BadSignal:
        if layout.id == EUROPE:
            raise
        return kind, layouts.read(fields, Bits(text, layout.name, plain=True))
