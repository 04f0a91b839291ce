"""A batch held in hand and a batch joined by Spark leave the same rows: events, decisions, clocks and what is remembered."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidings import emit
from tidings.decisions import Decisions
from tidings.flow import reading
from tidings.progress import Generations
from tidings.rehearse import message_frame
from tidings.seal.columns import keys_frame
from tidings.settings import load
from tidings.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))

from small import World, operator

pytestmark = pytest.mark.spark
# Secrets are drawn per batch, so what is sealed or keyed with them differs; lots are drawn alike here, so that places can be compared.
JOURNAL = (
    "offset", "event_id", "change_type", "operation", "time", "hlc", "lamport", "subjectseq", "flags", "decision", "recipients", "correlation",
)  # fmt: skip
LOOKED_AT = {"journal": JOURNAL, "subjects": ("tag", "version", "consents"), "last_seen": ("tag", "version", "time")}
LOOKED_AT |= {"identities": ("hash", "tag", "kind"), "quarantine": ("place", "code", "detail", "line")}


def left_by(spark: SparkSession, folder: Path, batches: list[Any]) -> dict[str, list[tuple[Any, ...]]]:
    """Every row that these batches leave, of an operator with an empty store and a fixed master key."""
    operator(folder, "http://127.0.0.1:9", ("crm",))
    settings = load(folder)
    source, store = settings.sources["crm"], Store(settings.data_path / "tables")
    generation = Generations(settings.data_path, "crm").current()
    emitter = emit.Emitter(spark, settings, source, store, Decisions.load(settings), generation)
    keys = keys_frame(spark, {"k_tag": settings.keyring.derive("tag")})
    for number, messages in enumerate(batches):
        emitter.emit(reading(messages, settings, source, keys), number)
    found = {}
    for table, columns in LOOKED_AT.items():
        rows = store.arrow(table, columns).to_pylist()
        found[table] = sorted(tuple(map(repr, row.values())) for row in rows)
    return found


def test_in_hand_and_joined(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generations, "lots", lambda self, generation, batch: bytes([batch] * 32))
    world = World(tmp_path / "drop", ("crm",))
    rounds = [world._crm(number) for number in range(3)]
    # The same line again, in a later batch: a repeat that only the journal knows.
    batches = [message_frame(spark, "crm", [*lines, *rounds[0][:2]]) for lines in rounds]
    in_hand = left_by(spark, tmp_path / "hand", batches)
    monkeypatch.setattr(emit, "BIG", -1)
    joined = left_by(spark, tmp_path / "joined", batches)
    assert in_hand["journal"]
    assert in_hand == joined
