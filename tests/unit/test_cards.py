"""Card numbers are hidden before anything is written, and the columns and their Python twin hide the same."""

from __future__ import annotations

import json
import random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidings.seal.cards import has_card, is_card, mask, mask_text

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
    # UUIDs; without their shape each would hold a number that passes.
    '{"a":"41111111-1111-1111-0000-000000000000"}',
    '{"a":"3f0c7a52-0000-4111-1111-111111111111"}',
]


def through_spark(spark: SparkSession, texts: list[str]) -> list[tuple[str, bool]]:
    frame = spark.createDataFrame([(n, text) for n, text in enumerate(texts)], "n int, text string")
    rows = frame.select("n", mask(F.col("text")).alias("masked"), has_card(F.col("text")).alias("held")).collect()
    return [(row["masked"], row["held"]) for row in sorted(rows, key=lambda row: row["n"])]


@pytest.mark.parametrize("number", TEST_CARDS)
def test_schemes(number: str) -> None:
    assert is_card(number)
    assert not is_card(number[:-1] + str((int(number[-1]) + 1) % 10))
    assert mask_text(json.dumps({"a": number})) == (json.dumps({"a": "*" * (len(number) - 4) + number[-4:]}), True)


def test_what_is_masked(spark: SparkSession) -> None:
    texts = [text for text, _ in MASKED]
    wanted = [(kept, True) for _, kept in MASKED]
    assert [mask_text(text) for text in texts] == wanted
    assert through_spark(spark, texts) == wanted


def test_what_is_kept(spark: SparkSession) -> None:
    wanted = [(text, False) for text in KEPT]
    assert [mask_text(text) for text in KEPT] == wanted
    assert through_spark(spark, KEPT) == wanted


def test_masked_json_is_still_json() -> None:
    for text, kept in MASKED[:-1]:
        assert json.loads(text).keys() >= json.loads(kept).keys()


def test_column_and_twin_agree(spark: SparkSession) -> None:
    """Texts put together at random from the pieces that decide: cards, near-cards, gaps, quotes, escapes, codes."""
    dice = random.Random(20)
    pieces = [*TEST_CARDS, "4", "41111111", "0000", " ", "-", ".", "4111\u00a01111\u00a01111\u00a01111", '"', '\\"', "\\\\", "\\u0034", "\\u0020", ",", ":", "e", "{", "}", '"cvv":"1"', '"value":12,', "é", "x"]  # fmt: skip
    texts = ["".join(dice.choices(pieces, k=dice.randint(1, 9))) for _ in range(1500)]
    twin = [mask_text(text) for text in texts]
    assert 100 < sum(held for _, held in twin) < 1400
    pairs = zip(texts, twin, through_spark(spark, texts), strict=True)
    assert [(text, ours, theirs) for text, ours, theirs in pairs if ours != theirs] == []


def test_a_masked_text_holds_no_card() -> None:
    for number in TEST_CARDS:
        for text in (f'{{"a":"{number}"}}', f'{{"a":{number}}}', f'{{"a":"{number}{number}"}}', f"{number} {number}"):
            once, _ = mask_text(text)
            assert number not in once
            assert mask_text(once) == (once, False)
