"""Rules that cannot be meant: two that say the opposite of the same thing, and one that can never hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tidings.errors import Problem
from tidings.gate.facts import MANY
from tidings.gate.rules import Compare, Condition, Every, Rule

_OPPOSITE = {frozenset({"allow", "deny"}), frozenset({"allow", "defer"})}


def contradictions(rules: Sequence[Rule]) -> list[Problem]:
    """Every pair and every rule that cannot be meant, at the later rule's line."""
    problems = [problem for rule in rules for problem in _never(rule)]
    first: dict[frozenset[Condition], Rule] = {}
    for rule in rules:
        asked = frozenset(_parts(rule))
        other = first.setdefault(asked, rule)
        if frozenset({rule.effect.outcome, other.effect.outcome}) in _OPPOSITE:
            found = f"{rule.id} would {rule.effect.outcome} exactly what {other.id} ({other.file}:{other.line}) would {other.effect.outcome}"
            told = (
                "contradiction",
                found,
                "one answer to one question",
                "Remove one of them or narrow its conditions.",
            )
            problems.append(Problem(rule.file, rule.line, rule.id, *told))
    return problems


def _parts(rule: Rule) -> Iterator[Condition]:
    for condition in (rule.scope, rule.when):
        yield from _flat(condition)


def _flat(condition: Condition) -> Iterator[Condition]:
    if isinstance(condition, Every):
        for part in condition.parts:
            yield from _flat(part)
    else:
        yield condition


def _never(rule: Rule) -> Iterable[Problem]:
    """One fact cannot have two values at once."""
    allowed: dict[tuple[str, bool], frozenset[object]] = {}
    for part in _parts(rule):
        if not isinstance(part, Compare) or part.negated or part.name in MANY or part.name == "categories":
            continue
        key = (part.name, part.recipient)
        values = frozenset[object](part.values)
        left = allowed.get(key, values) & values
        if not left:
            found = f"{part.name} would have to be {_said(allowed[key])} and {_said(values)} at once"
            told = ("never_holds", found, "conditions that can hold together", "Mend one of the two.")
            yield Problem(rule.file, rule.line, rule.id, *told)
            return
        allowed[key] = left


def _said(values: frozenset[object]) -> str:
    return " or ".join(sorted(map(str, values)))
