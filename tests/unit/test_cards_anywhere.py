"""A card number in any place of a message, in any spelling: nothing of the change that is kept holds it."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidings.rehearse import message_frame
from tidings.seal import cards
from tidings.seal.cards import mask
from tidings.stages.change import CHANGE, change

pytestmark = [
    pytest.mark.spark,
    # PySpark leaves the socket to its JVM open when it hands over rows.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SAMPLES = Path(__file__).parents[1] / "conformance" / "samples"
DIALECTS = ("debezium_postgresql", "shopify", "mongodb_changestream")
CARD = "4111111111111111"
# JSON values that say the card
SPELLINGS = (
    f'"{CARD}"',
    '"4111 1111 1111 1111"',
    '"４１１１１１１１１１１１１１１１"',
    '"\\uFF14\\u0031\\ud835\\udfcf1-1111\\n11111111"',
    '"pay 77 with 4111-1111-1111-1111 by 12/29"',
    CARD,
    "4.111111111111111e15",
    "4111111111111111.0",
    f'{{"deep":[{{"er":"{CARD}"}}]}}',
    f'{{"{CARD}":1}}',
    '"{\\"pan\\":\\"\\\\u0034111111111111111\\"}"',
)
MARK = "@@here@@"


def planted(value: Any) -> Iterator[Any]:
    """The value with the mark in the place of one leaf, for each leaf."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from ({**value, name: other} for other in planted(inner))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from ([*value[:place], other, *value[place + 1 :]] for other in planted(inner))
    else:
        yield MARK


def bodies(dialect: str) -> list[str]:
    """Every leaf of the dialect's samples, each with the spellings in turn, so that all leaves and spellings meet over the samples."""
    rows = [json.loads(line)["message"] for line in (SAMPLES / f"{dialect}.jsonl").read_text("utf-8").splitlines()]
    marked = dict.fromkeys(json.dumps(other) for row in rows[:12] if isinstance(row, dict) for other in planted(row))
    return [
        text.replace(f'"{MARK}"', SPELLINGS[(place + turn) % len(SPELLINGS)])
        for place, text in enumerate(marked)
        for turn in (0, 3, 7)
    ]


def digits(text: str) -> str:
    """The digits of a text, whatever their script and whatever stands between them."""
    plain = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda m: chr(int(m[1], 16)), text)
    plain = plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return re.sub("[^0-9]", "", "".join(str(unicodedata.decimal(c, c)) for c in plain))


def leaks(spark: SparkSession, dialect: str) -> tuple[int, int, list[str]]:
    """How many messages became a change and how many a refusal, and what is kept of those that still show the card."""
    given = bodies(dialect)
    rows = change(message_frame(spark, "s", given), dialect, {"*": ["id"]})
    names = [field.name for field in CHANGE.fields if field.name not in ("body", "arrived", "place", "rank")]
    refused = F.col("problem").isNotNull()
    kept = F.to_json(F.struct(*names, F.when(refused, mask(F.col("body"))).alias("body")))
    found = rows.select(refused.alias("refused"), "masked", kept.alias("kept")).collect()
    changes = sum(not row["refused"] for row in found)
    return changes, len(found) - changes, [row["kept"] for row in found if CARD in digits(row["kept"])]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_place_and_no_spelling_is_kept(spark: SparkSession, dialect: str) -> None:
    changes, refusals, shown = leaks(spark, dialect)
    assert shown == []
    assert changes > 20
    assert refusals > 0


def test_without_masking_the_same_look_finds_them(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "suspect", lambda text: F.lit(False))
    assert len(leaks(spark, "shopify")[2]) > 20
