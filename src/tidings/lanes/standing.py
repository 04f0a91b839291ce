"""What a subscriber has already: which deliveries it acknowledged, and the newest of each person and consent class. No Spark.

A replay asks it before it sends anything. It is built once, by one pass over the lane's calls and the journal rows they speak of, and
kept up with the calls that are committed afterwards; nothing is read twice. It holds eight bytes for each acknowledged delivery and
about a hundred for each person and class, from the start of the replay's range on.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings.lanes.attempts import MOMENT, flattened
from tidings.lanes.member import Feed, Semantics
from tidings.lanes.semantics import ABSENT
from tidings.seal.keyfiles import KeyFiles
from tidings.store import AddFile, Store

CHUNK = 200_000  # rows looked at together
CHUNK_BYTES = 1 << 20  # of a file on the disk: a call has one row, however many members
SLACK_S = 3600.0  # clocks of the parts that stamp a row may differ
_NEEDED = ["offset", "recorded", "kid", "key_file", "consent"]
NEWEST = pa.schema([("who", pa.binary()), ("offset", pa.int64()), ("recorded", pa.int64())])


class Standing:
    """`base` is what was true when it was built; `fresh` what was learnt since, asked and written by one thread alone."""

    def __init__(self, store: Store, keys: KeyFiles, lane: str, since: float) -> None:
        self.store, self.keys, self.lane, self.since = store, keys, lane, since
        self.told: dict[Feed, array[int]] = {}
        self.doubted: set[tuple[Feed, int]] = set()  # may have had their effect
        self.given_up: set[tuple[Feed, int]] = set()
        self.accepted: set[tuple[Feed, int]] = set()  # taken in, an answer comes later
        self.newest: dict[Feed, pa.Table] = {}
        self.fresh_told: set[tuple[Feed, int]] = set()
        self.fresh: dict[bytes, dict[Feed, tuple[int, int]]] = {}
        self._version = -1  # of the attempts, as far as it was looked at

    def build(self) -> Standing:
        """The one pass. Until it returns nobody else may look."""
        version = self.store.version("attempts")
        self._version = -1 if version is None else version
        files = self.store.files("attempts", where={"lane": self.lane})
        self.told, newer = self._news([] if version is None else files)
        for feed, offsets in newer.items():
            self.newest[feed] = reduced(self._people(feed, offsets))
        return self

    def refresh(self) -> None:
        """Take in the calls that were committed since."""
        # By version, not by number: a slow call is committed after quicker ones that began later.
        version = self.store.version("attempts")
        if version is None or version == self._version:
            return
        new = [
            file for number in range(self._version + 1, version + 1) for file in self.store.added("attempts", number)
        ]
        self._version = version
        told, newer = self._news(new)
        self.fresh_told |= {(feed, offset) for feed, offsets in told.items() for offset in offsets}
        for feed, offsets in newer.items():
            for rows in self._people(feed, offsets):
                for row in rows.to_pylist():
                    places = self.fresh.setdefault(row["who"], {})
                    offset, recorded = places.get(feed, (-1, -1))
                    places[feed] = (max(offset, row["offset"]), max(recorded, row["recorded"]))

    def has(self, feed: Feed, offset: int) -> bool:
        """Whether this delivery was acknowledged."""
        return (feed, offset) in self.fresh_told or _in(self.told.get(feed, array("q")), offset)

    def doubts(self, feed: Feed, offset: int, semantics: Semantics) -> bool:
        """Whether it may have had its effect although nobody can say so, and a repeat could make a second one."""
        place = (feed, offset)
        if semantics == "at-least-once":
            return False
        return place in self.doubted or (semantics == "at-most-once" and place in self.given_up)

    def overtaken(self, feed: Feed, who: Sequence[bytes | None], places: Sequence[tuple[int, int]]) -> list[bool]:
        """For each (person and class, (offset, recorded)): was a newer one acknowledged when this was built?"""
        asked, found = pa.array(who, pa.binary()), [False] * len(who)
        for other, table in self.newest.items():
            at = pc.index_in(asked, value_set=table["who"])
            column = table["offset" if other == feed else "recorded"]
            tops = column.take(at).to_pylist()
            own = 0 if other == feed else 1
            found = [
                said or (top is not None and top > place[own])
                for said, top, place in zip(found, tops, places, strict=True)
            ]
        return found

    def overtaken_since(self, feed: Feed, who: bytes, place: tuple[int, int]) -> bool:
        """The same for what was acknowledged since it was built."""
        tops = self.fresh.get(who, {})
        return any(top[0] > place[0] if other == feed else top[1] > place[1] for other, top in tops.items())

    def _news(self, files: Sequence[AddFile]) -> tuple[dict[Feed, array[int]], dict[Feed, array[int]]]:
        """What was acknowledged in calls that nobody looked at yet, and that with what was accepted and has no answer."""
        told: dict[Feed, array[int]] = {}
        for feed, offset, end, code in self._ends(files):
            place = (feed, offset)
            self.accepted.discard(place)
            if end == "acknowledged":
                told.setdefault(feed, array("q")).append(offset)
            elif end == "accepted":
                self.accepted.add(place)
            elif end == "dead_lettered":
                self.given_up.add(place)
            if end == "acknowledged" or code == ABSENT:
                self.doubted.discard(place)
            elif end == "accepted" or "in_doubt" in (end, code):
                self.doubted.add(place)
        newer = {feed: array("q", offsets) for feed, offsets in told.items()}
        for feed, offset in self.accepted:
            newer.setdefault(feed, array("q")).append(offset)
        return {f: _sorted(found) for f, found in told.items()}, {f: _sorted(found) for f, found in newer.items()}

    def _ends(self, files: Sequence[AddFile]) -> Iterator[tuple[Feed, int, str, str]]:
        """Ends and doubts of this lane's deliveries in these files, call by call."""
        look = ds.field("lane") == self.lane
        if self.since:
            first = datetime.fromtimestamp(max(0.0, self.since - SLACK_S), UTC)
            files = [file for file in files if _not_before(file, "finished", first)]
            look &= ds.field("finished") >= pa.scalar(first, MOMENT)
        for group in _chunks(sorted(files, key=lambda file: int(file.minimum.get("cycle", 0)))):
            rows = self.store.arrow("attempts", ["cycle", "members"], files=group, filter=look).sort_by("cycle")
            flat = flattened(rows)
            flat = flat.append_column("end", pc.coalesce(flat["final"], flat["result"]))
            telling = pc.or_(pc.is_valid(flat["final"]), pc.is_in(flat["result"], pa.array(["accepted", "in_doubt"])))
            telling = pc.or_(telling, pc.equal(pc.fill_null(flat["code"], ""), ABSENT))
            flat = flat.filter(telling).select(["source", "generation", "offset", "end", "code"])
            for source, generation, offset, end, code in zip(*(column.to_pylist() for column in flat), strict=True):
                yield Feed(source, generation), offset, end, code or ""

    def _people(self, feed: Feed, offsets: array[int]) -> Iterator[pa.Table]:
        """(who, offset, recorded) of these rows; a person who was erased is not in it."""
        if not offsets:
            return
        near = [
            file
            for file in self.store.files("journal", column="offset", above=offsets[0] - 1, where=dict(feed._asdict()))
            if int(file.minimum.get("offset", offsets[0])) <= offsets[-1]
        ]
        mine = (ds.field("source") == feed.source) & (ds.field("generation") == feed.generation)
        for group in _chunks(near):
            rows = self.store.arrow("journal", _NEEDED, files=group, filter=mine)
            rows = rows.filter(pa.array([_in(offsets, offset) for offset in rows["offset"].to_pylist()], pa.bool_()))
            yield reduced([placed(rows, self.keys)])


def placed(rows: pa.Table, keys: KeyFiles) -> pa.Table:
    """Journal rows as (who, offset, recorded), without those of erased people."""
    who = pa.array(whose(rows, keys), pa.binary())
    recorded = rows["recorded"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    table = pa.Table.from_arrays([who, rows["offset"].combine_chunks(), recorded.combine_chunks()], schema=NEWEST)
    return table.filter(pc.is_valid(table["who"]))


def whose(rows: pa.Table, keys: KeyFiles) -> list[bytes | None]:
    """Person and consent class of each row in one value; None for an erased person's."""
    tags = tags_of(rows, keys)
    return [
        None if tag is None else who(tag, consent)
        for tag, consent in zip(tags, rows["consent"].to_pylist(), strict=True)
    ]


def tags_of(rows: pa.Table, keys: KeyFiles) -> list[bytes | None]:
    known = keys.people(set(rows["key_file"].drop_null().to_pylist()))
    at = pc.index_in(rows["kid"], value_set=known["kid"])
    found: list[bytes | None] = known["tag"].take(at).to_pylist()
    return found


def who(tag: bytes, consent: Mapping[str, str] | None) -> bytes:
    """What only a newer event of the same kind may overtake: a consent of one class and channel, or anything else of a person."""
    return tag + (f"{consent['class']}|{consent['channel']}".encode() if consent else b"")


def _sorted(offsets: array[int]) -> array[int]:
    values = pc.unique(pa.array(offsets, pa.int64()))
    return array("q", values.take(pc.sort_indices(values)).to_pylist())


def reduced(parts: Iterable[pa.Table]) -> pa.Table:
    table = pa.concat_tables([NEWEST.empty_table(), *parts])
    found = table.group_by("who").aggregate([("offset", "max"), ("recorded", "max")])
    return pa.table([found["who"], found["offset_max"], found["recorded_max"]], schema=NEWEST)


def _chunks(files: Sequence[AddFile]) -> Iterator[list[AddFile]]:
    group: list[AddFile] = []
    for file in files:
        group.append(file)
        if sum(one.rows for one in group) >= CHUNK or sum(one.size for one in group) >= CHUNK_BYTES:
            yield group
            group = []
    if group:
        yield group


def _not_before(file: AddFile, column: str, moment: datetime) -> bool:
    high = file.maximum.get(column)
    return not isinstance(high, datetime) or high >= moment


def _in(offsets: array[int], offset: int) -> bool:
    at = bisect_left(offsets, offset)
    return at < len(offsets) and offsets[at] == offset
