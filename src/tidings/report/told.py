"""The calls that told somebody of a person's events, without reading everybody else's: from an event's time to the time it was settled.

An event that is settled is sent no more, unless an operator asks a lane for it again; then that lane is read from there on. An event that is
not settled may be sent any time. So what is read for one person does not grow with the attempts, only with what operators sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings.lanes import control
from tidings.near import holding_numbers
from tidings.parquet import AddFile
from tidings.store import Store

AGAIN = ("retry", "replay", "replay_resume", "move")  # after these a lane may send what was settled
SLACK = timedelta(hours=1)  # between two clocks, and between a call and its record
Row = Mapping[str, Any]
Window = tuple[datetime, datetime | None, str]  # from, until, lane; without an end or a lane there is none


def calls_about(
    store: Store, events: Mapping[str, Row], columns: list[str], between: tuple[datetime | None, datetime | None]
) -> list[dict[str, Any]]:
    """Calls with one of these events among their members, finished in the interval; intents are none."""
    stretches = windows(store, events.values())
    near = [file for file in store.files("attempts") if any(_reaches(file, one) for one in stretches)]
    look = ~ds.field("intent")
    for side, sign in zip(between, (1, -1), strict=True):
        if side is not None:
            moment = pa.scalar(side, pa.timestamp("us", "UTC"))
            look &= ds.field("finished") >= moment if sign > 0 else ds.field("finished") <= moment
    found: list[dict[str, Any]] = []
    wanted = pa.array(sorted(events), pa.string())
    for file in near:
        found += _naming(store.arrow("attempts", columns, files=[file], filter=look), wanted)
    return found


def windows(store: Store, events: Iterable[Row]) -> list[Window]:
    """When calls about these events may have ended."""
    rows = list(events)
    ends = _settled(store, rows)
    found: list[Window] = []
    for row in rows:
        end = ends.get(row["event_id"])
        found.append((row["recorded"] - SLACK, end + SLACK if end else None, ""))
    first = min(begin for begin, _, _ in found) if ends else None
    again = _asked_again(store.root.parent) if first else ()
    return found + [(moment - SLACK, None, lane) for lane, moment in again if first and moment >= first]


def _settled(store: Store, rows: list[Row]) -> dict[str, datetime]:
    """Event → when the last of its recipients was done with it."""
    feeds: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        feeds.setdefault((row["source"], row["generation"]), set()).add(row["offset"])
    found: dict[str, datetime] = {}
    for (source, generation), offsets in feeds.items():
        files = store.files("settled", where={"source": source, "generation": generation})
        look = ds.field("offset").isin(pa.array(sorted(offsets), pa.int64()))
        look &= (ds.field("source") == source) & (ds.field("generation") == generation)
        near = holding_numbers(files, "offset", offsets)
        for row in store.arrow("settled", ["event_id", "time"], files=near, filter=look).to_pylist() if near else ():
            found[row["event_id"]] = row["time"]
    return found


def _asked_again(data: Path) -> Iterable[tuple[str, datetime]]:
    """Each lane that was asked to send something again, and when."""
    folder = control.folder_of(data)
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        for one in control.asked(data, path.stem):
            if one.action in AGAIN:
                yield path.stem, datetime.fromisoformat(one.at)


def _reaches(file: AddFile, window: Window) -> bool:
    begin, end, lane = window
    low, high = file.minimum.get("finished"), file.maximum.get("finished")
    if low is None or high is None:
        return True
    if lane and not file.minimum.get("lane", lane) <= lane <= file.maximum.get("lane", lane):
        return False
    return bool(high >= begin and (end is None or low <= end))


def _naming(calls: pa.Table, wanted: pa.Array) -> list[dict[str, Any]]:
    """Those that name one of these events; the others' members are never Python values."""
    if not calls.num_rows:
        return []
    lists = calls["members"].combine_chunks()
    named = pc.is_in(pc.struct_field(pc.list_flatten(lists), "event_id"), wanted)
    places = pc.unique(pc.list_parent_indices(lists).filter(named))
    rows: list[dict[str, Any]] = calls.take(places).to_pylist()
    return rows
