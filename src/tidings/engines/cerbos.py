"""A Cerbos server: the recipient is the principal, the event the resource, and outputs of the rules that were met are findings.

Cerbos takes a condition that fails for one that is not met and does not tell, so a policy must ask for null before it compares; what
its schemas find wrong is told, and is no answer here. It stops at the first rule that denies, in an order of its own, so a denial
is no answer either: rules that find something allow, and say in their output what they found. `{"revision": …}` is the output of a
rule that is always met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidings.engines.answers import Broken
from tidings.engines.server import asked, same

ACTION = "receive"


def connect(url: str, revision: str, timeout_s: float, allow: Sequence[str]) -> Callable[[Mapping[str, Any]], object]:
    def answer(question: Mapping[str, Any]) -> object:
        body = {
            "principal": {"id": "recipient", "roles": ["recipient"], "attr": question["recipient"]},
            "resources": [
                {"actions": [ACTION], "resource": {"kind": "event", "id": "event", "attr": question["facts"]}}
            ],
        }
        said = asked(f"{url.rstrip('/')}/api/check/resources", body, timeout_s, allow)
        results = said.get("results")
        if not isinstance(results, list) or len(results) != 1 or not isinstance(results[0], dict):
            raise Broken("the server's answer holds no result")
        return _findings(results[0], revision)

    return answer


def _findings(result: Mapping[str, Any], revision: str) -> list[object]:
    if result.get("validationErrors"):
        raise Broken("the facts do not fit the server's schemas")
    if (result.get("actions") or {}).get(ACTION) != "EFFECT_ALLOW":
        raise Broken("it was not allowed, so outputs may be missing")
    outputs = [each for each in result.get("outputs") or () if isinstance(each, dict)]
    if any(each.get("error") for each in outputs):
        raise Broken("an output could not be made")
    said = [each.get("val") for each in outputs]
    told = [value for value in said if isinstance(value, dict) and set(value) == {"revision"}]
    same(told[0]["revision"] if told else None, revision)
    found = [value for value in said if value not in told]
    return found
