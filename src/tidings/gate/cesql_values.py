"""What a CESQL expression says of one event, in plain Python: the twin of `cesql_columns`.

The first error ends the evaluation. Its value is then the zero value of what the expression would have given (false, 0 or an
empty string), except where the standard names another one for the very function that failed (LEFT, RIGHT, ABS).

What breaks the promise: an evaluation that would look at more than MAX_STEPS characters ends as `generic`, though the standard
knows no limit. Without it one line of a few kilobytes could keep the evaluator busy for hours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from tidings.gate.cesql_like import like
from tidings.gate.cesql_tree import (
    INT_MAX,
    INT_MIN,
    REQUIRED,
    SPACES,
    ZERO,
    Attribute,
    Binary,
    Call,
    Exists,
    Holds,
    In,
    Like,
    Literal,
    Node,
    Unary,
    Value,
    function,
    result_type,
    type_name,
)

MAX_TEXT = 1_000_000
MAX_STEPS = 30_000_000
Event = Mapping[str, Value | None]


class _Asked:
    """An event while one expression is asked of it, and how many characters may still be looked at."""

    def __init__(self, event: Event) -> None:
        self.event, self.left = event, MAX_STEPS

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise Failed("generic")

    def paid(self, value: Value) -> Value:
        """The same value; whatever is done with a text next grows with its length."""
        if isinstance(value, str):
            self.spend(len(value))
        return value


class Failed(Exception):
    """An evaluation error of one of the standard's kinds; `at` is the node, when that node has a value all the same."""

    def __init__(self, kind: str, value: Value | None = None, at: Node | None = None) -> None:
        self.kind, self.value, self.at = kind, value, at
        super().__init__(kind)


class Answer(NamedTuple):
    value: Value
    error: str | None = None


def context(event: Mapping[str, object]) -> dict[str, Value]:
    """The attributes of a CloudEvent in JSON, in the types of the language; the data is not context, null is unset."""
    names = event.keys() - {"data", "data_base64"}
    return {name: _attribute(event[name]) for name in names if event[name] is not None}


def _attribute(value: object) -> Value:
    if isinstance(value, bool | str) or (isinstance(value, int) and INT_MIN <= value <= INT_MAX):
        return value
    return json.dumps(value)


def answer(tree: Node, event: Event) -> Answer:
    """The value, and the kind of the error if there was one."""
    try:
        return Answer(_evaluated(tree, _Asked(event)))
    except Failed as failed:
        if failed.at is tree and failed.value is not None:
            return Answer(failed.value, failed.kind)
        types = {name: type_name(value) for name, value in event.items() if value is not None}
        return Answer(ZERO[result_type(tree, types)], failed.kind)


def matches(tree: Node, event: Event) -> bool:
    """Does the event pass the filter? Errors and results that are not booleans do not."""
    said = answer(tree, event)
    return said.error is None and said.value is True


def _evaluated(tree: Node, asked: _Asked) -> Value:
    """The value of the expression, or Failed. The plain twin of `cesql_columns.compile_tree`."""
    match tree:
        case Literal():
            return tree.value
        case Attribute():
            found = asked.event.get(tree.name)
            if found is None:
                raise Failed("missingAttribute")
            return asked.paid(found)
        case Exists():
            return tree.name in REQUIRED or asked.event.get(tree.name) is not None
        case Unary():
            part = _evaluated(tree.part, asked)
            return not cast_value(part, "boolean") if tree.name == "NOT" else _ranged(-_integer(part))
        case Binary():
            return _chain(tree, asked)
        case Like():
            text = str(cast_value(_evaluated(tree.part, asked), "string"))
            return like(text, tree.pattern, asked.spend) is not tree.negated
        case In():
            part = _evaluated(tree.part, asked)
            return _among(part, tree.items, asked) is not tree.negated
        case Call():
            return asked.paid(_called(tree, asked))
        case Holds():
            return _holds(tree.part, asked)


def _holds(tree: Node, asked: _Asked) -> bool:
    try:
        return _evaluated(tree, asked) is True
    except Failed:
        return False


def cast_value(value: Value, to: str) -> Value:
    """The standard's casts; what cannot be cast fails."""
    if to == type_name(value) or to == "any":
        return value
    if to == "string":
        return str(value).lower()
    if not isinstance(value, str):
        return int(value) if to == "integer" else bool(value)
    if to == "boolean":
        if value.lower() not in ("true", "false"):
            raise Failed("cast")
        return value.lower() == "true"
    found = re.fullmatch(r"([+-]?)0*([0-9]{1,10})", value)
    if found is None or not INT_MIN <= int(found[1] + found[2]) <= INT_MAX:
        raise Failed("cast")
    return int(found[1] + found[2])


def _integer(value: Value) -> int:
    return int(cast_value(value, "integer"))


def _ranged(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise Failed("math")
    return value


def _chain(tree: Binary, asked: _Asked) -> Value:
    """`a + b + c + …` stands as deep as it is long on its left, so that side is walked and not descended."""
    nodes = [tree]
    while isinstance(nodes[-1].left, Binary):
        nodes.append(nodes[-1].left)
    value = _evaluated(nodes[-1].left, asked)
    for node in reversed(nodes):
        value = _joined(node, value, asked)
    return value


def _joined(node: Binary, left: Value, asked: _Asked) -> Value:
    if node.name in ("AND", "OR"):
        said = cast_value(left, "boolean")
        return said if said is (node.name == "OR") else cast_value(_evaluated(node.right, asked), "boolean")
    right = _evaluated(node.right, asked)
    match node.name:
        case "XOR":
            return cast_value(left, "boolean") is not cast_value(right, "boolean")
        case "=" | "!=":
            return (cast_value(left, type_name(right)) == right) is (node.name == "=")
    return _reckoned(node.name, _integer(left), _integer(right))


def _reckoned(name: str, a: int, b: int) -> Value:
    match name:
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
        case ">=":
            return a >= b
        case "+":
            return _ranged(a + b)
        case "-":
            return _ranged(a - b)
        case "*":
            return _ranged(a * b)
    if b == 0:
        raise Failed("math")
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return _ranged(quotient if name == "/" else a - b * quotient)


def _among(part: Value, items: tuple[Node, ...], asked: _Asked) -> bool:
    return any(part == cast_value(_evaluated(item, asked), type_name(part)) for item in items)


def _called(tree: Call, asked: _Asked) -> Value:
    found = function(tree.name, len(tree.parts))
    if found is None:
        raise Failed("missingFunction")
    wanted = zip(tree.parts, found.types(len(tree.parts)), strict=True)
    parts = [cast_value(_evaluated(part, asked), to) for part, to in wanted]
    first = str(parts[0]) if parts else ""
    match tree.name:
        case "LENGTH":
            return len(first)
        case "CONCAT" | "CONCAT_WS":
            return _concatenated(tree.name, [str(part) for part in parts])
        case "LOWER":
            return first.lower()
        case "UPPER":
            return first.upper()
        case "TRIM":
            return first.strip(SPACES)
        case "LEFT" | "RIGHT":
            return _edge(tree, first, int(parts[1]))
        case "SUBSTRING":
            return _substring(first, int(parts[1]), int(parts[2]) if len(parts) > 2 else len(first))
        case "ABS":
            if parts[0] == INT_MIN:
                raise Failed("math", INT_MAX, tree)
            return abs(int(parts[0]))
        case "IS_INT" | "IS_BOOL":
            return _can_be(parts[0], "integer" if tree.name == "IS_INT" else "boolean")
    return cast_value(parts[0], found.gives)


def _concatenated(name: str, parts: list[str]) -> str:
    between, *rest = parts if name == "CONCAT_WS" else ["", *parts]
    if sum(map(len, rest)) + len(between) * len(rest) > MAX_TEXT:
        raise Failed("generic")
    return between.join(rest)


def _can_be(value: Value, to: str) -> bool:
    try:
        cast_value(value, to)
    except Failed:
        return False
    return True


def _edge(tree: Call, text: str, size: int) -> str:
    if size < 0:
        raise Failed("functionEvaluation", text, tree)
    return text[:size] if tree.name == "LEFT" else text[max(len(text) - size, 0) :]


def _substring(text: str, start: int, size: int) -> str:
    if abs(start) > len(text) or size < 0:
        raise Failed("functionEvaluation")
    if start == 0:
        return ""
    begin = start - 1 if start > 0 else len(text) + start
    return text[begin : begin + size]
