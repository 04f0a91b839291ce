"""The fields of consent strings, as catalog/signals/sections.yaml lists them: a layout says how a part is read, no code knows a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from tidings.rights.bits import BadSignal, Bits

Values = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One field: what it is called and how it is written."""

    name: str
    how: str
    optional: bool = False

    @classmethod
    def of(cls, text: str) -> Part:
        name, _, how = text.partition(" ")
        return cls(name, how.removeprefix("optional ") or "2", how.startswith("optional "))

    def read(self, bits: Bits, values: Values) -> Any:
        *before, last = self.how.split()
        if self.how in ("flag", "time"):
            return bits.flag() if self.how == "flag" else bits.time()
        if last == "vendors":
            return bits.fibonacci_vendors() if before else bits.vendors()
        if last == "restrictions":
            return bits.restrictions(bool(before))
        if before == ["letters"]:
            return bits.letters(int(last))
        if before == ["bits"]:
            return bits.set_bits(int(last) if last.isdigit() else values[last])
        return self._numbers(bits)

    def _numbers(self, bits: Bits) -> int | tuple[int, ...]:
        width, _, many = self.how.partition("x")
        numbers = tuple(bits.number(int(width)) for _ in range(int(many or 1)))
        if width == "2" and max(numbers) > 2:
            raise bits.bad("unknown_value")
        return numbers if many else numbers[0]


Fields = tuple[Part, ...]


@dataclass(frozen=True)
class UsLayout:
    """A section of a state, or of the United States."""

    name: str
    id: int
    place: str
    versions: Mapping[int, Fields]
    subsections: tuple[str, ...]
    sensitive: tuple[str, ...]
    header: bool = False
    unconfirmed: tuple[str, ...] = ()


@dataclass(frozen=True)
class TcfLayout:
    """A section of the Transparency and Consent Framework."""

    name: str
    id: int
    place: str
    version: int
    core: Fields
    segments: Mapping[int, Fields]


def read(fields: Fields, bits: Bits) -> Values:
    """The fields in their order, to the end of the part."""
    values: Values = {}
    for part in fields:
        try:
            values[part.name] = part.read(bits, values)
        except BadSignal as bad:
            if part.optional and bad.reason == "cut_short":
                break
            raise
    bits.end()
    return values


@cache
def us() -> Mapping[int, UsLayout]:
    return {
        said["id"]: UsLayout(
            name,
            said["id"],
            said["place"],
            {version: _fields(names) for version, names in said["versions"].items()},
            tuple(said["subsections"]),
            tuple(said["sensitive"]),
            said.get("header", False),
            tuple(said.get("unconfirmed", ())),
        )
        for name, said in _document()["us"].items()
    }


@cache
def subsections() -> Mapping[str, Fields]:
    return {name: _fields(names) for name, names in _document()["subsections"].items()}


@cache
def tcf() -> Mapping[int, TcfLayout]:
    return {
        said["id"]: TcfLayout(
            name,
            said["id"],
            said["place"],
            said["version"],
            _fields(said["core"]),
            {number: _fields(names) for number, names in said["segments"].items()},
        )
        for name, said in _document()["tcf"].items()
    }


def _fields(names: list[str]) -> Fields:
    return tuple(map(Part.of, names))


@cache
def _document() -> Mapping[str, Any]:
    text = files("tidings").joinpath("catalog/signals/sections.yaml").read_text(encoding="utf-8")
    said: Mapping[str, Any] = yaml.safe_load(text)
    return said
