"""The closed vocabulary a rule may speak: facts of a situation, facts of a recipient, and facts derived from them.

Every fact is of low cardinality: a name, a code, a choice or a flag. A fact that is null or `unknown` is *unknown*; a rule that
needs it cannot be answered and defers, unless it asks for `unknown` by name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from tidings.contract import Contract

Value: TypeAlias = str | bool | None

UNKNOWN = "unknown"
NONE = "none"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}")
_PLACE = re.compile(r"[A-Z]{2}(-[A-Z0-9]{1,3})?|EU")
_CONSENT = ("granted", "withdrawn", UNKNOWN)
_CONSENT_EVENT = (*_CONSENT, NONE)
OPERATIONS = (
    "insert",
    "update",
    "delete",
    "soft_delete",
    "restore",
    "reparent",
    "rekey",
    "snapshot",
    "truncate",
    "tombstone",
)
ROLES = ("marketing", "service", "analytics", "ads", "loyalty", "warehouse", "agent")


@dataclass(frozen=True)
class Fact:
    """One word of the vocabulary. `default` is what a column that says nothing means; None means unknown."""

    name: str
    kind: str  # name | place | choice | flag
    about: str
    values: tuple[str, ...] = ()
    default: Value = None

    def expected(self) -> str:
        if self.kind == "flag":
            return "true or false"
        if self.kind == "choice":
            return "one of " + ", ".join(self.values)
        return "a country or region code such as US, US-CA or DE" if self.kind == "place" else "a name"

    def accepts(self, value: object) -> bool:
        """May a rule compare this fact with `value`?"""
        if self.kind == "flag":
            return isinstance(value, bool) or value == UNKNOWN
        if not isinstance(value, str):
            return False
        if value == UNKNOWN:
            return True
        if self.kind == "choice":
            return value in self.values
        return bool((_PLACE if self.kind == "place" else _NAME).fullmatch(value))


def _flag(name: str, about: str, default: Value = False) -> Fact:
    return Fact(name, "flag", about, default=default)


_FACTS = (
    Fact("change_type", "name", "what changed: email, phone, consent, delete, an own type, …"),
    Fact("operation", "choice", "what happened to the row", OPERATIONS),
    Fact("entity", "name", "the contract the record belongs to"),
    Fact("entity_kind", "name", "the contract's kind: customer, location, inventory, employee, supplier, an own kind"),
    Fact("source", "name", "the source that reported the change"),
    Fact("banner", "name", "the brand the record belongs to", default=NONE),
    Fact("jurisdiction", "place", "where the person lives, as far as the record or the configuration says"),
    Fact("consent_email", "choice", "the person's consent to marketing e-mail", _CONSENT),
    Fact("consent_sms", "choice", "the person's consent to marketing text messages", _CONSENT),
    Fact("consent_phone", "choice", "the person's consent to marketing calls", _CONSENT),
    Fact("consent_push", "choice", "the person's consent to push messages", _CONSENT),
    Fact("consent_post", "choice", "the person's consent to marketing by post", _CONSENT),
    Fact("consent_ads", "choice", "the person's consent to advertising audiences, sale or sharing", _CONSENT),
    Fact("consent_state", "choice", "what a consent change says; none when it is not one", _CONSENT_EVENT, NONE),
    Fact("consent_class", "name", "the class of a consent change: marketing, transactional, …", default=NONE),
    Fact("consent_channel", "name", "the channel of a consent change: email, sms, phone, ads, …", default=NONE),
    Fact("consent_purpose", "name", "the purpose of a consent change: marketing, advertising, …", default=NONE),
    _flag("personal", "the contract holds personal data", None),
    _flag("masked", "a card number was found and masked"),
    _flag("sensitive", "a changed field is of a sensitive class"),
    _flag("erased", "the person has been erased"),
    _flag("legal_hold", "a legal hold stands on the person"),
    _flag("child", "the person is known to be a child"),
    _flag("conflict", "two masters wrote concurrently and nobody has decided"),
    _flag("superseded", "two masters wrote concurrently and the other one's change stands"),
    _flag("test_subject", "the person is on the list of test subjects"),
    _flag("test_mode", "the operator runs in test mode"),
)
FACTS: Mapping[str, Fact] = {fact.name: fact for fact in _FACTS}

RECIPIENT_FACTS: Mapping[str, Fact] = {
    fact.name: fact
    for fact in (
        Fact("subscriber", "name", "the subscriber's own name"),
        Fact("role", "choice", "what the subscriber does with the data", ROLES),
        Fact("region", "place", "where the subscriber keeps the data"),
        _flag("dpa", "a data processing agreement is in place"),
        Fact("types", "name", "a change type the subscriber asked for"),
        Fact("entities", "name", "an entity the subscriber asked for"),
    )
}
MANY = frozenset({"types", "entities"})  # recipient facts with several values: `is` means "has"

# Derived facts never enter a situation: they follow from the facts named beside them.
DERIVED: Mapping[str, tuple[Fact, tuple[str, ...]]] = {
    fact.name: (fact, roots)
    for fact, roots in (
        (Fact("country", "place", "the first part of the jurisdiction"), ("jurisdiction",)),
        (
            Fact("regime", "choice", "the family of privacy law", ("eu", "uk", "us", "ca", "br", "other")),
            ("jurisdiction",),
        ),
        (
            Fact("duty", "choice", "what must reach everybody who holds the person", ("erasure", "opt_out", NONE)),
            ("change_type", "operation", "consent_state"),
        ),
    )
}

_EEA = frozenset(
    re.findall("..", "EUATBEBGHRCYCZDKEEFIFRDEGRHUIEITLVLTLUMTNLPLPTROSKSIESSEISLINO")
)  # the EEA, and EU for a record that says no more
_REGIMES = {"GB": "uk", "US": "us", "CA": "ca", "BR": "br"}
_ERASING = frozenset({"delete", "soft_delete", "erasure", "truncate", "tombstone"})
_IMPERSONAL = ("location", "inventory")
_CONSENTING = frozenset({"consent", "suppression", "subscription", "preference"})


def known(value: Value) -> Value:
    """None for everything that means "we do not know"."""
    return None if value == UNKNOWN or value == "" else value


def derive(facts: Mapping[str, Value]) -> dict[str, Value]:
    """The facts with the derived ones beside them; a derived fact is unknown when its roots are."""
    place = known(facts.get("jurisdiction"))
    country = str(place).partition("-")[0] if place is not None else None
    regime = None if country is None else "eu" if country in _EEA else _REGIMES.get(country, "other")
    return {**facts, "country": country, "regime": regime, "duty": _duty(facts)}


def _duty(facts: Mapping[str, Value]) -> Value:
    change, operation, state = (known(facts.get(name)) for name in ("change_type", "operation", "consent_state"))
    if change in _ERASING:
        return "erasure"
    # Taking a row off a suppression list is not an erasure, so consent changes are looked at before the operation.
    if change in _CONSENTING:
        if state == "withdrawn" or (change == "suppression" and operation != "delete" and state != "granted"):
            return "opt_out"
        return None if facts.get("consent_state") == UNKNOWN else NONE
    if operation in _ERASING:
        return "erasure"
    return NONE if change is not None else None


def personal(contract: Contract) -> bool:
    """Does the contract hold somebody's data? Places and stock do not unless a field says so itself."""
    rules = list(contract.fields.values())
    if contract.kind in _IMPERSONAL:
        rules = [rule for rule in rules if "class_" in rule.model_fields_set]
    return any(rule.class_ in ("personal", "sensitive") for rule in rules)


def sensitive_types(contract: Contract) -> frozenset[str]:
    """The change types that a sensitive field makes, in its own event or in a signal."""
    fields = {path for path, rule in contract.fields.items() if rule.class_ == "sensitive"}
    signals = {
        signal.type
        for signal in contract.signals.values()
        if signal.type == "sensitive_data" or any(condition.field in fields for condition in signal.conditions)
    }
    return frozenset(kind for path in fields if (kind := contract.fields[path].type)) | signals


def fact_named(name: str, recipient: bool) -> Fact | None:
    """The fact a rule names, derived ones included."""
    if recipient:
        return RECIPIENT_FACTS.get(name)
    return FACTS.get(name) or (DERIVED[name][0] if name in DERIVED else None)


def nearest(name: str, recipient: bool) -> str:
    """What to say after "expected": a near miss first, the whole vocabulary otherwise."""
    words = list(RECIPIENT_FACTS) if recipient else [*FACTS, *DERIVED]
    close = difflib.get_close_matches(name, words, 1)
    return f"{close[0]} (or another of {', '.join(words)})" if close else "one of " + ", ".join(words)


def complete(facts: Mapping[str, object]) -> dict[str, Value]:
    """A situation with every fact present: what was not said takes its default."""
    return {name: _plain(facts.get(name), fact.default) for name, fact in FACTS.items()}


def _plain(value: object, default: Value) -> Value:
    """`unknown` and nothing are one situation wherever nothing means unknown."""
    if value is None or (value == UNKNOWN and default is None):
        return default
    return value if isinstance(value, bool) else str(value)


def wrong(facts: Mapping[str, object]) -> list[str]:
    """What a person who typed a situation got wrong, one sentence each."""
    said = []
    for name, value in facts.items():
        fact = FACTS.get(name)
        if fact is None:
            said.append(f"{name}: not a fact; expected {nearest(name, recipient=False)}")
        elif value is not None and not fact.accepts(value):
            said.append(f"{name}: found {value!r}; expected {fact.expected()}")
    return said
