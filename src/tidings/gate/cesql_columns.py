"""A CESQL tree as a Spark column: null is an error, so an error anywhere on the path taken makes the filter not match.

Every part stands once in the column it becomes. Writing one twice would double the plan with each level of nesting, and a short
hostile filter could then fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.contract import LIFE_CYCLE
from tidings.gate.cesql_tree import (
    INT_MAX,
    REQUIRED,
    SPACES,
    Attribute,
    Binary,
    Call,
    Exists,
    Function,
    Holds,
    In,
    Like,
    Literal,
    Node,
    Unary,
    Value,
    chain,
    function,
    like_regex,
    type_name,
)
from tidings.gate.cesql_values import Failed, cast_value

_SPARK = {"string": "string", "integer": "int", "boolean": "boolean"}
_PLAIN = {
    "id": "event_id", "correlationid": "correlation", "causationid": "causation", "tenant": "tenant", "banner": "banner",
    "location": "location", "locale": "locale", "routinghint": "routing_hint", "hlctime": "hlc", "schemaversion": "schema_version",
}  # fmt: skip


SEQUENCE_WIDTH = 20


def journal_attributes(columns: Sequence[str]) -> dict[str, Column]:
    """Envelope attribute → column, for those of the journal's columns that are there; the same text the envelope carries."""
    found = {name: F.col(column).cast("string") for name, column in _PLAIN.items() if column in columns}
    found |= {name: _padded(F.col(column)) for name, column in _NUMBERS if column in columns}
    found |= {name: _instant(F.col(column)) for name, column in _TIMES if column in columns}
    if {"change_type", "entity"} <= set(columns):
        life = F.concat(F.lit("tidings."), F.col("entity"), F.lit("."), F.col("change_type"))
        typed = F.concat(F.lit("tidings."), F.col("change_type"), F.lit(".changed"))
        found["type"] = F.when(F.col("change_type").isin(*LIFE_CYCLE), life).otherwise(typed)
    if {"tenant", "source"} <= set(columns):
        found["source"] = F.concat(F.lit("/"), F.concat_ws("/", "tenant", "source"))
    if {"entity", "schema_version"} <= set(columns):
        version = F.url_encode(F.coalesce("schema_version", F.lit("1")))
        found["dataschema"] = F.concat(F.lit("urn:tidings:"), F.col("entity"), F.lit(":"), version)
    # An attribute without a value is not in the envelope.
    found = {name: F.when(F.length(column) > 0, column) for name, column in found.items()}
    return found | {"specversion": F.lit("1.0"), "datacontenttype": F.lit("application/json")}


_NUMBERS = (("sequence", "offset"), ("subjectseq", "subjectseq"))
_TIMES = (("time", "time"), ("recordedtime", "recorded"))


def _padded(number: Column) -> Column:
    return F.lpad(number.cast("string"), SEQUENCE_WIDTH, "0")


def _instant(time: Column) -> Column:
    """RFC 3339 in UTC with six digits, or none when they are all zero."""
    whole = F.date_format(time, "yyyy-MM-dd'T'HH:mm:ss")
    micros = F.pmod(F.unix_micros(time), F.lit(1_000_000))
    return F.concat(whole, F.when(micros == 0, F.lit("Z")).otherwise(F.date_format(time, ".SSSSSS'Z'")))


class Typed(NamedTuple):
    """A column and its type in the language."""

    column: Column
    type: str


def filter_column(tree: Node, attributes: Mapping[str, Column]) -> Column:
    """True where the event passes; never null. Attributes are strings, as in the envelope."""
    if isinstance(tree, Binary) and tree.name == "AND":
        # At the top an error and false say the same, so Spark's own AND will do.
        return _every([filter_column(part, attributes) for part in chain(tree)])
    found = compile_tree(tree, attributes)
    passes = found.column if found.type == "boolean" else F.lit(False)
    return F.coalesce(passes, F.lit(False))


def _every(parts: list[Column]) -> Column:
    """Halved again and again, so that a long chain is not a deep one."""
    middle = len(parts) // 2
    return parts[0] if len(parts) == 1 else _every(parts[:middle]) & _every(parts[middle:])


def compile_tree(tree: Node, attributes: Mapping[str, Column], types: Mapping[str, str] | None = None) -> Typed:
    """The native twin of `cesql_values.answer`; an attribute is a string unless `types` says otherwise."""

    def part(node: Node) -> Typed:
        return compile_tree(node, attributes, types)

    match tree:
        case Literal():
            return Typed(F.lit(tree.value), type_name(tree.value))
        case Attribute():
            if tree.name not in attributes:
                return Typed(F.lit(None).cast("boolean"), "boolean")
            return Typed(attributes[tree.name], (types or {}).get(tree.name, "string"))
        case Exists():
            if tree.name in REQUIRED:
                return Typed(F.lit(True), "boolean")
            found = attributes[tree.name].isNotNull() if tree.name in attributes else F.lit(False)
            return Typed(found, "boolean")
        case Unary():
            return _unary(tree.name, part(tree.part))
        case Binary(name="AND" | "OR"):
            return Typed(_logic(tree.name, [_cast(part(one), "boolean") for one in chain(tree)]), "boolean")
        case Binary():
            return _binary(tree.name, part(tree.left), part(tree.right))
        case Like():
            return Typed(_negated(_like(_cast(part(tree.part), "string"), tree.pattern), tree.negated), "boolean")
        case In():
            return Typed(_negated(_among(part(tree.part), tree.items, part), tree.negated), "boolean")
        case Call():
            found_function = function(tree.name, len(tree.parts))
            if found_function is None:
                return Typed(F.lit(None).cast("boolean"), "boolean")
            return Typed(_called(tree.name, found_function, [part(one) for one in tree.parts]), found_function.gives)
        case Holds():
            inner = part(tree.part)
            holds = F.coalesce(inner.column, F.lit(False)) if inner.type == "boolean" else F.lit(False)
            return Typed(holds, "boolean")


def _once(column: Column, body: Callable[[Column], Column]) -> Column:
    """`body` of a column that it names more than once; Spark has no other word for it."""
    return F.get(F.transform(F.array(column), body), F.lit(0))


def _negated(answer: Column, negated: bool) -> Column:
    return ~answer if negated else answer


def _cast(part: Typed, to: str) -> Column:
    if to in (part.type, "any"):
        return part.column
    if to == "string" or part.type != "string":
        return part.column.cast(_SPARK[to])
    # What does not look like one becomes an empty string, and that cannot be cast.
    if to == "integer":
        return F.regexp_extract(part.column, r"\A([+-]?[0-9]+)\z", 1).try_cast("int")
    return F.regexp_extract(F.lower(part.column), r"\A(true|false)\z", 1).try_cast("boolean")


def _unary(name: str, part: Typed) -> Typed:
    if name == "NOT":
        return Typed(~_cast(part, "boolean"), "boolean")
    return Typed(F.try_subtract(F.lit(0), _cast(part, "integer")), "integer")


def _binary(name: str, left: Typed, right: Typed) -> Typed:
    match name:
        case "XOR":
            return Typed(_cast(left, "boolean") != _cast(right, "boolean"), "boolean")
        case "=":
            return Typed(_cast(left, right.type) == right.column, "boolean")
        case "!=":
            return Typed(_cast(left, right.type) != right.column, "boolean")
    return _reckoned(name, _cast(left, "integer"), _cast(right, "integer"))


def _logic(name: str, parts: list[Column]) -> Column:
    """The first part that decides, or that failed; two are looked up by the first of them, which is faster."""
    if len(parts) == 2:
        answers = F.array(F.lit(False), parts[1]) if name == "AND" else F.array(parts[1], F.lit(True))
        return F.get(answers, parts[0].cast("int"))
    return _first(F.array(*parts), lambda one: ~one if name == "AND" else one, name == "AND")


def _first(parts: Column, decides: Callable[[Column], Column], otherwise: bool) -> Column:
    told = F.filter(parts, lambda one: one.isNull() | decides(one))
    return F.get(F.concat(told, F.array(F.lit(otherwise))), F.lit(0))


def _reckoned(name: str, left: Column, right: Column) -> Typed:
    """Beyond 32 bits, and by zero, there is null."""
    match name:
        case "<":
            return Typed(left < right, "boolean")
        case "<=":
            return Typed(left <= right, "boolean")
        case ">":
            return Typed(left > right, "boolean")
        case ">=":
            return Typed(left >= right, "boolean")
        case "+":
            return Typed(F.try_add(left, right), "integer")
        case "-":
            return Typed(F.try_subtract(left, right), "integer")
        case "*":
            return Typed(F.try_multiply(left, right), "integer")
        case "%":
            return Typed(F.try_mod(left, right), "integer")
    # A double holds the quotient of two 32-bit numbers closely enough to cut it off at the right place.
    return Typed(F.try_divide(left, right).try_cast("int"), "integer")


def _like(text: Column, pattern: tuple[str, ...]) -> Column:
    """What needs no regular expression is asked directly, which is much faster."""
    if "_" in pattern or "%" in pattern[1:-1]:
        return text.rlike(rf"(?s)\A(?:{like_regex(pattern)})\z")
    plain = "".join(one[1:] for one in pattern if one != "%")
    match pattern[:1] == ("%",), pattern[-1:] == ("%",):
        case True, True:
            return text.contains(plain)
        case True, False:
            return text.endswith(plain)
        case False, True:
            return text.startswith(plain)
    return text == plain


def _among(part: Typed, items: tuple[Node, ...], compiled: Callable[[Node], Typed]) -> Column:
    known = _constants(items, part.type)
    if known is not None:
        return part.column.isin(*known)
    wanted = F.array(*[_cast(compiled(item), part.type) for item in items])
    return _first(F.transform(wanted, lambda item: part.column == item), lambda hit: hit, False)


def _constants(items: tuple[Node, ...], to: str) -> list[Value] | None:
    """What a list of nothing but literals holds, when each can be cast."""
    found = [item.value for item in items if isinstance(item, Literal)]
    try:
        return [cast_value(value, to) for value in found] if len(found) == len(items) else None
    except Failed:
        return None


def _called(name: str, found: Function, typed: list[Typed]) -> Column:
    parts = [_cast(one, to) for one, to in zip(typed, found.types(len(typed)), strict=True)]
    match name:
        case "LENGTH":
            return F.char_length(parts[0])
        case "CONCAT":
            return F.concat(*parts) if parts else F.lit("")
        case "CONCAT_WS":
            return _once(parts[0], lambda between: _concatenated(between, parts[1:]))
        case "LOWER":
            return F.lower(parts[0])
        case "UPPER":
            return F.upper(parts[0])
        case "TRIM":
            return F.trim(parts[0], F.lit(SPACES))
        case "LEFT" | "RIGHT":
            edge = F.left if name == "LEFT" else F.right
            return _once(parts[1], lambda size: F.when(size >= 0, edge(parts[0], size)))
        case "SUBSTRING":
            text, start, size = *parts[:2], parts[2] if len(parts) > 2 else F.lit(INT_MAX)
            return _once(text, lambda t: _once(start, lambda s: _once(size, lambda n: _substring(t, s, n))))
        case "ABS":
            return F.abs(parts[0].cast("bigint")).try_cast("int")
        case "IS_INT" | "IS_BOOL":
            kind = "integer" if name == "IS_INT" else "boolean"
            return _once(
                parts[0], lambda one: F.when(one.isNotNull(), _cast(Typed(one, typed[0].type), kind).isNotNull())
            )
    return _cast(typed[0], found.gives)


def _concatenated(between: Column, rest: list[Column]) -> Column:
    # concat_ws would skip an argument that failed; concat does not.
    pieces = [piece for one in rest for piece in (between, one)][1:]
    return F.concat(*pieces) if len(pieces) > 1 else F.when(between.isNotNull(), pieces[0] if pieces else F.lit(""))


def _substring(text: Column, start: Column, size: Column) -> Column:
    length = F.char_length(text)
    begin = F.when(start > 0, start).otherwise(length + start + 1)
    taken = F.when(start == 0, F.lit("")).otherwise(F.substring(text, begin, size))
    return F.when((F.abs(start.cast("bigint")) <= length) & (size >= 0), taken)
