"""The replay buffer: the journal read again for one subscriber, each event with what a replay would do with it. No Spark.

An order says which stretch, which kinds and whose. Files are chosen by their statistics and rows are read in slices, in offset order, so
memory does not grow with the journal. No payload is read. The order names no person: it points at a key, which an erasure takes away.

    send         nobody acknowledged it and nothing newer of that person and consent class
    acknowledged the subscriber has it
    in_doubt     it may have it; only `again` sends it
    superseded   the subscriber has something newer, or with `latest` there is something newer to send
    erased       the person was erased: nothing opens it
    expired      what it said is gone, its time was over
    refused      it was not meant for this subscriber when it was decided
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings.gate.decisions import decided_in
from tidings.grouping import BARE, KEPT
from tidings.lanes.attempts import MOMENT
from tidings.lanes.member import Delivery, Feed, Rules, Semantics
from tidings.lanes.slices import COLUMNS, Entry, Owed, entries
from tidings.lanes.standing import NEWEST, Standing, placed, reduced, tags_of, who
from tidings.seal.keyfiles import KeyFiles
from tidings.store import AddFile, Store, worn

MOST_ROWS = 20_000
LAST_TIER = 9  # live deliveries go first; aging lifts a replayed one from here like any other
WORDS = ("send", "acknowledged", "in_doubt", "superseded", "erased", "expired", "refused")


@dataclass(frozen=True)
class Order:
    """What is to be sent again. `rate` is deliveries a second (0: as the lane allows), `most` how many may be open at once."""

    start: float = 0.0  # journaled from … until, in seconds since 1970
    end: float | None = None
    types: tuple[str, ...] = ()
    people: tuple[tuple[str, str], ...] = ()  # (key file, key id): whoever these keys belong to
    again: bool = False
    bootstrap: bool = False
    latest: bool = False
    rate: float = 0.0
    most: int = 100
    count: int = 0  # that were to be sent when it was asked for

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Order:
        lists = {"types": tuple(said.get("types", ())), "people": tuple((a, b) for a, b in said.get("people", ()))}
        return cls(**{**said, **lists})

    def as_dict(self) -> dict[str, Any]:
        """Without what is as usual."""
        usual = asdict(Order())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    def words(self) -> str:
        """The range as the ledger keeps it."""
        ends = [
            _time(self.start) if self.start else "the beginning",
            _time(self.end) if self.end else "the live cursor",
        ]
        kinds = f", types {','.join(self.types)}" if self.types else ""
        flags = "".join(f", {name}" for name in ("again", "bootstrap", "latest") if getattr(self, name))
        return f"{ends[0]}/{ends[1]}{kinds}{', one subject' if self.people else ''}{flags}"[:500]


class Candidate(NamedTuple):
    """One event of the range and what becomes of it."""

    word: str
    entry: Entry
    who: bytes  # person and consent class; empty when erased
    tag: bytes
    recorded: int

    def delivery(self, lane: str, feed: Feed, now: float, aging_s: float) -> Delivery:
        """As the lane takes it: below every live delivery, however old it is."""
        owed = self.entry.owed[lane]
        waited = int(max(0.0, now - self.entry.since) // aging_s)
        return Delivery(
            event_id=self.entry.event_id,
            subject=(self.tag or self.entry.kid).hex(),
            feed=feed,
            offset=self.entry.offset,
            change_type=self.entry.change_type,
            semantics=owed.semantics,
            priority=LAST_TIER + waited,
            since=self.entry.since,
            deadline=owed.deadline,
            deferred=owed.outcome == "defer",
        )


# Journal entry of an event that was decided without this subscriber → what it would be owed now, None when it makes no pair.
Newly = Callable[[str, str, str], Owed | None]


@dataclass
class Buffer:
    """One subscriber's view of the journal under an order."""

    store: Store
    keys: KeyFiles
    rules: Rules
    order: Order
    standing: Standing
    newly: Newly | None = None
    files: set[str] = field(default_factory=set)  # that were opened
    last: dict[Feed, pa.Table] = field(default_factory=dict)  # with `latest`: newest offset of each person and class
    _kids: pa.Array | None = None

    @property
    def lane(self) -> str:
        return self.rules.name

    def tops(self, upto: Mapping[Feed, int]) -> None:
        """With `latest`, look once through the range for the newest of each person and class."""
        for feed, end in upto.items() if self.order.latest else ():
            newest, above = NEWEST.empty_table(), -1
            while above < end:
                rows, above, _ = self._rows(feed, above, end)
                newest = reduced([newest, placed(self._owing(rows), self.keys)])
            self.last[feed] = newest

    def read(self, feed: Feed, above: int, upto: int) -> tuple[list[Candidate], int]:
        """The next slice, and the offset up to which it is whole."""
        rows, reached, bare = self._rows(feed, above, upto)
        tags, consents = tags_of(rows, self.keys) if rows.num_rows else [], rows["consent"].to_pylist()
        recorded = rows["recorded"].cast(MOMENT).cast(pa.int64()).to_pylist()
        made = []
        for mine, tag, consent, at in zip(self._mine(rows), tags, consents, recorded, strict=True):
            if mine is not None:
                word = self._word(feed, mine, tag, mine.offset in bare)
                made.append(Candidate(word, mine, who(tag, consent) if tag else b"", tag or b"", at))
        return self._overtaken(feed, made), reached

    def _mine(self, rows: pa.Table) -> list[Entry | None]:
        """The rows as this lane's; None for one that makes no pair here."""
        found = entries(rows, decided_in(self.store.decisions))
        if not self.order.bootstrap:
            return [entry if self.lane in entry.owed else None for entry in found]
        said = (rows[name].to_pylist() for name in ("decision", "entity", "flags"))
        return [self._added(*one) for one in zip(found, *said, strict=True)]

    def _added(self, entry: Entry, decision: str, entity: str, flags: list[str] | None) -> Entry | None:
        """The entry with a pair of its own for a subscriber that was not there when it was decided.

        One that was there and is not named was held back by its filter; a stale change is told to nobody.
        """
        there = self.lane in decided_in(self.store.decisions).choices(decision)
        if there or "stale" in (flags or ()) or self.newly is None:
            return None
        owed = self.newly(decision, entity, entry.change_type)
        return None if owed is None else entry._replace(owed={self.lane: owed})

    def _word(self, feed: Feed, entry: Entry, tag: bytes | None, bare: bool) -> str:
        if entry.owed[self.lane].outcome == "deny":
            return "refused"
        if not self.order.again and self.standing.has(feed, entry.offset):
            return "acknowledged"
        if tag is None:
            return "erased"
        if bare:
            return "expired"
        return "send" if self.order.again or self._harmless(feed, entry) else "in_doubt"

    def _harmless(self, feed: Feed, entry: Entry) -> bool:
        """Whether it cannot have a second effect: it had none, or the subscriber never forgets a key."""
        semantics = entry.owed[self.lane].semantics
        kept = self.rules.repeatable(entry.change_type) and self.rules.key_window_s is None
        return (semantics == "exactly-once" and kept) or not self.standing.doubts(feed, entry.offset, semantics)

    def _overtaken(self, feed: Feed, made: list[Candidate]) -> list[Candidate]:
        places = [(one.entry.offset, one.recorded) for one in made]
        newer = self.standing.overtaken(feed, [one.who or None for one in made], places)
        if feed in self.last:
            asked = pa.array([one.who or None for one in made], pa.binary())
            tops = self.last[feed]["offset"].take(pc.index_in(asked, value_set=self.last[feed]["who"])).to_pylist()
            newer = [old or (top is not None and top > p[0]) for old, top, p in zip(newer, tops, places, strict=True)]
        return [
            one._replace(word="superseded") if old and one.word == "send" else one
            for one, old in zip(made, newer, strict=True)
        ]

    def _owing(self, rows: pa.Table) -> pa.Table:
        """Rows that make a pair here."""
        mine = [own is not None and own.owes(self.lane) for own in self._mine(rows)]
        return rows.filter(pa.array(mine, pa.bool_()))

    def _rows(self, feed: Feed, above: int, upto: int) -> tuple[pa.Table, int, set[int]]:
        """Rows in offset order, how far they are whole, and the offsets whose payload is gone."""
        files, rest = self._chosen(feed, above, upto)
        self.files |= {file.path for file in files}
        look = (ds.field("source") == feed.source) & (ds.field("generation") == feed.generation)
        look &= (ds.field("offset") > above) & (ds.field("offset") <= upto)
        if rest is not None:
            look &= ds.field("offset") < rest
        look = self._narrowed(look)
        if sum(file.rows for file in files) > 2 * MOST_ROWS:
            offsets = self.store.arrow("journal", ["offset"], files=files, filter=look)["offset"].to_pylist()
            if len(offsets) > MOST_ROWS:
                rest = sorted(offsets)[MOST_ROWS]
                look &= ds.field("offset") < rest
        columns = [*COLUMNS, "consent", "entity", "flags"]
        rows = self.store.arrow("journal", columns, files=files, filter=look).sort_by("offset")
        gone: list[int] = []
        for prefix, more in ((BARE, look), (KEPT, look & ds.field("payload").is_null())):
            blank = [file for file in files if worn(file) == prefix]
            found = self.store.arrow("journal", ["offset"], files=blank, filter=more) if blank else None
            gone += found["offset"].to_pylist() if found is not None else []
        return rows, upto if rest is None else rest - 1, set(gone)

    def _narrowed(self, look: ds.Expression) -> ds.Expression:
        if self.order.start:
            look &= ds.field("recorded") >= pa.scalar(datetime.fromtimestamp(self.order.start, UTC), MOMENT)
        if self.order.end is not None:
            look &= ds.field("recorded") < pa.scalar(datetime.fromtimestamp(self.order.end, UTC), MOMENT)
        if self.order.types:
            look &= ds.field("change_type").isin(list(self.order.types))
        return look & ds.field("kid").isin(self._people()) if self.order.people else look

    def _people(self) -> pa.Array:
        """Every key id of the people the order points at; none when they were erased."""
        if self._kids is None:
            known = self.keys.load(
                {name for name, _ in self.order.people}, {bytes.fromhex(kid) for _, kid in self.order.people}
            )
            tags = {tag for tag, _ in known.values()}
            self._kids = pa.array(sorted(self.keys.of(tags)) if tags else [], pa.binary())
        return self._kids

    def _chosen(self, feed: Feed, above: int, upto: int) -> tuple[list[AddFile], int | None]:
        """The next files of the range by their statistics, and the first offset beyond them."""
        near = [file for file in self._near(feed, above) if _lowest(file) <= upto]
        chosen: list[AddFile] = []
        rows = 0
        for place, file in enumerate(near):
            if rows >= MOST_ROWS and _lowest(file) > above + 1:
                return chosen, _lowest(near[place])
            chosen.append(file)
            rows += file.rows
        return chosen, None

    def _near(self, feed: Feed, above: int) -> list[AddFile]:
        files = self.store.files("journal", column="offset", above=above, where=dict(feed._asdict()))
        start, end = self.order.start, self.order.end
        if start:
            files = [
                f for f in files if not isinstance(t := f.maximum.get("recorded"), datetime) or t.timestamp() >= start
            ]
        if end is not None:
            files = [
                f for f in files if not isinstance(t := f.minimum.get("recorded"), datetime) or t.timestamp() < end
            ]
        return sorted(files, key=_lowest)

    def slices(self, upto: Mapping[Feed, int]) -> Iterator[tuple[Feed, list[Candidate]]]:
        """The whole range, slice by slice."""
        for feed, end in upto.items():
            above = -1
            while above < end:
                found, above = self.read(feed, above, end)
                yield feed, found


def _lowest(file: AddFile) -> int:
    return int(cast(int, file.minimum.get("offset", 0)))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_semantics(word: str) -> Semantics:
    assert word in ("at-most-once", "at-least-once", "exactly-once"), word
    return cast(Semantics, word)
