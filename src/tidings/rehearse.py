"""The same flow on lines in hand: nothing is stored, nothing is sent. What `try detect` and `try render` run."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings import held
from tidings.decisions import Decisions
from tidings.emit import one_row
from tidings.flow import Context, reading, writing
from tidings.gate.decisions import Decided, DecisionTable
from tidings.known import nothing_of
from tidings.settings import Settings
from tidings.shapes import Source
from tidings.stages.event import Batch

SUBJECTS = (
    "bucket int, tag binary, known_consents map<string,string>, known_jurisdiction string, known_flags array<string>"
)
LAST_SEEN = "bucket int, tag binary, known_fields map<string,string>, known_image string, known_time timestamp"
MESSAGE = "source string, place string, arrived timestamp, rank string, body string, file string, line bigint"


def rehearse(spark: SparkSession, settings: Settings, source: Source, lines: Sequence[str]) -> list[dict[str, Any]]:
    """Journal and quarantine rows that these lines would make of an empty store, in order; payloads are in clear."""
    masters = any(settings.entities[name].masters for name in source.entities.values())
    emitted = source.snapshot == "emit"
    batch = Batch(source.name, "rehearsal", 0, "rehearsal", keeps=True, emit_snapshots=emitted, masters=masters)
    one = one_row(settings, batch)
    keys = spark.createDataFrame(one.select(["k_tag"]))
    messages, heard = message_frame(spark, source.name, lines), set[str]()
    rows = held.hold(reading(messages, settings, source, keys))
    while new := held.unheard(rows):
        rows = held.hold(reading(messages, settings, source, keys, heard := heard | new))
    near = held.gathered(spark, rows, one, held.nothing_known(rows, batch))
    with tempfile.TemporaryDirectory() as scratch:
        decisions = Decisions.load(settings)
        decisions = dataclasses.replace(decisions, table=DecisionTable(Path(scratch), decisions.table.policy))
        already = nothing_of(spark, "change_id binary, journalled boolean")
        context = Context(settings, source, decisions, already, sealed=False)
        found = _settled_rows(near, batch, context)
        decided = Decided(Path(scratch))
        for row in found:
            if row["out"] == "journal":
                row["recipients"] = decided.recipients({"deadlines": None, **row})
        return found


def _settled_rows(rows: DataFrame, batch: Batch, context: Context) -> list[dict[str, Any]]:
    """Decide what is undecided, then take the rows."""
    found: list[dict[str, Any]] = []
    unknown: list[Any] = []

    def note(frame: DataFrame) -> DataFrame:
        nonlocal unknown
        unknown = frame.agg(context.decisions.unknown()).collect()[0]["unknown"]
        return frame

    writing(rows, batch, context, (lambda f: f, note))
    context.decisions.learn({"unknown": unknown})
    frame = writing(rows, batch, context).filter(F.col("out").isin("journal", "quarantine"))
    for row in frame.collect():
        found.append({name: value for name, value in row.asDict(recursive=True).items() if value is not None})
    return sorted(found, key=lambda row: (row["out"] != "journal", row.get("offset", 0), row.get("line", 0)))


def message_frame(spark: SparkSession, source: str, lines: Sequence[str]) -> DataFrame:
    """Lines as MESSAGE rows that arrived now."""
    now = datetime.now(UTC)
    rows = [(source, f"try/0/{i}", now, f"{i:020d}", line, None, i + 1) for i, line in enumerate(lines)]
    return spark.createDataFrame(rows, MESSAGE)
