"""What an answer to many members says about each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tidings.channels.call import Member, Outcome
from tidings.channels.mapping import Scope, dig
from tidings.channels.normalise import ABSENT
from tidings.channels.verbs import Counts, Items, Verb
from tidings.channels.verdict import holds, short_code

TAKEN = ("acknowledged", "accepted")  # the subscriber has it, whatever it says of it later


def by_item(items: Items, members: Sequence[Member], scope: Scope, answered: tuple[Outcome, Any]) -> list[Outcome]:
    """One outcome per member of a request that succeeded as a whole."""
    whole, body = answered
    listed = dig(body, items.at)
    places = {_name(items, member, place, scope): place for place, member in enumerate(members)}
    said: dict[int, Outcome] = {}
    # Something else than a list where the list should be is about somebody, and we cannot tell about whom.
    strangers = not isinstance(listed, list) and listed is not ABSENT and listed is not None
    doubt = replace(whole, result="in_doubt", code="no_result", strength="A0", detail="the answer does not mention it")
    for position, item in enumerate(listed if isinstance(listed, list) else []):
        place = places.get(_match(items, item, position))
        if place is None:
            strangers = True
        elif place not in said or said[place].result in TAKEN:
            # Told of twice, the worse counts.
            said[place] = doubt if _says_nothing(items, item) else _one(items, item, whole)
    if strangers and (items.style, items.match) == ("all", "index"):
        said = {}  # More results than members: which of them is whose, nobody can say.
    # Silence means success only where failures alone are listed, and only if every one of those found its member.
    silent = whole if items.style == "failures" and not strangers else doubt
    return [replace(said.get(place, silent), event_id=member.event_id) for place, member in enumerate(members)]


def count_invalid(counts: Counts, body: Any) -> int:
    """How many members the subscriber could not use."""
    found = dig(body, counts.invalid)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def followed(verb: Verb, outcome: Outcome, body: Any) -> Outcome:
    """The outcome with the subscriber's name for the job it started: accepted, if it can be asked what became of the job.

    With no name there is nothing to follow, and no more is claimed than that it was taken.
    """
    if not verb.job or outcome.result != "acknowledged":
        return outcome
    job = short_code(dig(body, verb.job))
    if not job:
        return replace(outcome, strength=min(outcome.strength, "A1"))
    return replace(outcome, result="accepted" if verb.probe else "acknowledged", reference=job)


class Held:
    """The subjects of a call whose events must wait, since an earlier one of theirs failed."""

    def __init__(self) -> None:
        self._subjects: set[str] = set()

    def __contains__(self, subject: str) -> bool:
        return subject in self._subjects

    def note(self, members: Sequence[Member], outcomes: Sequence[Outcome]) -> None:
        """What was refused is settled and holds nobody; what failed does."""
        failed = {one.event_id for one in outcomes if one.result not in (*TAKEN, "refused")}
        self._subjects |= {member.subject for member in members if member.event_id in failed}

    def behind(self, member: Member) -> Outcome:
        detail = "an earlier event of this subject failed in the same call"
        return Outcome(member.event_id, "transient", "held_behind", detail=detail)

    def unless(self, member: Member, send: Callable[[Member], Outcome]) -> Outcome:
        """Send, unless the subject is held; and hold it when that fails."""
        if member.subject in self:
            return self.behind(member)
        outcome = send(member)
        self.note([member], [outcome])
        return outcome


def _name(items: Items, member: Member, place: int, scope: Scope) -> str:
    if items.match == "index":
        return str(place)
    return str(replace(scope, member=member).fill(items.ours))


def _match(items: Items, item: Any, position: int) -> str:
    if items.match == "index":
        # Where only failures are listed their place in the list is not their place in the request.
        found = dig(item, items.place) if items.style == "failures" else position
    else:
        found = dig(item, items.match)
    return "" if found is ABSENT else str(found)


def _says_nothing(items: Items, item: Any) -> bool:
    """Is an item without the word that would say whether it failed?"""
    asked = items.failed if items.style == "all" else None
    return asked is not None and "equals" in asked.model_fields_set and dig(item, asked.path) is ABSENT


def _one(items: Items, item: Any, whole: Outcome) -> Outcome:
    if items.style == "all" and not (items.failed and holds(items.failed, item)):
        return whole
    code = dig(item, items.code) if items.code else ABSENT
    shown = short_code(code) or "item_failed"
    if code is not ABSENT and code in items.done_codes:
        return replace(whole, code=shown)
    again = code is not ABSENT and code in items.transient_codes
    return replace(whole, result="transient" if again else "terminal", code=shown, strength="A0", reference="")
