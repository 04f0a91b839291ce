"""A policy and the recipients it decides about, as frozen values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cached_property
from typing import Any

from tidings.gate.calendars import LIBRARY, Calendars
from tidings.gate.facts import FACTS, Value
from tidings.gate.rules import Rule, facts_used
from tidings.gate.statutes import Statute

# Always part of a situation: subscriptions are made of them.
ALWAYS = frozenset({"change_type", "operation", "entity"})


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

    def facts(self) -> dict[str, object]:
        names = ("subscriber", "role", "region", "dpa", "types", "entities")
        return {name: getattr(self, name) for name in names}

    def subscribed(self, change_type: Value) -> bool:
        return "*" in self.types or change_type in self.types

    def holds(self, entity: Value) -> bool:
        return "*" in self.entities or entity in self.entities

    def asked(self, wanted: Mapping[str, Any], change_type: Value, otherwise: Any) -> Any:
        """The subscriber's own setting for a change type."""
        return wanted.get(str(change_type), wanted.get("default", otherwise))


@dataclass(frozen=True)
class Policy:
    """Rules in force with the laws they cite and the recipients they decide about."""

    name: str
    rules: tuple[Rule, ...]
    statutes: Mapping[str, Statute] = field(default_factory=dict)
    recipients: tuple[Recipient, ...] = ()
    calendars: Calendars = LIBRARY

    @property
    def version(self) -> str:
        """The operator's version and the digest."""
        return f"{self.name}+{self.digest}"

    @cached_property
    def digest(self) -> str:
        """Names everything that can change an answer: rules, the windows they cite, recipients."""
        rules = [(r.id, r.anchor, r.scope, r.when, r.effect, r.statutes) for r in self.rules]
        recipients = [json.dumps(asdict(recipient), sort_keys=True) for recipient in self.recipients]
        own = [(name, sorted(self.calendars[name].free)) for name in sorted(self.calendars.own)]
        said = (rules, recipients, own) if own else (rules, recipients)
        return hashlib.sha256(repr(said).encode()).hexdigest()[:12]

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
        used = facts_used(self.rules) | ALWAYS
        return tuple(name for name in FACTS if name in used)
