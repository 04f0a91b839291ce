"""A dialect compiled to columns: a parsed message becomes the canonical fields, a skip or a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.seal import cards
from tidings.stages.dialect import FIELDS, Dialect
from tidings.stages.functions import integer, let
from tidings.stages.language import SPARK_TYPE, Expression, Read, Scope, Segments, dotted, json_path
from tidings.stages.message import inexact_hint, no_problem, problem
from tidings.stages.shapes import KINDS, fields, pick, present

Keys = Mapping[str, Sequence[str]]
PREFIX = "$[0]"
IMAGES = ("key", "before", "after")
# `suspect`: the images may hold a card number, or a number that lost digits; whoever keeps them looks first.
CORE = [*FIELDS, "skip", "problem", "suspect"]
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


def decode(dialect: Dialect, root: Column, keys: Keys) -> Column:
    """An array of CORE structs: one for a message with one change, one for each item of a message with several."""
    reads = _reads(dialect)
    shape = Shape([read for read in reads if not read.in_item])

    def decoded(taken: Column) -> Column:
        scope = Scope(root, PREFIX, shape.columns(taken))
        made = F.array(_one(dialect, scope, keys)) if dialect.each is None else _each(dialect, scope, keys)
        foreign = problem("unknown_dialect", "", f"a message of another dialect than {dialect.name}")
        return F.when(dialect.foreign.make(scope), F.array(refused(foreign))).otherwise(made)

    return let(shape.take(root, PREFIX), decoded)


def _one(dialect: Dialect, scope: Scope, keys: Keys) -> Column:
    def with_raw(raw: Column) -> Column:
        return let(_texts(raw), lambda text: _core(dialect, scope, Row(raw, text), keys))

    return let(_raw(dialect, scope), with_raw)


def _each(dialect: Dialect, scope: Scope, keys: Keys) -> Column:
    """One struct per element; a list that is empty is a skip, and one that is no list is a problem."""
    assert dialect.each is not None
    shape = Shape([Read(read.segments[1:], read.as_type) for read in _reads(dialect) if read.in_item])

    def with_item(item: Column) -> Column:
        def decoded(taken: Column) -> Column:
            inner = {Read(("@", *read.segments), read.as_type): c for read, c in shape.columns(taken).items()}
            return _one(dialect, replace(scope, item=item, taken={**scope.taken, **inner}), keys)

        return let(shape.take(item, "$"), decoded)

    items = scope.direct(Read(dialect.each, "array<variant>"))
    nothing = skipped("empty_transaction")
    wrong = problem("wrong_type", dotted(dialect.each), "expected a list of changes")
    chosen = F.when(F.size(items) > 0, F.transform(items, with_item)).when(F.size(items) == 0, F.array(nothing))
    return chosen.otherwise(F.array(refused(wrong)))


def refused(verdict: Column) -> Column:
    """CORE for a message that could not be decoded."""
    return _blank(problem=verdict)


def skipped(reason: str) -> Column:
    """CORE for a message that is no change."""
    return _blank(skip=F.lit(reason))


def _blank(**known: Column) -> Column:
    blank = {name: F.lit(None).cast(SPARK_TYPE[kind]) for name, kind in FIELDS.items()}
    blank |= {"skip": F.lit(None).cast("string"), "problem": no_problem(), "suspect": F.lit(True), **known}
    return F.struct(*[blank[name].alias(name) for name in CORE])


def _reads(dialect: Dialect) -> list[Read]:
    parts = [*dialect.fields.values(), dialect.foreign, *[test for test, _ in dialect.skips]]
    found = frozenset[Read]().union(*[part.reads for part in parts])
    return sorted(found, key=lambda read: (read.segments, read.as_type))


class Shape:
    """Everything a dialect reads, as one nested struct type: one walk over the message takes it all."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self.children: dict[str, Any] = {}
        self.reads = [read for read in reads if self._place(read)]

    def _place(self, read: Read) -> bool:
        """Whether the read found room; one that collides with another (or stands in a list) is walked to instead."""
        node = self.children
        if not read.segments or any(name.startswith("[") for name in read.segments):
            return False
        for name in read.segments[:-1]:
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                return False
        return bool(node.setdefault(read.segments[-1], read.as_type) == read.as_type)

    def take(self, root: Column, prefix: str) -> Column:
        return F.try_variant_get(root, prefix, _ddl(self.children)) if self.children else F.lit(None)

    def columns(self, taken: Column) -> dict[Read, Column]:
        found = {}
        for read in self.reads:
            column = taken
            for name in read.segments:
                column = column[name]
            found[read] = column
        return found


def _ddl(node: dict[str, Any] | str) -> str:
    if isinstance(node, str):
        return node
    inner = ",".join(f"`{name.replace('`', '``')}`:{_ddl(child)}" for name, child in node.items())
    return f"struct<{inner}>"


def _raw(dialect: Dialect, scope: Scope) -> Column:
    """The fields as the dialect gives them, with the reason to skip if there is one."""
    skip: Column = F.lit(None).cast("string")
    for test, reason in reversed(dialect.skips):
        skip = F.when(test.make(scope), F.lit(reason)).otherwise(skip)
    made = [expression.make(scope).alias(name) for name, expression in dialect.fields.items()]
    return F.struct(*made, skip.alias("skip"))


def _texts(raw: Column) -> Column:
    """Key and images as canonical text; a JSON null is no text."""
    texts = [F.nullif(F.to_json(raw[name]), F.lit("null")).alias(name) for name in IMAGES]
    return F.struct(*texts)


def _core(dialect: Dialect, scope: Scope, row: Row, keys: Keys) -> Column:
    raw, text = row.raw, row.text
    op = raw["op"]
    is_delete, no_row = op == "delete", op.isin("truncate", "tombstone")
    value = {name: F.when(text[name] != "{}", raw[name]) for name in IMAGES}
    before_is_after = is_delete & value["before"].isNull()
    before = F.when(no_row, None).when(before_is_after, value["after"]).otherwise(value["before"])
    after = F.when(no_row | is_delete, None).otherwise(value["after"])
    key = F.when(op == "truncate", None).when(value["key"].isNotNull(), value["key"])
    key = key.otherwise(_configured(raw["entity"], F.coalesce(after, before), keys))
    holds = _any_placeholder(dialect, text)
    made = {"key": key, "before": _clean(dialect, holds, before), "after": _clean(dialect, holds, after)}
    images = F.struct(*[column.alias(name) for name, column in made.items()])
    return let(images, lambda image: _finished(row, image, _verdict(dialect, scope, row, image)))


def _finished(row: Row, image: Column, verdict: Column) -> Column:
    """CORE: the whole change for a good row, only the reason for a skipped or refused one."""
    raw, text = row.raw, row.text

    def made(bad: Column) -> Column:
        good = bad.isNull() & raw["skip"].isNull()
        given = {name: image[name] if name in IMAGES else raw[name] for name in FIELDS}
        given["before_kind"] = F.when(image["before"].isNull(), "none").otherwise(raw["before_kind"])
        out = {name: F.when(good, column) for name, column in given.items()}
        out["skip"], out["problem"] = raw["skip"], F.when(raw["skip"].isNull(), bad)
        out["suspect"] = F.when(good, _suspect(F.concat_ws("\n", *[text[name] for name in IMAGES]))).otherwise(
            bad.isNotNull()
        )
        return F.struct(*[out[name].alias(name) for name in CORE])

    return let(verdict, made)


def _suspect(text: Column) -> Column:
    return let(text, lambda whole: cards.suspect(whole) | inexact_hint(whole))


def _configured(entity: Column, image: Column, keys: Keys) -> Column:
    """The key taken from the image by the columns the operator names; `*` is for every other entity."""
    chosen: Column | None = None
    for name, columns in keys.items():
        if name != "*" and columns:
            made = pick(image, list(columns))
            chosen = F.when(entity == name, made) if chosen is None else chosen.when(entity == name, made)
    fallback = pick(image, list(keys["*"])) if keys.get("*") else F.lit(None).cast("variant")
    return fallback if chosen is None else chosen.otherwise(fallback)


def _clean(dialect: Dialect, holds: Column, image: Column) -> Column:
    """The image without the columns whose value the vendor could not supply: absent is not null."""
    if not dialect.placeholders:
        return image
    stated = [f'"{word}"' for word in dialect.placeholders]
    shapes = [*stated, *[f"[{word}]" for word in stated], *[f"{{{word}:{word}}}" for word in stated]]
    kept = F.map_filter(fields(image), lambda _, value: ~F.to_json(value).isin(shapes))
    cleaned = let(kept, lambda left: F.when(F.size(left) > 0, F.to_variant_object(left)))
    return F.when(holds, cleaned).otherwise(image)


def _any_placeholder(dialect: Dialect, text: Column) -> Column:
    held = F.lit(False)
    for word in dialect.placeholders:
        for image in ("before", "after"):
            held = held | F.coalesce(F.contains(text[image], F.lit(word)), F.lit(False))
    return held


def _verdict(dialect: Dialect, scope: Scope, row: Row, image: Column) -> Column:
    """The first thing wrong with the message, or null; the exact looks happen only where something is off."""
    raw, text = row.raw, row.text
    op = raw["op"]
    chain = F.when(op.isNull(), _no_operation(dialect, scope))
    for name in IMAGES:
        where = dotted(_where(dialect.fields[name])) or name
        chain = chain.when(~F.startswith(text[name], F.lit("{")), problem("wrong_type", where, "expected an object"))
    chain = chain.when(_suspicious(dialect, scope, raw), _wrong_type(dialect, scope))
    if dialect.needs:
        chain = chain.when(
            op.isin(*[wanted for wanted, _ in dialect.needs]) & _no_image(op, image), _unfilled(dialect, scope, op)
        )
    lacks_key = op.isin(*_KEYED) & image["key"].isNull()
    detail = "no key in the message and none from configured columns"
    chain = chain.when(lacks_key, problem("missing_key", "key", detail))
    return chain.when(raw["entity"].isNull(), problem("missing_field", "entity", "the message names no table"))


def _no_image(op: Column, image: Column) -> Column:
    return F.when(op == "delete", image["before"]).otherwise(image["after"]).isNull()


def _unfilled(dialect: Dialect, scope: Scope, op: Column) -> Column:
    """The field that must hold this operation's image, when it is absent; an empty image is allowed."""
    places = {wanted: (scope.prefix + json_path(where), dotted(where)) for wanted, where in dialect.needs}
    path, name = (_looked_up({wanted: pair[n] for wanted, pair in places.items()}, op) for n in (0, 1))
    filled = present(F.try_variant_get(scope.root, path, "variant"))
    return F.when(~filled, problem("missing_field", name, "absent or null"))


def _looked_up(table: Mapping[str, str], key: Column) -> Column:
    return F.create_map(*[F.lit(text) for pair in table.items() for text in pair])[key]


def _where(expression: Expression) -> Segments:
    """The place to name when a value is wrong: the first the expression reads."""
    return min((read.segments for read in expression.reads), default=())


def _no_operation(dialect: Dialect, scope: Scope) -> Column:
    where = dotted(dialect.op_from)
    named = present(scope.direct(Read(dialect.op_from, "variant")))
    unknown = problem("unknown_operation", where, "not an operation of this dialect")
    missing = problem("missing_field", where, "absent or null")
    return F.coalesce(_wrong_type(dialect, scope), F.when(named, unknown).otherwise(missing))


def _suspicious(dialect: Dialect, scope: Scope, raw: Column) -> Column:
    """Whether any text looks as if the JSON behind it had another type; cheap, and sometimes wrongly so."""
    tests = [raw["commit_time"].isNull() & _any_present(dialect.fields["commit_time"], scope)]
    taken = {(where, kind): scope.taken.get(Read(where, "string")) for where, kind in dialect.types}
    marked = [F.concat(F.lit(_MARKS[kind]), c) for (_, kind), c in taken.items() if kind in _MARKS and c is not None]
    tests += [F.concat_ws("", *marked).rlike(_OTHER_TYPE)] if marked else []
    numbers = [c for (_, kind), c in taken.items() if kind == "integer" and c is not None]
    tests += [c.isNotNull() & integer(c).isNull() for c in numbers]
    for where in [where for where, kind in dialect.types if kind == "object"]:
        inside = [read for read in scope.taken if read.as_type == "string" and read.segments[: len(where)] == where]
        texts = [scope.taken[read] for read in inside]
        tests += [F.coalesce(*texts).isNull() & scope.direct(Read(where, "string")).isNotNull()] if texts else []
    held = tests[0]
    for test in tests[1:]:
        held = held | test
    return held


def _any_present(expression: Expression, scope: Scope) -> Column:
    texts = [scope.at(read) for read in expression.reads if read.as_type == "string"]
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
    path = "$" + json_path(where[1:]) if in_item else scope.prefix + json_path(where)
    entry = {"path": path, "name": dotted(where), "kind": kind, "pattern": KINDS[kind]}
    return F.struct(*[F.lit(text).alias(name) for name, text in entry.items()], F.lit(in_item).alias("in_item"))


def _walked(root: Column | None, entry: Column) -> Column:
    return F.lit(None).cast("variant") if root is None else F.try_variant_get(root, entry["path"], "variant")
