"""Formatting is not a change, spelling is: cases are rows."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidings.contract import Contract
from tidings.stages.normal import normalised
from tidings.stages.subject import field_map

# rule → values that are one, values that are not
SAME: dict[str, list[list[str | None]]] = {
    "email": [["Jo@Example.com", " jo@example.com\t", "jo@ example.com"], ["jo@exämple.com", "jo@exa\u0308mple.com"]],
    "address": [
        ["12 Alder St., Apt #4", "12 ALDER ST APT 4", " 12  alder st, apt. 4 "],
        ["Rue de l'Étoile", "rue de l'E\u0301toile"],
        ["", None, " ", "-"],
    ],
    "lower": [["Gold  Member", "gold member"], ["", None, "  "]],
    "text": [["a  b", " a b ", "a\u00a0b"], ["Zoë", "Zoe\u0308"], ["", None]],
    "digits": [["12-34", "1234"], ["", None, "-"]],
    "number": [
        ["1", "1.0", "1.00", " 1", "1e0"],
        ["0.5", ".50", "5e-1"],
        ["100", "1e2"],
        ["", None],
        ["0", "-0", "0.0"],
    ],
    "flag": [["true", "1", "yes", "Y"], ["false", "0", "no", "off"], ["", None]],
}
DIFFERENT: dict[str, list[tuple[str | None, str | None]]] = {
    "email": [("jo@example.com", "joe@example.com"), ("a.b@example.com", "ab@example.com")],
    "address": [
        ("12 Alder St", "13 Alder St"),
        ("12-14 Alder St", "1214 Alder St"),
        ("12 Alder St", "12 Alder Street"),
    ],
    "lower": [("gold", "silver"), ("a b", "ab")],
    "text": [("Gold", "gold"), ("resume", "résumé"), ("a", None)],
    "digits": [("12", "21")],
    "number": [("1", "10"), ("100", "1"), ("1", "one"), ("9007199254740993", "9007199254740992"), ("0", None)],
    "flag": [("true", "false"), ("false", None)],
}


def cases() -> Iterator[tuple[str, str | None, str | None, bool]]:
    for rule, groups in SAME.items():
        yield from ((rule, group[0], value, True) for group in groups for value in group)
        yield from ((rule, a[0], b[0], False) for a in groups for b in groups if a is not b)
    yield from ((rule, a, b, False) for rule, pairs in DIFFERENT.items() for a, b in pairs)


def test_what_is_one_and_what_is_not(spark: SparkSession) -> None:
    told = list(cases())
    rows = spark.createDataFrame(told, "rule string, a string, b string, same boolean")
    for rule in SAME:
        same = normalised(F.col("a"), rule).eqNullSafe(normalised(F.col("b"), rule))
        wrong = rows.filter((F.col("rule") == rule) & (same != F.col("same"))).collect()
        assert wrong == []


def test_a_normal_form_is_its_own(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(value,) for _, *values, _ in cases() for value in values], "v string")
    for rule in SAME:
        once = normalised(F.col("v"), rule)
        assert rows.filter(~normalised(once, rule).eqNullSafe(once)).collect() == []


def test_the_fields_of_a_record_are_compared_in_the_same_form(spark: SparkSession) -> None:
    """In a record, which is a map: a value with a letter beyond ASCII is compared like any other and stops nothing."""
    rules = {name: {"type": "email", "normalise": name} for name in ("email", "address", "lower", "text")}
    contract = Contract.model_validate({"kind": "customer", "version": "1", "key": ["id"], "fields": rules})
    told = [(rule, group[0], value) for rule in rules for group in SAME[rule] for value in group]
    told.append(("text", "a \u0301b\n\u0301c", "a \u0301b\n\u0301c"))
    rows = spark.createDataFrame(told, "rule string, a string, b string")
    images = {name: F.parse_json(F.to_json(F.create_map("rule", name))) for name in ("a", "b")}
    held = {name: F.try_element_at(field_map(image, contract, "US"), F.col("rule")) for name, image in images.items()}
    wrong = rows.select("*", held["a"].alias("x"), held["b"].alias("y")).filter(~F.col("x").eqNullSafe(F.col("y")))
    assert wrong.collect() == []
    assert rows.select(held["a"].alias("x")).filter("x is not null").count() > len(rules)
