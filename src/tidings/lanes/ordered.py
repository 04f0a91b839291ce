"""Replays as the tables show them: what was ordered, how far it has come, how its deliveries ended. No Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tidings.lanes import control
from tidings.lanes.attempts import MOMENT, flattened
from tidings.lanes.lane import Tables
from tidings.lanes.slices import feeds
from tidings.lanes.wishes import WISH


@dataclass(frozen=True)
class Ordered:
    """One order. `state` is asked, running, paused, cancelled or done; `share` is how much of its range was gone through."""

    name: str
    lane: str
    serial: int
    at: str
    by: str
    reason: str
    range: str
    count: int
    state: str
    share: float
    cursors: dict[str, int] = field(default_factory=dict)
    upto: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def orders(tables: Tables) -> list[Ordered]:
    """Every replay that was ordered, oldest first."""
    found, known = [], [str(feed) for feed in feeds(tables.store)]
    for lane in tables.settings.subscribers:
        asked = control.asked(tables.settings.data_path, lane)
        found += [_ordered(tables, one, asked, known) for one in asked if one.action == "replay"]
    return sorted(found, key=lambda one: (one.at, one.name))


def _ordered(tables: Tables, request: control.Request, asked: list[control.Request], known: list[str]) -> Ordered:
    said = tables.store.transaction_version
    base = f"replay/{request.name}"
    upto = {feed: end for feed in known if (end := said("attempts", f"{base}/{feed}/upto")) is not None}
    cursors = {feed: at for feed in upto if (at := said("attempts", f"{base}/{feed}")) is not None}
    words = [one.action for one in asked if one.event == request.name]
    taken = request.serial <= (said("attempts", f"control/{request.lane}") or 0)
    return Ordered(
        name=request.name,
        lane=request.lane,
        serial=request.serial,
        at=request.at,
        by=request.by,
        reason=request.reason,
        range=str(request.order.get("range", "")),
        count=int(request.order.get("count", 0)),
        state=_state(words, taken, cursors, upto),
        share=_share(cursors, upto) if taken else 0.0,
        cursors=cursors,
        upto=upto,
    )


def _state(words: Sequence[str], taken: bool, cursors: dict[str, int], upto: dict[str, int]) -> str:
    if taken and all(cursors.get(feed, -1) >= end for feed, end in upto.items()):
        return "done"
    if "replay_cancel" in words:
        return "cancelled"
    stops = [word for word in words if word in ("replay_pause", "replay_resume")]
    if stops and stops[-1] == "replay_pause":
        return "paused"
    return "running" if taken else "asked"


def _share(cursors: dict[str, int], upto: dict[str, int]) -> float:
    whole = sum(end + 1 for end in upto.values())
    return 1.0 if not whole else sum(min(cursors.get(feed, -1), end) + 1 for feed, end in upto.items()) / whole


def ends_of(tables: Tables, one: Ordered) -> dict[str, int]:
    """How the deliveries that it took up ended since; `open` are under way."""
    since = pa.scalar(datetime.fromisoformat(one.at), MOMENT)
    look = (ds.field("lane") == one.lane) & (ds.field("finished") >= since)
    files = tables.store.files("attempts", where={"lane": one.lane})
    rows = flattened(tables.store.arrow("attempts", ["cycle", "call", "members"], files=files, filter=look)).sort_by(
        "cycle"
    )
    ends: dict[str, str] = {}
    mine = f"replay-{one.serial}-"
    for row in rows.select(["call", "event_id", "result", "final"]).to_pylist():
        if row["result"] == WISH and row["call"].startswith(mine):
            ends[row["event_id"]] = "open"
        elif row["final"] and row["event_id"] in ends:
            ends[row["event_id"]] = row["final"]
    return dict(Counter(ends.values()))
