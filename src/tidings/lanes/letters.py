"""Dead letters, read from the attempts: what ended there, why, and what an operator decided since. No JVM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidings.lanes import control
from tidings.lanes.attempts import flattened
from tidings.store import Store

COLUMNS = ["lane", "cycle", "call", "intent", "started", "finished", "status", "strength", "members"]


@dataclass(frozen=True)
class Letter:
    """One delivery that ended as a dead letter. `state` is open, retrying or approved."""

    lane: str
    event: str
    change_type: str
    code: str
    attempts: int
    at: str
    source: str
    generation: str
    offset: int
    state: str = "open"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def members(store: Store) -> pa.Table:
    """One row per member of every call, in the order of their calls."""
    return flattened(store.arrow("attempts", COLUMNS)).sort_by([("lane", "ascending"), ("cycle", "ascending")])


def dead_letters(store: Store, data: Path) -> list[Letter]:
    """Every delivery whose last end is the dead letters, oldest first."""
    found = members(store)
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for row in found.filter(pc.is_valid(found["final"])).to_pylist():
        last[row["lane"], row["event_id"]] = row
    dead = [row for row in last.values() if row["final"] == "dead_lettered"]
    asked = {lane: control.asked(data, lane) for lane in {row["lane"] for row in dead}}
    letters = [_letter(row, asked[row["lane"]]) for row in dead]
    return sorted(letters, key=lambda letter: (letter.at, letter.lane, letter.event))


def _letter(row: dict[str, Any], asked: Iterable[control.Request]) -> Letter:
    said = [
        r.action
        for r in asked
        if r.event == row["event_id"] and r.at > row["finished"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    ]
    state = {"retry": "retrying", "approve": "approved"}.get(said[-1], "open") if said else "open"
    return Letter(
        lane=row["lane"],
        event=row["event_id"],
        change_type=row["change_type"] or "",
        code=row["code"] or "",
        attempts=row["attempt"] or 0,
        at=row["finished"].isoformat(timespec="seconds"),
        source=row["source"],
        generation=row["generation"],
        offset=row["offset"],
        state=state,
    )


def history(store: Store, event: str) -> list[dict[str, Any]]:
    """Everything that was tried for one event, call by call."""
    found = members(store)
    rows = found.filter(pc.equal(found["event_id"], event)).to_pylist()
    kept = ("lane", "call", "intent", "attempt", "status", "result", "code", "strength", "final")
    return [
        {name: row[name] for name in kept}
        | {
            name: row[name].isoformat(timespec="milliseconds") if row[name] else None
            for name in ("finished", "next_due")
        }
        for row in sorted(rows, key=lambda row: (row["finished"], row["lane"], row["cycle"], not row["intent"]))
    ]
