"""The desk's rounds: what time does to requests. Clocks, words about time, letters, incidents and the sweeper, as steps to write.

    due(request)       until when, when a request is taken in
    said(word, slip)   a word about time, a letter sent by hand, or an incident → rows
    tick(now)          once a minute: escalations, breaches, extensions that took effect, letters that are owed
    causes(now)        what the operator is alerted of

Everything is written through the desk's steps, which number, commit and attest; a letter leaves only after the step that announces it
is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from tidings.matters import Kind
from tidings.rights import extensions, incidents, letters, sweeper
from tidings.rights.asks import Word
from tidings.rights.book import Book, Request, Row
from tidings.rights.clocks import Laws, due_of
from tidings.rights.drafts import Draft
from tidings.rights.post import Office, office_of
from tidings.rights_shapes import Rights

if TYPE_CHECKING:
    from tidings.settings import Settings

EVERY = timedelta(minutes=1)
HAND = "letter:"  # `done` of this recipient is a letter that a person sent


class Steps(Protocol):
    """The only writer of the table: one row after the last step, folded into the book; then one commit of many."""

    def row(
        self,
        request: Request,
        what: str,
        state: str = "",
        *,
        actor: str = "",
        reason: str = "",
        details: Mapping[str, str] | None = None,
        **columns: Any,
    ) -> Row: ...

    def commit(self, rows: Sequence[Row]) -> None: ...


@dataclass
class Rounds:
    """`contact_of` opens where letters of a request go; empty when it is not known any more."""

    book: Book
    steps: Steps
    office: Office
    contact_of: Callable[[Request], str]
    capsule_age: timedelta = timedelta(days=30)
    looked: datetime | None = None
    others: Sequence[Callable[[datetime], None]] = ()  # what else time ends: holds

    def due(self, request: Request, now: datetime) -> datetime:
        return due_of(request, self.office.laws, now)

    @staticmethod
    def mine(word: Word) -> bool:
        """Is this a word that the rounds answer?"""
        by_hand = word.action == "done" and word.recipient.startswith(HAND)
        return by_hand or word.action in (*extensions.ACTIONS, "incident")

    def said(self, word: Word, slip: str, now: datetime) -> Iterator[Row]:
        """The one step that a word makes; a slip that was taken up before makes none."""
        laws, request = self.office.laws, self.book.requests.get(word.request)
        known = {"slip": slip}
        if request is None:
            if word.action == "incident" and word.says.get("what") == "open":
                made, draft = incidents.opened(word, laws)
                yield self._row(draft, made, known, jurisdiction=made.jurisdiction)
        elif not any(step.details.get("slip") == slip for step in request.steps):
            yield self._row(self._answer(request, word, now), request, known)

    def _answer(self, request: Request, word: Word, now: datetime) -> Draft:
        if word.action == "incident":
            return incidents.answer(request, word, self.office.laws, now)
        if word.action == "done":
            return letters.by_hand(request, word.recipient.removeprefix(HAND), word.by, word.evidence)
        return extensions.answer(request, word, self.office.laws, now)

    def tick(self, now: datetime) -> None:
        """A round, if the last one was a minute ago."""
        if self.looked is None or now - self.looked >= EVERY:
            self.looked = now
            self.look(now)

    def look(self, now: datetime) -> None:
        """One round. What it finds is committed before any letter leaves."""
        laws, watched = self.office.laws, self.watched()
        found = sweeper.Sweep(laws, self.capsule_age)(watched, now)
        found += [one for request in watched if (one := extensions.took_effect(request, laws, now))]
        drafts, ready = self.office.prepare(watched, self.contact_of, now)
        self._write([*found, *drafts])
        self._write(self.office.give(ready))
        for other in self.others:
            other(now)

    def causes(self, now: datetime) -> list[tuple[Kind, str, str]]:
        return sweeper.causes(self.watched(), self.office.laws, now)

    def watched(self) -> list[Request]:
        """Requests that are open, and those that have ended and owe a letter."""
        return [one for one in list(self.book.requests.values()) if one.open or sweeper.owes(one)]

    def _write(self, drafts: Sequence[Draft]) -> None:
        if drafts:
            self.steps.commit([self._row(one, self.book.requests[one.request], {}) for one in drafts])

    def _row(self, draft: Draft, request: Request, known: Mapping[str, str], **columns: Any) -> Row:
        more: dict[str, Any] = columns | ({"due": draft.due} if draft.due else {})
        said = {**draft.details, **known}
        return self.steps.row(
            request, draft.what, draft.state, actor=draft.actor, reason=draft.reason, details=said, **more
        )


def rounds_of(settings: Settings, laws: Laws, book: Book, steps: Steps, contact_of: Callable[[Request], str]) -> Rounds:
    """The rounds of an operator's folder."""
    rights = settings.operator.rights or Rights()
    office = office_of(settings, laws)
    return Rounds(book, steps, office, contact_of, timedelta(days=rights.capsule_days))
