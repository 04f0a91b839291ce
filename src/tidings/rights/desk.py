"""The desk: takes requests in, finds out who and whether, and sees each through to its end. One hand of a run; no Spark.

    slips → received ─known? sure? held? shared?→ verifying, waiting, review, refused → working ─lanes, people→ fulfilled

It works from the tables alone: the book of requests, new versions of the journal (erasures that sources report, and what its own messages
became), new versions of the attempts (how recipients answered). Killed anywhere it goes on from there; what it did twice counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings.rights import capsule, intake, lifting
from tidings.rights.asking import Asking
from tidings.rights.asks import Ask
from tidings.rights.book import TABLE, Book, Request, Row
from tidings.rights.changing import PERSON
from tidings.rights.erasing import ASKED, Erasing, Ready
from tidings.rights.order import in_causal_order
from tidings.rights.people import Person
from tidings.rights.releasing import Releasing
from tidings.rights.rounds import rounds_of
from tidings.rights.saying import Words
from tidings.rights.steps import Steps
from tidings.rights.sweeper import owes
from tidings.seal.keyfiles import KeyFiles

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.store import Store

AT_ONCE = 1_000  # requests in one commit
KEEP_EVERY = 500  # versions of the journal between two marks of how far it was read
CURSOR, ANSWERS = "desk/journal", "desk/attempts"


class Desk:
    """`position` says which version of a table the ledger holds."""

    def __init__(self, settings: Settings, store: Store, position: Callable[[str], int | None]) -> None:
        self.settings, self.store, self.position = settings, store, position
        self.keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
        self.book = Book(store, _done).refresh()
        self.steps = Steps(store, self.book, f"tidings/{settings.tenant}")
        self.erasing = Erasing(settings, store, self.keys, self.book, self.steps)
        self.asking = Asking(settings, store, self.erasing, self.steps)
        self.rounds = rounds_of(settings, self.asking.laws, self.book, self.steps, self._contact)
        self.releasing = Releasing(self.erasing)
        self.rounds.others = (self.releasing.sweep,)
        self.words = Words(self.book, self.steps, self.releasing, self.asking)
        self.kept = store.transaction_version(TABLE, ANSWERS)
        self.read = {name: store.transaction_version(TABLE, name) for name in (CURSOR, ANSWERS)}
        # Events that ask for an erasure and wait for their request to get there.
        waiting = [one for one in self.book.open if one.happened("asked") and not one.happened("committed")]
        self.under_way = False  # an erasure that has left `asked` and is in no table yet
        self.asked: dict[str, Row] = self.erasing.asked(waiting)
        self.sight = self.erasing.sight

    def recover(self) -> None:
        """Before any batch: what a crash left half-destroyed is destroyed."""
        self.erasing.recover()
        self.releasing.recover()
        self.erasing.tidy(self.book.open)

    def step(self) -> None:
        self._slips()
        self._follow_journal()
        self.releasing.finish()
        self.under_way = self._may_begin()  # until it is committed nothing else tells of it
        self.erasing.commit(list(self._ready()))
        self.under_way = False
        self.erasing.dispatch(self._attested)
        self.releasing.tell(self._attested)
        self._follow_answers()
        self._waited()
        self._forget_asks()
        self.rounds.tick(datetime.now(UTC))

    def idle(self) -> bool:
        """Is everything taken in, looked at and handed on that can be?"""
        read = self.read[CURSOR] == self.store.version("journal")
        heard = not self.book.listening or self.read[ANSWERS] == self.store.version("attempts")
        ready = self.under_way or self._may_begin()
        return (
            read
            and heard
            and not self.book.moving
            and not self.book.queued
            and not self.releasing.moving()
            and not ready
            and next(intake.waiting(self.settings), None) is None
        )

    def _may_begin(self) -> bool:
        return any(self.book.requests[name].state == "working" for name in list(self.asked))

    def _contact(self, request: Request) -> str:
        if lifting.pending(request) and (known := self.asking.carrying.address(request)):
            return known
        ask = self.asking.ask_of(request)
        return ask.contact if ask else ""

    def _forget_asks(self) -> None:
        """What a person gave us goes when their request is over and every letter is sent."""
        touched = [self.book.requests[name] for name in self.book.touched]
        self.book.touched.clear()
        ended = [one for one in touched if not one.open and not over(one) and not owes(one)]
        if ended:
            self.keys.erase(*[self.asking.tag_of(one) for one in ended])
            self.steps.commit([self.steps.row(one, "ask_forgotten") for one in ended])

    def _attested(self) -> bool:
        head = self.store.version(TABLE)
        return head is not None and self.position(TABLE) == head

    def _slips(self) -> None:
        self.sight.put_away()
        taken = in_causal_order(islice(intake.waiting(self.settings), AT_ONCE))
        self.asking.foresee([slip.body for slip in taken if isinstance(slip.body, Ask)])
        rows: list[Row] = []
        for slip in taken:
            if isinstance(slip.body, Ask):
                rows += self.asking.received(slip.request, slip.body)
            elif self.rounds.mine(slip.body):
                rows += self.rounds.said(slip.body, slip.path.name, datetime.now(UTC))
            else:
                rows += self.words.said(slip.body, slip.path.name)
        self.asking.hand_over()
        self.steps.commit(rows)
        intake.take_away(taken)
        answered = {row["request"] for row in rows if row["what"] in ("acknowledged", "excepted")}
        if answered:
            self.erasing.tidy([self.book.requests[name] for name in answered])
        if any(row["what"] == "hold_released" for row in rows):
            self.releasing.carry_out()

    def _waited(self) -> None:
        """Requests whose time to be taken back is over go on."""
        now = datetime.now(UTC).isoformat()
        due = [one for one in self.book.pausing.values() if one.details.get("until", "") <= now]
        self._go_on([*due, *self.book.queued.values()], self.asking.begin)
        self._go_on([one for one in self.book.ending.values() if lifting.may_begin(one)], self.asking.carrying.lift)

    def _go_on(self, requests: list[Request], how: Callable[[Request], Iterable[Row]]) -> None:
        if requests := requests[:AT_ONCE]:
            self.sight.put_away()
            self.asking.foresee([], requests)
            rows = [row for one in requests for row in how(one)]
            self.asking.hand_over()
            self.steps.commit(rows)

    def _follow_journal(self) -> None:
        head = self.store.version("journal")
        at = self.read[CURSOR]
        for version in range(0 if at is None else at + 1, 0 if head is None else head + 1):
            rows = self._rights_rows(version)
            if rows or version % KEEP_EVERY == 0:
                self.steps.commit([step for row in rows for step in self._met(row)], {CURSOR: version})
            self.read[CURSOR] = version

    def _rights_rows(self, version: int) -> list[Row]:
        """Erasures, and what our own messages became, among the rows of one version; two columns are read of the others."""
        files = self.store.added("journal", version)
        if not files:
            return []
        found = self.store.arrow("journal", ["event_id", "flags", "source"], files=files)
        flagged = pc.greater(pc.fill_null(pc.list_value_length(found["flags"]), 0), 0)
        mine = pc.or_(flagged, pc.equal(found["source"], capsule.FEED[0]))
        names = [
            row["event_id"]
            for row in found.filter(mine).to_pylist()
            if row["source"] == capsule.FEED[0] or "erasure" in row["flags"]
        ]
        if not names:
            return []
        rows = self.store.arrow("journal", [*ASKED, "recipients"], files=files, filter=ds.field("event_id").isin(names))
        return [row for row in rows.to_pylist() if row["generation"] != capsule.FEED[1]]

    def _met(self, row: Row) -> Iterator[Row]:
        if "erasure" not in (row["flags"] or ()):
            yield from self.asking.carrying.journaled(row)
            return
        name = row["causation"] or sha256(f"source\x1f{row['event_id']}".encode()).hexdigest()[:32]
        request = self.book.requests.get(name)
        if request is None:
            request = Request(name, "erasure", "source", row["time"], assurance="verified")
            said: Row = {"assurance": "verified", "due": self.rounds.due(request, datetime.now(UTC))}
            yield self.steps.row(request, "received", "working", details={"source": row["source"]}, **said)
            request = self.book.requests[name]
        if not request.happened("committed") and request.open:
            place = {"feed": f"{row['source']}/{row['generation']}", "offset": str(row["offset"])}
            yield self.steps.row(request, "asked", details=place)
            self.asked[name] = row

    def _ready(self) -> Iterator[Ready]:
        """Erasures whose event is here and that nothing stands in the way of."""
        for name in [name for name in self.asked if not self.book.requests[name].open]:
            del self.asked[name]
        working = (name for name in self.asked if self.book.requests[name].state == "working")
        found = self._people(list(islice(working, AT_ONCE)))
        self.asking.look_at({tag: one for people in found.values() for tag, one in people.items()})
        rows: list[Row] = []
        for name, people in found.items():
            request = self.book.requests[name]
            if not people:
                rows.append(self.steps.row(request, "already_erased", "fulfilled"))
            elif hurdle := self.asking.hurdle(request, people):
                rows.append(self.steps.row(request, "held", "review", reason=hurdle))
                continue
            event = self.asked.pop(name)
            if people:
                yield Ready(request, event, tuple(people.values()))
        self.steps.commit(rows)

    def _people(self, names: list[str]) -> dict[str, dict[bytes, Person]]:
        """All that was asked about, whichever record came first: request → records of the person."""
        self.sight.put_away()
        events = [self.asked[name] for name in names]
        tags = self.keys.load({row["key_file"] for row in events}, {row["kid"] for row in events}) if events else {}
        of = {
            name: {tags[row["kid"]][0]} if row["kid"] in tags else set[bytes]()
            for name, row in zip(names, events, strict=True)
        }
        of = {name: found.union(self.book.requests[name].tags) for name, found in of.items()}
        self.sight.closure({tag for found in of.values() for tag in found})
        return {name: self.sight.closure(found) for name, found in of.items()}

    def _follow_answers(self) -> None:
        head, at = self.store.version("attempts"), self.read[ANSWERS]
        if not self.book.listening or head == at:
            self.read[ANSWERS] = head
            return
        finals: dict[tuple[str, str], tuple[str, str]] = {}
        for version in range(0 if at is None else at + 1, 0 if head is None else head + 1):
            files = self.store.added("attempts", version)
            finals |= (
                self._finals(self.store.arrow("attempts", ["subscriber", "members"], files=files)) if files else {}
            )
        self.read[ANSWERS] = head
        if finals:
            self.erasing.answered(finals)
        if head is not None and (finals or head - (self.kept or 0) > KEEP_EVERY):
            self.steps.commit([], {ANSWERS: head})
            self.kept = head

    def _finals(self, calls: Any) -> dict[tuple[str, str], tuple[str, str]]:
        members = pc.list_flatten(calls["members"])
        if not len(members) or not pc.any(pc.equal(pc.struct_field(members, "source"), capsule.FEED[0])).as_py():
            return {}
        found = {}
        for call in calls.to_pylist():
            for member in call["members"] or ():
                if member["source"] == capsule.FEED[0] and member["final"]:
                    found[member["event_id"], call["subscriber"]] = (member["final"], member["code"] or "")
        return found


def over(request: Request) -> bool:
    """Is nothing left to be done about it, and nothing held of what the person gave?"""
    return not (request.open or owes(request) or (request.key_file and not request.lately("ask_forgotten")))


def _done(request: Request) -> bool:
    """Can nobody come back to it? What was refused may be appealed against, a standing right lifted, what is held released."""
    standing = request.kind in PERSON or request.happened("hold_sealed")
    return over(request) and request.state != "refused" and not standing
