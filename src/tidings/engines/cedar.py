"""Cedar in this machine (cedarpy): annotations of the policies that match are the findings.

A `forbid` denies unless its @outcome says defer or review; a `permit` with annotations tightens or tags; a bare `permit` finds
nothing. Cedar refuses what nothing permits, so a set in which no `permit` matches is no answer. It has no null: a fact that is not
known is absent, and a policy that reads it without `has` errors, which Cedar skips and we take for a failure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tidings.engines.answers import Broken, from_text

EXTRA = "cedar"
MODULE = "cedarpy"
REQUEST = {"principal": 'Recipient::"recipient"', "action": 'Action::"receive"', "resource": 'Event::"event"'}


def load(files: Mapping[str, str]) -> Callable[[Mapping[str, Any]], object]:
    from cedarpy import Entities, PolicySet, is_authorized

    parts: dict[str, dict[str, Any]] = {"forbid": {}, "permit": {}}
    for file, text in files.items():
        for name, policy in _policies(file, text).items():
            parts[policy["effect"]][f"{file}#{name}"] = policy
    # Cedar names only the policies that decided: with a forbid, the permits that matched are not told. So each kind is asked alone.
    sets = {kind: PolicySet.from_json_str(_set(policies)) for kind, policies in parts.items()}
    findings = {name: _finding(policy) for policies in parts.values() for name, policy in policies.items()}
    entities = Entities.from_json_str("[]")

    def answer(question: Mapping[str, Any]) -> object:
        context = {part: {k: v for k, v in facts.items() if v is not None} for part, facts in question.items()}
        if isinstance(rate := context["recipient"].get("rate"), float):
            context["recipient"]["rate"] = int(rate)  # Cedar has whole numbers only
        matched: list[str] = []
        for kind, policies in sets.items():
            result = is_authorized({**REQUEST, "context": context}, policies, entities)
            if result.diagnostics.errors:
                raise Broken(str(result.diagnostics.errors[0])[:200])
            if kind == "permit" and not result.diagnostics.reasons:
                raise Broken("nothing permits it")
            matched += result.diagnostics.reasons
        return [found for name in matched if (found := findings[name])]

    return answer


def _policies(file: str, text: str) -> dict[str, Any]:
    from cedarpy import policies_to_json_str

    try:
        read = json.loads(policies_to_json_str(text))
    except ValueError as error:
        raise Broken(f"{file}: {str(error).splitlines()[0][:200]}") from None
    if read.get("templates"):
        raise Broken(f"{file}: templates, which nobody fills in here")
    policies: dict[str, Any] = read["staticPolicies"]
    return policies


def _set(policies: Mapping[str, Any]) -> str:
    return json.dumps({"templates": {}, "staticPolicies": policies, "templateLinks": []})


def _finding(policy: Mapping[str, Any]) -> dict[str, object] | None:
    said = {key: text or "" for key, text in (policy.get("annotations") or {}).items()}
    name = said.pop("id", "")
    if policy["effect"] == "permit" and not said:
        return None
    outcome = said.get("outcome", "")
    if policy["effect"] == "forbid" and outcome not in ("", "deny", "defer", "review"):
        raise Broken(f"{name}: a forbid with the outcome {outcome}")
    if policy["effect"] == "permit" and outcome not in ("", "allow", "pass"):
        raise Broken(f"{name}: a permit with the outcome {outcome}")
    if policy["effect"] == "forbid":
        said["outcome"] = outcome or "deny"
    return {"rule": name, **from_text(said)}
