"""A refused message is explained to the column, quickly, at any depth, and nothing of what it says is repeated."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.diagnose import OF_THE_TEXT, diagnose
from tidings.json_walk import Walk
from tidings.stages.codes import CODES, DEPTH_LIMIT, LINE_LIMIT

# body, code, column, words of the cause
CASES: list[tuple[str | bytes, str, int, str]] = [
    ('{"a":1,"b":', "truncated_json", 12, "expected a value"),
    ('{"a":1', "truncated_json", 7, "expected , or }"),
    ('{"a"', "truncated_json", 5, "expected : after a field name"),
    ('{"a":"x', "truncated_json", 8, "inside a string that starts at column 6"),
    ('{"a":"x\\', "truncated_json", 9, "inside a string"),
    ('{"a":tru', "truncated_json", 9, "inside a value"),
    ('{"a":[1,{"b":-', "truncated_json", 15, "inside a value"),
    ('{"a":[[', "truncated_json", 8, "brackets open: 3, the last since column 7"),
    ('{"a":1,}', "malformed_json", 8, "a comma with nothing"),
    ('{"a":[1,]}', "malformed_json", 9, "a comma with nothing"),
    ('{"a":[,1]}', "malformed_json", 7, "found ,; expected a value or ]"),
    ('{"a":1 "b":2}', "malformed_json", 8, "found a string; expected , or }"),
    ('{"a" 1}', "malformed_json", 6, "found a digit; expected : after a field name"),
    ('{a:1}', "malformed_json", 2, "found a letter; expected a field name in double quotes or }"),
    ("{'a':1}", "malformed_json", 2, "a single quote"),
    ('{"a":1 // x\n}', "malformed_json", 8, "no comments"),
    ('{"a":[1}', "malformed_json", 8, "found }; expected , or ]"),
    ('{"a":True}', "malformed_json", 6, "none of true, false and null"),
    ('{"a":01}', "malformed_json", 6, "a zero before it"),
    ('{"a":+1}', "malformed_json", 6, "a plus sign"),
    ('{"a":.5}', "malformed_json", 6, "a decimal point"),
    ('{"a":1.}', "malformed_json", 6, "a decimal point"),
    ('{"a":1e}', "malformed_json", 6, "not written as JSON"),
    ('{"a":"\\x41"}', "malformed_json", 7, "an escape JSON does not have"),
    ('{"a":"\\u00g1"}', "malformed_json", 7, "four hexadecimal digits"),
    ('{"a":"x\x01"}', "malformed_json", 8, "U+0001"),
    ('{"a":"x\ty"}', "malformed_json", 8, "U+0009"),
    ('\ufeff{"a":1}', "malformed_json", 1, "byte order mark"),
    ('{"' + "n" * 50_001 + '":1}', "malformed_json", 2, "50,001 characters"),
    ('{"a":1} x', "trailing_content", 9, "a letter after the end"),
    ('{"a":1}{"b":2}', "trailing_content", 8, "{ after the end"),
    ("[1,2]", "not_an_object", 1, "a list"),
    ("  7", "not_an_object", 3, "a number"),
    ('{"e":{"a":1},"a":{"a":1,"b":2,"a":3}}', "duplicate_key", 31, "the field a stands here for the second time in one object; first at column 19"),
    ('{"a":1,"\\u0061":2}', "duplicate_key", 8, "first at column 2"),
    ('{"jo@example.com":1,"jo@example.com":2}', "duplicate_key", 21, "a field stands here"),
    ('{"a":NaN}', "not_a_number", 6, "NaN or Infinity"),
    ('{"a":[1,-Infinity]}', "not_a_number", 9, "NaN or Infinity"),
    ('{"a":' + "9" * 39 + "}", "number_not_exact", 6, "39 digits, of which 38"),
    ('{"a":0.' + "1" * 39 + "}", "number_not_exact", 6, "39 digits"),
    ('{"a":1e400}', "number_not_exact", 6, "an exponent"),
    ('{"a":1E-400}', "number_not_exact", 6, "an exponent"),
    ('{"a":123456789012345678e2}', "number_not_exact", 6, "18 digits, of which 17"),
    ('{"a":"\\ud800"}', "lone_surrogate", 7, "half of a surrogate pair"),
    ('{"a":"\\\\ud800\\ud83d\\ude00\\udc00"}', "lone_surrogate", 26, "half of a surrogate pair"),
    ('{"a":"x\0"}', "nul_byte", 8, "a NUL byte"),
    (b'{"a":"\xff"}', "invalid_utf8", 7, "byte 7"),
    ('{"é":"'.encode() + b'\xc3"}', "invalid_utf8", 7, "byte 8"),
    ('{"a":"x\ufffd"}', "invalid_utf8", 8, "not UTF-8"),
    ('{"a":1}'.encode("utf-16"), "invalid_utf8", 1, "UTF-16"),
    ('{"a":"' + "x" * LINE_LIMIT + '"}', "line_too_long", LINE_LIMIT + 1, f"{LINE_LIMIT + 8:,} bytes"),
    ('{"a":' + "[" * 10_000 + "]" * 10_000 + "}", "too_deep", DEPTH_LIMIT + 5, f"passes {DEPTH_LIMIT} levels"),
    ('{"value":{"op":7}}', "wrong_type", 16, CODES["wrong_type"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "code", "column", "words"), CASES, ids=lambda value: str(value)[:24].encode("unicode_escape").decode()
)
def test_cause_and_column(body: str | bytes, code: str, column: int, words: str) -> None:
    found = diagnose(body, code, "value.op" if code == "wrong_type" else "")
    assert (found.line, found.column) == (1, column)
    assert words in found.cause
    assert found.detail.endswith(found.cause)


def test_a_line_of_a_message_with_several() -> None:
    found = diagnose('{"a": 1,\n "b": 2,\n "a": 3}', "duplicate_key")
    assert (found.line, found.column) == (3, 2)
    assert "line 3, column 2" in found.detail
    assert "first at line 1, column 2" in found.detail


def test_every_code_has_its_cases() -> None:
    assert set(OF_THE_TEXT) - {code for _, code, _, _ in CASES} == set()


@pytest.mark.parametrize("code", [code for code in CODES if code not in OF_THE_TEXT])
def test_codes_of_meaning_say_what_they_mean_and_where(code: str) -> None:
    bare, told = diagnose('{"op":"x"}', code), diagnose('{"op":"x"}', code, "value.op", "expected a string")
    assert (bare.cause, bare.column) == (CODES[code], None)
    assert told.cause == f"{CODES[code]}: value.op, expected a string"
    assert told.column == 7  # a message that came without its wrapping


def test_every_code_has_a_heading() -> None:
    document = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    assert [code for code in CODES if f"### `{code}`\n" not in document] == []


def test_a_path_into_a_list() -> None:
    assert diagnose('{"a":[{"b":1},{"b":2}]}', "wrong_type", "a[1].b").column == 20


# A walk may take a second of a slow machine's time; one that looks back at every step takes minutes.
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("[" * 100_000, "truncated_json"),
        ("[" * 100_000, "too_deep"),
        ('[{"":' * 50_000, "truncated_json"),
        ("[" * 100_000 + "]" * 100_000, "trailing_content"),
        ("[" + "1," * 1_000_000, "truncated_json"),
        ('{"a":"' + "x" * 2_000_000, "truncated_json"),
        ('{"a":"' + "\\u0041" * 350_000, "truncated_json"),
        ("{" + ",".join(['"a":1'] * 350_000), "truncated_json"),
        ("[" + '"\x01",' * 400_000, "truncated_json"),
        ("[" + "1" * 2_000_000 + "]", "malformed_json"),
        ("\\" * 2_000_000, "lone_surrogate"),
        ('"' * 2_000_000, "malformed_json"),
        ('"\\' * 1_000_000, "malformed_json"),
        (b"\xff" * 2_000_000, "invalid_utf8"),
        (b"\0" * 2_000_000, "nul_byte"),
    ],
    ids=lambda value: str(value)[:12].encode("unicode_escape").decode(),
)
def test_two_megabytes_and_any_depth(body: str | bytes, code: str) -> None:
    start = time.process_time()
    assert diagnose(body, code).cause
    assert time.process_time() - start < 20


SECRET = "Zq7Kx"
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(SECRET),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.just(SECRET + "@x"), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(documents, st.data())
@settings(max_examples=400, deadline=None)
def test_agrees_with_another_parser_and_never_repeats(document: object, data: st.DataObject) -> None:
    text = json.dumps(document, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 3))
    text = text[:at] + data.draw(st.text('{}[]",:\\u01e-+. tnN\x01', max_size=3)) + text[at + cut :]
    walk = Walk(text)
    walk.go()
    refused = bool({"truncated_json", "malformed_json", "trailing_content"} & set(walk.found))
    assert refused == (not _reads(text))
    for code in OF_THE_TEXT:
        assert SECRET not in diagnose(text, code).detail


@given(st.binary(max_size=60) | st.text('{}[]",:\\ud8019aNI-+.e \t\n\0\ufeff\ud800', max_size=60))
@settings(max_examples=400, deadline=None)
def test_anything_is_explained(body: str | bytes) -> None:
    for code in CODES:
        found = diagnose(body, code)
        assert found.cause
        assert (found.line is None) == (found.column is None)


def _reads(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
