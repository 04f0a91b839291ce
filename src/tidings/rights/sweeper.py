"""The sweeper: one look over all requests, by what they still owe. Pure: the same requests at the same moment give the same steps.

A clock that is not met is told at 50, 75 and 90 % of its window and when it ends, each once; an extension opens a new window. A request
that stays in a state beyond that state's patience is told once for each stay, whatever its clocks say, so no state that is not final can
be forgotten. A recipient that has not answered for a capsule within its age is told once. After a pause of the process itself
only the highest level is told: the levels below it say nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidings.matters import Kind
from tidings.rights.book import FINAL, Request, Step
from tidings.rights.clocks import Laws, RightClock, clocks_of, shown
from tidings.rights.drafts import Draft

LEVELS = (50, 75, 90)
# How long a request may stay in a state before a person must look, whatever its clocks say.
PATIENCE = {
    "received": timedelta(hours=1),
    "verifying": timedelta(days=10),
    "waiting": timedelta(days=1),  # beyond the operator's waiting period
    "review": timedelta(days=3),
    "working": timedelta(days=7),
}
SILENT_WAYS = ("signal", "source")  # nobody waits for an answer to a signal of a browser, or asked us at all
ANSWERS = ("letter:completion", "letter:partly")
REFUSALS = ("letter:refusal", "letter:unmatched")


@dataclass(frozen=True)
class Sweep:
    """What the operator lets a capsule wait, besides the laws."""

    laws: Laws
    capsule_age: timedelta = timedelta(days=30)

    def __call__(self, requests: Iterable[Request], now: datetime) -> list[Draft]:
        return [draft for request in requests for draft in self.one(request, now)]

    def one(self, request: Request, now: datetime) -> Iterator[Draft]:
        if not request.open and not owes(request):
            return
        for clock in clocks_of(request, self.laws, now):
            if met(request, clock) is None and clock.due is not None:
                yield from _clock_steps(request, clock, now)
        yield from self._stuck(request, now)
        yield from self._capsule(request, now)

    def _stuck(self, request: Request, now: datetime) -> Iterator[Draft]:
        if not request.open:
            return
        entered = _entered(request)
        patience = PATIENCE[request.state]
        if request.state == "waiting":
            patience += timedelta(days=self.laws.waiting_days)
        if now - entered.at <= patience or _told(request, "stuck", since=str(entered.number)):
            return
        hours = patience // timedelta(hours=1)
        why = f"In state {request.state} since {shown(entered.at)}; a person must look after {hours} hours."
        yield Draft(request.id, "stuck", why, details={"since": str(entered.number), "in": request.state})

    def _capsule(self, request: Request, now: datetime) -> Iterator[Draft]:
        sealed = _first(request, "committed")
        if sealed is None or not request.open:
            return
        for part in (one for one in request.parts.values() if one.state == "open"):
            again = [s.at for s in request.happened("recipient_released") if s.details["recipient"] == part.recipient]
            age = (again[-1] if again else sealed) + self.capsule_age
            end = age if again else min(part.deadline or age, age)
            if now > end and not _told(request, "capsule_overdue", recipient=part.recipient):
                why = f"No answer for the capsule by {shown(end)}; its identifiers are kept until there is one."
                yield Draft(request.id, "capsule_overdue", why, details={"recipient": part.recipient})


def sweep(requests: Iterable[Request], laws: Laws, now: datetime, capsule_days: int = 30) -> list[Draft]:
    """Every step that is due now; nothing that was told before."""
    return Sweep(laws, timedelta(days=capsule_days))(requests, now)


def owes(request: Request) -> bool:
    """Does a request that has ended still owe the person its letter?"""
    if request.kind == "incident" or request.way in SILENT_WAYS:
        return False
    if request.state == "refused":
        return not any(request.lately(what) for what in REFUSALS)
    return request.state == "fulfilled" and not any(request.lately(what) for what in ANSWERS)


def met(request: Request, clock: RightClock) -> datetime | None:
    """When what the clock asks for was done."""
    if clock.duty in ("authority", "people", "market"):
        done = [step for step in request.happened("notified") if step.details.get("clock") == clock.statute]
        over = [step for step in request.steps if step.what == "not_notifiable"]
        return min((step.at for step in (*done, *over)), default=None) or _ended(request, "cancelled")
    if clock.duty == "confirm":
        return _first(request, "letter:receipt") or _ended(request, *FINAL)
    if clock.duty == "complete":
        return min((step.at for what in ANSWERS for step in request.happened(what)), default=None) or _ended(
            request, "refused", "cancelled"
        )
    if clock.duty == "refuse":  # runs only against somebody who is refused
        told = min((step.at for what in REFUSALS for step in request.happened(what)), default=None)
        return told if request.state == "refused" else clock.start
    return _ended(request, *FINAL)


def _ended(request: Request, *states: str) -> datetime | None:
    return next((step.at for step in request.steps if step.state in states), None)


def _first(request: Request, what: str) -> datetime | None:
    return next((step.at for step in request.happened(what)), None)


def _clock_steps(request: Request, clock: RightClock, now: datetime) -> Iterator[Draft]:
    assert clock.due is not None
    window = "extended" if clock.extended else "first"
    said = {"clock": clock.statute, "window": window, "due": str(shown(clock.due)), "duty": clock.duty}
    if now > clock.due:
        if not _told(request, "breached", clock=clock.statute, window=window):
            yield Draft(request.id, "breached", f"{clock.law}, {clock.citation}: due {said['due']}.", details=said)
        return
    level = max((one for one in LEVELS if now - clock.start >= (clock.due - clock.start) * one / 100), default=0)
    told = [step for step in request.happened("escalated") if _fits(step, clock=clock.statute, window=window)]
    if level > max((int(step.details["level"]) for step in told), default=0):
        why = f"{level} % of the window has passed ({clock.law}, {clock.citation}); due {said['due']}."
        yield Draft(request.id, "escalated", why, details=said | {"level": str(level)})


def _told(request: Request, what: str, **details: str) -> bool:
    return any(_fits(step, **details) for step in request.happened(what))


def _fits(step: Step, **details: str) -> bool:
    return all(step.details.get(name) == value for name, value in details.items())


def _entered(request: Request) -> Step:
    """The step by which it came into the state it is in."""
    found = request.steps[-1]
    for step in reversed(request.steps):
        if step.state != request.state:
            break
        found = step
    return found


def causes(requests: Iterable[Request], laws: Laws, now: datetime) -> list[tuple[Kind, str, str]]:
    """What the operator is alerted of as long as it holds, from the steps that were told: one matter per kind of request."""
    found: dict[tuple[Kind, str], list[Request]] = {}
    for request in requests:
        for kind in _standing(request, laws, now) if request.open or owes(request) else ():
            found.setdefault((kind, request.kind), []).append(request)
    return [(kind, of, _words(many)) for (kind, of), many in sorted(found.items(), key=lambda one: one[0])]


def _standing(request: Request, laws: Laws, now: datetime) -> Iterator[Kind]:
    told = {step.what for step in request.steps} & {"breached", "escalated", "stuck", "capsule_overdue"}
    if not told:
        return
    unmet = {clock.statute: clock for clock in clocks_of(request, laws, now) if met(request, clock) is None}
    late = {name for name, clock in unmet.items() if clock.due and now > clock.due}
    if any(step.details["clock"] in late for step in request.happened("breached")):
        yield "rights_breach"
    elif any(step.details["clock"] in unmet for step in request.happened("escalated")):
        yield "rights_at_risk"
    if request.open and _told(request, "stuck", since=str(_entered(request).number)):
        yield "rights_stuck"
    waiting = {part.recipient for part in request.parts.values() if part.state == "open"}
    if any(step.details.get("recipient") in waiting for step in request.happened("capsule_overdue")):
        yield "capsule_overdue"


def _words(many: list[Request]) -> str:
    first = min(many, key=lambda one: (one.due or one.opened, one.id))
    return f"{len(many)} request{'s' if len(many) > 1 else ''}; the first is {first.id}, due {shown(first.due) or 'unknown'}"
