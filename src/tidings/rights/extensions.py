"""More time, and time that does not count: what a person may say of a request's clocks, and what becomes of it.

An extension is asked for with a reason, told to the person in a letter, and takes effect when that letter was sent inside the first
window; once, and for the laws that know one. Without the letter nothing is extended. A pause stops the clocks whose text stops.
"""

from __future__ import annotations

from datetime import datetime

from tidings.rights.asks import Word
from tidings.rights.book import Request
from tidings.rights.clocks import Laws, RightClock, clocks_of, due_of, extension_sent, pauses_of, shown
from tidings.rights.drafts import Draft

ACTIONS = ("extend", "pause", "resume")


def answer(request: Request, word: Word, laws: Laws, now: datetime) -> Draft:
    """The step that a word makes; a word that is not allowed becomes a step that says why."""
    why = {"extend": _no_extension, "pause": _no_pause, "resume": _no_resume}[word.action](request, word, laws, now)
    if why:
        return Draft(request.id, "declined", why, word.by, {"action": word.action})
    if word.action == "extend":
        return Draft(request.id, "extension_asked", word.reason, word.by, {"letter_by": _letter_by(request, laws, now)})
    what = "paused" if word.action == "pause" else "resumed"
    return Draft(request.id, what, word.reason, word.by, due=due_of(request, laws, now))


def _extensible(request: Request, laws: Laws, now: datetime) -> list[RightClock]:
    return [clock for clock in clocks_of(request, laws, now) if clock.extension and clock.first]


def _letter_by(request: Request, laws: Laws, now: datetime) -> str:
    open_ = [clock.first for clock in _extensible(request, laws, now) if clock.first and now <= clock.first]
    return str(shown(min(open_)))


def _no_extension(request: Request, word: Word, laws: Laws, now: datetime) -> str:
    if not request.open:
        return f"The request is {request.state}; its clock has ended."
    if not word.reason.strip():
        return "An extension needs a reason, which the person is told."
    if extension_sent(request) or request.happened("extension_asked"):
        return "An extension is granted once."
    known = _extensible(request, laws, now)
    if not known:
        return "None of the laws of this request knows an extension."
    if all(clock.first and now > clock.first for clock in known):
        last = max(clock.first for clock in known if clock.first)
        return f"The first window ended at {shown(last)}; an extension is told inside it."
    return ""


def _no_pause(request: Request, word: Word, laws: Laws, now: datetime) -> str:
    if not request.open:
        return f"The request is {request.state}; its clock has ended."
    if not word.reason.strip():
        return "A pause needs a reason: what is missing, and since when it was asked for."
    if _paused(request, now):
        return "The clock stands already."
    named = [laws.statutes[one.statute] for one in clocks_of(request, laws, now) if one.statute in laws.statutes]
    if not any(statute.pause == "text" for statute in named):
        return "None of the laws of this request stops its clock; the practice of an authority is no text."
    return ""


def _no_resume(request: Request, word: Word, laws: Laws, now: datetime) -> str:
    return "" if _paused(request, now) else "The clock is running."


def _paused(request: Request, now: datetime) -> bool:
    what = [step.what for step in request.steps if step.what in ("paused", "resumed")]
    return bool(what) and what[-1] == "paused" and bool(pauses_of(request, now))


def took_effect(request: Request, laws: Laws, now: datetime) -> Draft | None:
    """After the letter: the new end, or that the letter came too late and nothing is extended. Once."""
    sent = extension_sent(request)
    if sent is None or request.happened("extended") or request.happened("extension_lapsed"):
        return None
    longer = [clock for clock in clocks_of(request, laws, now) if clock.extended]
    if not longer:
        late = f"The letter left at {shown(sent)}, after the first window: nothing is extended."
        return Draft(request.id, "extension_lapsed", late, details={"sent": str(shown(sent))})
    asked = request.happened("extension_asked")
    reason, by = (asked[0].reason, asked[0].actor) if asked else ("", "")
    said = {"sent": str(shown(sent)), "clocks": ",".join(clock.statute for clock in longer)}
    return Draft(request.id, "extended", reason, by, said, due=due_of(request, laws, now))
