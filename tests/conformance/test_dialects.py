"""Every dialect gives the change its samples expect, by name and recognised; how `expect` is written is in the samples' own rows."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from tidings.stages.dialect import names
from tidings.verbs.try_decode import decoded, dialects

pytestmark = [
    pytest.mark.spark,
    # PySpark leaves the socket to its JVM open when it hands over rows.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SAMPLES = Path(__file__).parent / "samples"


@cache
def samples(dialect: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLES / f"{dialect}.jsonl").read_text(encoding="utf-8").splitlines()]


def canonical(value: Any) -> str:
    """Text, because in Python 1, 1.0 and True are the same and in a message they are not."""
    return json.dumps(value, sort_keys=True)


def wrong(spark: SparkSession, cases: list[tuple[str, dict[str, Any]]], dialect: str) -> dict[str, tuple[str, str]]:
    """What was expected and what came, for every case where they differ."""
    lines = [json.dumps(sample["message"]).encode() for _, sample in cases]
    answers = [canonical(json.loads(text)) for text in decoded(spark, lines, dialect, {})]
    pairs = zip(cases, answers, strict=True)
    return {
        f"{name}/{sample['case']}": (canonical(sample["expect"]), answer)
        for (name, sample), answer in pairs
        if answer != canonical(sample["expect"])
    }


def test_every_dialect_has_samples() -> None:
    assert {path.stem for path in SAMPLES.glob("*.jsonl")} == set(dialects()) == set(names())


@pytest.mark.parametrize("dialect", dialects())
def test_samples_by_name(spark: SparkSession, dialect: str) -> None:
    assert wrong(spark, [(dialect, sample) for sample in samples(dialect)], dialect) == {}


def test_samples_recognised(spark: SparkSession) -> None:
    cases = [(dialect, sample) for dialect in dialects() for sample in samples(dialect)]
    assert wrong(spark, cases, "auto") == {}


def test_a_wrong_expectation_is_found(spark: SparkSession) -> None:
    sample = samples("maxwell")[0]
    planted = {**sample, "expect": {**sample["expect"], "txn": 1}}
    assert list(wrong(spark, [("maxwell", planted)], "maxwell")) == [f"maxwell/{sample['case']}"]


def test_a_dialect_says_where_its_facts_come_from() -> None:
    folder = files("tidings").joinpath("catalog", "dialects")
    about = {name: yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8")) for name in dialects()}
    assert [name for name, tree in about.items() if not tree.get("fact")] == []
    assert [
        name for name, tree in about.items() if tree["confidence"].split()[0] not in ("high", "medium", "low")
    ] == []
