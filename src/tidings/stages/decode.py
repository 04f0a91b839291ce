"""A dialect compiled to columns: a parsed message becomes the canonical fields, a skip or a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.seal import cards
from tidings.stages.dialect import FIELDS, Dialect
from tidings.stages.functions import let
from tidings.stages.language import SPARK_TYPE, Read, Scope
from tidings.stages.message import inexact_hint, no_problem, problem
from tidings.stages.shapes import fields, is_kind, pick, present
from tidings.stages.verdict import IMAGES, Row, verdict

Keys = Mapping[str, Sequence[str]]
PREFIX = "$[0]"
EMPTY = "empty_transaction"
# `suspect`: images or names may hold a card number, or a number that lost digits; whoever keeps them looks first.
TEXTS = {name: f"{name}_json" for name in IMAGES}
# Names that the message gives to its table and transaction are kept too.
NAMED = ("entity", "txn")
CORE = [*FIELDS, *TEXTS.values(), "skip", "problem", "suspect"]


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

    def chosen(items: Column) -> Column:
        wrong = F.array(refused(problem("wrong_type", dialect.each_name, "expected a list of changes")))
        nothing = F.when(F.size(items) == 0, F.array(skipped(EMPTY))).otherwise(wrong)
        return F.when(F.size(items) > 0, F.transform(items, with_item)).otherwise(nothing)

    return let(dialect.each.make(scope), chosen)


def refused(verdict: Column, *, suspect: bool = True) -> Column:
    """CORE for a message that could not be decoded."""
    return _blank(problem=verdict, suspect=F.lit(suspect))


def skipped(reason: str) -> Column:
    """CORE for a message that is no change."""
    return _blank(skip=F.lit(reason))


def _blank(**known: Column) -> Column:
    blank = {name: F.lit(None).cast(SPARK_TYPE[kind]) for name, kind in FIELDS.items()}
    blank |= {name: F.lit(None).cast("string") for name in TEXTS.values()}
    blank |= {"skip": F.lit(None).cast("string"), "problem": no_problem(), "suspect": F.lit(True), **known}
    return F.struct(*[blank[name].alias(name) for name in CORE])


def _reads(dialect: Dialect) -> list[Read]:
    parts = [*dialect.fields.values(), dialect.foreign, *[test for test, _ in dialect.skips]]
    found = frozenset[Read]().union(*[part.reads for part in parts])
    # The deeper place first: where one is inside the other, both cannot be in one type, and the outer one is walked to.
    return sorted(found, key=lambda read: (-len(read.segments), read.segments, read.as_type))


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
    return let(F.struct(*texts), lambda t: F.struct(*[t[n].alias(n) for n in IMAGES], _joined(t).alias("all")))


def _joined(texts: Column) -> Column:
    return F.concat_ws("\n", *[texts[name] for name in IMAGES])


def _core(dialect: Dialect, scope: Scope, row: Row, keys: Keys) -> Column:
    raw, text = row.raw, row.text
    op = raw["op"]
    is_delete, no_row = op == "delete", op.isin("truncate", "tombstone")
    value = {name: F.when(text[name] != "{}", raw[name]) for name in IMAGES}
    said = {name: F.nullif(text[name], F.lit("{}")) for name in IMAGES}
    before_is_after = is_delete & said["before"].isNull()

    def chosen(of: dict[str, Column]) -> dict[str, Column]:
        before = F.when(no_row, None).when(before_is_after, of["after"]).otherwise(of["before"])
        return {"before": before, "after": F.when(no_row | is_delete, None).otherwise(of["after"])}

    image, written = chosen(value), chosen(said)
    configured = _configured(dialect, scope, raw["entity"], F.coalesce(image["after"], image["before"]), keys)
    key = F.when(op == "truncate", None).when(said["key"].isNotNull(), value["key"]).otherwise(configured)
    holds = _any_placeholder(dialect, text)
    made = {"key": key, **{name: _clean(dialect, holds, column) for name, column in image.items()}}
    # The text is at hand for all but the rare image that was put together here.
    texts = {
        "key": F.when(op != "truncate", said["key"]),
        **{n: F.when(~holds, column) for n, column in written.items()},
    }
    images = F.struct(*[c.alias(n) for n, c in made.items()], *[c.alias(TEXTS[n]) for n, c in texts.items()])

    def finished(found: Column) -> Column:
        return _finished(row, found, _before_kind(dialect, row, found), verdict(dialect, scope, row, found))

    return let(images, finished)


def _finished(row: Row, image: Column, before_kind: Column, verdict: Column) -> Column:
    """CORE: the whole change for a good row, only the reason for a skipped or refused one."""
    raw, text = row.raw, row.text

    def made(bad: Column) -> Column:
        good = bad.isNull() & raw["skip"].isNull()
        given = {name: image[name] if name in IMAGES else raw[name] for name in FIELDS}
        given |= {text: F.coalesce(image[text], F.to_json(image[name])) for name, text in TEXTS.items()}
        given["before_kind"] = F.when(image["before"].isNull(), "none").otherwise(before_kind)
        out = {name: F.when(good, column) for name, column in given.items()}
        out["skip"], out["problem"] = raw["skip"], F.when(raw["skip"].isNull(), bad)
        kept = F.concat_ws("\n", text["all"], *[raw[name] for name in NAMED])
        looks_odd = cards.suspect(kept) | inexact_hint(text["all"])
        out["suspect"] = F.when(good, looks_odd).otherwise(bad.isNotNull())
        return F.struct(*[out[name].alias(name) for name in CORE])

    return let(verdict, made)


def _before_kind(dialect: Dialect, row: Row, image: Column) -> Column:
    """`partial` for an image in which nothing but the key is known; the vendor writes null for the rest."""
    kind, text = row.raw["before_kind"], row.text["all"]
    if not dialect.sparse_before:
        return kind
    key = F.map_keys(fields(image["key"]))
    known = F.map_filter(
        fields(image["before"]), lambda n, v: present(v) & ~F.coalesce(F.array_contains(key, n), F.lit(False))
    )
    hint = F.contains(text, F.lit(":null")) | (row.raw["op"] == "delete")
    return F.when(hint & (F.size(known) == 0), "partial").otherwise(kind)


def _configured(dialect: Dialect, scope: Scope, entity: Column, image: Column, keys: Keys) -> Column:
    """The key by the columns the operator names (`*` is for every other entity), else the one the vendor made up.

    Where the operator names none, it is the column that such tables usually have.
    """
    values = dialect.key_values.make(scope) if dialect.key_values else None
    spare = let(dialect.spare_key.make(scope), lambda made: F.when(is_kind(made, "object"), made))
    usual = [by_names(image, values, [name]) for name in dialect.usual_key]
    elsewhere = [by_names(image, values, keys["*"]), spare] if keys.get("*") else [spare, *usual]
    chosen = F.coalesce(*elsewhere)
    for name, columns in keys.items():
        if name != "*" and columns:
            chosen = F.when(entity == name, F.coalesce(by_names(image, values, columns), spare)).otherwise(chosen)
    return chosen


def by_names(image: Column, values: Column | None, names: Sequence[str]) -> Column:
    """The named columns of the image, or of a key that comes as a list of values in the order of these names."""
    found = pick(image, list(names))
    if values is None:
        return found
    listed = [F.get(values, F.lit(place)).alias(name) for place, name in enumerate(names)]
    fits = (F.size(values) == len(names)) & ~F.exists(values, lambda value: ~present(value))
    return F.coalesce(found, F.when(fits, F.to_variant_object(F.struct(*listed))))


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
        held = held | F.contains(text["all"], F.lit(word))
    return held
