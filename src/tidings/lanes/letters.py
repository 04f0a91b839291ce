"""Dead letters, read from the attempts: what ended there, why, and what an operator decided since. No JVM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings.lanes import control
from tidings.lanes.attempts import MOMENT, flattened
from tidings.store import Store

DEAD = "dead_lettered"
SLACK = timedelta(hours=1)  # clocks of the parts that stamp a row may differ
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
    dead = [row for row in last.values() if row["final"] == DEAD]
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


def sendable(store: Store, letter: Letter) -> bool:
    """Is what the event said still there?"""
    feed = {"source": letter.source, "generation": letter.generation}
    look = (
        (ds.field("offset") == letter.offset) & (ds.field("event_id") == letter.event) & ds.field("payload").is_valid()
    )
    files = store.files("journal", column="offset", above=letter.offset - 1, where=feed)
    return bool(store.arrow("journal", ["event_id"], files=files, filter=look).num_rows)


def still_dead(store: Store, data: Path, events: set[str], between: tuple[datetime, datetime]) -> set[str]:
    """Events among these with a dead letter that nobody has answered for; only calls of that stretch of time are read.

    An answer is an approval, or another try that ended otherwise.
    """
    first, last = (pa.scalar(moment, MOMENT) for moment in (between[0] - SLACK, between[1] + SLACK))
    ended = _ends(store, (ds.field("finished") >= first) & (ds.field("finished") <= last), events)
    return {
        event for (lane, event), final in ended.items() if final == DEAD and not _answered(store, data, lane, event)
    }


def _answered(store: Store, data: Path, lane: str, event: str) -> bool:
    said = [request for request in control.asked(data, lane) if request.event == event]
    if any(request.action == "approve" for request in said):
        return True
    tried = [request for request in said if request.action == "retry"]
    if not tried:
        return False
    since = pa.scalar(datetime.fromisoformat(tried[0].at), MOMENT)
    later = _ends(store, (ds.field("lane") == lane) & (ds.field("finished") >= since), {event})
    return later.get((lane, event), DEAD) != DEAD


def _ends(store: Store, look: ds.Expression, events: set[str]) -> dict[tuple[str, str], str]:
    """(lane, event) → its last end among these calls."""
    rows = flattened(store.arrow("attempts", ["lane", "cycle", "members"], filter=look))
    known = pc.and_(pc.is_in(rows["event_id"], pa.array(sorted(events), pa.string())), pc.is_valid(rows["final"]))
    found = rows.filter(known).sort_by("cycle").to_pylist()
    return {(row["lane"], row["event_id"]): row["final"] for row in found}
