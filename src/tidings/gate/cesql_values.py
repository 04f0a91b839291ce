"""What a CESQL expression says of one event, in plain Python: the twin of `cesql_columns`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidings.gate.cesql_tree import (
    INT_MAX,
    INT_MIN,
    SPACES,
    Attribute,
    Binary,
    Call,
    Cast,
    Exists,
    In,
    Like,
    Literal,
    Node,
    Unary,
    Value,
    like_tokens,
)


class Failed(Exception):
    """An evaluation error: the filter does not match."""


def matches(tree: Node, event: Mapping[str, str | None]) -> bool:
    """Does the event pass the filter? Errors and results that are not booleans do not."""
    try:
        return evaluate(tree, event) is True
    except Failed:
        return False


def evaluate(tree: Node, event: Mapping[str, str | None]) -> Value:
    """The value of the expression, or Failed. The plain twin of `cesql_columns.compile_tree`."""
    match tree:
        case Literal():
            return tree.value
        case Attribute():
            found = event.get(tree.name)
            if found is None:
                raise Failed
            return found
        case Exists():
            return event.get(tree.name) is not None
        case Cast():
            return cast_value(evaluate(tree.part, event), tree.type)
        case Unary():
            part = evaluate(tree.part, event)
            return not part if tree.name == "not" else _ranged(-int(part))
        case Binary():
            return _binary(tree, event)
        case Like():
            pattern = "".join({"%": ".*", "_": "."}.get(t) or re.escape(t[1:]) for t in like_tokens(tree.pattern))
            found = str(evaluate(tree.part, event))
            return (re.fullmatch(pattern, found, re.DOTALL) is not None) is not tree.negated
        case In():
            part = evaluate(tree.part, event)
            return any(part == evaluate(item, event) for item in tree.items) is not tree.negated
        case Call():
            return _called(tree.name, [evaluate(part, event) for part in tree.parts])


def cast_value(value: Value, to: str) -> Value:
    """The standard's casts; what cannot be cast fails."""
    if to == "string":
        return str(value).lower() if isinstance(value, bool) else str(value)
    if to == "integer":
        if isinstance(value, str):
            if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
                raise Failed
            return _ranged(int(value))
        return int(value)
    if isinstance(value, str):
        if value.lower() not in ("true", "false"):
            raise Failed
        return value.lower() == "true"
    return bool(value)


def _ranged(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise Failed
    return value


def _binary(tree: Binary, event: Mapping[str, str | None]) -> Value:
    left = evaluate(tree.left, event)
    if (tree.name == "AND" and left is False) or (tree.name == "OR" and left is True):
        return left
    right = evaluate(tree.right, event)
    if tree.name in ("AND", "OR"):
        return right
    if tree.name in ("=", "!=", "XOR"):
        return (left == right) is (tree.name == "=")
    a, b = int(left), int(right)
    if tree.name in ("<", "<=", ">", ">="):
        return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[tree.name]
    if tree.name in ("/", "%"):
        if b == 0:
            raise Failed
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return _ranged(quotient if tree.name == "/" else a - b * quotient)
    return _ranged({"+": a + b, "-": a - b, "*": a * b}[tree.name])


def _called(name: str, parts: list[Value]) -> Value:
    first = str(parts[0])
    match name:
        case "LENGTH":
            return len(first)
        case "CONCAT":
            return "".join(map(str, parts))
        case "CONCAT_WS":
            return first.join(map(str, parts[1:]))
        case "LOWER":
            return first.lower()
        case "UPPER":
            return first.upper()
        case "TRIM":
            return first.strip(SPACES)
        case "LEFT" | "RIGHT":
            return _edge(name, first, int(parts[1]))
        case "SUBSTRING":
            return _substring(first, int(parts[1]), int(parts[2]) if len(parts) > 2 else len(first))
        case "ABS":
            return _ranged(abs(int(parts[0])))
    try:
        cast_value(parts[0], "integer" if name == "IS_INT" else "boolean")
    except Failed:
        return False
    return True


def _edge(name: str, text: str, size: int) -> str:
    if size < 0:
        raise Failed
    if size >= len(text):
        return text
    return text[:size] if name == "LEFT" else text[len(text) - size :]


def _substring(text: str, start: int, size: int) -> str:
    if abs(start) > len(text) or size < 0:
        raise Failed
    if start == 0:
        return ""
    begin = start - 1 if start > 0 else len(text) + start
    return text[begin : begin + size]
