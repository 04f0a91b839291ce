"""Bad lines stay rows: each with the code it deserves, none lost, none read as something it is not."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidings.diagnose import diagnose
from tidings.json_walk import Walk
from tidings.rehearse import rehearse
from tidings.settings import load
from tidings.stages.codes import CODES, DEPTH_LIMIT, LINE_LIMIT
from tidings.verbs.init import write
from tidings.verbs.try_decode import decoded

pytestmark = [
    pytest.mark.spark,
    # PySpark leaves the socket to its JVM open when it hands over rows.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DIALECT = "debezium_postgresql"
# What is wrong with the text itself, as opposed to a text that is fine and means nothing to us.
BROKEN = {*tuple(CODES)[: tuple(CODES).index("unknown_dialect")]} - {"not_an_object", "number_not_exact"}


def message(after: str = '{"id":1,"email":"maya@example.com"}', **value: Any) -> dict[str, Any]:
    source = {"connector": "postgresql", "schema": "public", "table": "customers", "lsn": 7, "txId": 5, "ts_us": 1}
    body = {"before": None, "after": after, "source": source, "op": "u", "ts_ms": 1, **value}
    return {"topic": "crm.public.customers", "key": {"id": 1}, "value": body}


def line(after: str = '{"id":1,"email":"maya@example.com"}', **value: Any) -> bytes:
    """A good message whose image is this text, character for character."""
    return json.dumps(message("@", **value)).replace('"@"', after).encode("utf-8", "surrogatepass")


def source(**changed: Any) -> dict[str, Any]:
    return {**message()["value"]["source"], **changed}


def long_line(size: int) -> bytes:
    return line('{"note":"' + "x" * (size - len(line('{"note":""}'))) + '"}')


def nested(levels: int) -> str:
    """An image so deep that the whole message has this many levels."""
    return '{"a":' + "[" * (levels - 3) + "]" * (levels - 3) + "}"


# name, line, code; the codes are the same whether the dialect is named or recognised
TEXTS: list[tuple[str, bytes, str]] = [
    ("cut in a string", line()[: line().index(b"@example")], "truncated_json"),
    ("cut after a backslash", line('{"a":"x\\'), "truncated_json"),
    ("cut in an escape", line()[:60] + b'"\\u00', "truncated_json"),
    ("single quotes", line("{'a':1}"), "malformed_json"),
    ("trailing comma", line('{"a":1,}'), "malformed_json"),
    ("leading zero", line('{"a":01}'), "malformed_json"),
    ("a control character", line('{"a":"x\x01y"}'), "malformed_json"),
    ("a tab in a string", line('{"a":"x\ty"}'), "malformed_json"),
    ("a byte order mark", b"\xef\xbb\xbf" + line(), "malformed_json"),
    ("no JSON at all", b"id,email\t1,maya@example.com", "malformed_json"),
    ("one bracket too many", line() + b"}", "trailing_content"),
    ("a word behind", line() + b" x", "trailing_content"),
    ("a message behind", line() + line(), "trailing_content"),
    ("a comma and a number behind", line() + b",5", "trailing_content"),
    ("a list", b"[1,2]", "not_an_object"),
    ("a string", b'"hello"', "not_an_object"),
    ("null", b"null", "not_an_object"),
    ("the same name twice", line('{"a":1,"a":2}'), "duplicate_key"),
    ("the same name twice, far down", line('{"a":[{"b":{"c":1,"d":2,"c":1}}]}'), "duplicate_key"),
    ("the same name twice, once escaped", line('{"a":1,"\\u0061":2}'), "duplicate_key"),
    ("the same name twice and a good escape", line('{"a":"\\ud83d\\ude00","b":1,"b":2}'), "duplicate_key"),
    ("NaN", line('{"a":NaN}'), "not_a_number"),
    ("minus infinity", line('{"a":-Infinity}'), "not_a_number"),
    ("39 digits", line('{"a":' + "9" * 39 + "}"), "number_not_exact"),
    ("39 digits below zero", line('{"a":-' + "1" * 39 + "}"), "number_not_exact"),
    ("39 digits after the point", line('{"a":0.' + "1" * 39 + "}"), "number_not_exact"),
    ("2,000 digits", line('{"a":' + "7" * 2_000 + "}"), "number_not_exact"),
    ("an exponent beyond doubles", line('{"a":1e400}'), "number_not_exact"),
    ("an exponent below doubles", line('{"a":1e-400}'), "number_not_exact"),
    ("a high surrogate", line('{"a":"\\ud83dx"}'), "lone_surrogate"),
    ("a low surrogate", line('{"a":"\\ude00"}'), "lone_surrogate"),
    ("surrogates the wrong way round", line('{"a":"\\ude00\\ud83d"}'), "lone_surrogate"),
    ("a NUL in a string", line('{"a":"x\0"}'), "nul_byte"),
    ("a NUL after the end", line() + b"\0", "nul_byte"),
    ("nothing but NUL", b"\0" * 100, "nul_byte"),
    ("a byte that is not UTF-8", line().replace(b"maya", b"ma\xffa"), "invalid_utf8"),
    ("a surrogate as bytes", line('{"a":"\ud800"}'), "invalid_utf8"),
    ("an overlong slash", line().replace(b"maya", b"\xc0\xaf"), "invalid_utf8"),
    ("UTF-16", line().decode().encode("utf-16"), "invalid_utf8"),
    ("a byte over the limit", long_line(LINE_LIMIT + 1), "line_too_long"),
    ("two megabytes", long_line(2_000_000), "line_too_long"),
    ("a level over the limit", line(nested(DEPTH_LIMIT + 1)), "too_deep"),
    ("10,000 levels", line(nested(10_000)), "too_deep"),
    ("100,000 levels, never closed", b'{"a":' + b"[" * 100_000, "too_deep"),
    ("a name without an end", line('{"' + "n" * 70_000 + '":1}'), "malformed_json"),
]
# name, line, code, path: what the named dialect says of a text that is fine
MEANINGS: list[tuple[str, bytes, str, str]] = [
    ("the operation is a number", line(op=7), "wrong_type", "value.op"),
    ("the image is a list", line("[1]"), "wrong_type", "value.after"),
    ("the image is a text", line('"x"'), "wrong_type", "value.after"),
    ("the table is a number", line(source=source(table=7)), "wrong_type", "value.source.table"),
    ("the source is a text", line(source="crm"), "wrong_type", "value.source"),
    ("no such operation", line(op="q"), "unknown_operation", "value.op"),
    ("no operation", line(op=None), "missing_field", "value.op"),
    ("no image", line("null"), "missing_field", "value.after"),
    (
        "no table",
        line(source=source(table=None)).replace(b'"crm.public.customers"', b"null"),
        "missing_field",
        "entity",
    ),
    ("no key", line().replace(b'"key": {"id": 1}', b'"key": null'), "missing_key", "key"),
    ("an empty key", line().replace(b'"key": {"id": 1}', b'"key": {}'), "missing_key", "key"),
    ("another vendor", line(source=source(connector="mysql")), "unknown_dialect", ""),
]
# name, image: what looks bad and is good; the image comes out as it went in
GOOD: list[tuple[str, str]] = [
    ("beyond 2^53", '{"id":9007199254740993}'),
    ("below -2^53", '{"id":-9007199254740993}'),
    ("beyond 2^64", '{"id":18446744073709551617}'),
    ("38 digits", '{"id":' + "9" * 38 + "}"),
    ("38 digits after the point", '{"a":0.' + "1" * 37 + "2}"),
    ("NaN as text", '{"a":"NaN"}'),
    ("39 digits as text", '{"a":"' + "1" * 39 + '"}'),
    ("JSON as text", '{"a":"{\\"b\\":1,\\"b\\":2} x"}'),
    ("a backslash before what looks like a surrogate", '{"a":"\\\\ud800"}'),
    ("a character beyond the first plane", '{"a":"😀"}'),
    ("a replacement character", '{"a":"\ufffd"}'),
    ("the same name in two objects", '{"a":{"b":1},"b":{"b":1}}'),
    ("a name that is empty", '{"":1,"a":2}'),
    ("names that differ in case", '{"A":1,"a":2}'),
    ("the deepest", nested(DEPTH_LIMIT)),
]


def answers(spark: SparkSession, lines: list[bytes], dialect: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in decoded(spark, lines, dialect, {})]


def codes(spark: SparkSession, lines: list[bytes], dialect: str) -> list[str]:
    """The code of each line; what was read as a change, or skipped, says so."""
    found = answers(spark, lines, dialect)
    return [a["quarantine"]["code"] if "quarantine" in a else a.get("skip", "read") for a in found]


@pytest.mark.parametrize("dialect", [DIALECT, "auto"])
def test_broken_text(spark: SparkSession, dialect: str) -> None:
    found = codes(spark, [body for _, body, _ in TEXTS], dialect)
    pairs = zip(TEXTS, found, strict=True)
    assert {name: got for (name, _, code), got in pairs if got != code} == {}


def test_the_diagnoser_knows_a_place_for_each() -> None:
    placed = {name: diagnose(body, code).column for name, body, code in TEXTS}
    assert [name for name, column in placed.items() if column is None] == []


def test_every_cut(spark: SparkSession) -> None:
    """A writer may be stopped after any byte; none of that is a message, and all of it is told apart from other damage."""
    whole = line('{"a":"\\ud83d\\ude00 \\\\ x","n":[null,true,-1.5e3,{}]}')
    found = codes(spark, [whole[:size] for size in range(len(whole) + 1)], DIALECT)
    assert (found[0], found[-1]) == ("blank", "read")
    assert {size: code for size, code in enumerate(found[1:-1], 1) if code != "truncated_json"} == {}


def test_meanings(spark: SparkSession) -> None:
    found = answers(spark, [body for _, body, _, _ in MEANINGS], DIALECT)
    got = {name: answer.get("quarantine", answer) for (name, *_), answer in zip(MEANINGS, found, strict=True)}
    assert {name: got[name] for name, _, code, _ in MEANINGS if got[name].get("code") != code} == {}
    assert {name: got[name] for name, _, _, path in MEANINGS if path not in got[name]["detail"]} == {}


def test_nobody_speaks_like_that(spark: SparkSession) -> None:
    assert codes(spark, [b"{}", b'{"hello":1}', b'{"topic":"a"}'], "auto") == ["unknown_dialect"] * 3


def test_what_only_looks_bad(spark: SparkSession) -> None:
    texts = list(decoded(spark, [line(image) for _, image in GOOD], DIALECT, {}))
    assert {
        name: text for (name, image), text in zip(GOOD, texts, strict=True) if f'"after": {image}' not in text
    } == {}


def test_the_limit_itself_is_read(spark: SparkSession) -> None:
    assert codes(spark, [long_line(LINE_LIMIT), line() + b" \t\r"], DIALECT) == ["read", "read"]


def test_tables_and_keys_of_a_small_operator(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "shop")
    settings = load(tmp_path / "shop")
    lines = [
        line(),
        line(source=source(table="invoices")),
        line('{"email":"a@example.com"}').replace(b'"key": {"id": 1}', b'"key": null'),
        line('{"email":"a@example.com"}').replace(b'"key": {"id": 1}', b'"key": {"number": 1}'),
        line()[:-1],
    ]
    rows = rehearse(spark, settings, settings.sources["crm"], [body.decode() for body in lines])
    refused = [(row["line"], row["code"]) for row in rows if row["out"] == "quarantine"]
    assert refused == [(2, "unknown_table"), (3, "missing_key"), (4, "missing_key"), (5, "truncated_json")]
    assert any(row["out"] == "journal" for row in rows)


VECTORS = Path(os.environ.get("TIDINGS_VECTORS") or Path(__file__).parents[2].parent / "shared" / "vectors")
SUITE = VECTORS / "json_hostile" / "jsontestsuite.json"
# RFC 8259 leaves these to the reader; we refuse what two readers could understand differently.
STRICTER = {"y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json"}


@pytest.fixture(scope="module")
def suite() -> dict[str, bytes]:
    if not SUITE.is_file():
        pytest.skip(f"no vectors at {SUITE}; set TIDINGS_VECTORS")
    told = json.loads(SUITE.read_text(encoding="utf-8"))["cases"]
    big = {"n_structure_100000_opening_arrays.json": b"[" * 100_000}
    big["n_structure_open_array_object.json"] = b'[{"":' * 50_000 + b"\n"
    return {case["name"]: base64.b64decode(case["b64"]) for case in told} | big


def test_json_test_suite(spark: SparkSession, suite: dict[str, bytes]) -> None:
    got = dict(zip(suite, codes(spark, list(suite.values()), "maxwell"), strict=True))
    assert {name: code for name, code in got.items() if name[0] == "y" and (code in BROKEN) != (name in STRICTER)} == {}
    assert {name: code for name, code in got.items() if name[0] == "n" and code not in BROKEN | {"blank"}} == {}
    assert [name for name, code in got.items() if code == "blank" and suite[name].strip(b" \t\r\n")] == []


def test_json_test_suite_diagnosed(suite: dict[str, bytes]) -> None:
    wrong = {}
    for name, body in suite.items():
        walk = Walk(body.decode("utf-8", "replace"))
        walk.go()
        if name[0] in "yn" and bool(set(walk.found) & BROKEN) != (name[0] == "n" or name in STRICTER):
            wrong[name] = walk.found
    assert wrong == {}
