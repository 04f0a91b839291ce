"""The books: which pairs of an event are still open, and the one *settled* row when none is.

An event is in memory from the moment its journal row is read until every lane it concerns has ended its delivery. What was
denied was never a delivery: it counts as refused from the start. After a restart the books are opened again from the journal,
the attempts and the settled rows above the lowest offset that may still be open; that is why no event settles twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tidings.lanes.attempts import MOMENT, stamp, when
from tidings.lanes.member import Feed, Final
from tidings.lanes.slices import Entry, read
from tidings.ledger.attestation import Ack, Settled
from tidings.store import Store

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

    def open(self, feed: Feed, entries: Sequence[Entry], upto: int, now: float) -> None:
        """Take events into the books, in offset order."""
        for entry in entries:
            page = Page(feed, entry.offset, set())
            for owed in entry.owed:
                if owed.outcome != "deny" and owed.subscriber in self.lanes:
                    page.open.add(owed.subscriber)
                else:
                    page.acks[owed.subscriber] = ("refused", "A0")
            self.pages[entry.event_id] = page
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

    def _close(self, event_id: str, at: float) -> None:
        page = self.pages[event_id]
        if not page.open:
            del self.pages[event_id]
            self.done.append((event_id, page, at))

    def lowest(self, feed: Feed) -> int:
        """Everything below is settled, or will be by the next write."""
        return min((p.offset for p in self.pages.values() if p.feed == feed), default=self.cursors.get(feed, -1) + 1)

    def row(self, event_id: str, page: Page, at: float) -> dict[str, Any]:
        acks = [Ack(name, outcome, strength) for name, (outcome, strength) in page.acks.items()]
        entry = Settled.of(event_id, acks, self.attestor, stamp(at)).encode()
        return {
            "event_id": event_id,
            "offset": page.offset,
            "source": page.feed.source,
            "generation": page.feed.generation,
            "entry": entry,
            "time": when(at),
        }

    def write(self, store: Store, app: str) -> int:
        """Commit a settled row for every event that closed since the last write."""
        if not self.done:
            return 0
        rows = [self.row(*closed) for closed in self.done]
        folder = Path(store.fresh("settled"))
        folder.mkdir(parents=True)
        table = pa.Table.from_pylist(rows, schema=SCHEMA).sort_by("offset")
        statistics = ["source", "generation", "offset", "time"]
        pq.write_table(table, folder / "driver.parquet", compression="zstd", write_statistics=statistics)
        cursors = {f"settled/{feed}": low for feed in self.cursors if (low := self.lowest(feed)) >= 0}
        version = (store.transaction_version("settled", app) or 0) + 1
        store.commit("settled", str(folder), app=app, version=version, cursors=cursors)
        self.done.clear()
        return len(rows)


def reopen(books: Books, store: Store, feed: Feed, upto: Mapping[str, int], now: float) -> None:
    """The books of a feed as they stood: the journal from the lowest open offset to the furthest lane cursor."""
    low = store.transaction_version("settled", f"settled/{feed}") or 0
    books.cursors[feed] = low - 1
    top = max(upto.values(), default=-1)
    found: list[Entry] = []
    while (above := books.cursors[feed]) < top:
        entries, reached = read(store, feed, above, top)
        if reached <= above:
            break
        found += entries
        books.cursors[feed] = reached
    if not found:
        return
    settled = _settled(store, feed, low)
    wanted = [entry for entry in found if entry.event_id not in settled]
    books.open(feed, wanted, books.cursors[feed], now)
    if books.pages:
        _replay(books, store, feed, min(entry.since for entry in found))


def _settled(store: Store, feed: Feed, low: int) -> set[str]:
    look = (ds.field("source") == feed.source) & (ds.field("generation") == feed.generation)
    files = store.files("settled", column="offset", above=low - 1)
    if not files:
        return set()
    rows = store.arrow("settled", ["event_id"], files=files, filter=look & (ds.field("offset") >= low))
    return set(rows["event_id"].to_pylist())


def _replay(books: Books, store: Store, feed: Feed, since: float) -> None:
    """Ends that the attempts already hold. Calls cannot be older than the events they carry, give or take a clock."""
    slack = 3600.0
    look = ds.field("started") >= pa.scalar(when(since - slack), MOMENT)
    rows = store.arrow("attempts", ["lane", "finished", "strength", "members"], filter=look).to_pylist()
    for final, strength in _finals(rows, feed):
        books.note(final, strength)


def _finals(rows: Iterable[dict[str, Any]], feed: Feed) -> Iterable[tuple[Final, str]]:
    for row in rows:
        for m in row["members"] or ():
            if m["final"] and m["source"] == feed.source and m["generation"] == feed.generation:
                at = row["finished"].timestamp()
                strength = row["strength"] or "A0" if m["final"] == "acknowledged" else "A0"
                yield Final(row["lane"], m["event_id"], feed, m["offset"], m["final"], m["code"] or "", at), strength
