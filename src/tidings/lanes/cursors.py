"""Where each subscriber stands in each feed, in events and in seconds, and what moving it would pass over. No Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings.lanes.attempts import MOMENT
from tidings.lanes.lane import Tables
from tidings.lanes.limits import rules_of
from tidings.lanes.machine import LaneState
from tidings.lanes.member import Feed
from tidings.lanes.slices import feeds, read
from tidings.store import AddFile


@dataclass(frozen=True)
class Cursor:
    """One subscriber in one feed. `oldest` is the first offset that is not settled there, with its age."""

    subscriber: str
    feed: str
    position: int
    head: int
    lag: int  # events not read yet
    lag_s: float  # how long the first of them has waited
    unsettled: int
    oldest: int | None
    oldest_s: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def cursors(tables: Tables, now: float) -> list[Cursor]:
    """Every subscriber in every feed."""
    tops = feeds(tables.store)
    found = []
    for subscriber in tables.settings.subscribers.values():
        state, _, _ = tables.recovered(rules_of(tables.settings, subscriber), tops)
        found += [_cursor(tables, state, feed, top, now) for feed, top in sorted(tops.items())]
    return found


def _cursor(tables: Tables, state: LaneState, feed: Feed, top: int, now: float) -> Cursor:
    at = state.cursors.get(feed, -1)
    lag, first = unread(tables, feed, at)
    waiting = [d for d in state.unsettled.values() if d.feed == feed]
    oldest = min(waiting, key=lambda d: d.offset, default=None)
    return Cursor(
        subscriber=state.rules.name,
        feed=str(feed),
        position=at,
        head=top,
        lag=lag,
        lag_s=0.0 if first is None else round(max(0.0, now - first.timestamp()), 1),
        unsettled=len(waiting),
        oldest=None if oldest is None else oldest.offset,
        oldest_s=0.0 if oldest is None else round(max(0.0, now - oldest.since), 1),
    )


def unread(tables: Tables, feed: Feed, cursor: int) -> tuple[int, datetime | None]:
    """Journal rows above a cursor and when the first was recorded; only files that reach over the cursor are opened."""
    whole, part = 0, []
    first: list[datetime] = []
    for file in tables.store.files("journal", column="offset", above=cursor, where=dict(feed._asdict())):
        begun = file.minimum.get("recorded")
        if _alone(file) and int(file.minimum["offset"]) > cursor and isinstance(begun, datetime):
            whole += file.rows
            first.append(begun)
        else:
            part.append(file)
    if part:
        look = _of(feed) & (ds.field("offset") > cursor)
        rows = tables.store.arrow("journal", ["offset", "recorded"], files=part, filter=look)
        whole += rows.num_rows
        first += [moment] if (moment := pc.min(rows["recorded"]).as_py()) is not None else []
    return whole, min(first, default=None)


def position_before(tables: Tables, moment: float) -> dict[Feed, int]:
    """The last offset of each feed that was journaled before that moment; -1 when none was."""
    found = {}
    then = datetime.fromtimestamp(moment, UTC)
    for feed in feeds(tables.store):
        files = tables.store.files("journal", where=dict(feed._asdict()))
        near = [f for f in files if not isinstance(low := f.minimum.get("recorded"), datetime) or low < then]
        look = _of(feed) & (ds.field("recorded") < pa.scalar(then, MOMENT))
        top = (
            pc.max(tables.store.arrow("journal", ["offset"], files=near, filter=look)["offset"]).as_py()
            if near
            else None
        )
        found[feed] = -1 if top is None else top
    return found


def recorded_at(tables: Tables, feed: Feed, above: int) -> float:
    """When the first event above an offset was journaled."""
    return moment.timestamp() if (moment := unread(tables, feed, above)[1]) is not None else 0.0


def passed_over(tables: Tables, lane: str, to: Mapping[Feed, int]) -> int:
    """How many deliveries would end unsent if the cursor went there."""
    state, _, _ = tables.recovered(rules_of(tables.settings, tables.settings.subscribers[lane]), feeds(tables.store))
    count = sum(1 for d in state.unsettled.values() if not d.reopened and d.offset <= to.get(d.feed, -1))
    for feed, end in to.items():
        above = state.cursors.get(feed, -1)
        while above < end:
            found, reached = read(tables.store, feed, above, end)
            if reached <= above:
                break
            count, above = count + sum(entry.owes(lane) for entry in found), reached
    return count


def _alone(file: AddFile) -> bool:
    return all(file.minimum.get(name) == file.maximum.get(name) for name in ("source", "generation"))


def _of(feed: Feed) -> ds.Expression:
    return (ds.field("source") == feed.source) & (ds.field("generation") == feed.generation)
