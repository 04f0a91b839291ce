"""The executor's part of a stretch: each event is opened and rendered once, whoever it goes to; a call is bytes joined and posted.

The task writes its attempts itself, as one file that is there as a whole or not at all.

As in `send`: nothing here raises for a row, a task tried again sends nothing again, a call begins within its time or not at all,
and one that was cut is in doubt. After a call that was not acknowledged as a whole, its lane makes no later call of that split.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from tidings.channels.call import Outcome
from tidings.channels.webhook import WebhookChannel
from tidings.errors import TidingsError
from tidings.lanes.attempts import made_row, table_of, write_rows
from tidings.lanes.bodies import Body, Names, Rendered
from tidings.lanes.cargo import Cargo, Shelf, unpacked
from tidings.lanes.exchanges import sealed
from tidings.lanes.member import Feed, PlannedCall, Rules, Sent
from tidings.lanes.retry import moment
from tidings.lanes.semantics import NOT_STARTED, judge
from tidings.lanes.send import GRACE_S, channel_of
from tidings.lanes.stretch import Chunk, Part, by_split, chunks
from tidings.lanes.whole import Members, Whole, whole_table

AGAIN = ("in_doubt", "lane.task_again", "a task was tried again; what its first try did is not known")
LATE = ("transient", NOT_STARTED, "its turn did not come in this cycle")
# A lane whose calls are quick may go on for this many times its time: on a busy machine the stretch is late, not the subscriber.
PATIENT = 4
CUT = ("in_doubt", "lane.cut", "the time of this cycle was over before the call came back")


@dataclass(frozen=True)
class Load:
    """A stretch as it travels: every lane's part, the time there is, where the sealed rows are and where the attempts go."""

    feed: Feed
    parts: Mapping[str, Part]
    at: float
    splits: int
    budget_s: float
    begin_s: float
    shelf: Shelf | None = None
    folder: str = ""


def carrier(load: Load) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function Spark maps over the tasks of a stretch, a row each; it says how many rows of attempts a task wrote."""

    def carry(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        again = context is not None and context.attemptNumber() > 0
        for row in (row for batch in batches for row in batch.to_pylist()):
            yield pa.record_batch(
                {"written": pa.array([_carried(load, row["task"], row["events"], again)], pa.int32())}
            )

    return carry


def _carried(load: Load, task: int, events: bytes, again: bool) -> int:
    """Make the calls of a task and write their rows. What a first try wrote is true, and nothing has to be said again."""
    assert load.shelf
    place = Path(load.folder) / f"part-{task:05d}.parquet"
    if again and place.exists():
        return 0
    gc.disable()  # a task makes a million objects and hardly a cycle
    try:
        cargo = unpacked(events, load.shelf)
        return kept(_Task(load, cargo).run(again), place) if len(cargo) else 0
    finally:
        gc.enable()


def kept(rows: pa.Table, place: Path) -> int:
    """Whole or not at all, and never in the place of another's: a try that was given up may still be at work."""
    draft = place.with_name(f".{place.name}-{token_hex(8)}")
    write_rows(rows, draft)
    with suppress(FileExistsError):
        os.link(draft, place)
    draft.unlink()
    return int(rows.num_rows)


def ends_all(rules: Rules, outcome: Outcome, members: Members) -> bool:
    """Is every member over with this answer? A weak one only announces what must be proved."""
    if outcome.result != "acknowledged" or outcome.reference:
        return False
    return outcome.strength > "A1" or rules.notices.isdisjoint(members.change_types)


def stops(made: Whole | dict[str, Any]) -> bool:
    """What comes later in a split may be of the same people as what failed."""
    return not isinstance(made, Whole)


class _Task:
    """All calls of one task."""

    def __init__(self, load: Load, rows: Cargo) -> None:
        self.load, self.rows = load, rows
        self.rendered = Rendered(rows)
        columns = rows.columns
        places = list(zip(columns["offset"], columns["kind"], strict=True))
        own = by_split(columns["split"], load.splits)
        cut: dict[tuple[int, tuple[object, ...]], list[Chunk]] = {}
        self.turns: dict[tuple[str, int], list[Chunk]] = {}
        for name, part in load.parts.items():
            for split in (number for number, mine in enumerate(own) if mine):
                key = (split, part.alike())
                if key not in cut:
                    cut[key] = chunks(part, places, own[split])
                self.turns[name, split] = cut[key]
        looks: dict[object, int] = {}
        self._looks = {
            name: looks.setdefault((part.job.form, *sorted(part.views.items())), len(looks))
            for name, part in load.parts.items()
        }
        self.done: dict[tuple[str, int], list[Whole | dict[str, Any]]] = {key: [] for key in self.turns}
        self._bodies: dict[tuple[int, int], Body] = {}
        self._members: dict[int, Members] = {}
        self._channels: dict[str, WebhookChannel] = {}
        self._lock, self._rendering = threading.Lock(), threading.Lock()

    def run(self, again: bool) -> pa.Table:
        if again:
            return table_of(self._told(name, split, c, AGAIN) for (name, split), cs in self.turns.items() for c in cs)
        self.begin = time.monotonic()
        pool = ThreadPoolExecutor(max_workers=max(1, len(self.turns)), thread_name_prefix="stretch")
        turns = {key: pool.submit(self._turn, *key) for key in self.turns}
        wait(turns.values(), timeout=self.load.begin_s * PATIENT + self.load.budget_s + GRACE_S)
        pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:  # what comes back from here on is in doubt
            made = {key: list(self.done[key]) for key in turns}
        whole = [one for calls in made.values() for one in calls if isinstance(one, Whole)]
        odd = [one for calls in made.values() for one in calls if not isinstance(one, Whole)]
        for (name, split), turn in self.turns.items():
            odd += self._rest(name, split, turn[len(made[name, split]) :], turns[name, split])
        return pa.concat_tables([whole_table(whole, self.load.feed), table_of(odd)])

    def _rest(self, name: str, split: int, left: Sequence[Chunk], turn: Future[None]) -> list[dict[str, Any]]:
        """Calls without an outcome: the one under way when the time was over, and those that nobody began."""
        cut = (bool(left) and not turn.done()) or (
            turn.done() and not turn.cancelled() and turn.exception() is not None
        )
        return [self._told(name, split, chunk, CUT if cut and chunk is left[0] else LATE) for chunk in left]

    def _turn(self, name: str, split: int) -> None:
        """One lane's calls of one split, in order, until one of them is not acknowledged as a whole."""
        part = self.load.parts[name]
        names, begin_s = Names(part.wire), self.load.begin_s * PATIENT
        for chunk in self.turns[name, split]:
            begun = time.monotonic()
            if begun - self.begin > begin_s:
                return
            made = self._call(name, split, chunk, names)
            if time.monotonic() - begun > self.load.begin_s / PATIENT:
                begin_s = self.load.begin_s
            with self._lock:
                self.done[name, split].append(made)
            if stops(made):
                return

    def _call(self, name: str, split: int, chunk: Chunk, names: Names) -> Whole | dict[str, Any]:
        part, started = self.load.parts[name], moment(time.time())
        with self._rendering:  # the lanes of a split come by at the same time; the first renders for all
            body, about = self._body(name, part, chunk), self._about(chunk)
        outcome = self._posted(part, body.ids, body.to(names)) if body.ids else None
        finished = moment(time.time())
        if outcome is not None and len(body.ids) == len(chunk.places) and ends_all(part.job.rules, outcome, about):
            seq = part.first[split] + chunk.number
            return Whole(part.job, seq, about, outcome, started, finished)
        return self._odd(name, split, chunk, dict.fromkeys(body.ids, outcome), (started, finished))

    def _body(self, name: str, part: Part, chunk: Chunk) -> Body:
        """Made by the first lane that asks, for all that may see as much."""
        key = (id(chunk), self._looks[name])
        if key not in self._bodies:
            ids, tags, kinds = (self.rows.columns[column] for column in ("event_id", "tag", "kind"))
            made = ((ids[n], tags[n], self.rendered.pieces(n, part.views[kinds[n]])) for n in chunk.places)
            good = ((event_id, tag, pieces) for event_id, tag, pieces in made if pieces is not None)
            self._bodies[key] = Body.of(good, part.job.form == "batched")
        return self._bodies[key]

    def _posted(self, part: Part, ids: Sequence[str], body: bytes) -> Outcome:
        left = min(part.job.rules.timeout_s, self.load.budget_s)
        name = part.job.rules.name
        try:
            channel = self._channels.get(name) or channel_of(part.job)
        except TidingsError as error:
            return Outcome("", "transient", error.code, detail="no channel")
        assert isinstance(channel, WebhookChannel)
        self._channels[name] = channel
        return channel.post(ids, body, left)

    def _about(self, chunk: Chunk) -> Members:
        """Worked out by the first lane that asks; the same chunk is every lane's."""
        if id(chunk) not in self._members:
            columns = (self.rows.columns[name] for name in ("event_id", "offset", "change_type"))
            listed = ([column[place] for place in chunk.places] for column in columns)
            self._members[id(chunk)] = Members.of(*listed)
        return self._members[id(chunk)]

    def _told(self, name: str, split: int, chunk: Chunk, words: tuple[Any, str, str]) -> dict[str, Any]:
        now = moment(time.time())
        whole = Outcome("", words[0], words[1], detail=words[2])
        ids = [self.rows.columns["event_id"][place] for place in chunk.places]
        return self._odd(name, split, chunk, dict.fromkeys(ids, whole), (self.load.at, now))

    def _odd(
        self, name: str, split: int, chunk: Chunk, told: Mapping[str, Outcome | None], times: tuple[float, float]
    ) -> dict[str, Any]:
        """The row of a call that the machine will have to look at, made as `send` makes it."""
        part = self.load.parts[name]
        rows = [self.rows[place] for place in chunk.places]
        call = planned(part, split, chunk.number, self.load, rows)
        shut = Outcome("", "terminal", "lane.unreadable", detail="the sealed row does not open")
        outcomes = [_of(told.get(sent.event_id) or shut, sent.event_id) for sent in call.members]
        verdict = judge(part.job.rules, call, outcomes, times[0], times[1])
        row = made_row(part.job.rules, call, verdict, times, part.job.by)
        # What was said of several people at once is kept for none of them; a dead letter is alone by the time it is one.
        alone = outcomes if len(rows) == 1 else []
        return row | {"exchanges": sealed(row["members"], alone, rows) or None}


def _of(outcome: Outcome, event_id: str) -> Outcome:
    return Outcome(**{**outcome.__dict__, "event_id": event_id})


def planned(part: Part, split: int, number: int, load: Load, rows: Sequence[Mapping[str, Any]]) -> PlannedCall:
    """The call as the machine would have planned it."""
    members = tuple(Sent(row["event_id"], row["offset"], "at-least-once", 1, row["change_type"]) for row in rows)
    seq = part.first[split] + number
    return PlannedCall(part.job.rules.name, seq, load.feed, "send", members, load.at, False)
