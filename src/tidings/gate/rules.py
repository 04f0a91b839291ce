"""Rules as frozen values, and what one rule says about one situation and one recipient.

Truth has three values. A rule that would block (deny, defer) and cannot be answered defers and names the missing facts. A rule
that only tightens (deadline, priority, semantics, redaction, reach) and cannot be answered applies: that never loosens anything. One
that only tags says nothing then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from tidings.gate.categories import under
from tidings.gate.clocks import Clock
from tidings.gate.facts import DERIVED, FACTS, MANY, PAIRED, UNKNOWN, Value, known

SEMANTICS = ("at-most-once", "at-least-once", "exactly-once")  # weakest first
ACKS = ("A0", "A1", "A2", "A3", "A4")
REACHES = ("subscribed", "types", "everyone")  # who is told: as subscribed; also past `types`; also past the filter
VERDICTS = ("deny", "defer", "applies", "passes", "nothing")

RecipientFacts: TypeAlias = Mapping[str, object]


@dataclass(frozen=True)
class Truth:
    """Yes, no, or cannot tell for want of these facts."""

    holds: bool | None
    missing: frozenset[str] = frozenset()


YES, NO = Truth(True), Truth(False)


def _cannot_tell(asked: Sequence[Truth]) -> Truth:
    return Truth(None, frozenset[str]().union(*(truth.missing for truth in asked)))


class Condition(Protocol):
    """Anything that can be asked of a pair."""

    def ask(self, facts: Mapping[str, Value], recipient: RecipientFacts) -> Truth: ...

    def facts(self) -> frozenset[str]: ...


@dataclass(frozen=True)
class Compare:
    """One comparison; `negated` for is_not and not_in."""

    name: str
    values: tuple[Value, ...]
    negated: bool = False
    recipient: bool = False

    def ask(self, facts: Mapping[str, Value], recipient: RecipientFacts) -> Truth:
        if self.recipient and self.name in MANY:
            have = recipient.get(self.name)
            asked = set(have) if isinstance(have, list | tuple | frozenset) else set()
            return Truth((bool(asked & set(self.values)) or "*" in asked) is not self.negated)
        found = recipient.get(self.name) if self.recipient else facts.get(self.name)
        value = known(found if isinstance(found, bool) or found is None else str(found))
        if value is None:
            if UNKNOWN in self.values:
                return Truth(not self.negated)
            return Truth(None, self._missing(facts))
        return Truth(self._meets(value) is not self.negated)

    def _meets(self, value: Value) -> bool:
        if not self.recipient and self.name in FACTS and FACTS[self.name].kind == "names":
            return any(under(each, str(label)) for each in str(value).split() for label in self.values)
        return value in self.values

    def _missing(self, facts: Mapping[str, Value]) -> frozenset[str]:
        """What a person would have to tell us: of a derived fact, the facts it follows from."""
        if self.recipient:
            roots = frozenset(name for name in self.facts() if known(facts.get(name)) is None)
            return roots or frozenset({f"recipient.{self.name}"})
        return frozenset(name for name in self.facts() if known(facts.get(name)) is None) or frozenset({self.name})

    def facts(self) -> frozenset[str]:
        if self.recipient:
            return frozenset(PAIRED.get(self.name, ()))
        return frozenset(DERIVED[self.name][1]) if self.name in DERIVED else frozenset({self.name})


@dataclass(frozen=True)
class Measure:
    """A number of the recipient against a line: at least this much, or less."""

    name: str
    line: float
    below: bool = False

    def ask(self, facts: Mapping[str, Value], recipient: RecipientFacts) -> Truth:
        found = recipient.get(self.name)
        if not isinstance(found, int | float):
            return Truth(None, frozenset({f"recipient.{self.name}"}))
        return Truth((found < self.line) is self.below)

    def facts(self) -> frozenset[str]:
        return frozenset()


@dataclass(frozen=True)
class Every:
    parts: tuple[Condition, ...]

    def ask(self, facts: Mapping[str, Value], recipient: RecipientFacts) -> Truth:
        asked = [part.ask(facts, recipient) for part in self.parts]
        if any(truth.holds is False for truth in asked):
            return NO
        return _cannot_tell(asked) if any(truth.holds is None for truth in asked) else YES

    def facts(self) -> frozenset[str]:
        return frozenset[str]().union(*(part.facts() for part in self.parts))


@dataclass(frozen=True)
class Either:
    parts: tuple[Condition, ...]

    def ask(self, facts: Mapping[str, Value], recipient: RecipientFacts) -> Truth:
        asked = [part.ask(facts, recipient) for part in self.parts]
        if any(truth.holds for truth in asked):
            return YES
        return _cannot_tell(asked) if any(truth.holds is None for truth in asked) else NO

    def facts(self) -> frozenset[str]:
        return frozenset[str]().union(*(part.facts() for part in self.parts))


@dataclass(frozen=True)
class Not:
    part: Condition

    def ask(self, facts: Mapping[str, Value], recipient: RecipientFacts) -> Truth:
        truth = self.part.ask(facts, recipient)
        return truth if truth.holds is None else Truth(not truth.holds)

    def facts(self) -> frozenset[str]:
        return self.part.facts()


@dataclass(frozen=True)
class Effect:
    """What a rule does when it holds. `outcome` is empty for a rule that only tightens."""

    outcome: str = ""
    reason: str = ""
    redact: tuple[str, ...] = ()
    semantics: str = ""
    priority: int | None = None
    clocks: tuple[Clock, ...] = ()
    sla: bool = False
    ack: str = ""
    retention: str = ""
    reach: str = "subscribed"
    tags: tuple[str, ...] = ()  # what the attestation shall say applies, where no test of ours can decide it
    review: bool = False  # a deferral that a person may lift

    @property
    def blocks(self) -> bool:
        return self.outcome in ("deny", "defer")

    @property
    def tightens(self) -> bool:
        """Is there more to it than a word of approval?"""
        return replace(self, outcome="", reason="") != Effect()


@dataclass(frozen=True)
class Example:
    """One test of one rule, written beside it."""

    given: Mapping[str, Value]
    to: Mapping[str, object]
    gives: str
    line: int


@dataclass(frozen=True)
class Rule:
    """`scope` says whom and what the rule is about, `when` what it looks for there."""

    id: str
    anchor: str
    scope: Condition
    when: Condition
    effect: Effect
    statutes: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    file: str = ""
    line: int = 0
    scoped: bool = False

    def facts(self) -> frozenset[str]:
        return self.scope.facts() | self.when.facts()


@dataclass(frozen=True)
class Verdict:
    """What one rule says of one pair: deny, defer, applies, passes or nothing; and why."""

    rule: Rule
    says: str
    reason: str
    missing: frozenset[str] = frozenset()

    @property
    def tightens(self) -> bool:
        """Do the effect's deadline, priority and the like count for this pair?"""
        return self.says in ("applies", "deny") or (self.says == "defer" and not self.missing)


def judge(rule: Rule, facts: Mapping[str, Value], recipient: RecipientFacts) -> Verdict:
    """`facts` with the derived ones; see `facts.derive`."""
    scope = rule.scope.ask(facts, recipient)
    if scope.holds is False:
        return Verdict(rule, "nothing", "")
    when = rule.when.ask(facts, recipient)
    if when.holds is False:
        return Verdict(rule, "passes" if rule.scoped and scope.holds else "nothing", "")
    missing = scope.missing | when.missing
    effect = rule.effect
    if effect.review and facts.get("reviewed") is True:
        return Verdict(rule, "passes", "")
    if scope.holds and when.holds:
        return Verdict(rule, effect.outcome if effect.blocks else "applies", effect.reason)
    told = " and ".join(sorted(missing)) + (" is not known" if len(missing) == 1 else " are not known")
    if effect.blocks:
        return Verdict(rule, "defer", f"cannot tell: {told}", missing)
    if not replace(effect, tags=()).tightens:  # a tag is a statement: it is not made of what nobody knows
        return Verdict(rule, "nothing", "", missing)
    note = f"{told}, so the strict reading applies"
    return Verdict(rule, "applies", note, missing)


def facts_used(rules: Sequence[Rule]) -> frozenset[str]:
    """The facts that can change an answer of these rules: only they make a situation."""
    return frozenset[str]().union(*(rule.facts() for rule in rules))
