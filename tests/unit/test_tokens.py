"""A payment token is data: told by its declared field and its vendor's format; one that looks like a card needs somebody's word."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidings.contract import Contract
from tidings.rehearse import message_frame
from tidings.seal.tokens import token_flags, token_pattern
from tidings.stages.change import change
from tidings.tokens import vendors

pytestmark = [
    pytest.mark.spark,
    # PySpark leaves the socket to its JVM open when it hands over rows.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

UUID = "3f0c7a52-9d1e-4b6a-8c2f-0123456789ab"
# Vendor → its tokens by the examples of its own pages, and what is none of them
TOKENS = {
    "skyflow": ([UUID], ["3f0c7a52", "tok_live_bhtsCwFUzoJMw9rWUfEV5e"]),
    "vgs": (["tok_sandbox_bhtsCwFUzoJMw9rWUfEV5e", UUID], ["tok_test_bhtsCwFUzoJMw9rWUfEV5e", "tok_live_0"]),
    "basis_theory": ([UUID], ["", "abc"]),
    "tokenex": ([UUID, "424242APT0Oa4242", "424242HU0OIW4242", "411157SGH1119"], ["4242-4242", "APT0Oa4242"]),
}
LIKE_A_CARD = "4111111111111111"
CONTRACT = Contract.model_validate(
    {
        "kind": "customer",
        "version": "1",
        "key": ["id"],
        "fields": {"pay": {"token": "vgs"}, "method.alias": {"token": "tokenex"}, "note": {}},
    }
)


@pytest.mark.parametrize("vendor", TOKENS)
def test_formats(vendor: str) -> None:
    good, bad = TOKENS[vendor]
    found = vendors()[vendor]
    assert all(re.search(found.whole, token) for token in good)
    assert not any(re.search(found.whole, token) for token in bad)
    assert not any(re.search(f"^(?:{pattern})$", LIKE_A_CARD) for pattern in found.opaque)


def test_every_vendor_has_its_examples() -> None:
    assert vendors().keys() == TOKENS.keys()


def decoded(spark: SparkSession, after: dict[str, Any], attested: set[str]) -> tuple[dict[str, Any], bool]:
    source = {"connector": "postgresql", "schema": "public", "table": "customers", "snapshot": "false", "lsn": 5, "ts_us": 1_772_443_000_000_000}  # fmt: skip
    value = {"before": None, "after": after, "source": source, "op": "c"}
    body = json.dumps({"topic": "a.public.customers", "key": {"id": 1}, "value": value})
    pattern = token_pattern(CONTRACT, attested)
    frame = change(
        message_frame(spark, "s", [body]),
        "debezium_postgresql",
        tokens={"public.customers": pattern} if pattern else {},
    )
    (row,) = frame.select("after_json", "masked", "problem").collect()
    assert row["problem"] is None
    return json.loads(row["after_json"]), row["masked"]


def test_a_token_like_a_card_needs_somebodys_word(spark: SparkSession) -> None:
    after = {"id": 1, "pay": LIKE_A_CARD, "method": {"alias": int(LIKE_A_CARD)}, "note": "x"}
    assert decoded(spark, after, {"vgs", "tokenex"}) == (after, False)
    kept, masked = decoded(spark, after, {"vgs"})
    assert (kept["pay"], kept["method"], masked) == (LIKE_A_CARD, {"alias": 9999999999991111}, True)
    kept, masked = decoded(spark, after, set())
    assert (kept["pay"], masked) == ("************1111", True)


def test_a_card_beside_an_attested_token_is_masked(spark: SparkSession) -> None:
    smuggled = "".join(chr(0xFDD0 + int(digit)) for digit in LIKE_A_CARD)
    after = {"id": 1, "pay": f"x {LIKE_A_CARD}", "note": LIKE_A_CARD, "odd": smuggled, "other": "a\uffffb"}
    kept, masked = decoded(spark, after, {"vgs", "tokenex"})
    assert masked
    assert LIKE_A_CARD not in json.dumps(kept)


def test_flags(spark: SparkSession) -> None:
    cases: list[tuple[dict[str, str | None], set[str], set[str]]] = [
        ({"pay": UUID}, {"vgs"}, {"token", "token_attested"}),
        ({"pay": UUID}, set(), {"token"}),
        ({"pay": "************1111"}, {"vgs"}, {"not_a_token"}),
        ({"pay": UUID, "method.alias": UUID}, {"vgs"}, {"token"}),
        ({"pay": UUID, "method.alias": "?"}, {"vgs"}, {"token", "token_attested", "not_a_token"}),
        ({"pay": None, "note": UUID}, {"vgs"}, set()),
    ]
    for fields, attested, wanted in cases:
        frame = spark.createDataFrame([("customer", fields)], "contract string, fields map<string,string>")
        flags = token_flags(F.col("fields"), {"customer": CONTRACT}, attested)
        (row,) = frame.select(*[test.alias(word) for word, test in flags.items()]).collect()
        assert {word for word, held in row.asDict().items() if held} == wanted
