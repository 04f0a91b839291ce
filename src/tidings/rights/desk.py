"""The desk: takes requests in, finds out who and whether, and sees each through to its end. One hand of a run; no Spark.

    slips → received ─known? sure? held? shared?→ verifying, waiting, review, refused → working ─lanes, people→ fulfilled

It works from the tables alone: the book of requests, new versions of the journal (erasures that sources report, and what its own messages
became), new versions of the attempts (how recipients answered). Killed anywhere it goes on from there; what it did twice counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings.rights import capsule, intake
from tidings.rights.asking import Asking
from tidings.rights.asks import Ask
from tidings.rights.book import TABLE, Book, Request, Row
from tidings.rights.erasing import ASKED, Erasing, Ready
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
        self.book = Book(store).refresh()
        self.steps = Steps(store, self.book, f"tidings/{settings.tenant}")
        self.erasing = Erasing(settings, store, self.keys, self.book, self.steps)
        self.asking = Asking(settings, store, self.erasing, self.steps)
        self.rounds = rounds_of(settings, self.asking.laws, self.book, self.steps, self._contact)
        self.words = Words(self.book, self.steps, self.erasing, self.asking)
        self.kept = store.transaction_version(TABLE, ANSWERS)
        self.read = {name: store.transaction_version(TABLE, name) for name in (CURSOR, ANSWERS)}
        held = (one for one in self.book.requests.values() if one.key_file and not one.happened("ask_forgotten"))
        self.asks = {one.id: one for one in held}  # requests whose ask can still be opened
        # Events that ask for an erasure and wait for their request to get there.
        waiting = [one for one in self.book.open if one.happened("asked") and not one.happened("committed")]
        self.under_way = False  # an erasure that has left `asked` and is in no table yet
        self.asked: dict[str, Row] = {one.id: self.erasing.asked(one) for one in waiting}

    def recover(self) -> None:
        """Before any batch: what a crash left half-destroyed is destroyed."""
        self.erasing.recover()
        self.erasing.tidy()

    def step(self) -> None:
        self._slips()
        self._follow_journal()
        self.under_way = self._may_begin()  # until it is committed nothing else tells of it
        self.erasing.commit(list(self._ready())[:AT_ONCE])
        self.under_way = False
        self.erasing.dispatch(self._attested)
        self._follow_answers()
        self._waited()
        self._forget_asks()
        self.rounds.tick(datetime.now(UTC))

    def idle(self) -> bool:
        """Is everything taken in, looked at and handed on that can be?"""
        moving = any(one.happened("committed") and not one.happened("told") for one in self.book.open)
        read = self.read[CURSOR] == self.store.version("journal")
        heard = not self._listening() or self.read[ANSWERS] == self.store.version("attempts")
        ready = self.under_way or self._may_begin()
        return read and heard and not moving and not ready and next(intake.waiting(self.settings), None) is None

    def _may_begin(self) -> bool:
        return any(self.book.requests[name].state == "working" for name in list(self.asked))

    def _contact(self, request: Request) -> str:
        ask = self.asking.ask_of(request)
        return ask.contact if ask else ""

    def _forget_asks(self) -> None:
        """What a person gave us goes when their request is over and every letter is sent."""
        over = [one for one in self.asks.values() if not one.open and not owes(one)]
        if over:
            self.keys.erase(*[self.asking.tag_of(one) for one in over])
            self.steps.commit([self.steps.row(one, "ask_forgotten") for one in over])
        self.asks = {one.id: one for one in self.asks.values() if one.id not in {gone.id for gone in over}}
        self.asks |= {one.id: one for one in self.book.open if one.key_file}

    def _attested(self) -> bool:
        head = self.store.version(TABLE)
        return head is not None and self.position(TABLE) == head

    def _slips(self) -> None:
        taken = []
        rows: list[Row] = []
        for slip in intake.waiting(self.settings):
            if isinstance(slip.body, Ask):
                rows += self.asking.received(slip.request, slip.body)
            elif self.rounds.mine(slip.body):
                rows += self.rounds.said(slip.body, slip.path.name, datetime.now(UTC))
            else:
                rows += self.words.said(slip.body, slip.path.name)
            taken.append(slip)
            if len(taken) >= AT_ONCE:
                break
        self.steps.commit(rows)
        intake.take_away(taken)
        if any(row["what"] in ("acknowledged", "excepted") for row in rows):
            self.erasing.tidy()

    def _waited(self) -> None:
        """Requests whose time to be taken back is over go on."""
        now = datetime.now(UTC).isoformat()
        over = [one for one in self.book.open if one.state == "waiting" and one.details.get("until", "") <= now]
        self.steps.commit([row for one in over for row in self.asking.begin(one)])

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
            yield from self.asking.journaled(row)
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
        for name, event in list(self.asked.items())[:AT_ONCE]:
            request = self.book.requests[name]
            if request.state != "working":
                if not request.open:
                    del self.asked[name]
                continue
            del self.asked[name]
            tags = {tag for tag, _ in self.keys.load([event["key_file"]], {event["kid"]}).values()}
            people = self.erasing.closure(
                tags.union(request.tags)
            )  # all that was asked about, whichever record came first
            if not people:
                self.steps.commit([self.steps.row(request, "already_erased", "fulfilled")])
                continue
            if hurdle := self.asking.hurdle(request, people):
                self.asked[name] = event
                self.steps.commit([self.steps.row(request, "held", "review", reason=hurdle)])
                continue
            yield Ready(request, event, tuple(people.values()))

    def _listening(self) -> bool:
        return any(
            part.state == "open" and part.way == capsule.LANE for one in self.book.open for part in one.parts.values()
        )

    def _follow_answers(self) -> None:
        head, at = self.store.version("attempts"), self.read[ANSWERS]
        if not self._listening() or head == at:
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
