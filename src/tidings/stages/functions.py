"""The functions a dialect file may call, by the kind of value they make; there are no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.stages import rows
from tidings.stages.language import Expression, Function, Grammar, Read, Wrong, over, shown

_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?: ?(?:Z|UTC|[+-]\d\d(?::?\d\d)?))?"
TIME_SHAPE = f"^{_STAMP}$"
QUOTED_TIME = f'^"{_STAMP}"$'


def let(value: Column, body: Any) -> Column:
    """Compute `value` once per row and use it many times; a plain reference would compute it at each use."""
    return F.get(F.transform(F.array(value), body), F.lit(0))


def integer(text: Column) -> Column:
    return text.try_cast("bigint")


def fields(value: Column) -> Column:
    """An object's fields as a map; NULL for anything else."""
    return F.try_variant_get(value, "$", "map<string,variant>")


def present(value: Column) -> Column:
    return value.isNotNull() & ~F.is_variant_null(value)


def _literal(body: Any, grammar: Grammar, kind: str) -> Expression:
    text = str(body).lower() if isinstance(body, bool) else str(body)
    return Expression("text", lambda scope: F.lit(text), constant=text)


def _coalesce(body: Any, grammar: Grammar, kind: str) -> Expression:
    return over(kind, [grammar.read(tree, kind) for tree in body], F.coalesce)


def _case(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`[{when: test, then: value}, …, {else: value}]`; the first that holds."""
    tests: list[Expression] = []
    values: list[Expression] = []
    fallback = grammar.read(None, kind)
    for branch in body:
        if set(branch) == {"else"}:
            fallback = grammar.read(branch["else"], kind)
        elif set(branch) == {"when", "then"}:
            tests.append(grammar.test(branch["when"]))
            values.append(grammar.read(branch["then"], kind))
        else:
            raise Wrong(shown(dict(branch)), "when and then, or else")
    return over(kind, [*tests, *values, fallback], _first_that_holds)


def _first_that_holds(*columns: Column) -> Column:
    count = (len(columns) - 1) // 2
    chosen = F.when(columns[0], columns[count])
    for test, value in zip(columns[1:count], columns[count + 1 : -1], strict=True):
        chosen = chosen.when(test, value)
    return chosen.otherwise(columns[-1])


def _switch(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{by: text, of: {value: result}, else: result}`; a constant `by` is settled here, and costs nothing later."""
    subject = grammar.text(body["by"])
    branches: Mapping[str, Any] = body["of"]
    if subject.constant is not None:
        return grammar.read(branches.get(subject.constant, body.get("else")), kind)
    results = [grammar.read(tree, kind) for tree in branches.values()]
    fallback = grammar.read(body.get("else"), kind)

    def make(by: Column, *rest: Column) -> Column:
        return _first_that_holds(*[by == str(value) for value in branches], *rest)

    return over(kind, [subject, *results, fallback], make)


def _map(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: text, to: {found: meant}, else: text}`; a value that is not listed is null, and null is never guessed."""
    meanings = {str(found): str(meant) for found, meant in body["to"].items()}

    def table() -> Column:
        # A literal map is one node of the plan, whatever its size.
        return F.create_map(*[F.lit(text) for pair in meanings.items() for text in pair])

    if body.get("else") is None:
        return over("text", [grammar.text(body["of"])], lambda subject: table()[subject])
    return over(
        "text",
        [grammar.text(body["of"]), grammar.text(body.get("else"))],
        lambda subject, fallback: F.coalesce(table()[subject], fallback),
    )


def _concat(body: Any, grammar: Grammar, kind: str) -> Expression:
    return over("text", [grammar.text(tree) for tree in body], F.concat)


def _join(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{with: "/", of: […]}`: parts that are null are left out; nothing left is null."""
    parts = [grammar.text(tree) for tree in body["of"]]
    return over("text", parts, lambda *c: F.nullif(F.concat_ws(str(body["with"]), *c), F.lit("")))


def _last(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: text, by: ".", count: 2}`: the last parts of a divided text."""
    count = -int(body.get("count", 1))
    return over("text", [grammar.text(body["of"])], lambda text: F.substring_index(text, str(body["by"]), count))


def _first(body: Any, grammar: Grammar, kind: str) -> Expression:
    count = int(body.get("count", 1))
    return over("text", [grammar.text(body["of"])], lambda text: F.substring_index(text, str(body["by"]), count))


def _match(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: text, pattern: regular expression with one group}`: the group, or null."""
    found = lambda text: F.nullif(F.regexp_extract(text, str(body["pattern"]), 1), F.lit(""))  # noqa: E731
    return over("text", [grammar.text(body["of"])], found)


def _lower(body: Any, grammar: Grammar, kind: str) -> Expression:
    return over("text", [grammar.text(body)], F.lower)


def _divide(body: Any, grammar: Grammar, kind: str) -> Expression:
    """`{of: integer text, by: 1000}`: whole division."""
    by = int(body["by"])
    return over("text", [grammar.text(body["of"])], lambda t: F.floor(integer(t) / by).cast("string"))


def _header(body: Any, grammar: Grammar, kind: str) -> Expression:
    """The value of a header; names of headers have no case."""
    read = Read(("headers",), "map<string,string>")
    wanted = str(body).lower()

    def make(scope: Any) -> Column:
        found = F.filter(F.map_entries(scope.at(read)), lambda entry: F.lower(entry["key"]) == wanted)
        return F.get(found, F.lit(0))["value"]

    return Expression("text", make, frozenset([read]))


def _ordering(body: Any, grammar: Grammar, kind: str) -> Expression:
    """A list of digits-only parts; fixed width, so that text order is log order. Null without the first part."""
    parts = [grammar.text(tree) for tree in body]

    def make(*columns: Column) -> Column:
        numbers = [integer(column) for column in columns]
        padded = [F.lpad(F.when(n >= 0, n).cast("string"), 20, "0") for n in numbers]
        rest = [F.coalesce(c, F.lit("0" * 20)) for c in padded[1:]]
        return F.concat(padded[0], *[part for c in rest for part in (F.lit("/"), c)])

    return over("text", parts, make)


def _times(per_second: int) -> Function:
    def function(body: Any, grammar: Grammar, kind: str) -> Expression:
        def make(text: Column) -> Column:
            count = integer(text)
            if per_second > 1_000_000:
                # Whole division: as a double the count would lose its last digits.
                parts = F.lit(per_second // 1_000_000)
                below = F.when(count % parts < 0, 1).otherwise(0)
                return F.timestamp_micros(F.call_function("div", count, parts) - below)
            limit = 253_402_300_800 * per_second
            # Not abs(): the smallest integer has no positive one.
            micros = F.when((count < limit) & (count > -limit), count * (1_000_000 // per_second))
            return F.timestamp_micros(micros)

        return over("time", [grammar.text(body)], make)

    return function


def _iso(body: Any, grammar: Grammar, kind: str) -> Expression:
    """ISO 8601 with a `T` or a blank; without a zone it is UTC (the session's zone)."""

    def make(text: Column) -> Column:
        zoned = F.regexp_replace(text, r" ?(Z|UTC|[+-]\d\d)$", "$1")
        stamp = F.regexp_replace(zoned, r"([+-]\d\d)(\d\d)$", "$1:$2")
        return F.when(text.rlike(TIME_SHAPE), stamp.try_cast("timestamp"))

    return over("time", [grammar.text(body)], make)


SHARED: dict[str, Function] = {"coalesce": _coalesce, "case": _case, "switch": _switch}
TEXT: dict[str, Function] = {
    **SHARED,
    "literal": _literal,
    "map": _map,
    "concat": _concat,
    "join": _join,
    "first": _first,
    "last": _last,
    "match": _match,
    "lower": _lower,
    "divide": _divide,
    "header": _header,
    "ordering": _ordering,
    "within": rows.within,
    "padded": rows.padded,
    "falling": rows.falling,
    "remainder": rows.remainder,
    "base64": rows.base64,
    "joined": rows.joined,
}
TIME: dict[str, Function] = {
    **SHARED,
    "seconds": _times(1),
    "millis": _times(1_000),
    "micros": _times(1_000_000),
    "nanos": _times(1_000_000_000),
    "iso": _iso,
}
