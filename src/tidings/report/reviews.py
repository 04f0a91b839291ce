"""Events that a rule holds until a person has looked at them, and what was said. No JVM.

What waits is decided again with what is known now: a pair that waits for a missing fact as well is not listed until the fact is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tidings.gate.again import Again
from tidings.gate.decisions import DecisionTable, decided_in
from tidings.gate.loading import load_policy
from tidings.lanes.disputes import resolutions
from tidings.report.account import OPEN, ends, journal_rows, pairs
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings
from tidings.store import Store

_STATES = {"release": "released", "refuse": "refused"}


@dataclass(frozen=True)
class Review:
    """One event. `state` is open, or what a person said and the running process has yet to act on: released, refused."""

    event: str
    time: str
    entity: str
    change_type: str
    source: str
    generation: str
    offset: int
    reasons: tuple[str, ...]
    waiting: tuple[str, ...]
    state: str


def reviews(settings: Settings, store: Store) -> list[Review]:
    """Every event with a pair that waits for a person's review, oldest first."""
    deferring = _deferring(store)
    if not deferring or not store.files("journal"):
        return []
    look = ds.field("decision").isin(pa.array(sorted(deferring), pa.string()))
    rows = journal_rows(store, look, ["kid", "key_file"])
    known, words = ends(store, {row["event_id"] for row in rows}), resolutions(settings.data_path)
    tags = _tags(settings, rows)
    members = [
        {"lane": pair["subscriber"], "event_id": row["event_id"], "tag": tags[row["kid"]], "decision": row["decision"]}
        | {"since": row["recorded"].timestamp()}
        for row in rows
        if row["kid"] in tags
        for pair in pairs(row, known)
        if pair["outcome"] in OPEN
    ]
    table = DecisionTable(store.decisions, load_policy(settings), looking=True)
    judged = Again(store, table, resolved=lambda: words).reviewable(members)
    found = []
    for row in rows:
        waiting = {lane: one for (lane, event), one in judged.items() if event == row["event_id"]}
        if waiting:
            said = next((_STATES[word] for word in words.get(row["event_id"], ()) if word in _STATES), "open")
            reasons = tuple(dict.fromkeys(one.reason for one in waiting.values()))
            found.append(_review(row, reasons, tuple(sorted(waiting)), said))
    return sorted(found, key=lambda one: (one.time, one.source, one.offset))


def _deferring(store: Store) -> set[str]:
    """The decisions that make somebody wait."""
    rows = decided_in(store.decisions).every()
    return {name for name, row in rows.items() if any(one["outcome"] == "defer" for one in row["recipients"])}


def _tags(settings: Settings, rows: list[dict[str, Any]]) -> dict[bytes, bytes]:
    """Key id → the person; who was erased is not in it."""
    files = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    names, kids = {row["key_file"] for row in rows if row["key_file"]}, {row["kid"] for row in rows if row["kid"]}
    return {kid: tag for kid, (tag, _) in files.load(names, kids).items()} if names else {}


def _review(row: dict[str, Any], reasons: tuple[str, ...], waiting: tuple[str, ...], state: str) -> Review:
    return Review(
        event=row["event_id"],
        time=row["time"].isoformat(timespec="seconds"),
        entity=row["entity"],
        change_type=row["change_type"],
        source=row["source"],
        generation=row["generation"],
        offset=row["offset"],
        reasons=reasons,
        waiting=waiting,
        state=state,
    )
