"""How holds end: by their last day, or earlier by two people. What was held goes, and recipients under the same hold are told then.

    over, or said by two → step `hold_released` → taken out of its file → was it the request's last: `recipient_released` → told_again → answers

The step comes before the removal, so that nothing goes unattested; a kill in between is mended at the next start. A hold whose last day is over
stays while a hold of the policy in force covers its records: a date that counsel moved in `policy/` counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime

from tidings import crash
from tidings.rights import capsule
from tidings.rights.asks import Word, same_name
from tidings.rights.book import Request, Row
from tidings.rights.erasing import Erasing
from tidings.rights.holdstore import Held, told_of
from tidings.rights.steps import write
from tidings.stages.event import OFFSETS_PER_BATCH

crash.POINTS["rights.hold_released"] = "a hold: its release is written, what was held is still in its file"
crash.POINTS["rights.telling_again"] = (
    "a hold is over: that its recipients are told is written, no event is in the journal"
)
crash.POINTS["rights.told_again"] = "a hold is over: its recipients' events are in the journal, the step is not written"


class Releasing:
    """The desk's hand for holds."""

    def __init__(self, erasing: Erasing) -> None:
        self.erasing, self.book, self.steps = erasing, erasing.book, erasing.steps
        self.holding, self.files = erasing.holding, erasing.holding.files

    def recover(self) -> None:
        """What a kill left: half-written files, holds that are released, holds of erasures that never came to be."""
        self.files.tidy()
        idle = [one.hold for one in self.files.all() if self._never(self.book.requests.get(one.request))]
        self.files.remove(idle)
        self.carry_out()

    @staticmethod
    def _never(request: Request | None) -> bool:
        begun = request is not None and (request.happened("committed") or request.happened("restored"))
        return request is not None and not request.open and not begun

    def standing(self) -> list[Held]:
        """Holds that nobody has released."""
        return [one for one in self.files.all() if one.hold not in self._released(one.request)]

    def of(self, request: Request) -> list[Held]:
        return [one for one in self.standing() if one.request == request.id]

    def _released(self, name: str) -> set[str]:
        request = self.book.requests.get(name)
        return {step.details.get("hold", "") for step in request.happened("hold_released")} if request else set()

    def sweep(self, now: datetime) -> None:
        """Release what is over."""
        today = now.astimezone(UTC).date()
        over = [one for one in self.standing() if one.until and date.fromisoformat(one.until) < today]
        over = [one for one in over if self._committed(one.request) and not self._covered(one, today)]
        if over:
            self.steps.commit(list(self._release(over, reason="its last day is over")))
            self.carry_out()

    def _committed(self, name: str) -> bool:
        request = self.book.requests.get(name)
        return request is not None and bool(request.happened("committed") or request.happened("restored"))

    def _covered(self, held: Held, today: date) -> bool:
        scope = held.scope
        days = (date.fromisoformat(scope.first), date.fromisoformat(scope.last))
        sources, entities = set(scope.sources), set(scope.entities) or None
        return any(
            hold.covers(name, days, sources, entities)
            for hold in self.holding.retention(today).holds
            for name in scope.classes
        )

    def _release(self, over: list[Held], *, reason: str, actor: str = "", **more: str) -> Iterator[Row]:
        left = Counter(one.request for one in self.standing())
        left.subtract(one.request for one in over)
        for held in over:
            request = self.book.requests[held.request]
            said = {"hold": held.hold} | told_of([held]) | more
            yield self.steps.row(request, "hold_released", actor=actor, reason=reason, details=said)
        for name in dict.fromkeys(held.request for held in over):
            if not left[name]:
                yield from self._recipients(self.book.requests[name])

    def _recipients(self, request: Request) -> Iterator[Row]:
        """Those under the same hold owe an answer from now on."""
        for part in [part for part in request.parts.values() if part.state == "held"]:
            yield self.steps.row(request, "recipient_released", "working", details={"recipient": part.recipient})

    def carry_out(self) -> None:
        """Take out of the files what is released; done again it does nothing."""
        over = [one.hold for one in self.files.all() if one.hold in self._released(one.request)]
        if over:
            crash.point("rights.hold_released")
            self.files.remove(over)

    def said(self, request: Request, word: Word, base: dict[str, str]) -> Iterator[Row]:
        """A release before its time takes two different people, each with a reason."""
        mine = [one for one in self.of(request) if one.hold == word.says.get("hold")]
        if not mine or not word.reason.strip():
            yield self.steps.row(request, "word_refused", details=base | {"action": word.action}, actor=word.by)
            return
        asked = [step for step in request.happened("release_asked") if step.details.get("hold") == mine[0].hold]
        others = [step.actor for step in asked if not same_name(step.actor, word.by)]
        if not others:
            said = base | {"hold": mine[0].hold}
            yield self.steps.row(request, "release_asked", actor=word.by, reason=word.reason, details=said)
            return
        approvers = f"{others[0]},{word.by}"
        yield from self._release(mine, reason=word.reason, actor=word.by, approvers=approvers, slip=base["slip"])

    def finish(self) -> None:
        """Events that were announced before a kill, before any later ones: lanes read a feed in the order of its offsets."""
        told: dict[int, list[Request]] = {}
        for request in self.book.released.values():
            if self._owed(request, "telling_again", "told_again"):
                told.setdefault(int(request.happened("telling_again")[-1].details["again"]), []).append(request)
        for number, requests in sorted(told.items()):
            self._tell(number, requests)

    def tell(self, attested: Callable[[], bool]) -> None:
        """Hand the parts of recipients whose hold is over to their lanes, when no erasure is on its way there."""
        new = [one for one in self.book.released.values() if self._owed(one, "recipient_released", "telling_again")]
        if not new or self.book.moving or not attested():
            return
        number = str(self.steps.next)
        self.steps.commit([self.steps.row(one, "telling_again", details={"again": number}) for one in new])
        crash.point("rights.telling_again")
        self.finish()

    def moving(self) -> bool:
        return any(self._owed(one, "recipient_released", "told_again") for one in self.book.released.values())

    @staticmethod
    def _owed(request: Request, first: str, then: str) -> bool:
        """Did the one happen, and not the other after it?"""
        begun, done = request.happened(first), request.happened(then)
        return bool(begun) and (not done or done[-1].number < begun[-1].number)

    def _tell(self, number: int, requests: list[Request]) -> None:
        rows: list[Row] = []
        lost: list[tuple[Request, str]] = []
        for request in requests:
            asked = self.erasing.asked([request]).get(
                request.id
            )  # none: the row's own time is over, a human tells them
            for part in self._parts(request):
                if asked is None:
                    lost.append((request, part["recipient"]))
                    continue
                place = (number * OFFSETS_PER_BATCH + len(rows), number, datetime.now(UTC))
                own = {"key_file": f"rights-capsule-{request.details['batch']}-00000000", "deadlines": None}
                rows.append(capsule.journal_row(asked, part, *place) | own)
        store = self.erasing.store
        folder = write(store, "journal", rows) if rows else None
        store.commit("journal", folder, app="/".join(capsule.FEED), version=number)
        crash.point("rights.told_again")
        steps = [self.steps.row(one, "unanswered", details={"recipient": name}) for one, name in lost]
        self.steps.commit([*steps, *(self.steps.row(one, "told_again") for one in requests)])

    def _parts(self, request: Request) -> list[Row]:
        """The parts that were held for a lane, as they were committed."""
        mine = {step.details["recipient"] for step in request.happened("recipient_released")}
        sealed = self.erasing.sealed([request]).get(request.id, [])
        return [part for part in sealed if part["way"] == capsule.LANE and part["recipient"] in mine]
