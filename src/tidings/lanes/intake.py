"""From the journal into the books and the lanes: each reader at its own cursor, no reader waits for another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable

from tidings.lanes import books as ledgers
from tidings.lanes import machine, slices
from tidings.lanes.books import Books
from tidings.lanes.lane import Lane, Tables
from tidings.lanes.member import Feed
from tidings.lanes.sla import foretell
from tidings.lanes.slices import Entry
from tidings.lanes.stretches import Slice, Turn

Turning = Callable[[Lane, int], Turn]  # a lane and how many events wait for it → how it goes on
CAPSULE = "capsule"  # the generation of the desk's own feed
KEPT = 3  # slices of a feed in memory; lanes stand near each other


class Intake:
    """Reads nothing while the journal has no new version and no lane has room behind its head."""

    def __init__(self, tables: Tables, books: Books) -> None:
        self.tables, self.books = tables, books
        self._version: int | None = None
        self._tops: dict[Feed, int] = {}
        self._read: dict[Feed, list[tuple[int, list[Entry], int]]] = {}  # slices read last: from, entries, up to
        self.slices: list[Slice] = []

    def feeds(self) -> Collection[Feed]:
        self._refresh()
        return self._tops.keys()

    def restore(self, lanes: Collection[Lane], now: float) -> None:
        """Open the books again where the last process left them."""
        cursors = {lane.name: lane.state.cursors for lane in lanes}
        for lane in lanes:
            foretell(lane.state, len(lane.state.unsettled), lane.prospect(now), now)
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

    def take(self, lanes: Collection[Lane], now: float, turn: Turning = lambda lane, events: "one by one") -> int:
        """One bounded read per feed and cursor; returns how many deliveries entered.

        What lanes could take as a whole is left in `slices`; `enter` takes it one by one after all.
        """
        self.slices = []
        self.ahead(lanes, now)
        taken = sum(self._offer(feed, lanes, turn, now) for feed in self._tops)
        self._take_down(now)
        return taken

    def ahead(self, lanes: Collection[Lane], now: float, reach: int = -1) -> None:
        """New events into the books, which are always ahead of the lanes; `reach` is where a lane is on its way to."""
        self._refresh()
        for feed, top in self._tops.items():
            at = self.books.cursors.get(feed, -1)
            if at < top and self._wanted(feed, lanes, reach):
                entries, upto = slices.read(self.tables.store, feed, at)
                self._read[feed] = [*self._read.get(feed, [])[1 - KEPT :], (at, entries, upto)]
                self.books.open(feed, entries, upto, now)

    def _wanted(self, feed: Feed, lanes: Collection[Lane], reach: int) -> bool:
        """The books keep a slice ahead of the foremost lane that has room, and do not fill the memory before it gets there."""
        running = [lane.state.cursors.get(feed, -1) for lane in lanes if lane.state.room]
        held = self._read.get(feed)
        return not running or not held or max(*running, reach) >= held[-1][0]

    def _slice(self, feed: Feed, at: int, head: int) -> tuple[list[Entry], int]:
        for low, entries, upto in self._read.get(feed, []):
            if low <= at < upto:
                return entries[bisect_right(entries, at, key=lambda entry: entry.offset) :], upto
        entries, upto = slices.read(self.tables.store, feed, at, head)
        self._read[feed] = [(at, entries, upto), *self._read.get(feed, [])[-(KEPT - 1) :]]
        return entries, upto

    def _take_down(self, now: float) -> None:
        """Half empty is soon enough: each time costs a look through the attempts."""
        if self.books.shelf and len(self.books.pages) * 2 <= self.books.most:
            for feed in list(self.books.shelf):
                ledgers.take_down(self.books, self.tables.store, feed, now)

    def _offer(self, feed: Feed, lanes: Collection[Lane], turn: Turning, now: float) -> int:
        # Lanes read no further than the books, so an event is in the books before any of its deliveries can end.
        head, taken = self.books.cursors.get(feed, -1), 0
        standing: dict[int, list[Lane]] = {}
        for lane in lanes:
            at = lane.state.cursors.get(feed, -1)
            if at < head and lane.state.room:
                standing.setdefault(at, []).append(lane)
        for at, here in standing.items():
            entries, upto = self._slice(feed, at, head)
            turns = {one.name: turn(one, len(entries)) if self._alone(feed, one) else "one by one" for one in here}
            if whole := [lane for lane in here if turns[lane.name] == "whole"]:
                self.slices.append(Slice(feed, entries, upto, whole))
            taken += self.enter(
                Slice(feed, entries, upto, [one for one in here if turns[one.name] == "one by one"]), now
            )
        return taken

    def enter(self, found: Slice, now: float) -> int:
        """Deliveries into the lanes' machines, as far as there is room."""
        taken = 0
        known: dict[bytes, tuple[bytes, bytes]] | None = None
        for lane in found.lanes:
            mine = [entry for entry in found.entries if entry.owes(lane.name)]
            if mine and known is None:
                known = slices.tags(self.tables.keys, found.entries)
            owed = slices.deliveries(mine, lane.name, found.feed, known or {})
            new = machine.offer(lane.state, found.feed, owed, found.upto)
            foretell(lane.state, new, lane.prospect(now), now)
            taken += new
            lane.touch()
        return taken

    def _alone(self, feed: Feed, lane: Lane) -> bool:
        """Of two feeds a person's older event goes first, whichever feed it is in: that is the machine's work, as is a capsule."""
        if feed.generation == CAPSULE:
            return False
        cursors = lane.state.cursors
        return all(cursors.get(other, -1) >= self.books.cursors.get(other, -1) for other in self._tops if other != feed)

    def _refresh(self) -> None:
        version = self.tables.store.version("journal")
        if version != self._version:
            self._tops, self._version = slices.feeds(self.tables.store), version
