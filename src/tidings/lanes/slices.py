"""Slices of the journal as a lane needs them: who is owed what, in offset order. No Spark; no payload is read here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings.gate.decisions import Decided, decided_in
from tidings.lanes.member import Delivery, Feed, Semantics
from tidings.seal.keyfiles import KeyFiles
from tidings.store import AddFile, Store

COLUMNS = ("offset", "event_id", "change_type", "recorded", "kid", "key_file", "decision", "recipients", "deadlines")
MOST_ROWS = 20_000  # of one read; what is beyond is read in the next step


@dataclass(frozen=True)
class Owed:
    """What one journal row says to one recipient."""

    outcome: str
    semantics: Semantics
    priority: int
    deadline: float | None


class Entry(NamedTuple):
    """One event of the slice, with everybody it concerns."""

    event_id: str
    offset: int
    change_type: str
    since: float
    kid: bytes
    key_file: str
    owed: Mapping[str, Owed]
    place: tuple[str, tuple[str, ...]] = ("", ())  # the decision, and whom it was about

    def owes(self, lane: str) -> bool:
        """Whether this subscriber is to be told, now or when a missing fact is known."""
        return lane in self.owed and self.owed[lane].outcome != "deny"


def feeds(store: Store) -> dict[Feed, int]:
    """Every feed of the journal and its highest offset, from statistics; a file over several feeds is opened."""
    found: dict[Feed, int] = {}
    for file in store.files("journal"):
        for feed, top in _feeds_of(store, file):
            found[feed] = max(found.get(feed, -1), top)
    return found


def _feeds_of(store: Store, file: AddFile) -> Iterable[tuple[Feed, int]]:
    low, high = file.minimum, file.maximum
    if all(low.get(name) == high.get(name) and name in low for name in ("source", "generation")):
        return [(Feed(str(low["source"]), str(low["generation"])), int(cast(int, high["offset"])))]
    rows = store.arrow("journal", ["source", "generation", "offset"], files=[file])
    tops = rows.group_by(["source", "generation"]).aggregate([("offset", "max")]).to_pylist()
    return [(Feed(row["source"], row["generation"]), row["offset_max"]) for row in tops]


def read(
    store: Store, feed: Feed, above: int, upto: int | None = None, most: int = MOST_ROWS
) -> tuple[list[Entry], int]:
    """Events with above < offset ≤ upto in offset order, at most about `most`, and the offset this read is whole up to."""
    files = store.files("journal", column="offset", above=above, where=dict(feed._asdict()))
    files = sorted(files, key=lambda file: cast(int, file.minimum.get("offset", 0)))
    chosen, rows = [], 0
    for file in files:
        if rows >= most:
            break
        chosen.append(file)
        rows += file.rows
    if not chosen:
        return [], above
    look = (
        (ds.field("source") == feed.source) & (ds.field("generation") == feed.generation) & (ds.field("offset") > above)
    )
    table = store.arrow(
        "journal", COLUMNS, files=chosen, filter=look if upto is None else look & (ds.field("offset") <= upto)
    )
    rest = [cast(int, file.minimum["offset"]) for file in files[len(chosen) :]]
    # Batches are committed in order, so an unread file starts above what was read; compaction may interleave, so this is checked.
    table = table.filter(pc.less(table["offset"], min(rest))) if rest else table
    found = entries(table.sort_by("offset"), decided_in(store.decisions))
    return found, found[-1].offset if found else (min(rest) - 1 if rest else above)


def at(store: Store, feed: Feed, offsets: Collection[int]) -> list[Entry]:
    """The events at exactly these offsets, in one read however many they are."""
    look = (ds.field("source") == feed.source) & (ds.field("generation") == feed.generation)
    look &= ds.field("offset").isin(pa.array(sorted(offsets), pa.int64()))
    table = store.arrow("journal", COLUMNS, files=spanning(store, feed, offsets), filter=look)
    return entries(table.sort_by("offset"), decided_in(store.decisions))


def spanning(store: Store, feed: Feed, offsets: Collection[int]) -> list[AddFile]:
    """Journal files of a feed between the lowest and the highest of these offsets."""
    near = store.files("journal", column="offset", above=min(offsets) - 1, where=dict(feed._asdict()))
    return [file for file in near if cast(int, file.minimum.get("offset", 0)) <= max(offsets)]


def entries(table: pa.Table, decided: Decided) -> list[Entry]:
    """Rows as entries. What rows of one decision owe is worked out once and shared, unless a clock makes it their own."""
    shared: dict[tuple[str, tuple[str, ...]], Mapping[str, Owed]] = {}
    found = []
    columns = {name: table[name] for name in COLUMNS}
    # As microseconds: a moment is an object that Arrow takes long to make.
    columns["recorded"] = columns["recorded"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    for row in zip(*(column.to_pylist() for column in columns.values()), strict=True):
        offset, event_id, change_type, recorded, kid, key_file, decision, names, deadlines = row
        place = (decision, tuple(names or ()))
        if place not in shared:
            shared[place] = {name: _owed(decided.choices(decision)[name]) for name in place[1]}
        owed = shared[place]
        if deadlines:
            due = {name: round(at.timestamp(), 3) for name, at in deadlines}
            owed = {name: replace(one, deadline=due.get(name)) for name, one in owed.items()}
        since = round(recorded / 1e6, 3)
        found.append(Entry(event_id, offset, change_type, since, kid or b"", key_file or "", owed, place))
    return found


def _owed(choice: Mapping[str, Any]) -> Owed:
    how = cast(Semantics, choice["semantics"] or "at-least-once")
    return Owed(choice["outcome"], how, 1 if choice["priority"] is None else choice["priority"], None)


def tags(keys: KeyFiles, found: Collection[Entry]) -> dict[bytes, tuple[bytes, bytes]]:
    """kid → (tag, key) of these events; what is missing is erased."""
    return keys.load({entry.key_file for entry in found if entry.key_file}, {entry.kid for entry in found if entry.kid})


def deliveries(
    found: Iterable[Entry], lane: str, feed: Feed, known: Mapping[bytes, tuple[bytes, bytes]]
) -> list[Delivery]:
    """What this lane owes of the slice. An erased person's event keeps its place under its own kid and ends at send."""
    made = []
    for entry in found:
        if entry.owes(lane):
            owed = entry.owed[lane]
            subject = known[entry.kid][0] if entry.kid in known else entry.kid
            made.append(
                Delivery(
                    event_id=entry.event_id,
                    subject=subject.hex(),
                    feed=feed,
                    offset=entry.offset,
                    change_type=entry.change_type,
                    semantics=owed.semantics,
                    priority=owed.priority,
                    since=entry.since,
                    deadline=owed.deadline,
                    deferred=owed.outcome == "defer",
                )
            )
    return made


class Sealed(NamedTuple):
    """What opens one event, and the decision that says what of it a recipient may see."""

    tag: bytes
    key: bytes
    decision: str


def keys_of(store: Store, keys: KeyFiles, feed: Feed, wanted: Mapping[int, str]) -> dict[str, Sealed]:
    """Event id → what opens it, of these offsets; an event whose person was erased is not in the answer."""
    offsets = sorted(wanted)
    files = spanning(store, feed, offsets)
    look = (ds.field("source") == feed.source) & (ds.field("generation") == feed.generation)
    look &= ds.field("offset").isin(pa.array(offsets, pa.int64()))
    rows = store.arrow("journal", ["event_id", "kid", "key_file", "decision"], files=files, filter=look).to_pylist()
    names = {row["key_file"] for row in rows if row["key_file"]}
    found = keys.load(names, {row["kid"] for row in rows if row["kid"]}) if names else {}
    return {row["event_id"]: Sealed(*found[row["kid"]], row["decision"]) for row in rows if row["kid"] in found}
