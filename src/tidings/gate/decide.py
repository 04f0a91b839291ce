"""A policy, and what it decides: allow, deny or defer for each recipient of a situation, with reasons a person can act on.

deny > defer > allow; among the rules that apply the shortest deadline, the lowest priority number and the strongest semantics win.
Rules of an anchor that is not enforced for this person count for nothing; what they would have done stands beside the decision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tidings.gate.clocks import Clock
from tidings.gate.facts import ANCHORS, DERIVED, Value, complete, derive
from tidings.gate.loading import load_policy
from tidings.gate.policy import ALWAYS, Policy, Recipient
from tidings.gate.relevance import asked
from tidings.gate.rules import ACKS, REACHES, SEMANTICS, Verdict, judge

__all__ = ["Decision", "Policy", "Recipient", "decide", "decide_all", "load_policy"]

DEFAULT_PRIORITY = 5
DEFAULT_SEMANTICS = "at-least-once"
NO_OBJECTION = "no rule objects"
_SPEAKS = ("deny", "defer", "applies")
RESULTS = ("not_applicable", "pass", "shadow_pass", "shadow_defer", "shadow_deny", "defer", "deny")  # of an anchor


@dataclass(frozen=True)
class Decision:
    """One recipient's answer."""

    subscriber: str
    outcome: str
    reasons: tuple[str, ...]
    rules: tuple[str, ...]
    statutes: tuple[str, ...]
    semantics: str
    priority: int
    clocks: tuple[Clock, ...]
    redact: tuple[str, ...]
    ack: str
    retention: tuple[str, ...]
    reach: str
    anchors: Mapping[str, str]
    missing: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    review: bool = False  # a person may lift the deferral
    would: str = ""  # the outcome if every anchor were enforced, where that differs
    shadowed: tuple[str, ...] = ()  # the rules that would have spoken


def decide(policy: Policy, situation: Mapping[str, Value], recipient: Recipient) -> Decision:
    """What the policy says of one recipient; facts that were not given take their defaults."""
    return _decide(policy, derive(complete(situation)), recipient)


def verdicts(policy: Policy, facts: Mapping[str, Value], recipient: Recipient) -> list[Verdict]:
    """What every rule says, ours and those of other engines."""
    about = recipient.facts(facts)
    said = [judge(rule, facts, about) for rule in asked(policy, facts)]
    for engine in policy.engines:
        said += engine.verdicts(
            {name: facts.get(name) for name in (*engine.facts, *ALWAYS, *DERIVED, "reviewed")}, about
        )
    return said


def _decide(policy: Policy, facts: Mapping[str, Value], recipient: Recipient) -> Decision:
    every = verdicts(policy, facts, recipient)
    counted = [verdict for verdict in every if policy.enforced(verdict.rule.anchor, facts)]
    outcome, full = outcome_of(counted), outcome_of(every)
    telling = [verdict for verdict in counted if _tells(verdict, outcome)]
    effects = [verdict.rule.effect for verdict in counted if verdict.tightens]
    change_type = facts.get("change_type")
    wanted = recipient.asked(recipient.semantics, change_type, DEFAULT_SEMANTICS)
    blocking = [verdict for verdict in counted if verdict.says in ("deny", "defer")]
    return Decision(
        subscriber=recipient.subscriber,
        outcome=outcome,
        reasons=_unique(verdict.reason for verdict in telling if verdict.reason) or (NO_OBJECTION,),
        rules=_unique(verdict.rule.id for verdict in telling),
        statutes=_unique(name for verdict in telling for name in verdict.rule.statutes),
        semantics=max([wanted, *(e.semantics for e in effects if e.semantics)], key=SEMANTICS.index),
        priority=min((e.priority for e in effects if e.priority is not None), default=DEFAULT_PRIORITY),
        clocks=_clocks(counted, recipient, change_type),
        redact=policy.fields(facts.get("entity"), {name for effect in effects for name in effect.redact}),
        ack=max((e.ack for e in effects if e.ack), key=ACKS.index, default=""),
        retention=tuple(sorted({e.retention for e in effects if e.retention})),
        reach=max((e.reach for e in effects), key=REACHES.index, default="subscribed"),
        anchors=_anchors(every, policy, facts),
        missing=tuple(sorted(frozenset().union(*(verdict.missing for verdict in telling)))),
        tags=tuple(sorted({tag for effect in effects for tag in effect.tags})),
        review=outcome == "defer" and all(each.rule.effect.review and not each.missing for each in blocking),
        would=full if full != outcome else "",
        shadowed=_unique(v.rule.id for v in every if v.says in _SPEAKS and not policy.enforced(v.rule.anchor, facts)),
    )


def outcome_of(said: Iterable[Verdict]) -> str:
    """deny > defer > allow."""
    words = {verdict.says for verdict in said}
    return "deny" if "deny" in words else "defer" if "defer" in words else "allow"


def decide_all(policy: Policy, situation: Mapping[str, Value]) -> dict[str, Any]:
    """The decision row of a situation."""
    facts = complete(situation)
    return as_row(policy, facts, told(policy, facts))


def told(policy: Policy, facts: Mapping[str, Value]) -> list[Decision]:
    """Every recipient that is part of the situation, in the order of their names, told or not."""
    decisions = []
    for recipient in sorted(policy.recipients, key=lambda each: each.subscriber):
        if not recipient.holds(facts["entity"]):
            continue
        decision = decide(policy, facts, recipient)
        if recipient.subscribed(facts["change_type"]) or decision.reach != "subscribed":
            decisions.append(decision)
    return decisions


def as_row(policy: Policy, facts: Mapping[str, Value], decisions: Sequence[Decision]) -> dict[str, Any]:
    """Plain JSON data: clocks once per situation, recipients point at them by number."""
    kept = {name: facts[name] for name in policy.facts}
    clocks = sorted({clock for decision in decisions for clock in decision.clocks})
    recipients = [
        _plain(decision) | {"clocks": [clocks.index(clock) for clock in decision.clocks]} for decision in decisions
    ]
    return {
        "situation": situation_id(policy.version, kept),
        "policy_version": policy.version,
        "facts": kept,
        "clocks": [asdict(clock) for clock in clocks],
        "recipients": recipients,
    }


def _plain(decision: Decision) -> dict[str, Any]:
    """As it comes back from JSON, so that a table that was read equals the one that was written."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(decision).items()}


def situation_id(policy_version: str, facts: Mapping[str, Value]) -> str:
    """The name of a decision; the native twin is `situations.situation_id`. Lengths make the text unambiguous."""
    parts = [policy_version, *(_word(facts[name]) for name in facts)]
    text = "".join("-" if part is None else f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _word(value: Value) -> str | None:
    return ("true" if value else "false") if isinstance(value, bool) else value


def _tells(verdict: Verdict, outcome: str) -> bool:
    """Does this verdict explain the outcome? Objections explain a refusal; what applied explains an allowance."""
    return verdict.says == outcome or (outcome == "allow" and verdict.says == "applies")


def _clocks(verdicts: Iterable[Verdict], recipient: Recipient, change_type: Value) -> tuple[Clock, ...]:
    clocks: set[Clock] = set()
    for verdict in verdicts:
        if not verdict.tightens:
            continue
        clocks |= set(verdict.rule.effect.clocks)
        seconds = recipient.asked(recipient.sla, change_type, None)
        if verdict.rule.effect.sla and seconds is not None:
            clocks.add(Clock("seconds", int(seconds)))
    return tuple(sorted(clocks))


def _anchors(said: Iterable[Verdict], policy: Policy, facts: Mapping[str, Value]) -> dict[str, str]:
    """Anchor → its worst result; of one that is not enforced here, what it would have been."""
    results = dict.fromkeys(ANCHORS, RESULTS[0])
    words = {"deny": "deny", "defer": "defer", "applies": "pass", "passes": "pass"}
    for verdict in said:
        word, anchor = words.get(verdict.says, RESULTS[0]), verdict.rule.anchor
        if word != RESULTS[0] and not policy.enforced(anchor, facts):
            word = f"shadow_{word}"
        results[anchor] = max(results[anchor], word, key=RESULTS.index)
    return results


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
