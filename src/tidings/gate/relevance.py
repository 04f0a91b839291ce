"""Which facts can matter for an event of a kind: only they make its situation, so that situations stay few under many rules.

A rule that cannot hold for a change type and an operation, whatever else is true, asks nothing there. What no remaining rule asks
for is left out of the situation; a region that no remaining rule names is its country. Leaving a fact out never
changes an answer: a fact is only left out where every rule that reads it is out of the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidings.contract import LIFE_CYCLE, Contract
from tidings.gate.categories import facts_of, kinds
from tidings.gate.facts import FACTS, PAIRED, UNKNOWN, Value, derive
from tidings.gate.places import country
from tidings.gate.policy import ALWAYS, Policy
from tidings.gate.rules import Compare, Condition, Either, Every, Not, RecipientFacts, Rule

_STATES = ("granted", "withdrawn", "unknown", "none")
OPERATIONS = (
    "insert",
    "update",
    "delete",
    "soft_delete",
    "restore",
)  # of a change that is not itself a step of a life cycle
# What all events of a kind have in common; see `categories.facts_of`.
SAME = (
    "entity", "change_type", "operation", "vertical", "entity_kind", "personal", "sensitive", "material", "categories", "lawful_basis", *kinds()
)  # fmt: skip
Known = Mapping[str, Value]


@dataclass(frozen=True)
class Relevant:
    """The facts that count, and the regions that make a difference; of another region only the country counts. None: all do."""

    facts: tuple[str, ...]
    regions: tuple[str, ...] | None = ()


def relevant(
    policy: Policy, contracts: Mapping[str, Contract], everywhere: Known
) -> dict[tuple[str, str, str], Relevant]:
    """(entity, change type, operation) → what counts there; `everywhere` is what is the same for all events."""
    rules = [rule for rule in policy.rules if any(_possible(rule, {}, each.facts({})) for each in policy.recipients)]
    found = {}
    for entity, contract in contracts.items():
        for change in contract.event_types:
            said = {**everywhere, **facts_of(contract, change), "entity": entity, "change_type": change}
            for operation in (change,) if change in LIFE_CYCLE else OPERATIONS:
                found[entity, change, operation] = _relevant(policy, rules, said | {"operation": operation})
    return found


def reduced(facts: Known, counts: Relevant) -> dict[str, Value]:
    """A complete situation with only what counts in it; the native twin is in `situations`."""
    kept: dict[str, Value] = {name: facts[name] if name in counts.facts else FACTS[name].default for name in facts}
    place = kept.get("jurisdiction")
    if counts.regions is not None and place is not None and place not in counts.regions:
        kept["jurisdiction"] = country(str(place))
    return kept


def asked(policy: Policy, facts: Known) -> tuple[Rule, ...]:
    """The rules that can hold for an event of this kind; the others say nothing of it."""
    kind = tuple(facts.get(name) for name in SAME)
    found = policy.asked_rules.get(kind)
    if found is None:
        known = _with_derived(dict(zip(SAME, kind, strict=True)))
        found = tuple(rule for rule in policy.rules if _possible(rule, known, None))
        policy.asked_rules[kind] = found
    return found


def _with_derived(facts: dict[str, Value]) -> dict[str, Value]:
    """With the sector where the line of business is known, and the duty unless it hangs on what a consent says."""
    duties = {derive({**facts, "consent_state": state})["duty"] for state in _STATES}
    sector = {"sector": derive(facts)["sector"]} if facts.get("vertical") is not None else {}
    return facts | sector | ({"duty": duties.pop()} if len(duties) == 1 else {})


def _relevant(policy: Policy, rules: Sequence[Rule], facts: dict[str, Value]) -> Relevant:
    known = _with_derived(facts)
    asked = [rule for rule in rules if _possible(rule, known, None)]
    # What is known of the kind stays: it has one value here, and it is why the other rules are out of the question.
    used = {*ALWAYS, *facts, *(name for name in policy.facts if name.startswith("canary_"))}
    used |= {name for engine in policy.engines for name in engine.facts}.union(*(rule.facts() for rule in asked))
    places = {place for each in policy.recipients for one in each.approvals or () for place in one.jurisdictions}
    used |= {"jurisdiction"} if places else set()
    regions = {place for place in places if "-" in place}.union(*(_named(rule) for rule in asked))
    # A rule that names a country by its code means the code: then a region must not be taken for its country.
    whole = bool(policy.engines) or any("-" not in place for place in regions)
    return Relevant(tuple(name for name in policy.facts if name in used), None if whole else tuple(sorted(regions)))


def _possible(rule: Rule, facts: Known, recipient: RecipientFacts | None) -> bool:
    return not (_never(rule.scope, facts, recipient) or _never(rule.when, facts, recipient))


def _never(condition: Condition, facts: Known, recipient: RecipientFacts | None) -> bool:
    """Can this not hold, whatever is true beside what is known?"""
    if isinstance(condition, Every):
        return any(_never(part, facts, recipient) for part in condition.parts)
    if isinstance(condition, Either):
        return all(_never(part, facts, recipient) for part in condition.parts)
    if isinstance(condition, Not):
        return _certain(condition.part, facts, recipient)
    return _answer(condition, facts, recipient) is False


def _certain(condition: Condition, facts: Known, recipient: RecipientFacts | None) -> bool:
    """Does this hold, whatever else is true?"""
    if isinstance(condition, Every):
        return all(_certain(part, facts, recipient) for part in condition.parts)
    if isinstance(condition, Either):
        return any(_certain(part, facts, recipient) for part in condition.parts)
    if isinstance(condition, Not):
        return _never(condition.part, facts, recipient)
    return _answer(condition, facts, recipient) is True


def _answer(condition: Condition, facts: Known, recipient: RecipientFacts | None) -> bool | None:
    """The answer where it is settled already; None where something else may still change it."""
    if not isinstance(condition, Compare):
        return None
    if condition.recipient:
        everywhere = condition.name == "approved" and (recipient or {}).get("approved") is True
        settled = recipient is not None and (condition.name not in PAIRED or everywhere)
        return condition.ask({}, recipient or {}).holds if settled else None
    return condition.ask(facts, {}).holds if condition.name in facts else None


def _named(rule: Rule) -> set[str]:
    """The places a rule asks for by name; whether a place is known at all can be told from its country."""
    asked = (part for part in _comparisons((rule.scope, rule.when)) if part.name == "jurisdiction")
    return {str(value) for part in asked for value in part.values if value != UNKNOWN}


def _comparisons(conditions: Sequence[Condition]) -> Iterable[Compare]:
    for condition in conditions:
        if isinstance(condition, Compare):
            yield condition
        elif isinstance(condition, Every | Either):
            yield from _comparisons(condition.parts)
        elif isinstance(condition, Not):
            yield from _comparisons((condition.part,))
