"""The tree of a CESQL expression, the types it can give, and what the standard's functions take.

Integers are 32 bits, attributes have the type they have in the event, and an operator casts what it is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
# What Unicode calls White_Space; TRIM takes nothing else away, not even other control characters.
SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
REQUIRED = frozenset({"id", "source", "specversion", "type"})
ARITHMETIC = frozenset("+-*/%")

Value: TypeAlias = str | int | bool
ZERO: Mapping[str, Value] = {"string": "", "integer": 0, "boolean": False}


@dataclass(frozen=True)
class Literal:
    value: Value


@dataclass(frozen=True)
class Attribute:
    name: str


@dataclass(frozen=True)
class Exists:
    name: str


@dataclass(frozen=True)
class Unary:
    """`NOT` or `-`."""

    name: str
    part: Node


@dataclass(frozen=True)
class Binary:
    """A comparison, arithmetic or logic operator; `!=` stands for `<>` too."""

    name: str
    left: Node
    right: Node


@dataclass(frozen=True)
class Like:
    """`pattern` is what `like_tokens` made of it."""

    part: Node
    pattern: tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True)
class In:
    part: Node
    items: tuple[Node, ...]
    negated: bool = False


@dataclass(frozen=True)
class Call:
    name: str
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Holds:
    """Does the part give true? Errors and other values are false. Not of the language: the `sql` dialect asks it."""

    part: Node


Node: TypeAlias = Literal | Attribute | Exists | Unary | Binary | Like | In | Call | Holds


@dataclass(frozen=True)
class Function:
    """Types of the arguments, the last repeating ("any" takes what comes); type of the result; how few and how many."""

    takes: tuple[str, ...]
    gives: str
    least: int
    most: int | None

    def types(self, count: int) -> list[str]:
        return [self.takes[min(number, len(self.takes) - 1)] for number in range(count)]


FUNCTIONS: Mapping[str, Function] = {
    "LENGTH": Function(("string",), "integer", 1, 1),
    "CONCAT": Function(("string",), "string", 0, None),
    "CONCAT_WS": Function(("string",), "string", 1, None),
    "LOWER": Function(("string",), "string", 1, 1),
    "UPPER": Function(("string",), "string", 1, 1),
    "TRIM": Function(("string",), "string", 1, 1),
    "LEFT": Function(("string", "integer"), "string", 2, 2),
    "RIGHT": Function(("string", "integer"), "string", 2, 2),
    "SUBSTRING": Function(("string", "integer"), "string", 2, 3),
    "ABS": Function(("integer",), "integer", 1, 1),
    "INT": Function(("any",), "integer", 1, 1),
    "BOOL": Function(("any",), "boolean", 1, 1),
    "STRING": Function(("any",), "string", 1, 1),
    "IS_INT": Function(("any",), "boolean", 1, 1),
    "IS_BOOL": Function(("any",), "boolean", 1, 1),
}


def function(name: str, count: int) -> Function | None:
    """The function that takes so many arguments, if there is one."""
    found = FUNCTIONS.get(name)
    if found is None or count < found.least or (found.most is not None and count > found.most):
        return None
    return found


def type_name(value: Value) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "integer" if isinstance(value, int) else "string"


def result_type(tree: Node, types: Mapping[str, str]) -> str:
    """What the expression gives where attributes have these types; what cannot be told is boolean, as the standard says."""
    match tree:
        case Literal():
            return type_name(tree.value)
        case Attribute():
            return types.get(tree.name, "boolean")
        case Call():
            found = function(tree.name, len(tree.parts))
            return found.gives if found else "boolean"
        case Unary():
            return "integer" if tree.name == "-" else "boolean"
        case Binary():
            return "integer" if tree.name in ARITHMETIC else "boolean"
    return "boolean"


def children(tree: Node) -> tuple[Node, ...]:
    match tree:
        case Unary() | Like() | Holds():
            return (tree.part,)
        case Binary():
            return (tree.left, tree.right)
        case In():
            return (tree.part, *tree.items)
        case Call():
            return tree.parts
    return ()


def chain(tree: Binary) -> list[Node]:
    """`a AND b AND c` as its parts; it stands as deep as it is long."""
    parts: list[Node] = []
    node: Node = tree
    while isinstance(node, Binary) and node.name == tree.name:
        parts.append(node.right)
        node = node.left
    return [node, *reversed(parts)]


def depth(tree: Node, flat: Callable[[Binary, Binary], bool]) -> int:
    """How deep the tree stands, where an operator to the left of another adds nothing if `flat` says so of the two.

    Without recursion, so that any tree can be measured.
    """
    deepest, waiting = 0, [(tree, 1)]
    while waiting:
        node, level = waiting.pop()
        deepest = max(deepest, level)
        for number, child in enumerate(children(node)):
            beside = isinstance(node, Binary) and isinstance(child, Binary) and number == 0 and flat(node, child)
            waiting.append((child, level if beside else level + 1))
    return deepest


def like_tokens(pattern: str) -> tuple[str, ...]:
    """A LIKE pattern as `%`, `_` and literal characters; a literal is written as `=` and the character."""
    parts = re.findall(r"\\[%_]|.", pattern, re.DOTALL)
    return tuple(part if part in ("%", "_") else "=" + part[-1] for part in parts)


def like_regex(pattern: tuple[str, ...]) -> str:
    """The pattern as a regular expression that both Python and Java read, to be matched against the whole text.

    What stands between two `%` is taken at its first place and never tried again, so time grows with text times pattern.
    """
    parts = [""]
    for one in pattern:
        if one == "%":
            parts.append("")
        else:
            parts[-1] += "." if one == "_" else re.escape(one[1:])
    first, *rest = parts
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{part})" for part in middle if part) + ".*" + last
