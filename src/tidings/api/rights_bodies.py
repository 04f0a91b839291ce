"""What comes as JSON about requests, read strictly: every problem at once, and no value repeated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tidings.api.errors import ApiError
from tidings.rights.asks import ACTIONS, ASSURANCES, Ask, Identifier, Word
from tidings.strict import strict_value

TEXTS = ("kind", "assurance", "jurisdiction", "regulation", "reference", "contact", "about")
FIELDS = (*TEXTS, "identifiers", "received", "scope", "values", "child", "proof")
SAYS = ("action", "reason", "recipient", "evidence", "says")
_CODE = re.compile(r"[A-Za-z0-9_.:-]{0,64}")  # free text could carry personal data into the ledger
_RECIPIENT = re.compile(r"[A-Za-z0-9_.-]{0,64}")
_DIGEST = re.compile(r"([0-9a-f]{64})?")
Told = dict[str, object]


def ask_of(body: bytes, agent: str, most: str) -> tuple[Ask, bool]:
    """The request, and whether the person is to prove their e-mail. `most` is the assurance that the caller may state."""
    said, wrong = _object(body), []
    wrong += [_told(name, "another field", "one of " + ", ".join(FIELDS)) for name in _strange(said, FIELDS)]
    texts = {name: _kept(said, name, str, "", "text", wrong) for name in TEXTS if name in said}
    people = _people(said, wrong)
    received = _time(said, wrong)
    scope = _kept(said, "scope", list, [], "a list of texts", wrong, lambda one: all(isinstance(x, str) for x in one))
    values = _kept(
        said, "values", dict, {}, "field → text", wrong, lambda one: all(isinstance(x, str) for x in one.values())
    )
    child, proof = (_kept(said, name, bool, False, "true or false", wrong) for name in ("child", "proof"))
    texts.setdefault("kind", "")
    ask = Ask(
        identifiers=people, way="rest", received=received, scope=tuple(scope), values=values, child=child, agent=agent,
        **texts,
    )  # fmt: skip
    wrong += [_told(one.path, one.found, one.expected) for one in ask.problems()]
    if ask.assurance in ASSURANCES and ASSURANCES.index(ask.assurance) > ASSURANCES.index(most):
        wrong.append(_told("assurance", repr(ask.assurance), f"at most {most} from this token"))
    if proof and [one.kind for one in people] != ["email"]:
        wrong.append(_told("proof", "other identifiers", "one e-mail and nothing else, since nothing else is proven"))
    if wrong:
        raise ApiError("bad_request", problems=wrong)
    return ask, proof


def word_of(body: bytes, request: str, by: str) -> Word:
    said, wrong = _object(body), []
    wrong += [_told(name, "another field", "one of " + ", ".join(SAYS)) for name in _strange(said, SAYS)]
    action = _kept(said, "action", str, "", "one of " + ", ".join(ACTIONS), wrong, lambda one: one in ACTIONS)
    if not action and not wrong:
        wrong.append(_told("action", "nothing", "one of " + ", ".join(ACTIONS)))
    reason = _kept(said, "reason", str, "", "a code of up to 64 letters", wrong, _CODE.fullmatch)
    recipient = _kept(said, "recipient", str, "", "the name of a recipient", wrong, _RECIPIENT.fullmatch)
    evidence = _kept(said, "evidence", str, "", "a SHA-256 in hexadecimal", wrong, _DIGEST.fullmatch)
    says = _kept(said, "says", dict, {}, "name → code", wrong, _codes)
    if action == "verify" and says.get("assurance") not in ASSURANCES:
        wrong.append(_told("says.assurance", "nothing usable", "one of " + ", ".join(ASSURANCES)))
    if wrong:
        raise ApiError("bad_word", problems=wrong)
    return Word(request, action, by, reason=reason, recipient=recipient, evidence=evidence, says=says)


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        said = strict_value(body)
    except ValueError:
        raise ApiError("not_json") from None
    if not isinstance(said, dict):
        raise ApiError("bad_request", problems=[_told("(body)", "no object", "an object")])
    return said


def _strange(said: Mapping[str, Any], known: tuple[str, ...]) -> list[str]:
    return [repr(name[:40]) for name in said if name not in known][:20]


def _kept(
    said: Mapping[str, Any],
    name: str,
    kind: type,
    usual: Any,
    expected: str,
    wrong: list[Told],
    fine: Callable[[Any], object] = lambda one: True,
) -> Any:
    """A field of the right type and form, or what is usual and a problem."""
    found = said.get(name, usual)
    if isinstance(found, kind) and fine(found):
        return found
    wrong.append(_told(name, "something else", expected))
    return usual


def _people(said: Mapping[str, Any], wrong: list[Told]) -> tuple[Identifier, ...]:
    found = []
    for number, one in enumerate(_kept(said, "identifiers", list, [], "a list", wrong)):
        if isinstance(one, dict) and set(one) == {"kind", "value"} and all(isinstance(x, str) for x in one.values()):
            found.append(Identifier(one["kind"], one["value"]))
        else:
            wrong.append(_told(f"identifiers[{number}]", "something else", "an object of kind and value"))
    return tuple(found)


def _time(said: Mapping[str, Any], wrong: list[Told]) -> datetime:
    now = datetime.now(UTC)
    if "received" not in said:
        return now
    try:
        found = datetime.fromisoformat(said["received"])
    except (ValueError, TypeError):
        found = None
    if found is None or found.tzinfo is None:
        wrong.append(_told("received", "no time", "a time with its offset, like 2026-11-16T09:30:00Z"))
        return now
    return found


def _codes(said: Mapping[str, Any]) -> bool:
    return len(said) <= 10 and all(
        isinstance(text, str) and _CODE.fullmatch(name) and _CODE.fullmatch(text) for name, text in said.items()
    )


def _told(path: str, found: str, expected: str) -> Told:
    return {"path": path, "found": found, "expected": expected}
