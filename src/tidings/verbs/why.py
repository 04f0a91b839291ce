"""A decision as a person of law reads it: what was decided, by which rule and law, until when and how that was counted, what would change it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidings.gate.decide import Policy, Recipient
    from tidings.gate.statutes import Statute


def laws(policy: Policy, ids: Iterable[str]) -> list[dict[str, str]]:
    """The statutes that are known, as they are cited."""
    found: list[Statute] = [policy.statutes[name] for name in ids if name in policy.statutes]
    return [{"id": law.id, "law": law.law, "citation": law.citation, "confidence": law.confidence} for law in found]


def modes(policy: Policy, anchors: Mapping[str, str]) -> dict[str, str]:
    """The anchors that are not enforced for everybody: how far each counts, and what it gave here."""
    said = {anchor: mode for anchor, mode in policy.rollout.items() if mode.mode != "enforce"}
    return {
        anchor: mode.mode + (f" {mode.share:g}" if mode.mode == "canary" else "") + f": {anchors.get(anchor, '?')}"
        for anchor, mode in said.items()
    }


def reasoned(
    policy: Policy, facts: Mapping[str, Any], recipient: Recipient, moments: Mapping[str, datetime]
) -> dict[str, Any]:
    """What is beside a decision: its arithmetic, its modes and what would change it, under this policy."""
    from tidings.gate.arithmetic import reckoned
    from tidings.gate.decide import decide, verdicts
    from tidings.gate.facts import complete, derive
    from tidings.gate.suppose import what_would_change

    decision = decide(policy, facts, recipient)
    said = verdicts(policy, derive(complete(facts)), recipient)
    counted = [verdict for verdict in said if policy.enforced(verdict.rule.anchor, facts)]
    return {
        "arithmetic": reckoned(policy, decision.clocks, moments, counted),
        "modes": modes(policy, decision.anchors),
        "would_change": what_would_change(policy, facts, recipient),
    }


def lines(one: Mapping[str, Any], indent: str = "        ") -> Iterator[str]:
    """The details under a recipient's first line."""
    said = {
        "rules": ", ".join(one.get("rules") or ()),
        "law": "; ".join(f"{law['law']}, {law['citation']} ({law['id']}, {law['confidence']})" for law in one["laws"]),
        "fields left out": ", ".join(one.get("redact") or ()),
        "tags": ", ".join(one.get("tags") or ()),
        "missing": ", ".join(one.get("missing") or ()),
        "anchors": ", ".join(f"{name} {word}" for name, word in one["anchors"].items() if word != "not_applicable"),
        "not enforced": "; ".join(f"{name} {word}" for name, word in one.get("modes", {}).items()),
    }
    if one.get("would"):
        said["if all were enforced"] = f"{one['would']} by {', '.join(one.get('shadowed') or ())}"
    if one.get("review"):
        said["waits for"] = "a person's review (`tidings gate review`)"
    yield from (f"{indent}{name}: {text}" for name, text in said.items() if text)
    for clock in one.get("arithmetic", ()):
        yield f"{indent}until {clock['due'] or 'no date'}"
        yield from (f"{indent}  {number}. {step}" for number, step in enumerate(clock["steps"], 1))
    if not one.get("would_change"):
        yield f"{indent}no change of a few facts would change it"
    for change in one.get("would_change", ()):
        what = " and ".join(f"{each['fact']} were {_word(each['to'])}" for each in change["changes"])
        yield f"{indent}{change['outcome']} if {what}"


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) or "nothing" if isinstance(value, list) else str(value)
