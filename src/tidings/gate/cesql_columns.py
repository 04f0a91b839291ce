"""A CESQL tree as a Spark column: null is an error, so an error anywhere on the path taken makes the filter not match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.contract import LIFE_CYCLE
from tidings.gate import cesql
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
    like_tokens,
)

_SPARK = {"string": "string", "integer": "bigint", "boolean": "boolean"}
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


def filter_column(expression: str, attributes: Mapping[str, Column]) -> Column:
    """True where the event passes; never null."""
    tree = cesql.parse(expression)
    answer = compile_tree(tree, attributes) if tree.type == "boolean" else F.lit(False)
    return F.coalesce(answer, F.lit(False))


def compile_tree(tree: Node, attributes: Mapping[str, Column]) -> Column:
    """The native twin of `cesql_values.evaluate`."""
    match tree:
        case Literal():
            return F.lit(tree.value).cast(_SPARK[tree.type])
        case Attribute():
            return attributes.get(tree.name, F.lit(None).cast("string"))
        case Exists():
            return attributes[tree.name].isNotNull() if tree.name in attributes else F.lit(False)
        case Cast():
            return _cast(compile_tree(tree.part, attributes), tree.part.type, tree.type)
        case Unary():
            part = compile_tree(tree.part, attributes)
            return ~part if tree.name == "not" else _ranged(-part)
        case Binary():
            return _binary(tree.name, compile_tree(tree.left, attributes), compile_tree(tree.right, attributes))
        case Like():
            answer = compile_tree(tree.part, attributes).like(_spark_pattern(tree.pattern))
            return ~answer if tree.negated else answer
        case In():
            part = compile_tree(tree.part, attributes)
            items = [compile_tree(item, attributes) for item in tree.items]
            answer = reduce(lambda rest, item: _either(part == item, rest), reversed(items), F.lit(False))
            return ~answer if tree.negated else answer
        case Call():
            return _called(tree, [compile_tree(part, attributes) for part in tree.parts])


def _cast(part: Column, of: str, to: str) -> Column:
    if to == "string" or of != "string":
        return part.cast(_SPARK[to])
    if to == "integer":
        return _ranged(F.when(part.rlike(r"\A[+-]?[0-9]{1,18}\z"), part).try_cast("bigint"))
    low = F.lower(part)
    return F.when(low == "true", F.lit(True)).when(low == "false", F.lit(False))


def _ranged(value: Column) -> Column:
    return F.when(value.between(INT_MIN, INT_MAX), value)


def _either(left: Column, right: Column) -> Column:
    """OR that looks right only when left is false; plain OR would forgive an error on the left."""
    return F.when(left.isNull(), F.lit(None)).when(left, F.lit(True)).otherwise(right)


def _binary(name: str, left: Column, right: Column) -> Column:
    match name:
        case "AND":
            return F.when(left.isNull(), F.lit(None)).when(~left, F.lit(False)).otherwise(right)
        case "OR":
            return _either(left, right)
        case "=":
            return left == right
        case "!=" | "XOR":
            return left != right
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case ">=":
            return left >= right
    return _ranged(_arithmetic(name, left, right))


def _arithmetic(name: str, left: Column, right: Column) -> Column:
    """64-bit arithmetic on 32-bit values cannot overflow; a zero divisor becomes null before it divides."""
    if name == "+":
        return left + right
    if name == "-":
        return left - right
    if name == "*":
        return left * right
    divisor = F.nullif(right, F.lit(0).cast("bigint"))
    return left % divisor if name == "%" else F.call_function("div", left, divisor)


def _spark_pattern(pattern: str) -> str:
    """Spark refuses stray backslashes, so the pattern is written again from its parts."""
    return "".join(t if t in "%_" else ("\\" + t[1] if t[1] in "%_\\" else t[1]) for t in like_tokens(pattern))


def _called(tree: Call, parts: list[Column]) -> Column:
    first = parts[0]
    match tree.name:
        case "LENGTH":
            return F.char_length(first).cast("bigint")
        case "CONCAT":
            return F.concat(*parts)
        case "CONCAT_WS":
            between = [piece for part in parts[1:] for piece in (first, part)][1:]
            # concat_ws would skip an argument that failed; concat does not.
            return F.when(first.isNotNull(), F.concat(*between) if between else F.lit(""))
        case "LOWER":
            return F.lower(first)
        case "UPPER":
            return F.upper(first)
        case "TRIM":
            return F.trim(first, F.lit(SPACES))
        case "LEFT" | "RIGHT":
            return _edge(tree.name, first, parts[1])
        case "SUBSTRING":
            return _substring(first, parts[1], parts[2] if len(parts) > 2 else F.char_length(first).cast("bigint"))
        case "ABS":
            return _ranged(F.abs(first))
    kind = "integer" if tree.name == "IS_INT" else "boolean"
    able = _cast(first, tree.parts[0].type, kind).isNotNull()
    return F.when(first.isNotNull(), able)


def _edge(name: str, text: Column, size: Column) -> Column:
    length, count = F.char_length(text), size.cast("int")
    start = F.lit(1) if name == "LEFT" else length - count + 1
    return F.when(size >= length, text).when(size >= 0, F.substring(text, start, count))


def _substring(text: Column, start: Column, size: Column) -> Column:
    length = F.char_length(text)
    fits = (F.abs(start) <= length) & (size >= 0)
    begin = F.when(start > 0, start).otherwise(length + start + 1).cast("int")
    return F.when(fits & (start == 0), F.lit("")).when(fits, F.substring(text, begin, size.cast("int")))
