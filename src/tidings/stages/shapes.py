"""The functions of dialect files that make JSON values, lists and tests."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.stages import payloads, rows
from tidings.stages.functions import QUOTED_TIME, SHARED, TEXT, TIME, let
from tidings.stages.functions import fields as fields
from tidings.stages.functions import present as present
from tidings.stages.language import Expression, Function, Grammar, Read, Scope, Wrong, json_path, over
from tidings.stages.message import parse as parse_text
from tidings.stages.message import whole

KINDS = {
    "object": r"^\{",
    "array": r"^\[",
    "string": '^"',
    "integer": "^-?[0-9]+$",
    "number": "^-?[0-9]",
    "boolean": "^[tf]",
    "scalar": r"^[^\[{]",
    "time": QUOTED_TIME,
}


def is_kind(value: Column, kind: str) -> Column:
    return F.to_json(value).rlike(KINDS[kind])


def _object(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{name: json}`: an object of these fields; null when one of them is missing or null."""
    parts = [grammar.json(tree) for tree in body.values()]

    def make(*columns: Column) -> Column:
        made = F.to_variant_object(F.struct(*[c.alias(str(n)) for c, n in zip(columns, body, strict=True)]))
        complete = present(columns[0])
        for column in columns[1:]:
            complete = complete & present(column)
        return F.when(complete, made)

    return over("json", parts, make)


def _parse(body: Any, grammar: Grammar, kind: str) -> Expression:
    """A text that holds JSON, parsed; a text that does not stays what it is, and its type is then found wrong."""

    def make(text: Column) -> Column:
        def opened(guarded: Column) -> Column:
            inner = F.when(whole(guarded, text), F.try_variant_get(guarded, "$[0]", "variant"))
            return inner.when(text.isNotNull(), _as_string(text))

        return let(parse_text(text), opened)

    return over("json", [grammar.text(body)], make)


def _as_string(text: Column) -> Column:
    return F.try_variant_get(F.to_variant_object(F.struct(text.alias("text"))), "$.text", "variant")


def _text_value(body: Any, grammar: Grammar, kind: str) -> Expression:
    """A text as a JSON string."""
    return over("json", [grammar.text(body)], lambda text: F.when(text.isNotNull(), _as_string(text)))


def _kept(value: Column, keep: Any) -> Column:
    """The object with the fields for which `keep(name)` holds; null when none is left."""
    return let(
        F.map_filter(fields(value), lambda name, _: keep(name)),
        lambda left: F.when(F.size(left) > 0, F.to_variant_object(left)),
    )


def _without(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: json, prefixes: […], names: […]}`: the object without the vendor's own columns."""
    prefixes, names = body.get("prefixes", []), [str(name) for name in body.get("names", [])]

    def keep(name: Column) -> Column:
        holds = ~name.isin(names) if names else F.lit(True)
        for prefix in prefixes:
            holds = holds & ~F.startswith(name, F.lit(str(prefix)))
        return holds

    def make(value: Column) -> Column:
        return F.when(is_kind(value, "object"), _kept(value, keep)).otherwise(value)

    return over("json", [grammar.json(body["of"])], make)


def _prefixed(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: json, prefix: "pk."}`: only the fields with this prefix, named without it."""
    prefix = str(body["prefix"])

    def make(value: Column) -> Column:
        kept = F.map_filter(fields(value), lambda name, _: F.startswith(name, F.lit(prefix)))
        return let(kept, lambda left: F.when(F.size(left) > 0, F.to_variant_object(renamed(left))))

    def renamed(left: Column) -> Column:
        return F.transform_keys(left, lambda name, _: F.substr(name, F.lit(len(prefix) + 1)))

    return over("json", [grammar.json(body["of"])], make)


def _zip(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{names: json list, values: json list}`: one object; null unless both have the same length and names differ."""

    def make(names: Column, values: Column) -> Column:
        texts = F.transform(names, lambda name: F.try_variant_get(name, "$", "string"))
        fits = (F.size(names) == F.size(values)) & (F.size(names) > 0)
        sound = fits & (F.size(F.array_distinct(texts)) == F.size(texts)) & ~F.exists(texts, lambda name: name.isNull())
        return F.when(sound, F.to_variant_object(F.map_from_arrays(texts, values)))

    return over("json", [grammar.read(body["names"], "list"), grammar.read(body["values"], "list")], make)


def _has_kind(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`[path, object|array|string|integer|number|boolean|scalar]`."""
    where, wanted = body
    if wanted not in KINDS:
        raise Wrong(str(wanted), f"one of {', '.join(KINDS)}")
    read = Read(grammar.path(where), "variant")
    return Expression("test", lambda scope: F.coalesce(is_kind(scope.direct(read), wanted), F.lit(False)))


def _walk(test: Any) -> Function:
    """Tests that must tell a missing field from a null one walk from the root."""

    def function(body: Any, grammar: Grammar, kind: str) -> Expression:
        read = Read(grammar.path(body), "variant")

        def make(scope: Scope) -> Column:
            return F.coalesce(test(scope.direct(read)), F.lit(False))

        return Expression("test", make)

    return function


def _present(body: Any, grammar: Grammar, kind: str) -> Expression:
    return over("test", [grammar.text(body)], lambda text: text.isNotNull())


def _equals(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`[text, constant, …]`: the text is one of the constants."""
    subject, *values = body
    wanted = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    return over("test", [grammar.text(subject)], lambda text: F.coalesce(text.isin(wanted), F.lit(False)))


def _starts(body: Any, grammar: Grammar, kind: str) -> Expression:
    subject, prefix = body
    made = lambda text: F.coalesce(F.startswith(text, F.lit(str(prefix))), F.lit(False))  # noqa: E731
    return over("test", [grammar.text(subject)], made)


def _matches(body: Any, grammar: Grammar, kind: str) -> Expression:
    subject, pattern = body
    return over("test", [grammar.text(subject)], lambda text: F.coalesce(text.rlike(str(pattern)), F.lit(False)))


def _only(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`[path, [names]]`: the object has these fields and no others."""
    where, names = body
    wanted = sorted(str(name) for name in names)
    read = Read(grammar.path(where), "variant")

    def make(scope: Scope) -> Column:
        found = F.array_sort(F.map_keys(fields(scope.direct(read))))
        return F.coalesce(found == F.array(*[F.lit(name) for name in wanted]), F.lit(False))

    return Expression("test", make)


def _all(body: Any, grammar: Grammar, kind: str) -> Expression:
    def make(*columns: Column) -> Column:
        held = columns[0]
        for column in columns[1:]:
            held = held & column
        return held

    return over("test", [grammar.test(tree) for tree in body], make)


def _any(body: Any, grammar: Grammar, kind: str) -> Expression:
    def make(*columns: Column) -> Column:
        held = columns[0]
        for column in columns[1:]:
            held = held | column
        return held

    return over("test", [grammar.test(tree) for tree in body], make)


def _not(body: Any, grammar: Grammar, kind: str) -> Expression:
    return over("test", [grammar.test(body)], lambda held: ~held)


def pick(value: Column, names: list[str]) -> Column:
    """The named fields of an object as an object; null unless all are there."""
    found = [F.try_variant_get(value, "$" + json_path((name,)), "variant").alias(name) for name in names]
    complete = present(found[0])
    for column in found[1:]:
        complete = complete & present(column)
    return F.when(complete, F.to_variant_object(F.struct(*found)))


JSON: dict[str, Function] = {
    **SHARED,
    "object": _object,
    "parse": _parse,
    "string": _text_value,
    "without": _without,
    "prefixed": _prefixed,
    "zip": _zip,
    **payloads.JSON,
    "within": rows.within,
    "assembled": rows.assembled,
    "picked": rows.picked,
    "unmarked": rows.unmarked,
    "sided": rows.sided,
    "sole": rows.sole,
    "untyped": rows.untyped,
}
TEST: dict[str, Function] = {
    "all": _all,
    "any": _any,
    "not": _not,
    "present": _present,
    "exists": _walk(lambda value: value.isNotNull()),
    "is_null": _walk(F.is_variant_null),
    "kind": _has_kind,
    "only": _only,
    "equals": _equals,
    "starts": _starts,
    "matches": _matches,
    "covers": rows.covers,
    "fewer": rows.fewer,
}
LIST: dict[str, Function] = {
    **SHARED,
    **payloads.LIST,
    "within": rows.within,
    "alone": rows.alone,
    "numbered": rows.numbered,
    "unpacked": rows.unpacked,
}
FUNCTIONS = {
    "text": {**TEXT, **payloads.TEXT},
    "time": {**TIME, **payloads.TIME},
    "json": JSON,
    "test": TEST,
    "list": LIST,
}
