"""Dead letters, read from the attempts: what ended there, why, and what an operator decided since. No JVM."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings.gate.facts import ERASING
from tidings.gate.retention import Schedule
from tidings.lanes import control
from tidings.lanes.attempts import MOMENT, flattened
from tidings.lanes.member import Feed
from tidings.lanes.slices import spanning
from tidings.store import AddFile, Store

DEAD = "dead_lettered"
PORTION = 100_000  # calls read at a time
SLACK = timedelta(hours=1)  # clocks of the parts that stamp a row may differ
COLUMNS = ["lane", "cycle", "call", "intent", "started", "finished", "status", "strength", "members"]
STATES = {"retry": "retrying", "approve": "approved", "expire": "expired"}
ANSWERS = ("approve", "expire")


@dataclass(frozen=True)
class Letter:
    """One delivery that ended as a dead letter. `state` is open, retrying, approved or expired."""

    lane: str
    event: str
    change_type: str
    code: str
    attempts: int
    first: str
    last: str
    source: str
    generation: str
    offset: int
    cycle: int
    status: int | None = None
    state: str = "open"

    @property
    def place(self) -> dict[str, str | int | tuple[str, ...]]:
        """What a request about it must name."""
        return {"event": self.event, "source": self.source, "generation": self.generation, "offset": self.offset}

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Wanted:
    """Which letters; what is empty or None says nothing."""

    subscriber: str = ""
    code: str = ""
    change_type: str = ""
    since: datetime | None = None
    until: datetime | None = None
    events: Collection[str] | None = None

    def takes(self, letter: Letter) -> bool:
        last = datetime.fromisoformat(letter.last)
        return (
            self.subscriber in ("", letter.lane)
            and self.code in ("", letter.code)
            and self.change_type in ("", letter.change_type)
            and (self.since is None or last >= self.since)
            and (self.until is None or last <= self.until)
            and (self.events is None or letter.event in self.events)
        )


def _members(store: Store, lane: str, keep: Callable[[pa.Table], pa.Array]) -> pa.Table:
    """One row per member that is to be kept, in the order of their calls; the attempts pass through in portions."""
    look = ds.field("lane") == lane if lane else None
    kept = []
    for files in _portions(store.files("attempts", where={"lane": lane} if lane else None)):
        rows = flattened(store.arrow("attempts", COLUMNS, files=files, filter=look))
        kept.append(rows.filter(keep(rows)))
    return pa.concat_tables(kept).sort_by([("lane", "ascending"), ("cycle", "ascending")])


def _portions(files: Iterable[AddFile]) -> Iterator[list[AddFile]]:
    """Files together as long as they are small; one portion at least."""
    portion: list[AddFile] = []
    for file in files:
        portion.append(file)
        if sum(one.rows for one in portion) >= PORTION:
            yield portion
            portion = []
    yield portion


ANY = Wanted()


def dead_letters(store: Store, data: Path, wanted: Wanted = ANY) -> list[Letter]:
    """Every wanted delivery whose last end is the dead letters, oldest first.

    The attempts are read twice, however many letters there are: for what ended here, then for what was tried before and after.
    """
    ended = _members(store, wanted.subscriber, lambda rows: pc.equal(rows["final"], DEAD))["event_id"].combine_chunks()
    calls: dict[tuple[str, str], list[dict[str, Any]]] = {}
    found = _members(store, wanted.subscriber, lambda rows: pc.is_in(rows["event_id"], ended)) if len(ended) else None
    for row in found.to_pylist() if found else ():
        calls.setdefault((row["lane"], row["event_id"]), []).append(row)
    dead = {place: rows for place, rows in calls.items() if _last(rows)["final"] == DEAD}
    said = {lane: _said(data, lane) for lane in {lane for lane, _ in dead}}
    letters = [_letter(rows, said[lane].get(event, ())) for (lane, event), rows in dead.items()]
    return sorted(filter(wanted.takes, letters), key=lambda letter: (letter.last, letter.lane, letter.event))


def _last(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of the last end, or nothing."""
    return next((row for row in reversed(rows) if row["final"]), {"final": None})


def _said(data: Path, lane: str) -> dict[str, list[control.Request]]:
    """What was asked of a lane, by event."""
    found: dict[str, list[control.Request]] = {}
    for request in control.asked(data, lane):
        if request.event:
            found.setdefault(request.event, []).append(request)
    return found


def _letter(rows: Sequence[dict[str, Any]], asked: Iterable[control.Request]) -> Letter:
    row = _last(rows)
    at = row["finished"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    said = [request.action for request in asked if request.at > at]
    # An end without a call (a doubt that time decided) counts none of its own.
    tried = [one for one in rows if one["attempt"]]
    return Letter(
        lane=row["lane"],
        event=row["event_id"],
        change_type=row["change_type"] or (tried[-1]["change_type"] if tried else "") or "",
        code=row["code"] or "",
        attempts=max((one["attempt"] for one in tried), default=0),
        first=(tried[0] if tried else row)["started"].isoformat(timespec="milliseconds"),
        last=row["finished"].isoformat(timespec="milliseconds"),
        source=row["source"],
        generation=row["generation"],
        offset=row["offset"],
        cycle=row["cycle"],
        status=row["status"],
        state=STATES.get(said[-1], "open") if said else "open",
    )


def overage(letters: Iterable[Letter], schedule: Schedule, today: date, erasures: bool = False) -> list[Letter]:
    """Open letters whose time is over. An erasure that a subscriber never took stays open unless somebody says otherwise."""
    return [
        letter
        for letter in letters
        if letter.state == "open"
        and (erasures or letter.change_type not in ERASING)
        and schedule.over(datetime.fromisoformat(letter.last).astimezone(UTC).date(), today)
    ]


def ask(data: Path, letters: Iterable[Letter], action: control.Action, reason: str, by: str = "") -> int:
    """Ask the same of all of these: one durable append per lane."""
    by_lane: dict[str, list[Mapping[str, str | int | tuple[str, ...]]]] = {}
    for letter in letters:
        by_lane.setdefault(letter.lane, []).append(letter.place)
    return sum(len(control.ask_all(data, lane, action, reason, by, places)) for lane, places in by_lane.items())


def history(store: Store, event: str) -> list[dict[str, Any]]:
    """Everything that was tried for one event, call by call."""
    rows = _members(store, "", lambda rows: pc.equal(rows["event_id"], event)).to_pylist()
    kept = ("lane", "call", "intent", "attempt", "status", "result", "code", "strength", "final")
    return [
        {name: row[name] for name in kept}
        | {
            name: row[name].isoformat(timespec="milliseconds") if row[name] else None
            for name in ("finished", "next_due")
        }
        for row in sorted(rows, key=lambda row: (row["finished"], row["lane"], row["cycle"], not row["intent"]))
    ]


def sendable(store: Store, letters: Iterable[Letter]) -> list[Letter]:
    """Those of which what the event said is still there; a read per feed."""
    by_feed: dict[Feed, list[Letter]] = {}
    for letter in letters:
        by_feed.setdefault(Feed(letter.source, letter.generation), []).append(letter)
    there: set[str] = set()
    for feed, mine in by_feed.items():
        offsets = {letter.offset for letter in mine}
        look = ds.field("offset").isin(pa.array(sorted(offsets), pa.int64())) & ds.field("payload").is_valid()
        rows = store.arrow("journal", ["event_id"], files=spanning(store, feed, offsets), filter=look)
        there |= set(rows["event_id"].to_pylist())
    return [letter for mine in by_feed.values() for letter in mine if letter.event in there]


def still_dead(store: Store, data: Path, events: set[str], between: tuple[datetime, datetime]) -> set[str]:
    """Events among these with a dead letter that nobody has answered for; only calls of that stretch of time are read.

    An answer is an approval, the letter's own end by age, or another try that ended otherwise.
    """
    first, last = (pa.scalar(moment, MOMENT) for moment in (between[0] - SLACK, between[1] + SLACK))
    ended = _ends(store, (ds.field("finished") >= first) & (ds.field("finished") <= last), events)
    dead = [place for place, final in ended.items() if final == DEAD]
    said = {lane: _said(data, lane) for lane in {lane for lane, _ in dead}}
    return {event for lane, event in dead if not _answered(store, said[lane].get(event, ()), lane, event)}


def _answered(store: Store, said: Iterable[control.Request], lane: str, event: str) -> bool:
    actions = {request.action: request.at for request in reversed(list(said))}
    if any(action in actions for action in ANSWERS):
        return True
    if "retry" not in actions:
        return False
    since = pa.scalar(datetime.fromisoformat(actions["retry"]), MOMENT)
    later = _ends(store, (ds.field("lane") == lane) & (ds.field("finished") >= since), {event})
    return later.get((lane, event), DEAD) != DEAD


def _ends(store: Store, look: ds.Expression, events: set[str]) -> dict[tuple[str, str], str]:
    """(lane, event) → its last end among these calls."""
    rows = flattened(store.arrow("attempts", ["lane", "cycle", "members"], filter=look))
    known = pc.and_(pc.is_in(rows["event_id"], pa.array(sorted(events), pa.string())), pc.is_valid(rows["final"]))
    found = rows.filter(known).sort_by("cycle").to_pylist()
    return {(row["lane"], row["event_id"]): row["final"] for row in found}
