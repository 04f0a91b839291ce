"""Replays at work beside live traffic: each has its own cursor, and what it takes up enters the same lane as any other delivery.

    order ─taken up→ upto (the seam) ─slices, in a thread→ candidates ─a few at a time→ wish + cursor, one commit ─→ the lane's machine

The seam is the lane's live cursor when the order is taken up: the replay owns what is at or below it, live what is above, and both
are in the same commit. Order per subject, rate limit, breaker and semantics are the lane's own. A replay holds at most `most`
deliveries open, so live traffic keeps its window, and they stand in the last priority tier. After a kill the cursor says where to go on and the wishes what was under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tidings.lanes import control, machine
from tidings.lanes.buffer import Buffer, Candidate, Order
from tidings.lanes.lane import Lane, Tables
from tidings.lanes.limits import rules_of
from tidings.lanes.member import Feed, Final, FinalName
from tidings.lanes.replay import Judge, Late, Member, Replay, Verdicts
from tidings.lanes.standing import Standing
from tidings.lanes.wishes import is_wish, serial_of, strangers, wish_row, wished

MOST_STEPS = 2_000  # candidates looked at in one step
MOST_ENDS = 200  # recorded skips of one step
SKIPS: dict[str, tuple[FinalName, str]] = {
    "superseded": ("superseded", "newer_acknowledged"),
    "erased": ("erased", "no_key"),
    "expired": ("expired", "payload_expired"),
}


class Replays:
    """All orders of all lanes."""

    def __init__(self, tables: Tables, late: Late | None = None) -> None:
        self.tables, self.late = tables, late
        self.runs: dict[str, Replay] = {}
        self.members: dict[tuple[str, str], Member] = {}
        self.floors: dict[tuple[str, Feed], int] = {}
        self._seen: dict[str, int] = {}
        self._standings: dict[str, Standing] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="replay")

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    # Orders

    def restore(self, lanes: Iterable[Lane], feeds: Collection[Feed]) -> None:
        """The orders as the last process left them."""
        said = self.tables.store.transaction_version
        for lane in lanes:
            for request in control.asked(self.tables.settings.data_path, lane.name)[: lane.requests]:
                if request.action == "replay":
                    places = {feed: f"replay/{request.name}/{feed}" for feed in feeds}
                    upto = {f: end for f, app in places.items() if (end := said("attempts", f"{app}/upto")) is not None}
                    cursors = {f: at for f in upto if (at := said("attempts", places[f])) is not None}
                    self._begin(request, upto, cursors)
                    self.runs[request.name].kept = self.runs[request.name].done
                else:
                    self._told(request)
            self._seen[lane.name] = lane.requests
            for feed in feeds:
                floor = said("attempts", f"move/{lane.name}/{feed}")
                self.floors |= {(lane.name, feed): floor} if floor is not None else {}
            self._recovered(lane)

    def _recovered(self, lane: Lane) -> None:
        """Deliveries that were under way are looked at as if they had been taken up now."""
        since = self.tables.store.transaction_version("attempts", f"lane/{lane.name}/since") or 1
        for row in filter(is_wish, self.tables.attempts(lane.name, since)):
            for wish in wished(self.tables, lane.state.rules, row):
                if wish.delivery.event_id in lane.state.unsettled:
                    place, name = (wish.delivery.offset, wish.recorded), f"{lane.name}-{serial_of(row)}"
                    member = Member(name, wish.delivery.feed, wish.who, place, wish.bootstrap, True)
                    self.members[lane.name, wish.delivery.event_id] = member
        for one in strangers(self.tables, lane.name, lane.state.awaiting.values()):
            self.members.setdefault((lane.name, one.event_id), Member("", one.feed, b"", (one.offset, 0), True, True))

    def _begin(self, request: control.Request, upto: dict[Feed, int], cursors: dict[Feed, int]) -> None:
        order = Order.of({k: v for k, v in request.order.items() if k != "range"})
        self.runs[request.name] = Replay(
            request.name, request.serial, request.lane, order, upto, cursors, read=dict(cursors)
        )

    def _told(self, request: control.Request) -> None:
        run = self.runs.get(request.event)
        if run is not None and request.action in ("replay_pause", "replay_resume"):
            run.paused = request.action == "replay_pause"
        if run is not None and request.action == "replay_cancel":
            del self.runs[request.event]

    def _take(self, lane: Lane, heads: Mapping[Feed, int]) -> None:
        """Requests that the lane took up a moment ago: their rows, the seam and the live cursors go into one commit."""
        data, seen = self.tables.settings.data_path, self._seen.get(lane.name, 0)
        if lane.requests == seen:
            return
        self._seen[lane.name] = lane.requests
        for request in control.asked(data, lane.name)[seen : lane.requests]:
            if request.action == "replay":
                ends = heads if request.order.get("bootstrap") else lane.state.cursors
                self._begin(request, {feed: end for feed, end in ends.items() if end >= 0}, {})
            elif request.action == "move":
                for text, offset in request.order["to"].items():
                    place = (lane.name, Feed(*text.split("/", 1)))
                    self.floors[place] = max(self.floors.get(place, -1), int(offset))
            else:
                self._told(request)

    def transactions(self) -> dict[str, int]:
        """How far every replay has come, for the commit that is about to be made."""
        found = {app: at for run in self.runs.values() for app, at in run.transactions().items()}
        return found | {f"move/{lane}/{feed}": floor for (lane, feed), floor in self.floors.items()}

    def committed(self) -> None:
        """The last transactions are on the disk."""
        for run in self.runs.values():
            run.kept = run.done

    def busy(self, lanes: Mapping[str, Lane]) -> bool:
        """Whether a replay could go on by itself now."""
        return any(
            not run.done and not run.paused and not lane.state.paused and self._room(run, lane) > 0
            for run in self.runs.values()
            if (lane := lanes.get(run.lane)) is not None
        )

    # Feeding

    def step(
        self, lanes: Mapping[str, Lane], heads: Mapping[Feed, int], now: float
    ) -> tuple[list[dict[str, Any]], list[tuple[Final, int]]]:
        """Rows that record what was taken up, and ends of what needs no call."""
        rows: list[dict[str, Any]] = []
        ends: list[tuple[Final, int]] = []
        for lane in lanes.values():
            self._take(lane, heads)
            ends += self._moved(lane, now)
        self.members = {at: m for at, m in self.members.items() if at[1] in lanes[at[0]].state.unsettled}
        under_way = {member.replay for member in self.members.values()}
        self.runs = {name: run for name, run in self.runs.items() if not run.kept or name in under_way}
        for run in self.runs.values():
            found = lanes.get(run.lane)
            if found is None or run.done or run.paused or found.state.paused or not self._prepared(run):
                continue
            made, over = self._feed(run, found, now)
            rows, ends = rows + made, ends + over
        return rows, ends

    def _prepared(self, run: Replay) -> bool:
        """Whether every feed has its next candidates; what is missing is read in a thread of its own."""
        if run.work is not None:
            if not run.work.done():
                return False
            run.work.result()
            run.work = None
        feed = run.lacking()
        if feed is not None:
            run.work = self._thread.submit(self._prepare, run, feed)
        return feed is None

    def _prepare(self, run: Replay, feed: Feed) -> None:
        if run.buffer is None:
            standing = Standing(self.tables.store, self.tables.keys, run.lane, run.order.start).build()
            decides = self.late.newly(run.lane) if self.late and run.order.bootstrap else None
            rules = rules_of(self.tables.settings, self.tables.settings.subscribers[run.lane])
            run.buffer = Buffer(self.tables.store, self.tables.keys, rules, run.order, standing, decides)
            run.buffer.tops(run.upto)
        found, reached = run.buffer.read(feed, run.read.get(feed, -1), run.upto[feed])
        run.ready[feed], run.read[feed] = deque(found), reached

    def _room(self, run: Replay, lane: Lane) -> int:
        waits = lane.state.awaiting  # an answer that takes a month must not hold the replay up
        mine = sum(
            1 for (n, e), m in self.members.items() if n == lane.name and m.replay == run.name and e not in waits
        )
        return min(run.order.most - mine, max(1, lane.state.rules.window // 2) - mine, lane.state.room)

    def _feed(self, run: Replay, lane: Lane, now: float) -> tuple[list[dict[str, Any]], list[tuple[Final, int]]]:
        assert run.buffer is not None
        run.buffer.standing.refresh()
        run.fill(now)
        room = min(self._room(run, lane), int(run.tokens) if run.order.rate else MOST_STEPS)
        taken: dict[Feed, list[tuple[Candidate, str]]] = {}
        sent = skipped = 0
        for _ in range(MOST_STEPS):
            feed = run.next_feed()
            if feed is None or run.ready[feed][0].entry.offset > lane.state.cursors.get(feed, -1):
                break
            word = self._word(run, lane, feed, run.ready[feed][0])
            if (word == "send" and sent >= room) or skipped >= MOST_ENDS:
                break
            one = run.ready[feed].popleft()
            run.cursors[feed] = one.entry.offset
            if word == "send" or word in SKIPS:
                taken.setdefault(feed, []).append((one, word))
            sent, skipped = sent + (word == "send"), skipped + (word in SKIPS)
            if run.lacking() is not None:
                break
        run.advance()
        run.tokens -= sent if run.order.rate else 0
        rows = [self._wish(run, lane, feed, found, now) for feed, found in taken.items()]
        return rows, [end for found in taken.values() for one, word in found for end in _skip(lane, one, word, now)]

    def _word(self, run: Replay, lane: Lane, feed: Feed, one: Candidate) -> str:
        """What becomes of a candidate, with what was learnt since it was prepared."""
        assert run.buffer is not None
        standing = run.buffer.standing
        if one.entry.event_id in lane.state.unsettled:
            return "underway"
        if one.word == "send" and not run.order.again and standing.has(feed, one.entry.offset):
            return "acknowledged"
        newer = one.word == "send" and standing.overtaken_since(feed, one.who, (one.entry.offset, one.recorded))
        return "superseded" if newer else one.word

    def _wish(
        self, run: Replay, lane: Lane, feed: Feed, found: Sequence[tuple[Candidate, str]], now: float
    ) -> dict[str, Any]:
        """Take deliveries up, those too that end at once: their new end follows the wish."""
        lane.state.seq += 1
        for one, _ in found:
            delivery = one.delivery(lane.name, feed, now, lane.state.rules.aging_s)
            machine.reopen(lane.state, delivery, lane.state.seq)
            place = (one.entry.offset, one.recorded)
            self.members[lane.name, delivery.event_id] = Member(run.name, feed, one.who, place, run.order.bootstrap)
        lane.touch()
        candidates = [one for one, _ in found]
        return wish_row(lane.name, run.serial, lane.state.seq, (feed, candidates), (now, run.order.bootstrap))

    def _moved(self, lane: Lane, now: float) -> list[tuple[Final, int]]:
        """A cursor that an operator moved forward: what it passed over ends, and is recorded."""
        ends: list[tuple[Final, int]] = []
        for feed in [feed for name, feed in self.floors if name == lane.name]:
            floor = self.floors[lane.name, feed]
            over = [d for d in lane.state.unsettled.values() if d.feed == feed and not d.reopened and d.offset <= floor]
            for delivery in over:
                ended = machine.skip(lane.state, delivery.event_id, "expired", "cursor_moved", now)
                if ended is not None:
                    ends.append((ended, lane.state.seq))
                    lane.touch()
            if lane.state.cursors.get(feed, -1) >= floor and lane.state.oldest(feed) > floor:
                del self.floors[lane.name, feed]
        return ends

    # At send

    def gated(self, regate: Judge | None) -> Judge:
        """The gate at send with what a replay adds: nothing older than what the subscriber has, no new pair without a yes."""

        def judge(rows: Sequence[Mapping[str, Any]]) -> Verdicts:
            known: tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]] = ([], [])
            first: dict[tuple[str, str], Member] = {}  # what was sent once stands ahead of anything newer
            for row in rows:
                at = (row["lane"], row["event_id"])
                member = self.members.get(at)
                known[member is not None and member.bootstrap].append(row)
                if member is not None and row["attempt"] == 1:
                    first[at] = member
            decided, new = known
            verdicts = dict(regate(decided)) if regate and decided else {}
            verdicts |= self.late.judge(new) if self.late and new else {}
            return verdicts | {at: SKIPS["superseded"] for at, m in first.items() if self._overtaken(at[0], m)}

        return judge

    def _overtaken(self, lane: str, member: Member) -> bool:
        run = self.runs.get(member.replay)
        if run is not None and run.buffer is not None and not member.recovered:
            run.buffer.standing.refresh()
            return run.buffer.standing.overtaken_since(member.feed, member.who, member.place)
        if lane not in self._standings:
            first = min(m.place[1] for (name, _), m in self.members.items() if name == lane) / 1e6
            self._standings[lane] = Standing(self.tables.store, self.tables.keys, lane, first).build()
        standing = self._standings[lane]
        standing.refresh()
        before = standing.overtaken(member.feed, [member.who or None], [member.place])[0]
        return before or standing.overtaken_since(member.feed, member.who, member.place)


def _skip(lane: Lane, one: Candidate, word: str, now: float) -> list[tuple[Final, int]]:
    """The end of what needs no call; none for what is to be sent."""
    ended = machine.skip(lane.state, one.entry.event_id, *SKIPS[word], now) if word in SKIPS else None
    return [] if ended is None else [(ended, lane.state.seq)]
