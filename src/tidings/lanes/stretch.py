"""A stretch: events of one feed, in a row, that healthy lanes take together and as wholes. Pure; what it is for is in decision 0011.

A lane that owes plain deliveries of a stretch keeps no object for each. The stretch is divided by subject into splits; each split
is cut into calls in offset order, and the calls of one lane and split are made one after the other, none after one that failed.
When every call of a lane is acknowledged the lane's cursor moves past the stretch. Otherwise the members of the other calls
become deliveries of the machine, which then knows of them all that it would have known had it planned those calls itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidings.lanes.member import Feed
from tidings.lanes.send import LaneJob
from tidings.lanes.slices import Entry

LEAST = 400  # events; fewer are as quick one by one
FIRST_REACH = 4000  # events of the first stretch; later ones grow and shrink with the time they take
SPLITS = 4  # at most; a lane's own concurrency may allow fewer


@dataclass(frozen=True)
class Part:
    """One lane's share of a stretch, as it travels to the executors."""

    job: LaneJob
    size: int  # members of one call
    upto: int  # the last offset of its share
    first: Mapping[int, int]  # split → sequence number of its first call
    views: Mapping[int, tuple[str, ...]]  # kind of event → fields that this lane may not see; no kind, nothing owed
    left_out: frozenset[int]  # offsets that the machine has, since they or their subject are not plain
    wire: bytes = field(repr=False)  # makes this subscriber's name for a person

    def alike(self) -> tuple[object, ...]:
        """Parts of which this is equal are cut into the same calls."""
        return self.size, self.upto, frozenset(self.views), self.left_out


class Chunk(NamedTuple):
    """The members of one call, by their place among the rows, and the call's number within its split."""

    number: int
    places: Sequence[int]


def chunks(part: Part, rows: Sequence[tuple[int, int]], places: Collection[int]) -> list[Chunk]:
    """One split of a part as calls. `rows` are (offset, kind), of which those at `places` are the split's, in offset order."""
    mine = [
        place
        for place in places
        if rows[place][1] in part.views and rows[place][0] <= part.upto and rows[place][0] not in part.left_out
    ]
    cuts = range(0, len(mine), part.size)
    return [Chunk(number, mine[start : start + part.size]) for number, start in enumerate(cuts)]


@dataclass(frozen=True)
class Stretch:
    """The driver's side: the events, how each is divided and of what kind it is, and who takes part."""

    feed: Feed
    entries: Sequence[Entry]
    split: Sequence[int]
    kind: Sequence[int]
    keys: Mapping[bytes, tuple[bytes, bytes]] = field(repr=False)  # kid → (tag, key)
    parts: dict[str, Part]
    at: float
    splits: int
    calls: dict[str, dict[int, Sequence[int]]] = field(default_factory=dict)  # lane → call → places of its members

    def take(self, lane: str, part: Part, first: int, cut: dict[object, list[list[Chunk]]]) -> None:
        """Give a lane its part, its calls numbered from `first` on. `cut` remembers how alike parts were cut."""
        if part.alike() not in cut:
            rows = [(entry.offset, kind) for entry, kind in zip(self.entries, self.kind, strict=True)]
            cut[part.alike()] = [chunks(part, rows, places) for places in by_split(self.split, self.splits)]
        firsts: dict[int, int] = {}
        calls: dict[int, Sequence[int]] = {}
        for split, own in enumerate(cut[part.alike()]):
            firsts[split] = first
            calls |= {first + chunk.number: chunk.places for chunk in own}
            first += len(own)
        self.parts[lane], self.calls[lane] = replace(part, first=firsts), calls


def by_split(split: Sequence[int], splits: int) -> list[list[int]]:
    """The places of each split, in order."""
    found: list[list[int]] = [[] for _ in range(splits)]
    for place, number in enumerate(split):
        found[number].append(place)
    return found
