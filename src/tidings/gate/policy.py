"""A policy and the recipients it decides about, as frozen values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from tidings.gate.calendars import LIBRARY, Calendars
from tidings.gate.categories import read_from, selected
from tidings.gate.facts import FACTS, Value, known
from tidings.gate.places import covers, known_place, transfer
from tidings.gate.rules import RecipientFacts, Rule, Verdict, facts_used
from tidings.gate.statutes import Statute

if TYPE_CHECKING:
    from tidings.contract import Contract

# Always part of a situation: subscriptions are made of them.
ALWAYS = frozenset({"change_type", "operation", "entity"})
FAILED = "policy_failed"  # how the reason begins when an engine gave no answer


class Engine(Protocol):
    """Somebody else's policy engine. It is asked the same questions as our rules and its answers are weighed with theirs."""

    @property
    def digest(self) -> str:
        """Names everything that can change its answers."""

    @property
    def facts(self) -> frozenset[str]:
        """The facts of a situation that its policy looks at; it is given no others."""

    def verdicts(self, facts: Mapping[str, Value], recipient: RecipientFacts) -> list[Verdict]:
        """What it says of one pair. It never raises: a policy that fails or takes too long is a verdict that defers."""


@dataclass(frozen=True)
class Approval:
    """Counsel's word that a recipient may have the data of people in these places for these purposes."""

    purposes: tuple[str, ...]
    jurisdictions: tuple[str, ...]

    def covers(self, purpose: str, place: str | None) -> bool | None:
        """None when nobody knows where the person lives and it matters."""
        if purpose not in self.purposes and "*" not in self.purposes:
            return False
        if "*" in self.jurisdictions:
            return True
        return None if place is None else any(covers(listed, place) for listed in self.jurisdictions)


@dataclass(frozen=True)
class Recipient:
    """What the gate knows of a subscriber."""

    subscriber: str
    role: str | None = None
    region: str | None = None
    dpa: bool = False
    types: tuple[str, ...] = ("*",)
    entities: tuple[str, ...] = ("*",)
    semantics: Mapping[str, str] = field(default_factory=dict)
    sla: Mapping[str, int] = field(default_factory=dict)  # seconds by change type, `default` otherwise
    terms: Mapping[str, object] = field(default_factory=dict)  # the other facts, as they stand in its file
    acks: Mapping[str, str] = field(default_factory=dict)  # change type → strength of the acknowledgement
    once: tuple[str, ...] = ()  # change types it can take exactly once
    approvals: tuple[Approval, ...] | None = (
        None  # None: nobody keeps a list, and everybody configured may have the data
    )

    def facts(self, situation: Mapping[str, Value]) -> dict[str, object]:
        """Its own facts, and those that depend on the situation too."""
        names = ("subscriber", "role", "region", "dpa", "types", "entities")
        place, kind = known(situation.get("jurisdiction")), str(situation.get("change_type"))
        place = place if place is not None and known_place(str(place)) else None
        return {
            **{name: getattr(self, name) for name in names},
            **self.terms,
            "transfer": transfer(str(place), self.region) if place is not None and self.region else None,
            "approved": self._approved(None if place is None else str(place)),
            "exactly_once": kind in self.once,
            "ack": self.acks.get(kind),
        }

    def _approved(self, place: str | None) -> bool | None:
        """Every purpose it has must be approved; the worst answer counts."""
        if self.approvals is None:
            return True
        purposes = self.terms.get("purposes")
        said = []
        for purpose in purposes if isinstance(purposes, tuple) and purposes else (str(self.role),):
            each = [approval.covers(purpose, place) for approval in self.approvals]
            said.append(True if True in each else None if None in each else False)
        return False if False in said else None if None in said else True

    def subscribed(self, change_type: Value) -> bool:
        return "*" in self.types or change_type in self.types

    def holds(self, entity: Value) -> bool:
        return "*" in self.entities or entity in self.entities

    def asked(self, wanted: Mapping[str, Any], change_type: Value, otherwise: Any) -> Any:
        """The subscriber's own setting for a change type."""
        return wanted.get(str(change_type), wanted.get("default", otherwise))


@dataclass(frozen=True)
class Mode:
    """How far an anchor's rules count: not yet (shadow), for a share of the people (canary), or for everybody (enforce)."""

    mode: str = "enforce"
    share: float = 1.0


@dataclass(frozen=True)
class Policy:
    """Rules in force with the laws they cite and the recipients they decide about."""

    name: str
    rules: tuple[Rule, ...]
    statutes: Mapping[str, Statute] = field(default_factory=dict)
    recipients: tuple[Recipient, ...] = ()
    contracts: Mapping[str, Contract] = field(default_factory=dict)
    rollout: Mapping[str, Mode] = field(default_factory=dict)
    engines: tuple[Engine, ...] = ()
    calendars: Calendars = LIBRARY

    @property
    def version(self) -> str:
        """The operator's version and the digest."""
        return f"{self.name}+{self.digest}"

    @property
    def digest(self) -> str:
        return self.fingerprint[:12]

    @cached_property
    def fingerprint(self) -> str:
        """Names everything that can change an answer: rules, the windows they cite, recipients, labels of fields, modes, engines."""
        rules = [(r.id, r.anchor, r.scope, r.when, r.effect, r.statutes) for r in self.rules]
        recipients = [json.dumps(asdict(recipient), sort_keys=True) for recipient in self.recipients]
        labels = {
            name: [(path, rule.class_, rule.category) for path, rule in contract.fields.items()]
            for name, contract in sorted(self.contracts.items())
        }
        modes = sorted((anchor, mode.mode, mode.share) for anchor, mode in self.rollout.items())
        own = [(name, sorted(self.calendars[name].free)) for name in sorted(self.calendars.own)]
        said = (rules, recipients, labels, modes, own, [engine.digest for engine in self.engines])
        return hashlib.sha256(repr(said).encode()).hexdigest()

    @cached_property
    def counted(self) -> frozenset[str]:
        """The calendars that a clock of a rule counts by."""
        clocks = [clock for rule in self.rules for clock in rule.effect.clocks]
        return frozenset(clock.calendar for clock in clocks if clock.needs_calendar)

    @cached_property
    def free_days(self) -> dict[str, frozenset[date]]:
        """Their free days: the same mapping every time, so that what is built on it is kept too."""
        return {name: self.calendars[name].free for name in sorted(self.counted)}

    @cached_property
    def facts(self) -> tuple[str, ...]:
        """The facts that make a situation under this policy, in the vocabulary's order."""
        used = facts_used(self.rules) | ALWAYS | {name for engine in self.engines for name in engine.facts}
        used |= {f"canary_{anchor}" for anchor, mode in self.rollout.items() if mode.mode == "canary"}
        used |= {"jurisdiction"} if any(each.approvals is not None for each in self.recipients) else set()
        return tuple(name for name in FACTS if name in used)

    @cached_property
    def asked_rules(self) -> dict[tuple[Value, ...], tuple[Rule, ...]]:
        """Kind of event → the rules that can hold for it, as far as it was asked for; see `relevance.asked`."""
        return {}

    def enforced(self, anchor: str, facts: Mapping[str, Value]) -> bool:
        """Do this anchor's rules count in this situation?"""
        mode = self.rollout.get(anchor, Mode()).mode
        return mode == "enforce" or (mode == "canary" and facts.get(f"canary_{anchor}") is True)

    def fields(self, entity: Value, selectors: Iterable[str]) -> tuple[str, ...]:
        """The fields that redactions mean in this entity, and what the envelope says that was read from one of them.

        A selector of an entity nobody knows stays as it is; the envelope then leaves out every image.
        """
        contract = self.contracts.get(str(entity))
        found = {path for each in selectors for path in (selected(contract, each) if contract else (each,))}
        return tuple(sorted(found | (read_from(contract, found) if contract else set())))
