"""Changes that were held because two masters wrote at the same time, and what became of them. Names fields, never values. No JVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidings.lanes.disputes import resolutions
from tidings.report.account import OPEN, ends, journal_rows, pairs
from tidings.report.people import opened
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings
from tidings.store import Store

_WORDS = {"keep": "kept", "drop": "dropped"}


@dataclass(frozen=True)
class Dispute:
    """One held event. `state` is open, kept, dropped, or over: it ended without a word, by its deadline or an erasure."""

    event: str
    time: str
    entity: str
    change_type: str
    source: str
    generation: str
    offset: int
    fields: tuple[str, ...]
    against: tuple[str, ...]
    waiting: tuple[str, ...]
    state: str


def disputes(settings: Settings, store: Store) -> list[Dispute]:
    """Every event that was held, oldest first."""
    rows = [row for row in journal_rows(store, None, ["kid", "key_file", "payload"]) if "held" in (row["flags"] or ())]
    if not rows:
        return []
    files = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    keys = files.load({row["key_file"] for row in rows}, {row["kid"] for row in rows})
    known, words = ends(store, {row["event_id"] for row in rows}), resolutions(settings.data_path)
    found = []
    for row in rows:
        said = opened(row, keys[row["kid"]][1]).get("conflict", []) if row["kid"] in keys else []
        waiting = tuple(pair["subscriber"] for pair in pairs(row, known) if pair["outcome"] in OPEN)
        said_of = words.get(row["event_id"], frozenset())
        state = next((_WORDS[word] for word in said_of if word in _WORDS), "open" if waiting else "over")
        found.append(_dispute(row, said, waiting, state))
    return sorted(found, key=lambda one: (one.time, one.source, one.offset))


def _dispute(row: dict[str, Any], said: list[dict[str, str]], waiting: tuple[str, ...], state: str) -> Dispute:
    return Dispute(
        event=row["event_id"],
        time=row["time"].isoformat(timespec="seconds"),
        entity=row["entity"],
        change_type=row["change_type"],
        source=row["source"],
        generation=row["generation"],
        offset=row["offset"],
        fields=tuple(sorted(one["field"] for one in said)),
        against=tuple(sorted({one["with"] for one in said})),
        waiting=waiting,
        state=state,
    )
