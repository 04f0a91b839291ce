"""What is wrong with a decoded message, in the words of `stages.codes`: a value of another type, a field that is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.stages.dialect import Dialect
from tidings.stages.functions import TIME_SHAPE, integer
from tidings.stages.language import Expression, Read, Scope, Segments, dotted, json_path
from tidings.stages.message import problem
from tidings.stages.shapes import KINDS, present

IMAGES = ("key", "before", "after")
_KEYED = ("insert", "update", "delete", "snapshot", "tombstone")
# Texts stand behind a mark, \1 for a string and \2 for any scalar. What looks as if the JSON behind it had another type
# is looked at again, exactly.
_OTHER_TYPE = "[\x01\x02](?:[\\[{]|(?<=\x01)(?:true|false|-?[0-9]))"
_MARKS = {"string": "\x01", "scalar": "\x02"}


@dataclass(frozen=True)
class Row:
    """One change half done: the fields as the dialect gave them, and key and images as canonical text."""

    raw: Column
    text: Column


def verdict(dialect: Dialect, scope: Scope, row: Row, image: Column) -> Column:
    """The first thing wrong with the message, or null; the exact looks happen only where something is off."""
    op = row.raw["op"]
    said = [F.when(op.isNull(), _no_operation(dialect, scope)), _no_object(dialect, row)]
    said.append(F.when(_suspicious(dialect, scope, row), _wrong_type(dialect, scope)))
    if dialect.needs:
        wanting = op.isin(*[wanted for wanted, _ in dialect.needs]) & _no_image(op, image)
        said.append(F.when(wanting, _unfilled(dialect, scope, op)))
    lacks_key = op.isin(*_KEYED) & image["key"].isNull()
    said.append(
        F.when(lacks_key, problem("missing_key", "key", "no key in the message and none from configured columns"))
    )
    nameless = problem("missing_field", "entity", "the message names no table")
    return F.coalesce(*said, F.when(row.raw["entity"].isNull(), nameless))


def _no_object(dialect: Dialect, row: Row) -> Column:
    """A key or an image that is something else than an object; a row that is gone has no image to look at."""
    chain = F.when(row.raw["op"] == "truncate", None)
    for name in IMAGES:
        where = _only_place(dialect.fields[name]) or name
        wrong = ~F.startswith(row.text[name], F.lit("{"))
        wrong = wrong if name == "key" else wrong & (row.raw["op"] != "tombstone")
        chain = chain.when(wrong, problem("wrong_type", where, "expected an object"))
    return chain


def _no_image(op: Column, image: Column) -> Column:
    return F.when(op == "delete", image["before"]).otherwise(image["after"]).isNull()


def _unfilled(dialect: Dialect, scope: Scope, op: Column) -> Column:
    """The field that must hold this operation's image, when it is absent; an empty image is allowed."""
    inside = all(where[:1] == ("@",) for _, where in dialect.needs)
    root = scope.item if inside and scope.item is not None else scope.root
    places = {wanted: (_path(scope, where), dotted(where)) for wanted, where in dialect.needs}
    path, name = (_looked_up({wanted: pair[n] for wanted, pair in places.items()}, op) for n in (0, 1))
    filled = present(F.try_variant_get(root, path, "variant"))
    return F.when(~filled, problem("missing_field", name, "absent or null"))


def _looked_up(table: Mapping[str, str], key: Column) -> Column:
    return F.create_map(*[F.lit(text) for pair in table.items() for text in pair])[key]


def _where(expression: Expression) -> Segments:
    """The place to name when a value is wrong: the first the expression reads."""
    return min((read.segments for read in expression.reads), default=())


def _only_place(expression: Expression) -> str:
    """The place of an image that can come from nowhere else; an image put together has no place to name."""
    places = {read.segments for read in expression.reads if read.as_type == "variant"}
    return dotted(*places) if len(places) == 1 else ""


def _no_operation(dialect: Dialect, scope: Scope) -> Column:
    where, named = dialect.op_from_name, dialect.op_from.make(scope).isNotNull()
    unknown = problem("unknown_operation", where, "not an operation of this dialect")
    missing = problem("missing_field", where, "absent or null")
    return F.coalesce(_wrong_type(dialect, scope), F.when(named, unknown).otherwise(missing))


def _suspicious(dialect: Dialect, scope: Scope, row: Row) -> Column:
    """Whether any text looks as if the JSON behind it had another type; cheap, and sometimes wrongly so."""
    tests = [row.raw["commit_time"].isNull() & _any_present(dialect.fields["commit_time"], scope)]
    tests += [_nested(row.text["key"])] if _key_is_typed(dialect) else []
    taken = {(where, kind): scope.taken.get(Read(where, "string")) for where, kind in dialect.types}
    marked = [F.concat(F.lit(_MARKS[kind]), c) for (_, kind), c in taken.items() if kind in _MARKS and c is not None]
    tests += [F.concat_ws("", *marked).rlike(_OTHER_TYPE)] if marked else []
    numbers = [c for (_, kind), c in taken.items() if kind == "integer" and c is not None]
    tests += [c.isNotNull() & integer(c).isNull() for c in numbers]
    tests += [~c.rlike(TIME_SHAPE) for (_, kind), c in taken.items() if kind == "time" and c is not None]
    for where in [where for where, kind in dialect.types if kind == "object"]:
        inside = [read for read in scope.taken if read.as_type == "string" and read.segments[: len(where)] == where]
        texts = [scope.taken[read] for read in inside]
        tests += [F.coalesce(*texts).isNull() & scope.direct(Read(where, "string")).isNotNull()] if texts else []
    return reduce(Column.__or__, tests)


def _key_is_typed(dialect: Dialect) -> bool:
    """Whether a value of the key has a declared type and is read as it stands, so that no text shows what it is."""
    untold = {read.segments for read in dialect.fields["key"].reads if read.as_type == "variant"}
    return any(where in untold for where, kind in dialect.types if kind in _MARKS)


def _nested(text: Column) -> Column:
    held = F.contains(text, F.lit(":{")) | F.contains(text, F.lit(":["))
    return F.coalesce(held, F.lit(False))


def _any_present(expression: Expression, scope: Scope) -> Column:
    texts = [F.nullif(scope.at(read), F.lit("")) for read in expression.reads if read.as_type == "string"]
    return F.coalesce(*texts).isNotNull() if texts else F.lit(False)


def _wrong_type(dialect: Dialect, scope: Scope) -> Column:
    """The first declared type that does not hold, or a time that says nothing; null when all is well.

    The types are data and the loop is one expression: spelled out per field they would be most of the plan.
    """
    declared = F.array(*[_declared(scope, where, kind) for where, kind in dialect.types])

    def holds_wrongly(entry: Column) -> Column:
        value = F.when(entry["in_item"], _walked(scope.item, entry)).otherwise(_walked(scope.root, entry))
        return present(value) & ~F.call_function("rlike", F.to_json(value), entry["pattern"])

    wrong = F.get(F.filter(declared, holds_wrongly), F.lit(0))
    time = dialect.fields["commit_time"]
    untimed = time.make(scope).isNull() & _any_present(time, scope)
    timeless = F.when(untimed, problem("wrong_type", dotted(_where(time)), "expected a time"))
    expected = F.concat(F.lit("expected "), wrong["kind"])
    return F.coalesce(F.when(wrong.isNotNull(), problem("wrong_type", wrong["name"], expected)), timeless)


def _declared(scope: Scope, where: Segments, kind: str) -> Column:
    in_item = where[:1] == ("@",)
    entry = {"path": _path(scope, where), "name": dotted(where), "kind": kind, "pattern": KINDS[kind]}
    return F.struct(*[F.lit(text).alias(name) for name, text in entry.items()], F.lit(in_item).alias("in_item"))


def _path(scope: Scope, where: Segments) -> str:
    return "$" + json_path(where[1:]) if where[:1] == ("@",) else scope.prefix + json_path(where)


def _walked(root: Column | None, entry: Column) -> Column:
    return F.lit(None).cast("variant") if root is None else F.try_variant_get(root, entry["path"], "variant")
