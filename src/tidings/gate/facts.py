"""The closed vocabulary a rule may speak: facts of a situation, facts of a recipient, and facts derived from them.

Every fact is of low cardinality: a name, a code, a choice or a flag. A fact that is null or `unknown` is *unknown*; a rule that
needs it cannot be answered and defers, unless it asks for `unknown` by name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tidings.gate.places import TRANSFERS, known_place, regime, regimes
from tidings.gate.places import country as country_of
from tidings.gate.sectors import sector as sector_of
from tidings.gate.sectors import sectors

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
ANCHORS = ("event", "privacy", "channel", "vertical", "governance")
_CHANNELS = {
    "email": "the person's consent to marketing e-mail",
    "sms": "the person's consent to marketing text messages",
    "phone": "the person's consent to marketing calls",
    "push": "the person's consent to push messages",
    "post": "the person's consent to marketing by post",
    "ads": "the person's consent to advertising audiences, sale or sharing",
}
_PURPOSES = {
    "analytics": "the person's consent to analytics",
    "profiling": "the person's consent to profiling",
    "sale": "the person's consent to the sale of their data",
    "ai": "the person's consent to the use of their data by models",
}
CHANNELS, PURPOSES = tuple(_CHANNELS), tuple(_PURPOSES)  # what has a consent of its own
BASES = ("consent", "contract", "legal_obligation", "vital_interests", "public_task", "legitimate_interests")
DUTIES = ("erasure", "opt_out", "rectification", "restriction")
ACTS_AS = ("processor", "controller", "joint_controller", "third_party")
MECHANISMS = ("none", "adequacy", "dpf", "scc", "bcr", "idta", "derogation")


@dataclass(frozen=True)
class Fact:
    """One word of the vocabulary. `default` is what a column that says nothing means; None means unknown."""

    name: str
    kind: str  # name | names | place | choice | flag | number
    about: str
    values: tuple[str, ...] = ()
    default: Value = None

    def expected(self) -> str:
        if self.kind == "flag":
            return "true or false"
        if self.kind == "choice":
            return "one of " + ", ".join(self.values)
        if self.kind == "number":
            return "a number"
        return "a country or region code such as US, US-CA or DE" if self.kind == "place" else "a name"

    def accepts(self, value: object) -> bool:
        """May a rule compare this fact with `value`?"""
        if self.kind == "flag":
            return isinstance(value, bool) or value == UNKNOWN
        if self.kind == "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        if not isinstance(value, str):
            return False
        if value == UNKNOWN:
            return True
        if self.kind == "choice":
            return value in self.values
        if self.kind == "names":
            return all(_NAME.fullmatch(word) for word in value.split() or [""])
        return bool((_PLACE if self.kind == "place" else _NAME).fullmatch(value))


def _flag(name: str, about: str, default: Value = False) -> Fact:
    return Fact(name, "flag", about, default=default)


# What is known of a person beside consent; a contract's field says it (`person: child`).
PERSON = (
    _flag("child", "the person is known to be a child"),
    _flag("parent_consent", "a parent has consented, verifiably"),
    _flag("legal_hold", "a legal hold stands on the person"),
    _flag("restricted", "the person has restricted the processing of their data"),
    _flag("objected", "the person has objected to processing for legitimate interests"),
    _flag("no_marketing", "the person has objected to direct marketing"),
    _flag("no_automated", "the person does not want to be decided about by machines alone"),
    _flag("limited", "the person has limited the use of their sensitive data"),
    _flag("hipaa_authorization", "the person has authorised marketing with their health data, in writing"),
    _flag("health_consent", "the person has consented to the sharing of their health data"),
    _flag("biometric_release", "the person has released their biometric data in writing"),
)

_FACTS = (
    Fact("change_type", "name", "what changed: email, phone, consent, delete, an own type, …"),
    Fact("operation", "choice", "what happened to the row", OPERATIONS),
    Fact("entity", "name", "the contract the record belongs to"),
    Fact("entity_kind", "name", "the contract's kind: customer, location, inventory, employee, supplier, an own kind"),
    Fact("source", "name", "the source that reported the change"),
    Fact("capture", "name", "how the source is read: postgresql, outbox, files, kafka, …"),
    Fact("banner", "name", "the brand the record belongs to", default=NONE),
    Fact("vertical", "name", "the operator's line of business, as schema.org calls it: Store, MedicalBusiness, …"),
    Fact("jurisdiction", "place", "where the person lives, as far as the record or the configuration says"),
    Fact("lawful_basis", "choice", "the ground of Art. 6 that the contract names", BASES),
    *(Fact(f"consent_{channel}", "choice", about, _CONSENT) for channel, about in _CHANNELS.items()),
    *(Fact(f"consent_{purpose}", "choice", about, _CONSENT) for purpose, about in _PURPOSES.items()),
    Fact("consent_state", "choice", "what a consent change says; none when it is not one", _CONSENT_EVENT, NONE),
    Fact("consent_class", "name", "the class of a consent change: marketing, transactional, …", default=NONE),
    Fact("consent_channel", "name", "the channel of a consent change: email, sms, phone, ads, …", default=NONE),
    Fact("consent_purpose", "name", "the purpose of a consent change: marketing, advertising, …", default=NONE),
    Fact("categories", "names", "labels of the changed fields; `is` means one of them or one below it", default=NONE),
    _flag("personal", "the contract holds personal data", None),
    _flag("sensitive", "a changed field is of a sensitive class"),
    _flag("special", "a special category: health, biometrics, ethnicity, belief, orientation, opinion, offences"),
    _flag("phi", "health data"),
    _flag("genetic", "genetic data"),
    _flag("biometric", "biometric data"),
    _flag("children", "data about children"),
    _flag("financial", "data about somebody's finances"),
    _flag("payment", "data about means of payment"),
    _flag("geolocation", "precise location"),
    _flag("government_id", "a number that a state gave somebody"),
    _flag("masked", "a card number was found and masked"),
    _flag("token", "the change carries a payment token"),
    _flag("tokenization_attested", "the operator has attested the vendor of the payment token"),
    _flag("material", "the change matters to what a listed company has to publish"),
    _flag("public_company", "the operator's shares are traded"),
    _flag("ai_routing", "a model takes part in deciding who is told"),
    _flag("transactional", "the change names the transaction it was committed in"),
    _flag("late", "the change came again, or after newer ones"),
    _flag("clock_ahead", "the source's clock runs ahead of ours"),
    *PERSON,
    _flag("erased", "the person has been erased"),
    _flag("conflict", "two masters wrote concurrently and nobody has decided"),
    _flag("superseded", "two masters wrote concurrently and the other one's change stands"),
    _flag("reviewed", "a person has looked at this very event and let it pass"),
    _flag("test_subject", "the person is on the list of test subjects"),
    _flag("test_mode", "the operator runs in test mode"),
    *(_flag(f"canary_{anchor}", f"the person is in the share for which {anchor} is enforced") for anchor in ANCHORS),
)
FACTS: Mapping[str, Fact] = {fact.name: fact for fact in _FACTS}

RECIPIENT_FACTS: Mapping[str, Fact] = {
    fact.name: fact
    for fact in (
        Fact("subscriber", "name", "the subscriber's own name"),
        Fact("role", "choice", "what the subscriber does with the data", ROLES),
        Fact("acts_as", "choice", "what the subscriber is in law", ACTS_AS, "processor"),
        Fact("region", "place", "where the subscriber keeps the data"),
        _flag("dpa", "a data processing agreement is in place"),
        _flag("baa", "a business associate agreement is in place"),
        Fact("transfer", "choice", "what has to carry the data across the border to it", TRANSFERS),
        Fact("transfer_mechanism", "choice", "what does carry it", MECHANISMS),
        _flag("sells", "the subscriber sells or shares the data for advertising"),
        _flag("llm", "the data may reach a large language model"),
        _flag("zero_retention", "the model's vendor keeps nothing, by contract"),
        _flag("high_risk_ai", "a model of Annex III to the AI Act uses the data"),
        _flag("human_oversight", "a person oversees what the model decides"),
        _flag("impact_assessed", "an impact assessment covers this use"),
        _flag("approved", "counsel has approved this recipient for its purposes and the person's jurisdiction"),
        _flag("exactly_once", "the subscriber can take a change exactly once"),
        Fact("ack", "choice", "how strong its acknowledgement of this change is", ("A0", "A1", "A2", "A3", "A4")),
        Fact("rate", "number", "calls per second that its API allows"),
        Fact("purposes", "name", "what the subscriber may use the data for"),
        Fact("channels", "name", "how the subscriber reaches people: email, sms, phone, push, post, ads"),
        Fact(
            "certifications",
            "name",
            "what the subscriber is certified for: soc2, iso27001, iso27701, iso42001, pci-dss",
        ),
        Fact("types", "name", "a change type the subscriber asked for"),
        Fact("entities", "name", "an entity the subscriber asked for"),
    )
}
# Facts with several values: `is` means "has".
MANY = frozenset({"types", "entities", "purposes", "channels", "certifications"})
# Facts of a recipient that depend on the situation too, and on which part of it.
PAIRED: Mapping[str, tuple[str, ...]] = {
    "transfer": ("jurisdiction",),
    "approved": ("jurisdiction",),
    "exactly_once": ("change_type",),
    "ack": ("change_type",),
}

# Derived facts never enter a situation: they follow from the facts named beside them.
DERIVED: Mapping[str, tuple[Fact, tuple[str, ...]]] = {
    fact.name: (fact, roots)
    for fact, roots in (
        (Fact("country", "place", "the first part of the jurisdiction"), ("jurisdiction",)),
        (Fact("regime", "choice", "the family of privacy law", regimes()), ("jurisdiction",)),
        (Fact("sector", "choice", "the body of law the line of business stands under", sectors()), ("vertical",)),
        (
            Fact("duty", "choice", "what must reach everybody who holds the person", (*DUTIES, NONE)),
            ("change_type", "operation", "consent_state"),
        ),
    )
}

_PERSON = tuple(fact.name for fact in PERSON)
ERASING = frozenset({"delete", "soft_delete", "erasure", "truncate", "tombstone"})
_TOLD = {
    "rectification": "rectification",
    "restriction": "restriction",
    "objection": "opt_out",
    # Both narrow what may be done with the data, and are told as a restriction is.
    "automated_decision": "restriction",
    "limit_sensitive": "restriction",
}
_CONSENTING = frozenset({"consent", "suppression", "subscription", "preference"})


def known(value: Value) -> Value:
    """None for everything that means "we do not know"."""
    return None if value == UNKNOWN or value == "" else value


def derive(facts: Mapping[str, Value]) -> dict[str, Value]:
    """The facts with the derived ones beside them; a derived fact is unknown when its roots are."""
    place = known(facts.get("jurisdiction"))
    country, family = (
        (None, None) if place is None or not known_place(str(place)) else (country_of(str(place)), regime(str(place)))
    )
    line = known(facts.get("vertical"))
    sector = None if line is None else sector_of(str(line))
    return {**facts, "country": country, "regime": family, "sector": sector, "duty": _duty(facts)}


def _duty(facts: Mapping[str, Value]) -> Value:
    change, operation, state = (known(facts.get(name)) for name in ("change_type", "operation", "consent_state"))
    if change in ERASING:
        return "erasure"
    if change in _TOLD:
        return _TOLD[str(change)]
    # Taking a row off a suppression list is not an erasure, so consent changes are looked at before the operation.
    if change in _CONSENTING:
        if state == "withdrawn" or (change == "suppression" and operation != "delete" and state != "granted"):
            return "opt_out"
        return None if facts.get("consent_state") == UNKNOWN else NONE
    if operation in ERASING:
        return "erasure"
    return NONE if change is not None else None


def filed(name: str) -> str:
    """Under which word the state of a person is kept: a channel's consent by the channel, a purpose's and a fact's with a prefix."""
    word = name.removeprefix("consent_")
    if name in _PERSON:
        return f"is:{name}"
    return word if word in CHANNELS else f"for:{word}"


def known_facts(states: Mapping[str, str]) -> dict[str, Value]:
    """What is kept of a person, as facts."""
    said: dict[str, Value] = {
        f"consent_{word}": states.get(filed(f"consent_{word}")) for word in (*CHANNELS, *PURPOSES)
    }
    said |= {name: states[filed(name)] == "granted" for name in _PERSON if filed(name) in states}
    return {name: value for name, value in said.items() if value is not None}


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
