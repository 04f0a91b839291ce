"""The end of a restriction, an objection, a limit: a human or the person says so, the person is told first, then everybody who was told.

    lift_asked → letter:lifting → lift_begun → the same way as the right itself → fulfilled

GDPR Art. 18(3): the person is informed before a restriction is lifted, so nothing is lifted while the letter has not left. It goes to the
address of the record, not to one that somebody only claimed.
"""

from __future__ import annotations

from tidings.rights.asks import Ask
from tidings.rights.book import Request
from tidings.rights.changing import PERSON
from tidings.rights.sweeper import SILENT_WAYS

ACTION = "lift"
LETTER = "letter:lifting"


def standing(request: Request) -> bool:
    """Is this right in force, so that it can be lifted?"""
    said = request.happened("told") or request.happened("nothing_to_change")
    return request.kind in PERSON and bool(said) and not request.happened("lift_asked")


def pending(request: Request) -> bool:
    """Somebody wants it lifted, and nothing was lifted yet."""
    return bool(request.happened("lift_asked")) and not request.happened("lift_begun")


def may_begin(request: Request) -> bool:
    """Was the person told? Somebody who only sent a signal left no address."""
    return pending(request) and (request.way in SILENT_WAYS or bool(request.happened(LETTER)))


def ask_again(request: Request) -> Ask:
    """What the request was about, without the person: what they gave may be forgotten by now."""
    scope = tuple(one for one in request.details.get("scope", "").split(",") if one)
    return Ask(request.kind, (), request.way, request.opened, scope=scope)
