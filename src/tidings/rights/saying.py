"""What people say of a request that is under way: proofs, approvals, refusals, evidence. Each word is a step with who said it.

An exception of an erasure and the end of a hold take two different people. What comes too late is a step as well, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidings.rights import lifting
from tidings.rights.asking import Asking
from tidings.rights.asks import ASSURANCES, Word, same_name
from tidings.rights.book import Book, Part, Request, Row
from tidings.rights.releasing import Releasing
from tidings.rights.steps import Steps

EARLY = ("received", "verifying", "waiting", "review")


class Words:
    """`said` gives the steps that a word makes; the desk commits them."""

    def __init__(self, book: Book, steps: Steps, releasing: Releasing, asking: Asking) -> None:
        self.book, self.steps, self.releasing, self.asking = book, steps, releasing, asking

    def said(self, word: Word, slip: str) -> Iterator[Row]:
        request = self.book.requests.get(word.request)
        if request is None or any(step.details.get("slip") == slip for step in request.steps[-50:]):
            return
        said: dict[str, Any] = {"actor": word.by, "reason": word.reason}
        base = {"slip": slip} | ({"evidence": word.evidence} if word.evidence else {})
        early = request.state in EARLY and not request.happened("committed")
        if word.action == "verify" and early:
            yield from self._verified(request, word, base)
        elif word.action == "cancel" and early:
            yield self.steps.row(request, "cancelled", "cancelled", details=base, **said)
        elif word.action == "refuse" and early:
            yield self.steps.row(request, "refused", "refused", details=base, **said)
        elif word.action == "approve" and request.state == "review":
            yield from self._approved(request, word, base)
        elif word.action == "done" and word.evidence and _by_hand(request):
            yield self.steps.row(request, "answered", "fulfilled", details=base, **said)
        elif word.action in ("done", "except") and word.recipient in request.parts:
            yield from self._answered(request, request.parts[word.recipient], word, base)
        elif word.action == lifting.ACTION and lifting.standing(request):
            yield self.steps.row(request, "lift_asked", "working", details=base, **said)
        elif word.action == "release" and self.releasing.of(request):
            yield from self.releasing.said(request, word, base)
        elif word.action == "hold" and request.open:
            yield self.steps.row(request, f"{word.action}_asked", details=base | dict(word.says), **said)
        else:
            yield self.steps.row(request, "word_refused", details=base | {"action": word.action}, **said)

    def _verified(self, request: Request, word: Word, base: dict[str, str]) -> Iterator[Row]:
        sure = word.says.get("assurance", "verified")
        sure = sure if sure in ASSURANCES else "claimed"
        best = max(sure, request.assurance, key=ASSURANCES.index)
        yield self.steps.row(request, "verified", assurance=best, details=base, actor=word.by, reason=word.reason)
        if request.state == "verifying":
            yield from self.asking.begin(request)

    def _approved(self, request: Request, word: Word, base: dict[str, str]) -> Iterator[Row]:
        """What the request was held for is answered for by somebody; a hold that is released takes two."""
        hurdle = next((step.reason for step in reversed(request.steps) if step.what == "held"), "")
        once = [step for step in request.happened("approval_asked") if step.details.get("hurdle") == hurdle]
        base = base | {"hurdle": hurdle}
        if hurdle == "legal_hold" and all(same_name(step.actor, word.by) for step in once):
            yield self.steps.row(request, "approval_asked", details=base, actor=word.by, reason=word.reason)
            return
        if request.kind == "appeal":
            yield self.steps.row(request, "approved", "fulfilled", details=base, actor=word.by, reason=word.reason)
            yield from self.asking.appealed(request)
            return
        state = "working" if request.happened("asked") else "received"
        yield self.steps.row(request, "approved", state, details=base, actor=word.by, reason=word.reason)
        if state == "received":
            yield from self.asking.begin(request)

    def _answered(self, request: Request, part: Part, word: Word, base: dict[str, str]) -> Iterator[Row]:
        if part.state != "open" or (word.action == "done" and (part.way != "task" or not word.evidence)):
            yield self.steps.row(request, "word_refused", details=base | {"action": word.action}, actor=word.by)
            return
        base = base | {"recipient": part.recipient}
        once = [step for step in request.happened("exception_asked") if step.details.get("recipient") == part.recipient]
        if word.action == "except" and all(same_name(step.actor, word.by) for step in once):
            yield self.steps.row(request, "exception_asked", details=base, actor=word.by, reason=word.reason)
            return
        what = "acknowledged" if word.action == "done" else "excepted"
        yield self.steps.row(request, what, details=base, actor=word.by, reason=word.reason)


def _by_hand(request: Request) -> bool:
    """Does all of it wait for one thing that a human does: a copy that is handed over, a shop that goes as a whole?"""
    copy = request.state == "working" and bool(request.details.get("bundle"))
    return copy or (request.state == "review" and bool(request.details.get("by_hand")))
