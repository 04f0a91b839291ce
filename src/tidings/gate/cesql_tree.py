"""The typed tree of a CESQL expression; every cast the standard asks for stands in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
SPACES = " \t\n\r\x0b\x0c"

Value: TypeAlias = str | int | bool


@dataclass(frozen=True)
class Literal:
    type: str
    value: Value


@dataclass(frozen=True)
class Attribute:
    name: str
    type: str = "string"


@dataclass(frozen=True)
class Exists:
    name: str
    type: str = "boolean"


@dataclass(frozen=True)
class Cast:
    type: str
    part: Node


@dataclass(frozen=True)
class Unary:
    """`not` or `negate`."""

    name: str
    part: Node
    type: str


@dataclass(frozen=True)
class Binary:
    """A comparison, arithmetic or logic operator; `!=` stands for `<>` too."""

    name: str
    left: Node
    right: Node
    type: str


@dataclass(frozen=True)
class Like:
    part: Node
    pattern: str
    negated: bool
    type: str = "boolean"


@dataclass(frozen=True)
class In:
    part: Node
    items: tuple[Node, ...]
    negated: bool
    type: str = "boolean"


@dataclass(frozen=True)
class Call:
    name: str
    parts: tuple[Node, ...]
    type: str


Node: TypeAlias = Literal | Attribute | Exists | Cast | Unary | Binary | Like | In | Call


def like_tokens(pattern: str) -> list[str]:
    """A LIKE pattern as a list of `%`, `_` and literal characters; a literal is written as `=` and the character."""
    tokens, at = [], 0
    while at < len(pattern):
        if pattern[at] == "\\" and pattern[at + 1 : at + 2] in ("%", "_"):
            tokens.append("=" + pattern[at + 1])
            at += 2
            continue
        tokens.append(pattern[at] if pattern[at] in "%_" else "=" + pattern[at])
        at += 1
    return tokens
