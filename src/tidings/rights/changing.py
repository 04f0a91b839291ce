"""What a request changes in a person's record: (field, what it must say), and the messages that say it. Pure.

A kind that the contract has a field for is said there; what it has none for is said in a field of ours (`tidings.person_fields`), so that
every kind works with every contract. The gate reads both as facts of the person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidings.contract import Consent, Contract
from tidings.gate.facts import CHANNELS, PURPOSES
from tidings.person_fields import own_field
from tidings.rights.asks import Ask
from tidings.rights.capsule import put
from tidings.rights.corrections import correctable
from tidings.rights.people import Person

# Kind → what is said of the person.
PERSON = {
    "restriction": "restricted",
    "objection": "objected",
    "automated_decision": "no_automated",
    "limit_sensitive": "limited",
}
CONSENTS = ("opt_out", "opt_in", "consent_narrowing", "opt_out_sale")
MARKETING = "marketing"
Wanted = Mapping[str, Any]


def wanted(kind: str, ask: Ask, contract: Contract, says: bool = True) -> dict[str, Any]:
    """Field → what it must say in this contract; `says` is False where the right is lifted."""
    if kind == "rectification":
        return {path: value for path, value in ask.values.items() if correctable(contract, path)}
    if kind == "objection":
        return _objected(ask, contract, says)
    if kind in PERSON:
        return _of_the_person(PERSON[kind], contract, says)
    if kind in CONSENTS:
        return {path: kind == "opt_in" for path, one in contract.consents if _meant(kind, ask, one)}
    return {}


def _of_the_person(word: str, contract: Contract, says: bool) -> dict[str, Any]:
    """Our field makes the event of the right; a field of the contract's own says it in the record too."""
    return {path: says for path, one in contract.fields.items() if one.person == word} | {own_field(word): says}


def _objected(ask: Ask, contract: Contract, says: bool) -> dict[str, Any]:
    """To everything that rests on our interests; to marketing; or to the purposes and channels that were named."""
    words = {one.lower() for one in ask.scope}
    named = words & {*CHANNELS, *PURPOSES}
    found: dict[str, Any] = {}
    if MARKETING in words:
        found |= _of_the_person("no_marketing", contract, says)
    if words - named - {MARKETING} or not words:  # a word that nobody knows is read as the widest
        found |= _of_the_person("objected", contract, says)
    narrow = replace(ask, scope=tuple(sorted(named)))
    return found | {
        path: not says for path, one in contract.consents if named and _meant("consent_narrowing", narrow, one)
    }


def _meant(kind: str, ask: Ask, consent: Consent) -> bool:
    """Is this consent one that the request is about?"""
    sale = consent.channel == "ads" or consent.purpose in ("sale", "advertising")
    if kind == "opt_out_sale":
        return sale
    if not ask.scope:  # marketing as a whole; what was never marketing is not asked for
        return consent.class_ != "processing"
    return bool({consent.channel, consent.purpose, consent.class_} & {one.lower() for one in ask.scope})


def said_now(person: Person, contract: Contract, fields: Wanted) -> dict[str, Any]:
    """The fields that do not say it yet, in the way in which each says it."""
    consents = dict(contract.consents)
    like = {path: _like(person.fields.get(path), value, consents.get(path)) for path, value in fields.items()}
    return {path: value for path, value in like.items() if person.fields.get(path) != value}


def message(person: Person, contract: Contract, changed: Wanted) -> dict[str, Any]:
    """One update of the record. What the person is found by goes with it, so that a recipient can tell who is meant."""
    key = person.key if isinstance(person.key, dict) else {contract.key[0]: person.key}
    before, after = {**key}, {**key}
    for path in contract.identifiers:
        if path in person.fields and path not in changed:
            put(before, path, person.fields[path])
            put(after, path, person.fields[path])
    for path, value in changed.items():
        put(before, path, person.fields.get(path))
        put(after, path, value)
    return {"entity": person.entity, "op": "update", "key": person.key, "before": before, "after": after}


def _like(now: Any, value: Any, consent: Consent | None = None) -> Any:
    """Yes or no in the way in which the field says it."""
    if not isinstance(value, bool):
        return value
    listed = (consent.granted if value else consent.withdrawn) if consent else ()
    if listed:
        return now if now in listed else listed[0]
    if isinstance(now, str):
        return "granted" if value else "withdrawn"
    return int(value) if isinstance(now, int) and not isinstance(now, bool) else value
