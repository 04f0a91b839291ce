"""Card numbers are hidden before anything is written, and the columns and their Python twin hide the same."""

from __future__ import annotations

import json
import random
import time
import unicodedata

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidings.seal.cards import is_card, mask, mask_text
from tidings.seal.digits import digit

pytestmark = [
    pytest.mark.spark,
    # PySpark leaves the socket to its JVM open when it hands over rows.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# Published test numbers of the schemes; none of them is anybody's.
TEST_CARDS = (
    "4111111111111111",
    "4012888888881881",
    "5555555555554444",
    "2223003122003222",
    "378282246310005",
    "30569309025904",
    "6011111111111117",
    "3530111333300000",
    "6200000000000005",
)
# text, what may be written
MASKED: list[tuple[str, str]] = [
    ('{"a":"4111111111111111"}', '{"a":"************1111"}'),
    ('{"a":"4111 1111 1111 1111"}', '{"a":"**** **** **** 1111"}'),
    ('{"a":"4111-1111-1111-1111 exp 12/29"}', '{"a":"****-****-****-1111 exp 12/29"}'),
    ('{"a":4111111111111111}', '{"a":9999999999991111}'),
    ('{"a":"order 4111111111111111, thanks"}', '{"a":"order ************1111, thanks"}'),
    ('{"a":"\\u0034111111111111111"}', '{"a":"************1111"}'),
    ('{"cvv":"123","a":1}', '{"a":1}'),
    ('{"a":1,"card_cvc":123}', '{"a":1}'),
    ('{"track_data":"%B4111^X"}', "{}"),
    (
        '{"a":"3f0c7a52-0000-4000-8000-0000000000a1 4111.1111.1111.1111"}',
        '{"a":"3f0c7a52-0000-4000-8000-0000000000a1 ****.****.****.1111"}',
    ),
    ('{"a":"4111111111111111', '{"a":"************1111'),
]
CARD16 = "4111111111111111"
HIDDEN16 = "************1111"
# In strings: how else a digit, and what stands between digits, can be spelled.
STRINGS: list[tuple[str, str]] = [
    ("４１１１１１１１１１１１１１１１", "************１１１１"),
    ("٤١١١ ١١١١ ١١١١ ١١١١", "**** **** **** ١١١١"),
    ("४१११११११११११११११", "************११११"),
    ("𝟒𝟏𝟏𝟏1111１１１１1111", HIDDEN16),
    ("⁴¹¹¹1111₁₁₁₁①①①①", "************①①①①"),
    ("\\uFF14\\uff11\\uFf111111111111111", HIDDEN16),
    ("\\ud835\\udfd2\\uD835\\uDFCF11111111111111", HIDDEN16),
    ("\\\\u0034111111111111111", HIDDEN16),
    ("\\\\\\\\u0034111\\u0031\\\\u003111111111\\u0031\\u0031", "************11\\u0031\\u0031"),
    ('{\\"n\\":\\"4111-1111-1111-1111\\"}', '{\\"n\\":\\"****-****-****-1111\\"}'),
    ("4111 - 1111 - 1111 - 1111", "**** - **** - **** - 1111"),
    ("4111\\n1111\\t1111\\/1111", "****\\n****\\t****\\/1111"),
    ("4111\\\\n1111\\u00a01111\\u200b1111", "****\\\\n****\\u00a0****\\u200b1111"),
    ("4\u200b1\u200d1\ufeff1\u00ad1\u20601 1/1_1.1-1\u20111\u2212111\u30001", "*\u200b*\u200d*\ufeff*\u00ad*\u2060* */*_*.*-*\u2011*\u2212111\u30001"),
    ("\\u20004111111111111111", "\\u2000" + HIDDEN16),
    ("order 77 4111111111111111 2026-11-16", "order 77 ************1111 2026-11-16"),
    ("00004111111111111111", "0000" + HIDDEN16),
    ("3.5301113333E+15", "9999999999990000"),
    ("4.111111111111111e15", "*.***********1111e15"),
]  # fmt: skip
# Numbers that say a card in some notation
NUMBERS: list[tuple[str, str]] = [
    ("4.111111111111111e15", "9999999999991111"),
    ("4.111111111111111E+15", "9999999999991111"),
    ("0.4111111111111111e16", "9999999999991111"),
    ("0.0004111111111111111e19", "9999999999991111"),
    ("41111111111111110e-1", "9999999999991111"),
    ("4111111111111111.0", "9999999999991111.0"),
    ("-4111111111111111.50", "-9999999999991111.50"),
    ("-4111111111111111", "-9999999999991111"),
    ("35301113333e5", "9999999999990000"),
    ("3.5301113333E15", "9999999999990000"),
    ("12344111111111111111", "12349999999999991111"),
]
MASKED += [(f'{{"a":"{text}"}}', f'{{"a":"{kept}"}}') for text, kept in STRINGS]
MASKED += [(f'{{"a":[1, {text}],"b":2}}', f'{{"a":[1, {kept}],"b":2}}') for text, kept in NUMBERS]
MASKED += [
    (f'{{"{CARD16}":1}}', f'{{"{HIDDEN16}":1}}'),
    ('{"a":"{\\"cvv\\":\\"123\\",\\"b\\":1}"}', '{"a":"{\\"b\\":1}"}'),
    ('{"a":"{\\\\\\"cvc2\\\\\\":12}"}', '{"a":"{}"}'),
]
# What is no JSON at all
TEXTS: list[tuple[str, str]] = [
    ("paid with 4111 1111 1111 1111 today", "paid with **** **** **** 1111 today"),
    ("4111 1111 1111 1111", "**** **** **** 1111"),
    ("<card n='4111-1111-1111-1111'/>", "<card n='****-****-****-1111'/>"),
    ("a;b\n7;4111111111111111;x", "a;b\n7;************1111;x"),
    ("[4111 1111 1111 1111", "[**** **** **** 1111"),
]
# What has digits and is no card
KEPT = [
    "",
    '{"a":"4111111111111112"}',
    '{"id":706405506930371001}',
    '{"a":1772442965123593}',
    '{"phone":"+14155550101"}',
    '{"a":"1111111111111111"}',
    '{"a":411111111111111.1}',
    '{"code":"x","value":true}',
    '{"a":"\\u0041"}',
    '{"a":[4111,1111,1111,1111]}',
    '{"a":[ 4111 , 1111 , 1111 , 1111 ]}',
    '{"a":0.4111111111111111}',
    '{"a":"37.421999,-122.084057"}',
    '{"at":"2026-11-16 13:05:23.123456"}',
    '{"a":4.1E300,"b":1e-7,"c":-0.0,"d":11000000000000000000000000000000000001}',
    '{"a":"12e4"}',
    # UUIDs; without their shape each would hold a number that passes.
    '{"a":"41111111-1111-1111-0000-000000000000"}',
    '{"a":"3f0c7a52-0000-4111-1111-111111111111"}',
]


def through_spark(spark: SparkSession, texts: list[str]) -> list[tuple[str, bool]]:
    frame = spark.createDataFrame([(n, text) for n, text in enumerate(texts)], "n int, text string")
    rows = frame.select("n", "text", mask(F.col("text")).alias("masked")).collect()
    return [(row["masked"], row["masked"] != row["text"]) for row in sorted(rows, key=lambda row: row["n"])]


@pytest.mark.parametrize("number", TEST_CARDS)
def test_schemes(number: str) -> None:
    assert is_card(number)
    assert not is_card(number[:-1] + str((int(number[-1]) + 1) % 10))
    assert mask_text(json.dumps({"a": number})) == (json.dumps({"a": "*" * (len(number) - 4) + number[-4:]}), True)


def test_what_is_masked(spark: SparkSession) -> None:
    texts = [text for text, _ in (*MASKED, *TEXTS)]
    wanted = [(kept, True) for _, kept in (*MASKED, *TEXTS)]
    assert [mask_text(text) for text in texts] == wanted
    assert through_spark(spark, texts) == wanted


def test_what_is_kept(spark: SparkSession) -> None:
    wanted = [(text, False) for text in KEPT]
    assert [mask_text(text) for text in KEPT] == wanted
    assert through_spark(spark, KEPT) == wanted


def test_masked_json_is_still_json() -> None:
    for text, kept in MASKED:
        if not text.endswith("}"):
            continue
        assert len(json.loads(text)) >= len(json.loads(kept))


def test_column_and_twin_agree(spark: SparkSession) -> None:
    """Texts put together at random from the pieces that decide: cards, near-cards, gaps, quotes, escapes, codes."""
    dice = random.Random(20)
    pieces = [*TEST_CARDS, "4", "41111111", "0000", " ", "-", ".", "4111\u00a01111\u00a01111\u00a01111", '"', '\\"', "\\\\", "\\u0034", "\\u0020", "\\", "u", "\\n", "\\uFF14", "\\ud835\\udfd2", "\\\\u00a0", "４", "𝟒", "\u200b", "4.111111111111111e15", "35301113333", "e5", "E+5", "\t", "[", "]", "null", "\uffff", "3f0c7a52-0000-4111-8000-000000000000", '\\"cvc\\":\\"1\\"', ",", ":", "e", "{", "}", '"cvv":"1"', '"value":12,', "é", "x"]  # fmt: skip
    texts = ["".join(dice.choices(pieces, k=dice.randint(1, 9))) for _ in range(4000)]
    twin = [mask_text(text) for text in texts]
    assert 400 < sum(held for _, held in twin) < 3900
    pairs = zip(texts, twin, through_spark(spark, texts), strict=True)
    assert [(text, ours, theirs) for text, ours, theirs in pairs if ours != theirs] == []


def test_a_masked_text_holds_no_card() -> None:
    for number in TEST_CARDS:
        for text in (f'{{"a":"{number}"}}', f'{{"a":{number}}}', f'{{"a":"{number}{number}"}}', f"{number} {number}"):
            once, _ = mask_text(text)
            assert number not in once
            assert mask_text(once) == (once, False)


def test_long_rows_of_digits_take_their_time_and_no_more(spark: SparkSession) -> None:
    """Quadratic ways through any of these would take hours."""
    texts = ["4" * 100_000, "4111111111111111" * 5000, "1 " * 50_000, "\\" * 100_000, "\\u0034" * 15_000, '"' * 100_000]
    begun = time.monotonic()
    assert through_spark(spark, texts) == [mask_text(text) for text in texts]
    assert time.monotonic() - begun < 120


def test_every_digit_that_python_knows_is_read() -> None:
    known = [chr(point) for point in range(0x80, 0x110000) if unicodedata.decimal(chr(point), None) is not None]
    assert [c for c in known if digit(c) != str(unicodedata.decimal(c))] == []
