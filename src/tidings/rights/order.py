"""Requests of one person that meet: an erasure wins, the later in causal order wins, and a tie suppresses.

What is later is decided by when the person asked, not by when it reached us: a yes that is older than the last no of the same channel or
purpose is refused, however late it arrives. A request whose person another request is just being told about waits until that one stands
in the journal, so that each is carried out on what the one before it left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from tidings.contract import Contract
from tidings.rights.asks import Ask
from tidings.rights.book import Book, Request
from tidings.rights.intake import Slip
from tidings.rights.people import Person

ERASURE_WINS, OLDER = "erasure_wins", "older_than_opt_out"
PATIENCE = timedelta(minutes=10)  # a message that nothing came of does not hold the next request for ever
UNDER_WAY = ("waiting", "review", "working")


def in_causal_order(slips: Iterable[Slip]) -> list[Slip]:
    """Asks that lie side by side, by when the person asked: erasures first, and of two at one moment the yes last. Words stay in place."""
    found: list[Slip] = []
    asks: list[Slip] = []
    for slip in slips:
        if isinstance(slip.body, Ask):
            asks.append(slip)
            continue
        found += [*sorted(asks, key=_place), slip]
        asks = []
    return [*found, *sorted(asks, key=_place)]


def _place(slip: Slip) -> tuple[bool, datetime, bool]:
    assert isinstance(slip.body, Ask)
    return slip.body.kind != "erasure", slip.body.received, slip.body.kind == "opt_in"


class Order:
    """What the book says of other requests of the same person."""

    def __init__(self, book: Book) -> None:
        self.book = book

    def erasing(self, request: Request, people: Iterable[bytes]) -> str:
        """An erasure of this person that is under way; one that nobody has proved to come from them is none."""
        others = self._others(request, people)
        return next((one.id for one in others if one.kind == "erasure" and one.state in UNDER_WAY), "")

    def ahead(self, request: Request, people: Iterable[bytes], now: datetime) -> str:
        """A request of this person whose messages are on their way into the journal."""
        for one in self._others(request, people):
            begun = one.steps[-1].at if one.steps else now
            if one.kind != "erasure" and on_the_way(one) and now - begun < PATIENCE:
                return one.id
        return ""

    def too_late(self, ask: Ask, person: Person, contract: Contract, fields: Mapping[str, object]) -> set[str]:
        """The fields to which this yes is not newer than the last no."""
        consents, found = dict(contract.consents), set()
        for path in fields:
            one = consents.get(path)
            key = (one.class_, one.channel, one.purpose) if one else ("", "", "")
            said = [self._when(moment, cause) for moment, cause in person.withdrawn.get(key, ())]
            if any(ask.received <= moment for moment in said):
                found.add(path)
        return found

    def _when(self, moment: datetime, cause: str) -> datetime:
        """A no that came as a request was said when the person asked."""
        request = self.book.requests.get(cause)
        return request.opened if request else moment

    def _others(self, request: Request, people: Iterable[bytes]) -> Iterator[Request]:
        names = dict.fromkeys(name for tag in {*people, *request.tags} for name in self.book.by_tag.get(tag, ()))
        for name in names:
            one = self.book.requests[name]
            if one.open and name != request.id:
                yield one


def on_the_way(request: Request) -> bool:
    """Handed over, and not all of it in the journal."""
    asked = int(request.details.get("messages", 0))
    return request.state == "working" and len(request.happened("told")) < asked
