"""The functions of dialect files for payloads that are no flat row: lists of pairs, names that are values, several shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.stages.functions import fields, integer, let, present
from tidings.stages.language import Expression, Function, Grammar, Scope, json_path, over

_NO_FIELDS = "map<string,variant>"


def _filled(left: Column) -> Column:
    """A map as an object; null when nothing is in it."""
    return F.when(F.size(left) > 0, F.to_variant_object(left))


def _text_of(value: Column, *names: str) -> Column:
    return F.try_variant_get(value, "$" + json_path(names), "string")


def _given(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`[json, …]`: the first that is neither missing nor null."""
    parts = [grammar.json(tree) for tree in body]
    return over("json", parts, lambda *c: F.coalesce(*[F.when(present(value), value) for value in c]))


def _at(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: json, path: value.Attributes}`: a place inside a value that was made."""
    path = "$" + json_path(grammar.path(body["path"]))
    wanted = "string" if kind == "text" else "variant"
    return over(kind, [grammar.json(body["of"])], lambda value: F.try_variant_get(value, path, wanted))


def _find(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: list, field: key, is: text}`: the first element whose field holds this text."""
    field = str(body["field"])

    def make(items: Column, text: Column) -> Column:
        return F.get(F.filter(items, lambda item: _text_of(item, field) == text), F.lit(0))

    return over("json", [grammar.read(body["of"], "list"), grammar.text(body["is"])], make)


def _pairs(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: list, name: key, value: value}`: one object out of named values; null when a name is missing or stands twice."""
    name, value = str(body["name"]), "$" + json_path((str(body["value"]),))

    def make(items: Column) -> Column:
        names = F.transform(items, lambda item: _text_of(item, name))
        values = F.transform(items, lambda item: F.try_variant_get(item, value, "variant"))
        distinct = F.size(F.array_distinct(names)) == F.size(names)
        sound = distinct & ~F.exists(names, lambda text: text.isNull()) & (F.size(names) > 0)
        return F.when(sound, F.to_variant_object(F.map_from_arrays(names, values)))

    return over("json", [grammar.read(body["of"], "list")], make)


def _named(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{name: text, value: json}`: an object with one field whose name the message gives; a null value stays."""

    def make(name: Column, value: Column) -> Column:
        return F.when(name.isNotNull() & value.isNotNull(), F.to_variant_object(F.create_map(name, value)))

    return over("json", [grammar.text(body["name"]), grammar.json(body["value"])], make)


def _keep(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: json, names: […]}`: only these fields, as far as the object has them."""
    names = [str(name) for name in body["names"]]

    def make(value: Column) -> Column:
        return let(F.map_filter(fields(value), lambda name, _: name.isin(names)), _filled)

    return over("json", [grammar.json(body["of"])], make)


def _merge(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`[json, json]`: the fields of both objects; the second wins."""
    first, second = [grammar.json(tree) for tree in body]

    def make(under: Column, over_it: Column) -> Column:
        empty = F.create_map().cast(_NO_FIELDS)
        low, high = F.coalesce(fields(under), empty), F.coalesce(fields(over_it), empty)
        rest = F.map_filter(low, lambda name, _: ~F.array_contains(F.map_keys(high), name))
        return let(F.map_concat(rest, high), _filled)

    return over("json", [first, second], make)


def _starting(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: json, prefix: text}`: the value of the first field whose name starts so."""
    prefix = str(body["prefix"])

    def make(value: Column) -> Column:
        found = F.map_filter(fields(value), lambda name, _: F.startswith(name, F.lit(prefix)))
        return F.get(F.map_values(found), F.lit(0))

    return over("json", [grammar.json(body["of"])], make)


def _nulls(body: Any, grammar: Grammar, kind: str) -> Expression:
    """A list of names: an object in which each of them is null."""

    def make(names: Column) -> Column:
        texts = F.array_distinct(
            F.filter(F.transform(names, lambda name: _text_of(name)), lambda text: text.isNotNull())
        )
        nothing = F.transform(texts, lambda _: F.parse_json(F.lit("null")))
        return F.when(F.size(texts) > 0, F.to_variant_object(F.map_from_arrays(texts, nothing)))

    return over("json", [grammar.read(body, "list")], make)


def _without_nulls(body: Any, grammar: Grammar, kind: str) -> Expression:
    """The object without the fields that are null."""

    def make(value: Column) -> Column:
        return let(F.map_filter(fields(value), lambda _, inner: present(inner)), _filled)

    return over("json", [grammar.json(body)], make)


def _one(body: Any, grammar: Grammar, kind: str) -> Expression:
    """A list with this one element."""
    return over("list", [grammar.json(body)], F.array)


def _items(body: Any, grammar: Grammar, kind: str) -> Expression:
    """A value that was made and is a list, as its elements."""
    return over("list", [grammar.json(body)], lambda value: F.try_variant_get(value, "$", "array<variant>"))


def _prefer(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: list, where: test}`: the elements (`@`) for which the test holds; where it holds for none, the first."""
    listed, test = grammar.read(body["of"], "list"), grammar.test(body["where"])

    def make(scope: Scope) -> Column:
        def chosen(items: Column) -> Column:
            held = F.filter(items, lambda item: test.make(replace(scope, item=item)))
            return let(held, lambda left: F.when(F.size(left) > 0, left).otherwise(F.slice(items, 1, 1)))

        return let(listed.make(scope), chosen)

    return Expression("list", make, listed.reads)


def _within(count: Column, limit: int) -> Column:
    return count.between(-limit, limit)


def _epoch(body: Any, grammar: Grammar, kind: str) -> Expression:
    """Time since 1970 in seconds; a count too large for that is in milliseconds, then micro- and nanoseconds."""

    def make(text: Column) -> Column:
        count = integer(text)
        micros = F.when(_within(count, 10**11), count * 1_000_000).when(_within(count, 10**14), count * 1_000)
        micros = micros.when(_within(count, 10**17), count)
        return F.timestamp_micros(micros.otherwise(F.call_function("div", count, F.lit(1_000))))

    return over("time", [grammar.text(body)], make)


JSON: dict[str, Function] = {
    "given": _given,
    "at": _at,
    "find": _find,
    "pairs": _pairs,
    "named": _named,
    "keep": _keep,
    "merge": _merge,
    "starting": _starting,
    "nulls": _nulls,
    "without_nulls": _without_nulls,
}
TEXT: dict[str, Function] = {"at": _at}
LIST: dict[str, Function] = {"one": _one, "items": _items, "prefer": _prefer}
TIME: dict[str, Function] = {"epoch": _epoch}
