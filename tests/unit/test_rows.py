"""Values that name their types lose them exactly, and a row without a key finds one in the order the rules say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidings.stages.rows import LEVELS
from tidings.verbs.try_decode import decoded

pytestmark = [
    pytest.mark.spark,
    # PySpark leaves the socket to its JVM open when it hands over rows.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# A typed value and what it means; a name may look like a type and a text like JSON.
TYPED: list[tuple[Any, Any]] = [
    ({"S": '{"S":"x"}'}, '{"S":"x"}'),
    ({"S": ']}\\"{\u0001$1é'}, ']}\\"{\u0001$1é'),
    ({"N": "17077101170710177010717701071017701077"}, 17077101170710177010717701071017701077),
    ({"N": "-0.5"}, -0.5),
    ({"NULL": True}, None),
    ({"SS": ["1", "a,b"]}, ["1", "a,b"]),
    ({"NS": ["1", "-2"]}, [1, -2]),
    ({"M": {}}, {}),
    ({"L": [{"L": []}, {"M": {"M": {"M": {}}}}]}, [[], {"M": {}}]),
    ({"M": {"S": {"S": "x"}, "L": {"SS": ["q"]}, "BOOL": {"BOOL": False}}}, {"S": "x", "L": ["q"], "BOOL": False}),
]
UNTYPED = [5, "x", {}, [], {"Q": "x"}, {"S": "x", "N": "1"}, {"M": [1]}, {"L": [1]}, {"M": {"a": "b"}}, {"N": "one"}]


def item(value: Any) -> dict[str, Any]:
    """A stream record whose new image holds one value."""
    change = {"Keys": {"pk": {"S": "1"}}, "NewImage": {"pk": {"S": "1"}, "v": value}, "SequenceNumber": "1"}
    arn = "arn:aws:dynamodb:eu-west-1:1:table/customers/stream/1"
    return {"eventName": "INSERT", "eventSource": "aws:dynamodb", "eventSourceARN": arn, "dynamodb": change}


def nested(levels: int) -> Any:
    return {"M": {"M": nested(levels - 1)}} if levels else {"S": "x"}


def answers(spark: SparkSession, dialect: str, messages: list[Any], keys: dict[str, list[str]]) -> list[Any]:
    lines = [json.dumps(message).encode() for message in messages]
    return [json.loads(text) for text in decoded(spark, lines, dialect, keys)]


def test_types_are_taken_off(spark: SparkSession) -> None:
    said = answers(spark, "dynamodb_streams", [item(typed) for typed, _ in TYPED], {})
    # Text, because in Python 1, 1.0 and True are the same and in a message they are not.
    found, meant = [one["after"]["v"] for one in said], [value for _, value in TYPED]
    assert json.dumps(found, sort_keys=True) == json.dumps(meant, sort_keys=True)


def test_what_has_no_type_is_refused(spark: SparkSession) -> None:
    said = answers(spark, "dynamodb_streams", [item(value) for value in UNTYPED], {})
    assert {one["quarantine"]["code"] for one in said} == {"wrong_type"}


def test_values_nest_as_deep_as_the_vendor_allows(spark: SparkSession) -> None:
    deepest, deeper = answers(spark, "dynamodb_streams", [item(nested(LEVELS)), item(nested(LEVELS + 2))], {})
    assert deepest["op"] == "insert"
    assert deeper["quarantine"]["code"] == "wrong_type"


@pytest.mark.parametrize(
    ("keys", "row", "found"),
    [
        ({}, {"id": 1, "no": 2}, {"id": 1}),
        ({"crm.customers": ["no"]}, {"id": 1, "no": 2}, {"no": 2}),
        ({"*": ["no"]}, {"id": 1, "no": 2}, {"no": 2}),
        ({"crm.customers": ["no"]}, {"id": 1}, None),
        ({}, {"id": 1, "__sdc_primary_key": "a"}, {"__sdc_primary_key": "a"}),
        ({"*": ["no"]}, {"__sdc_primary_key": "a"}, {"__sdc_primary_key": "a"}),
    ],
)
def test_where_a_key_comes_from(spark: SparkSession, keys: dict[str, list[str]], row: Any, found: Any) -> None:
    (said,) = answers(spark, "stitch", [{"table": "crm.customers", "row": {**row, "_sdc_sequence": 1}}], keys)
    assert said.get("key") == found
    assert ("quarantine" in said) == (found is None)


def test_a_key_that_is_a_list_takes_the_configured_names(spark: SparkSession) -> None:
    message = {"topic": "customers", "key": [7, "x"], "value": {"after": None}}
    (said,) = answers(spark, "cockroachdb_wrapped", [message], {"customers": ["no", "region"]})
    assert said["key"] == {"no": 7, "region": "x"}
