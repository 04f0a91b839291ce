"""The books: which pairs of an event are still open, and the one *settled* row when none is.

An event is in memory from the moment its journal row is read until every lane it concerns has ended its delivery. What was
denied was never a delivery: it counts as refused from the start. After a restart the books are opened again from the journal,
the attempts and the settled rows above the lowest offset that may still be open; that is why no event settles twice.

A lane that stands still would fill the memory with what the others have done since. Beyond a bound events are left on the shelf,
from an offset on, and are taken down again, with what the attempts say of them by then, when there is room.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tidings.lanes.attempts import MOMENT, flattened, stamp, when
from tidings.lanes.machine import NEVER
from tidings.lanes.member import Feed, Final
from tidings.lanes.slices import Entry, read
from tidings.ledger.attestation import Ack, Settled
from tidings.store import Store

MOST_PAGES = 200_000  # about 100 MB
SLACK_S = 3600.0
STAND_IN = "an-event-id-that-is-no-event's"
PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,200}")  # what JSON spells as it is
SCHEMA = pa.schema(
    [
        ("event_id", pa.string()),
        ("offset", pa.int64()),
        ("source", pa.string()),
        ("generation", pa.string()),
        ("entry", pa.binary()),
        ("time", MOMENT),
    ]
)


@dataclass
class Page:
    """One event and how its pairs stand."""

    feed: Feed
    offset: int
    open: set[str]
    acks: dict[str, tuple[str, str]] = field(default_factory=dict)  # subscriber → (final, strength)


@dataclass
class Books:
    """All open events. `cursors` say how far the journal was read into them."""

    attestor: str
    lanes: frozenset[str]
    cursors: dict[Feed, int] = field(default_factory=dict)
    pages: dict[str, Page] = field(default_factory=dict)
    done: list[tuple[str, Page, float]] = field(default_factory=list)
    shelf: dict[Feed, int] = field(default_factory=dict)  # events from this offset on are not in memory
    most: int = MOST_PAGES
    strangers: list[tuple[str, str]] = field(default_factory=list)  # (event, subscriber): owed to one that is gone
    later: list[Callable[[], None]] = field(
        default_factory=list
    )  # ends that are committed and need not be noted at once

    def open(self, feed: Feed, entries: Sequence[Entry], upto: int, now: float) -> None:
        """Take events into the books, in offset order, as long as there is room."""
        alike: dict[int, tuple[set[str], dict[str, tuple[str, str]]]] = {}  # entries of one decision share what is owed
        for entry in entries:
            if feed in self.shelf or len(self.pages) >= self.most:
                self.shelf.setdefault(feed, entry.offset)
                break
            if id(entry.owed) not in alike:
                denied = {name for name, owed in entry.owed.items() if owed.outcome == "deny"}
                alike[id(entry.owed)] = (entry.owed.keys() - denied, dict.fromkeys(sorted(denied), ("refused", "A0")))
            owing, refused = alike[id(entry.owed)]
            self.pages[entry.event_id] = Page(feed, entry.offset, owing.copy(), refused.copy())
            if not owing <= self.lanes:
                self.strangers += [(entry.event_id, name) for name in entry.owed if name in owing - self.lanes]
            if not owing:
                self._close(entry.event_id, now)
        self.cursors[feed] = max(self.cursors.get(feed, -1), upto)

    def note(self, final: Final, strength: str) -> None:
        """A delivery ended. One that an operator reopened was settled before and stays so."""
        page = self.pages.get(final.event_id)
        if page is None or final.lane not in page.open:
            return
        page.open.discard(final.lane)
        page.acks[final.lane] = (final.final, strength)
        self._close(final.event_id, final.at)

    def acknowledged(self, event_id: str, acks: Mapping[str, tuple[str, str]], at: float) -> None:
        """All these lanes ended it alike, and at the first attempt."""
        page = self.pages.get(event_id)
        if page is None:
            return
        page.acks.update(acks if acks.keys() <= page.open else {n: a for n, a in acks.items() if n in page.open})
        page.open.difference_update(acks)
        self._close(event_id, at)

    def catch_up(self) -> None:
        """Note what was left for later: the lanes need not wait for it, the next *settled* row must."""
        while self.later:
            self.later.pop(0)()

    def _close(self, event_id: str, at: float) -> None:
        page = self.pages[event_id]
        if not page.open:
            del self.pages[event_id]
            self.done.append((event_id, page, at))

    def lowest(self, feed: Feed) -> int:
        """Everything below is settled, or will be by the next write."""
        end = self.shelf.get(feed, self.cursors.get(feed, -1) + 1)
        return min((p.offset for p in self.pages.values() if p.feed == feed), default=end)

    def rows(self) -> pa.Table:
        """A settled row for every event that closed."""
        spelt: dict[tuple[object, ...], tuple[bytes, bytes]] = {}
        times = {at: (stamp(at), when(at)) for at in {at for _, _, at in self.done}}
        columns: dict[str, list[Any]] = {
            "event_id": [event_id for event_id, _, _ in self.done],
            "offset": [page.offset for _, page, _ in self.done],
            "source": [page.feed.source for _, page, _ in self.done],
            "generation": [page.feed.generation for _, page, _ in self.done],
            "entry": [self._entry(event_id, page, times[at][0], spelt) for event_id, page, at in self.done],
            "time": [times[at][1] for _, _, at in self.done],
        }
        return pa.table(columns, schema=SCHEMA)

    def _entry(self, event_id: str, page: Page, at: str, spelt: dict[tuple[object, ...], tuple[bytes, bytes]]) -> bytes:
        """Events that ended alike differ in their id alone, so what stands around it is spelt once."""
        key = (at, *page.acks.items())
        if key not in spelt:
            acks = [Ack(name, outcome, strength) for name, (outcome, strength) in page.acks.items()]
            before, after = Settled.of(STAND_IN, acks, self.attestor, at).encode().split(STAND_IN.encode())
            spelt[key] = (before, after)
        if not PLAIN.fullmatch(event_id):
            acks = [Ack(name, outcome, strength) for name, (outcome, strength) in page.acks.items()]
            return Settled.of(event_id, acks, self.attestor, at).encode()
        before, after = spelt[key]
        return before + event_id.encode() + after

    def write(self, store: Store, app: str) -> int:
        """Commit a settled row for every event that closed since the last write."""
        self.catch_up()
        if not self.done:
            return 0
        folder = Path(store.fresh("settled"))
        folder.mkdir(parents=True)
        table = self.rows().sort_by("offset")
        statistics = ["source", "generation", "offset", "time"]
        pq.write_table(table, folder / "driver.parquet", compression="zstd", write_statistics=statistics)
        cursors = {f"settled/{feed}": low for feed in self.cursors if (low := self.lowest(feed)) >= 0}
        version = (store.transaction_version("settled", app) or 0) + 1
        store.commit("settled", str(folder), app=app, version=version, cursors=cursors)
        self.done.clear()
        return int(table.num_rows)


def reopen(books: Books, store: Store, feed: Feed, upto: Mapping[str, int], now: float) -> None:
    """The books of a feed as they stood: everything from the lowest open offset to the furthest lane cursor is on the shelf."""
    low = store.transaction_version("settled", f"settled/{feed}") or 0
    books.cursors[feed] = max([low - 1, *upto.values()])
    if books.cursors[feed] >= low:
        books.shelf[feed] = low
        take_down(books, store, feed, now)


def take_down(books: Books, store: Store, feed: Feed, now: float) -> None:
    """Fill the room there is with events from the shelf, and with the ends that were recorded for them meanwhile."""
    low, end = books.shelf[feed], books.cursors[feed]
    at, since = low - 1, NEVER
    while at < end and len(books.pages) < books.most:
        entries, reached = read(store, feed, at, end)
        if reached <= at:
            at = end  # nothing is left up to the cursor
            break
        done = _settled(store, feed, entries)
        room = books.most - len(books.pages)
        wanted = [entry for entry in entries if entry.event_id not in done]
        at = reached if len(wanted) <= room else wanted[room].offset - 1
        del books.shelf[feed]
        books.open(feed, wanted[:room], at, now)
        books.shelf[feed] = at + 1
        since = min(since, entries[0].since if entries else NEVER)
    books.cursors[feed] = end
    if at >= end:
        del books.shelf[feed]
    if since < NEVER:
        _replay(books, store, since)


def _settled(store: Store, feed: Feed, entries: Sequence[Entry]) -> set[str]:
    if not entries:
        return set()
    low, high = entries[0].offset, entries[-1].offset
    files = store.files("settled", column="offset", above=low - 1, where=dict(feed._asdict()))
    look = (ds.field("offset") >= low) & (ds.field("offset") <= high)
    rows = store.arrow("settled", ["event_id"], files=files, filter=look) if files else None
    return set() if rows is None else set(rows["event_id"].to_pylist())


def _replay(books: Books, store: Store, since: float) -> None:
    """Ends that the attempts already hold. Calls cannot be older than the events they carry, give or take a clock."""
    look = ds.field("started") >= pa.scalar(when(since - SLACK_S), MOMENT)
    rows = flattened(store.arrow("attempts", ["lane", "finished", "members"], filter=look))
    known = pc.is_in(rows["event_id"], pa.array(list(books.pages), pa.string()))
    for m in rows.filter(pc.and_(known, pc.is_valid(rows["final"]))).to_pylist():
        feed, at = Feed(m["source"], m["generation"]), m["finished"].timestamp()
        strength = m["ack"] or "A0" if m["final"] == "acknowledged" else "A0"
        books.note(Final(m["lane"], m["event_id"], feed, m["offset"], m["final"], m["code"] or "", at), strength)
