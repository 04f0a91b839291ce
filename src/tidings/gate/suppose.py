"""What would change a decision: it is taken again with single facts changed, over all their choices. A search, no guess.

Facts that say what the event is (its type, entity, source) and what the recipient is for (its role) stay as they are: they are no
remedy. Only rules that read a changed fact are asked again, so the search costs little beside a decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import combinations
from typing import Any, TypeAlias

from tidings.gate.decide import outcome_of
from tidings.gate.facts import DERIVED, FACTS, MANY, RECIPIENT_FACTS, UNKNOWN, Fact, Value, complete, derive, known
from tidings.gate.places import first_places
from tidings.gate.policy import Policy, Recipient
from tidings.gate.rules import Compare, Condition, Measure, Not, Rule, Verdict, judge

Changes: TypeAlias = Mapping[str, Any]  # fact, or `recipient.FACT` → what it is taken to be

MOST_TOGETHER = 3  # facts changed at once
MOST_TRIES = 2_000
MOST_TOLD = 12
OF_RECIPIENT = "recipient."
_EVENT = {
    "change_type",
    "operation",
    "entity",
    "entity_kind",
    "source",
    "capture",
    "banner",
    "vertical",
    "categories",
    "personal",
}
_FIXED = _EVENT | {name for name in FACTS if name.startswith(("consent_state", "consent_class", "canary_"))}
_FIXED |= {"consent_channel", "consent_purpose"}
_FIXED_RECIPIENT = {"subscriber", "role", "types", "entities", "transfer", "region", "ack"}


@dataclass(frozen=True)
class Supposed(Recipient):
    """A recipient some of whose facts are taken to be these."""

    instead: Mapping[str, object] = field(default_factory=dict)

    def facts(self, situation: Mapping[str, Value]) -> dict[str, object]:
        return super().facts(situation) | dict(self.instead)

    @classmethod
    def of(cls, recipient: Recipient, instead: Mapping[str, object]) -> Supposed:
        same = {each.name: getattr(recipient, each.name) for each in fields(Recipient)}
        before = recipient.instead if isinstance(recipient, Supposed) else {}
        return cls(**same, instead={**before, **instead})


def what_would_change(policy: Policy, situation: Mapping[str, Any], recipient: Recipient) -> list[dict[str, Any]]:
    """Every single change that gives another outcome; where none gives an allowance, the smallest sets that do."""
    search = _Search(policy, derive(complete(situation)), recipient)
    now = search.outcome({})
    found = [({name: to}, search.outcome({name: to})) for name, to in search.singles(blocked=now != "allow")]
    found = [(changes, then) for changes, then in found if then != now]
    if now != "allow" and not any(then == "allow" for _, then in found):
        found += [(changes, "allow") for changes in search.together()]
    return [
        {"changes": [search.told(name, to) for name, to in changes.items()], "outcome": then}
        for changes, then in found[:MOST_TOLD]
    ]


@dataclass(frozen=True)
class _Search:
    policy: Policy
    facts: Mapping[str, Value]
    recipient: Recipient

    def outcome(self, changes: Changes) -> str:
        """What is decided when these facts are other than they are."""
        facts = derive({**self.facts, **{name: to for name, to in changes.items() if name in FACTS}})
        theirs = {name.removeprefix(OF_RECIPIENT): to for name, to in changes.items() if name.startswith(OF_RECIPIENT)}
        about = Supposed.of(self.recipient, theirs).facts(facts)
        said = [
            judge(rule, facts, about) if reads & changes.keys() else before
            for (rule, reads), before in zip(self._rules, self._before, strict=True)
        ]
        for engine in self.policy.engines:
            said += engine.verdicts({name: facts.get(name) for name in (*engine.facts, *DERIVED)}, about)
        return outcome_of(verdict for verdict in said if self.policy.enforced(verdict.rule.anchor, facts))

    def singles(self, *, blocked: bool) -> Iterator[tuple[str, object]]:
        """Each fact that a rule reads with each other value it may have; of a refusal, only what its own rules read."""
        rules = [rule for rule, verdict in self._with_verdicts() if verdict.says in ("deny", "defer")]
        wanted = _values(rules if blocked and not self.policy.engines else [rule for rule, _ in self._rules])
        about = self.recipient.facts(self.facts)
        for name in [*FACTS, *(OF_RECIPIENT + name for name in RECIPIENT_FACTS)]:
            if name not in wanted:
                continue
            own = name.removeprefix(OF_RECIPIENT)
            fact = FACTS[name] if own == name else RECIPIENT_FACTS[own]
            now = self.facts.get(name) if own == name else about.get(own)
            yield from ((name, to) for to in _choices(fact, now, wanted[name]) if to != now)

    def together(self) -> Iterator[dict[str, object]]:
        """The smallest sets of changes that end in an allowance."""
        singles, tries = list(self.singles(blocked=True)), 0
        for size in range(2, MOST_TOGETHER + 1):
            found = []
            for chosen in combinations(singles, size):
                changes = dict(chosen)
                if len(changes) < size:
                    continue
                tries += 1
                if tries > MOST_TRIES:
                    break
                if self.outcome(changes) == "allow":
                    found.append(changes)
            if found:
                yield from found
                return

    def told(self, name: str, to: object) -> dict[str, object]:
        """One change as a person reads it."""
        own = name.removeprefix(OF_RECIPIENT)
        now = self.facts.get(name) if own == name else self.recipient.facts(self.facts).get(own)
        about = (FACTS[name] if own == name else RECIPIENT_FACTS[own]).about
        return {"fact": name, "from": UNKNOWN if now is None else _plain(now), "to": _plain(to), "about": about}

    @cached_property
    def _rules(self) -> list[tuple[Rule, frozenset[str]]]:
        return [(rule, reads(rule)) for rule in self.policy.rules]

    @cached_property
    def _before(self) -> list[Verdict]:
        about = self.recipient.facts(self.facts)
        return [judge(rule, self.facts, about) for rule, _ in self._rules]

    def _with_verdicts(self) -> Iterator[tuple[Rule, Verdict]]:
        for (rule, _), verdict in zip(self._rules, self._before, strict=True):
            if self.policy.enforced(rule.anchor, self.facts):
                yield rule, verdict


def reads(rule: Rule) -> frozenset[str]:
    """Every fact that can change what a rule says; a recipient's with a prefix."""
    theirs = {OF_RECIPIENT + leaf.name for leaf in _leaves(rule) if isinstance(leaf, Measure) or leaf.recipient}
    return rule.facts() | theirs | ({"reviewed"} if rule.effect.review else set())


def _leaves(rule: Rule) -> Iterator[Compare | Measure]:
    waiting: list[Condition] = [rule.scope, rule.when]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Compare | Measure):
            yield part
        elif isinstance(part, Not):
            waiting.append(part.part)
        else:
            waiting += getattr(part, "parts", ())


def _values(rules: list[Rule]) -> dict[str, list[object]]:
    """Fact → the values that these rules compare it with; what is no remedy is left out."""
    found: dict[str, list[object]] = {}
    for rule in rules:
        if rule.effect.review:
            found.setdefault("reviewed", [])
        for leaf in _leaves(rule):
            if isinstance(leaf, Measure):
                found.setdefault(OF_RECIPIENT + leaf.name, []).append(leaf.line)
            elif leaf.recipient:
                found.setdefault(OF_RECIPIENT + leaf.name, []).extend(leaf.values)
            else:
                for name in leaf.facts():
                    found.setdefault(name, []).extend(leaf.values if name == leaf.name else ())
    fixed = _FIXED | {OF_RECIPIENT + name for name in _FIXED_RECIPIENT}
    return {name: values for name, values in found.items() if name not in fixed}


def _choices(fact: Fact, now: object, mentioned: list[object]) -> Iterator[object]:
    """What a fact could be instead."""
    if fact.name in MANY:
        have = tuple(now) if isinstance(now, list | tuple) else ()
        for value in dict.fromkeys(str(one) for one in mentioned):
            yield tuple(one for one in have if one != value) if value in have else (*have, value)
    elif fact.kind == "flag":
        yield from ((True, False) if now is None else (not now,))
    elif fact.kind == "choice":
        yield from (value for value in fact.values if value != UNKNOWN)
    elif fact.kind == "number":
        lines = [float(one) for one in mentioned if isinstance(one, int | float)]
        yield from (value for line in sorted(set(lines)) for value in (line, line - 1))
    elif fact.kind == "place" and known(now if isinstance(now, str) else None) is None:
        named = [str(one) for one in mentioned if one != UNKNOWN]
        yield from dict.fromkeys([*first_places(), *named])


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
