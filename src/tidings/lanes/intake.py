"""From the journal into the books and the lanes: each reader at its own cursor, no reader waits for another."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidings.lanes import books as ledgers
from tidings.lanes import machine, slices
from tidings.lanes.books import Books
from tidings.lanes.lane import Lane, Tables
from tidings.lanes.member import Feed
from tidings.lanes.slices import Entry


class Intake:
    """Reads nothing while the journal has no new version and no lane has room behind its head."""

    def __init__(self, tables: Tables, books: Books) -> None:
        self.tables, self.books = tables, books
        self._version: int | None = None
        self._tops: dict[Feed, int] = {}

    def feeds(self) -> Collection[Feed]:
        self._refresh()
        return self._tops.keys()

    def restore(self, lanes: Iterable[Lane], now: float) -> None:
        """Open the books again where the last process left them."""
        cursors = {lane.name: lane.state.cursors for lane in lanes}
        for feed in self._tops:
            reached = {name: found[feed] for name, found in cursors.items() if feed in found}
            ledgers.reopen(self.books, self.tables.store, feed, reached, now)

    def behind(self, lanes: Iterable[Lane]) -> bool:
        """Whether anything committed is still unread by the books or by a lane that has room."""
        self._refresh()
        running = [lane for lane in lanes if lane.state.room]
        return any(
            self.books.cursors.get(feed, -1) < top or any(lane.state.cursors.get(feed, -1) < top for lane in running)
            for feed, top in self._tops.items()
        )

    def take(self, lanes: Collection[Lane], now: float) -> int:
        """One bounded read per feed and cursor; returns how many deliveries entered."""
        self._refresh()
        taken = 0
        for feed, top in self._tops.items():
            seen: dict[int, tuple[list[Entry], int]] = {}
            at = self.books.cursors.get(feed, -1)
            if at < top:
                entries, upto = seen[at] = slices.read(self.tables.store, feed, at)
                self.books.open(feed, entries, upto, now)
            taken += self._offer(feed, lanes, seen)
        self._take_down(now)
        return taken

    def _take_down(self, now: float) -> None:
        """Half empty is soon enough: each time costs a look through the attempts."""
        if self.books.shelf and len(self.books.pages) * 2 <= self.books.most:
            for feed in list(self.books.shelf):
                ledgers.take_down(self.books, self.tables.store, feed, now)

    def _offer(self, feed: Feed, lanes: Collection[Lane], seen: dict[int, tuple[list[Entry], int]]) -> int:
        # Lanes read no further than the books, so an event is in the books before any of its deliveries can end.
        head, taken = self.books.cursors.get(feed, -1), 0
        known: dict[int, dict[bytes, tuple[bytes, bytes]]] = {}
        for lane in lanes:
            at = lane.state.cursors.get(feed, -1)
            if at >= head or not lane.state.room:
                continue
            if at not in seen:
                seen[at] = slices.read(self.tables.store, feed, at, head)
            entries, upto = seen[at]
            mine = [e for e in entries if e.owes(lane.name)]
            if mine and at not in known:
                known[at] = slices.tags(self.tables.keys, entries)
            found = slices.deliveries(mine, lane.name, feed, known.get(at, {}))
            taken += machine.offer(lane.state, feed, found, upto)
            lane.touch()
        return taken

    def _refresh(self) -> None:
        version = self.tables.store.version("journal")
        if version != self._version:
            self._tops, self._version = slices.feeds(self.tables.store), version
