"""CESQL filters: rows of expression, event and expected answer; the plain evaluator and Spark must both give it."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from tidings.gate import cesql
from tidings.gate.cesql import parse
from tidings.gate.cesql_columns import compile_tree, filter_column, journal_attributes
from tidings.gate.cesql_tree import Node
from tidings.gate.cesql_values import Failed, evaluate, matches
from tidings.stages.envelope import render

# Spark's own client leaves the socket of a small frame to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed.*socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
EVENT = {
    "id": "0197-a", "source": "crm", "type": "tidings.email.changed", "subject": "k-1", "sequence": "10",
    "location": "sf-01", "locale": "en-US", "hop": "3", "ttl": "12", "flag": "True", "odd": " a%b_c\\ ", "empty": "", "name": "Jörg 🙂",
}  # fmt: skip
NAMES = sorted({*EVENT, "missing"})
ERROR = "an error"

CASES: list[tuple[str, object]] = [
    # literals
    ("TRUE", True), ("false", False), ("10", 10), ("-10", -10), ("+7", 7), ("'a'", "a"), ('"it\'s"', "it's"), (r"'it\'s'", "it's"),
    ("2147483647", 2147483647), ("-2147483648", -2147483648), ("''", ""),
    # attributes
    ("id", "0197-a"), ("missing", ERROR), ("EXISTS id", True), ("EXISTS missing", False), ("NOT EXISTS missing", True),
    ("missing = 'x'", ERROR), ("missing != 'x'", ERROR), ("NOT (missing = 'x')", ERROR), ("empty = ''", True),
    # equality takes the type of its right side
    ("sequence = 10", True), ("sequence = '10'", True), ("10 = sequence", True), ("sequence = 11", False), ("type = 10", ERROR),
    ("flag = TRUE", True), ("flag <> TRUE", False), ("id = TRUE", ERROR), ("1 = TRUE", True), ("TRUE = 1", True), ("TRUE = 'true'", True),
    ("sequence != 10", False), ("sequence <> 11", True), ("1 = 2 = FALSE", True),
    # order is of integers
    ("hop < ttl", True), ("hop > ttl", False), ("hop <= 3", True), ("hop >= 4", False), ("id < 3", ERROR), ("'2' < '10'", True),
    # logic stops early and only then forgives
    ("TRUE AND FALSE", False), ("FALSE AND missing = 'x'", False), ("missing = 'x' AND FALSE", ERROR), ("TRUE AND missing = 'x'", ERROR),
    ("TRUE OR missing = 'x'", True), ("missing = 'x' OR TRUE", ERROR), ("FALSE OR missing = 'x'", ERROR), ("TRUE XOR TRUE", False),
    ("TRUE XOR FALSE", True), ("TRUE XOR missing = 'x'", ERROR), ("'true' AND 1", True), ("'yes' AND TRUE", ERROR), ("NOT 'false'", True),
    ("NOT NOT TRUE", True), ("TRUE AND TRUE AND FALSE", False), ("FALSE OR (TRUE AND TRUE)", True), ("TRUE XOR TRUE XOR TRUE", True),
    # arithmetic: 32 bits, truncated division
    ("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("7 - 2 - 1", 4), ("-5 / 2", -2), ("5 / -2", -2), ("-5 % 2", -1), ("5 % -2", 1), ("4 / 0", ERROR),
    ("4 % 0", ERROR), ("2147483647 + 1", ERROR), ("-2147483648 / -1", ERROR), ("-(-2147483648)", ERROR), ("46341 * 46341", ERROR),
    ("hop * 2 + 1", 7), ("'x' + 1", ERROR), ("TRUE + 1", 2), ("- hop", -3), ("1 -1", 0), ("hop -1 = 2", True),
    # LIKE
    ("type LIKE 'tidings.%'", True), ("type LIKE '%.changed'", True), ("type NOT LIKE '%.deleted'", True), ("id LIKE '____-_'", True),
    ("id LIKE '____-'", False), ("odd LIKE ' a\\%b\\_c% '", True), ("odd LIKE ' axb_c% '", False), ("type LIKE 'tidings.email.changed'", True),
    ("'a.c' LIKE 'abc'", False), ("'(x)' LIKE '(_)'", True), ("'100%' LIKE '100\\%'", True), ("'1000' LIKE '100\\%'", False),
    ("missing LIKE '%'", ERROR), ("missing NOT LIKE '%'", ERROR), ("empty LIKE '%'", True), ("empty LIKE '_'", False), ("10 LIKE '1%'", True),
    ("name LIKE 'J_rg _'", True), ("'a\nb' LIKE 'a%b'", True), (r"'a\b' LIKE 'a\b'", True), (r"'ab' LIKE 'a\b'", False),
    # IN takes the type of its left side
    ("location IN ('la-01', 'sf-01')", True), ("location NOT IN ('la-01')", True), ("sequence IN (10, 20)", True), ("10 IN (sequence)", True),
    ("10 IN ('a')", ERROR), ("10 IN (10, 'a')", True), ("missing IN ('a')", ERROR), ("id IN (missing, '0197-a')", ERROR),
    ("TRUE IN ('true')", True),
    # functions
    ("LENGTH('abc')", 3), ("LENGTH(name)", 6), ("LENGTH(empty)", 0), ("LENGTH(100)", 3), ("CONCAT('a', 1, TRUE)", "a1true"), ("CONCAT('a')", "a"),
    ("CONCAT('a', missing)", ERROR), ("CONCAT_WS('-', 'a', 'b', 3)", "a-b-3"), ("CONCAT_WS('-', 'a')", "a"), ("CONCAT_WS('-')", ""),
    ("CONCAT_WS('-', 'a', missing)", ERROR), ("CONCAT_WS(missing, 'a')", ERROR), ("LOWER('ABC')", "abc"), ("upper(name)", "JÖRG 🙂"), ("TRIM(odd)", "a%b_c\\"),
    ("TRIM('\t x \n')", "x"), ("LEFT('abc', 2)", "ab"), ("LEFT('abc', 10)", "abc"), ("LEFT('abc', 0)", ""), ("LEFT('abc', -2)", ERROR),
    ("RIGHT('abc', 2)", "bc"), ("RIGHT('abc', 10)", "abc"), ("RIGHT('abc', 0)", ""), ("RIGHT('abc', -1)", ERROR), ("LEFT(name, 6)", "Jörg 🙂"),
    ("RIGHT(name, 1)", "🙂"), ("SUBSTRING('abcdef', 1)", "abcdef"), ("SUBSTRING('abcdef', 2)", "bcdef"), ("SUBSTRING('abcdef', -2)", "ef"),
    ("SUBSTRING('abcdef', 0)", ""), ("SUBSTRING('abcdef', 7)", ERROR), ("SUBSTRING('abcdef', -7)", ERROR), ("SUBSTRING('abcdef', 2, 3)", "bcd"),
    ("SUBSTRING('abcdef', -3, 2)", "de"), ("SUBSTRING('abcdef', 4, 10)", "def"), ("SUBSTRING('abcdef', 4, -1)", ERROR), ("SUBSTRING('a', 1, 0)", ""),
    ("ABS(-10)", 10), ("ABS(10)", 10), ("ABS(-2147483648)", ERROR), ("ABS('-3')", 3),
    # casts
    ("INT('-1')", -1), ("INT('+1')", 1), ("INT(TRUE)", 1), ("INT(FALSE)", 0), ("INT('ABC')", ERROR), ("INT('1.0')", ERROR), ("INT('')", ERROR),
    ("INT(' 1')", ERROR), ("INT('2147483648')", ERROR), ("INT('99999999999999999999')", ERROR), ("BOOL('TRUE')", True), ("BOOL('false')", False),
    ("BOOL('ABC')", ERROR), ("BOOL(0)", False), ("BOOL(-50)", True), ("STRING(TRUE)", "true"), ("STRING(-1)", "-1"), ("IS_INT('12')", True),
    ("IS_INT('x')", False), ("IS_INT(TRUE)", True), ("IS_INT(missing)", ERROR), ("IS_BOOL('true')", True), ("IS_BOOL('x')", False),
    ("IS_BOOL(7)", True), ("IS_INT('1\n')", False),
]  # fmt: skip

REFUSED = [
    ("", 1, "expected a value, found the end"), ("id =", 5, "expected a value"), ("id = 'x", 6, "not closed"), ("(id = 'x'", 10, "expected ')'"),
    ("id = 'a' AND id = 'b' OR id = 'c'", 23, "parentheses"), ("NOT id = 'x'", 1, "write NOT (…)"), ("NOT id LIKE 'x'", 1, "write NOT (…)"),
    ("id ; 1", 4, "unexpected character ';'"), ("FOO(id)", 1, "no function"), ("LEFT(id)", 1, "LEFT takes 2 argument(s), found 1"),
    ("locaton = 'x'", 1, "did you mean location?"), ("subject = 'x'", 1, "own pseudonym"), ("Type = 'x'", 1, "small letters"), ("id LIKE type", 9, "string in quotes"),
    ("id IN ()", 9, "at least one"), ("2147483648 > 1", 1, "32 bits"), ("id id", 4, "expected an operator"), ("EXISTS 'x'", 8, "attribute name"),
    ("(" * 40 + "TRUE" + ")" * 40, 33, "nested deeper"), ("- " * 40 + "1", 0, "nested deeper"), ("+id = 1", 1, "before digits"),
    ("TRUE " + "OR 1 " * 600, 0, "more than"), ("'" + "x" * 5000 + "'", 4097, "longer than"), ("java_method('a')", 1, "no function"),
    ("id = ${env:HOME}", 6, "unexpected character"), ("/* x */ TRUE", 1, "expected a value"),
]  # fmt: skip


def plain(tree: Node, event: dict[str, str | None]) -> object:
    try:
        return evaluate(tree, event)
    except Failed:
        return ERROR


def native(spark: SparkSession, trees: list[Node], event: dict[str, str | None]) -> list[object]:
    """Every tree over one row, the attributes as real columns so that nothing is folded away beforehand."""
    table = pa.table({name: pa.array([event.get(name)], pa.string()) for name in NAMES})
    rows = spark.createDataFrame(table).repartition(1)
    columns = {name: F.col(name) for name in NAMES}
    answers: list[object] = []
    for start in range(0, len(trees), 80):
        part = [compile_tree(tree, columns).alias(f"c{n}") for n, tree in enumerate(trees[start : start + 80])]
        (found,) = rows.select(*part).collect()
        answers += [ERROR if value is None else value for value in found]
    return answers


@pytest.mark.spark
def test_rows(spark: SparkSession) -> None:
    trees = [parse(text, None) for text, _ in CASES]
    wanted = [(text, want) for text, want in CASES]
    said = [(text, plain(tree, dict(EVENT))) for (text, _), tree in zip(CASES, trees, strict=True)]
    assert said == wanted
    assert [type(value) for _, value in said] == [type(value) for _, value in wanted]
    columns = native(spark, trees, dict(EVENT))
    assert list(zip([text for text, _ in CASES], columns, strict=True)) == wanted


@pytest.mark.parametrize(("text", "column", "says"), REFUSED)
def test_refused(text: str, column: int, says: str) -> None:
    (message,) = cesql.check(text)
    assert says in message
    assert not column or message.startswith(f"column {column}:")


@pytest.mark.parametrize("text", ["10", "'x'", "LENGTH(id)", "type"])
def test_a_filter_gives_true_or_false(text: str) -> None:
    assert "a filter must give true or false" in cesql.check(text)[0]
    assert not matches(parse(text), {"id": "x", "type": "true"})


def test_the_operators_example_passes() -> None:
    text = "type = 'tidings.email.changed' AND location = 'sf-01'"
    assert cesql.check(text) == []
    assert matches(parse(text), EVENT)
    assert not matches(parse(text), {**EVENT, "location": "la-01"})
    assert not matches(parse(text), {"type": "tidings.email.changed"})


@pytest.mark.spark
def test_filters_see_what_the_envelope_carries(spark: SparkSession) -> None:
    moments = [datetime(2026, 11, 16, 9, 30, 0, 120, UTC), datetime(2026, 11, 16, 9, 30, tzinfo=UTC), None]
    table = pa.table(
        {
            "event_id": ["e1", "e2", "e3"],
            "entity": ["customer"] * 3,
            "change_type": ["email", "delete", "phone"],
            "tenant": ["shop"] * 3,
            "source": ["crm"] * 3,
            "location": ["sf-01", None, ""],
            "offset": [16_777_216, 5, None],
            "subjectseq": [7, None, 1],
            "schema_version": ["customer/1", None, "1"],
            "time": pa.array(moments, pa.timestamp("us", tz="UTC")),
        }
    )
    rows = spark.createDataFrame(table)
    attributes = journal_attributes(rows.columns)
    seen = rows.select(*[column.alias(name) for name, column in attributes.items()]).collect()
    for row, said in zip(table.to_pylist(), seen, strict=True):
        carried = render(row, "k-1", {})
        assert said.asDict() == {name: carried.get(name) for name in attributes}
    column: Column = filter_column("type = 'tidings.email.changed' AND location = 'sf-01'", attributes)
    assert [row[0] for row in rows.select(column).collect()] == [True, False, False]


WORDS = st.sampled_from(
    ["a", "B", "10", "-3", "true", "FALSE", "", " x ", "a%b", "_", "é", "🙂", "2147483647", "abcabc"]
)
ATOMS = st.one_of(
    st.sampled_from(NAMES),
    st.integers(-(2**31), 2**31 - 1).map(str),
    st.sampled_from(["0", "1", "2", "-1", "3", "TRUE", "FALSE"]),
    WORDS.map(lambda text: f"'{text}'"),
    st.sampled_from(NAMES).map(lambda name: f"EXISTS {name}"),
)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    signs = st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "AND", "OR", "XOR"])
    one = st.sampled_from(["LENGTH", "LOWER", "UPPER", "TRIM", "ABS", "INT", "BOOL", "STRING", "IS_INT", "IS_BOOL"])
    pair = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(inner, signs, inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        inner.map(lambda t: f"NOT ({t})"),
        inner.map(lambda t: f"-({t})"),
        st.tuples(one, inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(st.sampled_from(["LEFT", "RIGHT", "SUBSTRING", "CONCAT", "CONCAT_WS"]), pair).map(
            lambda t: f"{t[0]}({t[1][0]}, {t[1][1]})"
        ),
        st.tuples(inner, inner, inner).map(lambda t: f"SUBSTRING({t[0]}, {t[1]}, {t[2]})"),
        st.tuples(inner, st.sampled_from(["", "NOT "]), pair).map(
            lambda t: f"({t[0]}) {t[1]}IN ({t[2][0]}, {t[2][1]})"
        ),
        st.tuples(inner, st.sampled_from(["%", "a%", "_", "%b_", "\\%", "tr%e", ""])).map(
            lambda t: f"({t[0]}) LIKE '{t[1]}'"
        ),
    )


EXPRESSIONS = st.recursive(ATOMS, _grown, max_leaves=6)


@pytest.mark.spark
# A failure is a list of single lines already; making it smaller would cost minutes of planning.
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(
    texts=st.lists(EXPRESSIONS, min_size=40, max_size=40),
    event=st.fixed_dictionaries({name: st.one_of(st.none(), WORDS) for name in NAMES}),
)
def test_both_evaluators_agree(spark: SparkSession, texts: list[str], event: dict[str, str | None]) -> None:
    trees = [parse(text, None) for text in texts]
    both = zip(texts, native(spark, trees, event), (plain(tree, event) for tree in trees), strict=True)
    assert [
        (text, column, value) for text, column, value in both if (type(column), column) != (type(value), value)
    ] == []


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_column(text: str) -> None:
    for message in cesql.check(text):
        assert message.startswith("column ")
