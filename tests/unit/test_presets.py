"""Presets: three sets of names for the five anchors, and a *decided* entry that speaks the operator's."""

from __future__ import annotations

from importlib.resources import files
from typing import get_args

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidings.gate.facts import ANCHORS
from tidings.gate.presets import DEFAULT, preset_named
from tidings.ledger.vocabulary import validate_entry
from tidings.shapes import Operator
from tidings.stages.attested import decided_entry

NAMES = ("event-operations", "master-record", "customer-graph")
RESULTS = {
    "event": "pass",
    "privacy": "deny",
    "channel": "shadow_defer",
    "vertical": "not_applicable",
    "governance": "defer",
}
TEXTS = ("source", "generation_name", "epoch", "position", "change_type", "hlc", "event_id", "txn", "schema_version")


def test_an_operator_can_choose_what_the_catalogue_has() -> None:
    shelf = {entry.name.removesuffix(".yaml") for entry in files("tidings").joinpath("catalog/presets").iterdir()}
    assert shelf == set(NAMES) == set(get_args(Operator.model_fields["preset"].annotation))
    assert Operator.model_fields["preset"].default == DEFAULT


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_names_each_anchor_once(name: str) -> None:
    said = preset_named(name)
    assert tuple(said.names) == tuple(said.titles) == ANCHORS
    assert len(set(said.names.values())) == len(set(said.titles.values())) == len(ANCHORS)
    assert said.title
    assert said.about


def test_the_default_keeps_the_words_of_older_ledgers() -> None:
    assert preset_named(DEFAULT).names == {anchor: anchor for anchor in ANCHORS}


def test_the_sets_share_no_name() -> None:
    names = [name for preset in NAMES for name in preset_named(preset).names.values()]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_speaks_the_operators_words(spark: SparkSession, name: str) -> None:
    row = spark.range(1).select(
        *(F.lit(f"some {text}").alias(text) for text in TEXTS),
        F.create_map(*(F.lit(word) for pair in RESULTS.items() for word in pair)).alias("anchors"),
        F.array(F.lit("spec.cloudevents")).alias("tags"),
        *(F.lit("ab" * 16).alias(column) for column in ("reference", "after_json", "image_before")),
        *(F.lit(b"0123456789abcdef").alias(column) for column in ("opening", "kid")),
        *(F.lit(7).alias(column) for column in ("offset", "lamport")),
        *(F.lit("2026-11-16 10:00:00").cast("timestamp").alias(column) for column in ("time", "deadline")),
    )
    ((data,),) = row.select(decided_entry("own+1", preset_named(name))).collect()
    decision = validate_entry(bytes(data))["decision"]
    assert decision["preset"] == name
    assert decision["anchors"] == {preset_named(name).names[anchor]: result for anchor, result in RESULTS.items()}
