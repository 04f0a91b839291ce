"""What another engine finds, in our own words: a finding is a rule whose condition somebody else has answered.

The rule reader checks it, so the same words and the same laws hold as in a rule of ours, and `judge` weighs it. What does not fit
makes the whole answer void: the pair is deferred, because a half-understood answer could be an allowance by accident.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidings.engines.answers import Broken
from tidings.gate.facts import DERIVED, FACTS, RECIPIENT_FACTS, Value
from tidings.gate.policy import FAILED
from tidings.gate.rule_reader import Reading
from tidings.gate.rules import NO, YES, Effect, Every, RecipientFacts, Rule, Truth, Verdict, judge
from tidings.gate.statutes import Statute
from tidings.yaml_lines import Document

MAX_FINDINGS = 100
MAX_TEXT = 1_000
OUTCOMES = ("", "allow", "deny", "defer", "review", "pass")
_TIGHTEN = ("redact", "semantics", "priority", "deadline", "ack", "retention", "reach", "tags")
KEYS = frozenset({"rule", "anchor", "outcome", "reason", "statutes", "missing", *_TIGHTEN})


@dataclass(frozen=True)
class Answered:
    """A condition that is not asked any more."""

    truth: Truth

    def ask(self, facts: Mapping[str, Value], recipient: RecipientFacts) -> Truth:
        return self.truth

    def facts(self) -> frozenset[str]:
        return frozenset()


@dataclass
class Finding(Reading):
    """One finding being read."""

    def found(self, entry: Mapping[str, object], anchors: Sequence[str]) -> Rule:
        outcome, missing = entry.get("outcome", ""), entry.get("missing", [])
        if outcome not in OUTCOMES:
            raise Broken(f"a finding's outcome is {outcome!r}, which is none of {', '.join(OUTCOMES[1:])}")
        anchor = entry.get("anchor", anchors[0])
        if anchor not in anchors:
            raise Broken(f"a finding speaks for the anchor {anchor!r}, the configuration for {', '.join(anchors)}")
        if not isinstance(missing, list) or not all(_a_fact(name) for name in missing):
            raise Broken("a finding's `missing` names something that is not a fact")
        said = {name: entry[name] for name in _TIGHTEN if entry.get(name) is not None}
        if outcome not in ("", "pass"):
            said[str(outcome)] = entry.get("reason", "")
        truth = NO if outcome == "pass" else Truth(None, frozenset(missing)) if missing else YES
        rule = Rule(
            id=self._name(entry.get("rule")),
            anchor=str(anchor),
            scope=Every(()),
            when=Answered(truth),
            effect=Effect() if outcome == "pass" else self._effect(("effect",), said),
            statutes=self._statutes(("statutes",), entry.get("statutes", [])),
            scoped=True,
        )
        if self.problems:
            worst = self.problems[0]
            raise Broken(f"{rule.id}: {worst.path} is {worst.found}, expected {worst.expected}")
        return rule

    def _name(self, name: object) -> str:
        if not isinstance(name, str) or not 0 < len(name) <= 64 or not set(name) <= set(_LETTERS):
            raise Broken("a finding without a rule's name of lower-case letters, digits and dashes")
        return name


_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789-"


def _a_fact(name: object) -> bool:
    word = str(name)
    return word in FACTS or word in DERIVED or word.removeprefix("recipient.") in RECIPIENT_FACTS


def rules_of(found: object, anchors: Sequence[str], statutes: Mapping[str, Statute]) -> list[Rule]:
    """The rules that findings stand for, in the order of their names: engines have orders of their own, or none."""
    if not isinstance(found, list):
        raise Broken("the answer is not a list of findings")
    if len(found) > MAX_FINDINGS:
        raise Broken(f"more than {MAX_FINDINGS} findings")
    for entry in found:
        if not isinstance(entry, dict):
            raise Broken("a finding that is not an object")
        unknown = sorted(str(key) for key in entry if key not in KEYS)
        if unknown:
            raise Broken(f"a finding with the key {unknown[0][:40]!r}, which is none of {', '.join(sorted(KEYS))}")
        if any(isinstance(value, str) and len(value) > MAX_TEXT for value in entry.values()):
            raise Broken(f"a finding with a text longer than {MAX_TEXT:,} letters")
    merged = _merged(found)
    rules = [Finding(Document("finding", {}, {}), statutes).found(entry, anchors) for entry in merged]
    return sorted(rules, key=lambda rule: rule.id)


def _merged(found: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Findings that differ in nothing but a missing fact are one: a language of fixed texts has to name them one by one."""
    merged: dict[tuple[bool, str], dict[str, object]] = {}
    for entry in found:
        missing = entry.get("missing")
        rest = json.dumps({key: value for key, value in entry.items() if key != "missing"}, sort_keys=True)
        kept = merged.setdefault((bool(missing), rest), dict(entry))
        if isinstance(missing, list) and isinstance(before := kept.get("missing"), list):
            kept["missing"] = [*before, *(name for name in missing if name not in before)]
    return [merged[key] for key in sorted(merged)]


def weighed(rules: Sequence[Rule], facts: Mapping[str, Value], recipient: RecipientFacts) -> list[Verdict]:
    return [judge(rule, facts, recipient) for rule in rules]


def failed(kind: str, anchors: Sequence[str], why: str) -> list[Verdict]:
    """A deferral for every anchor the engine speaks for: one in shadow must not hide that another was not judged."""
    effect = Effect(outcome="defer", reason=f"{FAILED}: {kind}: {why}")
    rules = [Rule("policy-failed", anchor, Every(()), Every(()), effect) for anchor in anchors]
    return [Verdict(rule, "defer", effect.reason) for rule in rules]
