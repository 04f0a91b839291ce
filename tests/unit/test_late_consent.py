"""A source without an order of its own may tell late what was long before: what is known of a person's consent stays what was said last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidings import held
from tidings.decisions import Decisions
from tidings.emit import one_row
from tidings.flow import Context, reading, writing
from tidings.known import nothing_of
from tidings.rehearse import message_frame
from tidings.settings import load
from tidings.stages.event import Batch
from tidings.verbs.init import write as write_operator

CONTRACT = """\
kind: customer
version: "1"
key: [id]
identifiers: {email: email}
fields:
  email: {type: email, normalise: email}
  accepts_marketing: {type: consent, consent: {class: marketing, channel: email}}
"""
SOURCE = """\
kind: files
path: drop/shop
dialect: shopify
entities: {customers: customer}
banner: shop
location: online
"""


def hook(number: int, at: str, yes: bool) -> str:
    headers = {
        "X-Shopify-Topic": "customers/update",
        "X-Shopify-Shop-Domain": "shop.example",
        "X-Shopify-Event-Id": f"event-{number}",
        "X-Shopify-Triggered-At": at,
    }
    body = {"id": 7, "email": "seven@example.com", "accepts_marketing": yes, "updated_at": at}
    return json.dumps({"headers": headers, "body": body})


@pytest.mark.spark
def test_a_yes_that_comes_late_does_not_undo_the_no(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "operator"
    write_operator(folder)
    (folder / "entities/customer.yaml").write_text(CONTRACT)
    (folder / "sources/shop.yaml").write_text(SOURCE)
    (folder / "drop/shop").mkdir()
    settings = load(folder)
    source = settings.sources["shop"]
    batch = Batch("shop", "g", 0, "k", keeps=True)
    one = one_row(settings, batch)
    lines = [hook(1, "2026-03-02T10:00:00Z", False), hook(2, "2026-03-01T10:00:00Z", True)]
    keys = spark.createDataFrame(one.select(["k_tag"]))
    rows = held.hold(reading(message_frame(spark, "shop", lines), settings, source, keys))
    near = held.gathered(spark, rows, one, held.nothing_known(rows, batch))
    already = nothing_of(spark, "change_id binary, journalled boolean")
    found = writing(near, batch, Context(settings, source, Decisions.load(settings), already)).collect()
    assert [row["flags"] for row in found if row["out"] == "journal" and "stale" in row["flags"]], (
        "it is told, and marked"
    )
    newest = max((row for row in found if row["out"] == "subjects"), key=lambda row: row["version"])
    assert newest["consents"] == {"email": "withdrawn"}
