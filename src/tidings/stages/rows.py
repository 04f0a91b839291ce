"""The functions of dialect files for rows: names and values apart, images beside each other, wrapped and typed values."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.stages.language import READ_AS, SPARK_TYPE, Expression, Grammar, json_path, over
from tidings.stages.message import STRING, whole
from tidings.stages.message import parse as parse_text

# What a JSON reader keeps exactly: 38 digits, or 15 with an exponent.
_NUMBER = r"(?:(?!-?(?:[0-9]\.?){39})-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?|-?[0-9](?:\.[0-9]{1,14})?[eE][-+]?[0-9]{1,2})"
# Marks that JSON text never holds as they are: a finished value, brackets of finished values, a set of numbers.
_DONE, _LIST, _LIST_END, _MAP, _MAP_END, _NUMBERS = "\x01", "\x03", "\x04", "\x05", "\x06", "\x0f"
_FINISHED = rf'((?:{STRING}|[^"{{}}\[\]])*+)'
_STEPS = (
    (rf'\{{"(?:S|B)":({STRING})\}}', f"{_DONE}$1"),
    (rf'\{{"N":"({_NUMBER})"\}}', f"{_DONE}$1"),
    # A number that no JSON reader would keep exactly stays the text it is.
    (r'\{"N":("[-+.0-9eE]++")\}', f"{_DONE}$1"),
    (r'\{"BOOL":(true|false)\}', f"{_DONE}$1"),
    (r'\{"NULL":true\}', f"{_DONE}null"),
    (rf'\{{"NS":\[("{_NUMBER}"(?:,"{_NUMBER}")*+)\]\}}', f"{_DONE}{_NUMBERS}$1{_LIST_END}"),
    (rf'\{{"(?:SS|NS|BS)":\[((?:{STRING}(?:,{STRING})*+)?)\]\}}', f"{_DONE}{_LIST}$1{_LIST_END}"),
    (rf'({_NUMBERS}|(?<!^)\G,)"({_NUMBER})"', "$1$2"),
    (_NUMBERS, _LIST),
)
LEVELS = 32


def within(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: json, at: path}`: a place inside a value that was made here."""
    path = "$" + json_path(grammar.path(body["at"]))
    return over(kind, [grammar.json(body["of"])], lambda value: F.try_variant_get(value, path, READ_AS[kind]))


def padded(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: text, by: "/", width: 8}`: hexadecimal parts, each filled to one width; null when one does not fit."""
    by, width = str(body.get("by", "")), int(body["width"])

    def make(text: Column) -> Column:
        parts = F.split(F.lower(text), by) if by else F.array(F.lower(text))
        fits = F.forall(parts, lambda part: part.rlike(f"^[0-9a-f]{{1,{width}}}$"))
        filled = F.transform(parts, lambda part: F.lpad(part, width, "0"))
        return F.when(fits, F.array_join(filled, by))

    return over("text", [grammar.text(body["of"])], make)


def falling(body: Any, grammar: Grammar, kind: str) -> Expression:
    """A count that goes down as a text that goes up."""

    def make(text: Column) -> Column:
        count = text.try_cast("bigint")
        return F.lpad(F.when(count >= 0, F.lit(2**63 - 1) - count).cast("string"), 20, "0")

    return over("text", [grammar.text(body)], make)


def remainder(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: integer text, by: 10}`: what is left after whole division."""
    by = int(body["by"])
    return over("text", [grammar.text(body["of"])], lambda t: F.pmod(t.try_cast("bigint"), F.lit(by)).cast("string"))


def base64(body: Any, grammar: Grammar, kind: str) -> Expression:
    """The text inside base64."""
    return over("text", [grammar.text(body)], _from_base64)


def joined(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: list, with: ":"}`: the elements as one text; null when there is none or one is null."""

    def make(values: Column) -> Column:
        texts = F.transform(values, lambda value: F.try_variant_get(value, "$", "string"))
        sound = (F.size(texts) > 0) & ~F.exists(texts, lambda text: text.isNull())
        return F.when(sound, F.array_join(texts, str(body["with"])))

    return over("text", [grammar.read(body["of"], "list")], make)


def assembled(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: list, name: name, value: value}`: a list of names with values as one object."""
    name, value = ("$" + json_path(grammar.path(body.get(part, part))) for part in ("name", "value"))

    def make(values: Column, whole_list: Column) -> Column:
        names = F.transform(values, lambda each: F.try_variant_get(each, name, "string"))
        contents = F.transform(values, lambda each: F.try_variant_get(each, value, "variant"))
        made = F.to_variant_object(F.map_from_arrays(names, contents))
        sound = ~F.exists(names, lambda each: each.isNull()) & (F.size(F.array_distinct(names)) == F.size(names))
        nothing = whole_list.isNull() | F.is_variant_null(whole_list) | (F.size(values) == 0)
        return F.when(F.coalesce(nothing, F.lit(False)), None).when(sound, made).otherwise(_no_object())

    return over("json", [grammar.read(body["of"], "list"), grammar.json(body["of"])], make)


def picked(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: json, names: list, name: path}`: the fields the list names; null unless all are there."""
    path = "$" + json_path(grammar.path(body.get("name", ".")))

    def make(value: Column, listed: Column) -> Column:
        names = F.array_distinct(F.transform(listed, lambda each: F.try_variant_get(each, path, "string")))
        held = F.try_variant_get(value, "$", "map<string,variant>")
        kept = F.map_filter(
            held, lambda name, found: F.array_contains(names, name) & found.isNotNull() & ~F.is_variant_null(found)
        )
        complete = (F.size(names) > 0) & (F.size(kept) == F.size(names))
        return F.when(complete, F.to_variant_object(kept))

    return over("json", [grammar.json(body["of"]), grammar.read(body["names"], "list")], make)


def unmarked(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: json, marks: json, mark: text}`: the object without the fields that another object marks so."""

    def make(value: Column, marks: Column) -> Column:
        held = F.try_variant_get(value, "$", "map<string,variant>")
        said = F.try_variant_get(marks, "$", "map<string,string>")
        kept = F.map_filter(held, lambda name, _: ~said[name].eqNullSafe(F.lit(str(body["mark"]))))
        any_marked = F.exists(F.map_values(said), lambda mark: mark.eqNullSafe(F.lit(str(body["mark"]))))
        return F.when(any_marked & held.isNotNull(), F.to_variant_object(kept)).otherwise(value)

    return over("json", [grammar.json(body["of"]), grammar.json(body["marks"])], make)


def sided(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: json, side: after_, other: before_}`: one side of a row that holds two, under plain names."""
    side, other = str(body["side"]), str(body["other"])

    def make(value: Column) -> Column:
        held = F.try_variant_get(value, "$", "map<string,variant>")
        mine = F.map_filter(held, lambda name, _: ~F.startswith(name, F.lit(other)))
        plain = F.transform_keys(
            mine,
            lambda name, _: F.when(F.startswith(name, F.lit(side)), F.substr(name, F.lit(len(side) + 1))).otherwise(
                name
            ),
        )
        return F.when(F.size(plain) > 0, F.to_variant_object(plain))

    return over("json", [grammar.json(body["of"])], make)


def sole(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: json, beside: [names]}`: the only object beside the named fields; null when there are more or none."""
    names = [str(name) for name in body["beside"]]

    def make(value: Column) -> Column:
        held = F.try_variant_get(value, "$", "map<string,variant>")
        others = F.map_values(F.map_filter(held, lambda name, _: ~name.isin(names)))
        objects = F.filter(others, lambda each: F.startswith(F.to_json(each), F.lit("{")))
        return F.when(F.size(objects) == 1, F.get(objects, F.lit(0)))

    return over("json", [grammar.json(body["of"])], make)


def untyped(body: Any, grammar: Grammar, kind: str) -> Expression:
    """An object of values that each name their type (`{"S": …}`, `{"M": {…}}`), without the types."""

    def make(value: Column) -> Column:
        text = F.to_json(value)
        for pattern, put in _STEPS:
            text = F.regexp_replace(text, pattern, put)
        depth = F.least(F.size(F.regexp_extract_all(text, F.lit(r'\{"[ML]":[\[{]'), F.lit(0))), F.lit(LEVELS))
        flat = F.aggregate(F.sequence(F.lit(0), depth), text, lambda seen, _: _one_level_up(seen))
        shown = F.translate(flat, _LIST + _LIST_END + _MAP + _MAP_END + _DONE, "[]{}")
        made = F.when(_is_flat(flat), F.try_parse_json(shown)).otherwise(_no_object())
        return F.when(value.isNotNull() & ~F.is_variant_null(value), made)

    return over("json", [grammar.json(body)], make)


def _no_object() -> Column:
    """What an image becomes that cannot be read: no object, and so found to be of a wrong type."""
    return F.try_variant_get(F.to_variant_object(F.array(F.lit(""))), "$[0]", "variant")


def _one_level_up(text: Column) -> Column:
    """Maps and lists whose contents are finished are finished; a name can stand where a type does, so it is inside out."""
    lists = F.regexp_replace(text, rf'\{{"L":\[{_FINISHED}\]\}}', f"{_LIST}$1{_LIST_END}")
    return F.regexp_replace(lists, rf'\{{"M":\{{{_FINISHED}\}}\}}', f"{_MAP}$1{_MAP_END}")


def _is_flat(text: Column) -> Column:
    """Whether nothing but the object itself is unfinished and every value in it had a type."""
    bare = F.regexp_replace(F.regexp_replace(text, STRING, '""'), f"{_DONE}{_LIST}[^{_LIST_END}]*+{_LIST_END}", "")
    stray = rf'[:,{_LIST}](?:[-0-9tfn]|""(?!:))'
    return bare.rlike(r"^\{[^\[\]{}]*+\}$") & ~bare.rlike(stray)


def covers(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`[json, json]`: the first object has every field of the second."""

    def make(first: Column, second: Column) -> Column:
        has, wants = (F.map_keys(F.try_variant_get(value, "$", "map<string,variant>")) for value in (first, second))
        return F.coalesce(F.size(F.array_except(wants, has)) == 0, F.lit(False))

    return over("test", [grammar.json(tree) for tree in body], make)


def fewer(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`[list, list]`: the first has fewer elements than the second."""
    lists = [grammar.read(tree, "list") for tree in body]
    return over("test", lists, lambda first, second: F.coalesce(F.size(first) < F.size(second), F.lit(False)))


def alone(body: Any, grammar: Grammar, kind: str) -> Expression:
    """A list of this one value; null without it."""
    return over("list", [grammar.json(body)], lambda value: F.when(value.isNotNull(), F.array(value)))


def numbered(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: list, beside: {name: list}}`: each element as {row, at, name}; `at` counts from 0."""
    beside = body.get("beside", {})

    def make(values: Column, *others: Column) -> Column:
        def placed(value: Column, at: Column) -> Column:
            found = [F.get(c, at).alias(str(n)) for c, n in zip(others, beside, strict=True)]
            return F.to_variant_object(F.struct(value.alias("row"), at.alias("at"), *found))

        return F.transform(values, placed)

    return over("list", [grammar.read(tree, "list") for tree in (body["of"], *beside.values())], make)


def unpacked(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: list, from: [paths]}`: each element as {outer, inner}; inner is an object there, or the JSON in its base64."""
    paths = ["$" + json_path(grammar.path(tree)) for tree in body["from"]]

    def made(value: Column) -> Column:
        found = F.coalesce(*[F.try_variant_get(value, path, "variant") for path in paths], value)
        text = _from_base64(F.try_variant_get(found, "$", "string"))
        is_object = F.startswith(F.to_json(found), F.lit("{"))
        inner = F.when(is_object, found).otherwise(_parsed(text))
        return F.to_variant_object(F.struct(value.alias("outer"), inner.alias("inner")))

    return over("list", [grammar.read(body["of"], "list")], lambda values: F.transform(values, made))


def _parsed(text: Column) -> Column:
    opened = parse_text(text)
    return F.when(whole(opened, text), F.try_variant_get(opened, "$[0]", "variant"))


def _from_base64(text: Column) -> Column:
    return F.try_to_binary(text, F.lit("base64")).cast(SPARK_TYPE["text"])
