"""The gate at send: a policy that came into force since is heard, one that was there already is not asked again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidings.gate.again import Again
from tidings.gate.decide import Policy, Recipient, decide_all
from tidings.gate.decisions import DecisionTable
from tidings.gate.rules import Compare, Effect, Every, Rule

EMAIL = {"change_type": "email", "operation": "update", "entity": "customer"}
ESP = Recipient("esp", "marketing", "US", True)
NO = Rule("no", "event", Every(()), Compare("change_type", ("email",)), Effect("deny", "not any more"))
LESS = Rule("less", "event", Every(()), Compare("change_type", ("email",)), Effect(redact=("phone",)))


class Told(Again):
    """With what a store would say: nothing new about anybody, and one event decided before."""

    decision = ""

    def _news(self, tags: set[bytes], since: float) -> dict[bytes, tuple[tuple[str, str], ...]]:
        return {}

    def _decisions(self, members: Any) -> dict[str, str]:
        return {member["event_id"]: self.decision for member in members}


def asked(folder: Path, rule: Rule, in_force_since: float) -> dict[tuple[str, str], Any]:
    """An event journaled at 100 under a policy without rules, sent under one with a rule."""
    before = Policy("before", (), {}, (ESP,))
    old = DecisionTable(folder, before)
    old.extend([EMAIL])
    table = DecisionTable(folder, Policy("now", (rule,), {}, (ESP,)))
    again = Told(None, table, in_force_since=in_force_since)  # type: ignore[arg-type]
    again.decision = decide_all(before, EMAIL)["situation"]
    return again([{"lane": "esp", "event_id": "e", "tag": b"t", "since": 100.0}])


def test_a_stricter_policy_stops_what_is_still_to_be_sent(tmp_path: Path) -> None:
    assert asked(tmp_path, NO, 200.0) == {("esp", "e"): ("refused", "not any more")}


def test_and_hides_what_it_hides(tmp_path: Path) -> None:
    assert asked(tmp_path, LESS, 200.0) == {("esp", "e"): frozenset({"phone"})}


def test_what_cannot_be_decided_now_waits(tmp_path: Path) -> None:
    """Of this policy's own situations; one of an older policy lacks facts that nobody can add."""
    ask = Rule("ask", "event", Every(()), Compare("consent_email", ("granted",)), Effect("deny", "because"))
    assert asked(tmp_path, ask, 200.0) == {("esp", "e"): frozenset()}
    table = DecisionTable(tmp_path, Policy("now", (ask,), {}, (ESP,)))
    table.extend([EMAIL | {"consent_email": "withdrawn"}])
    again = Told(None, table, in_force_since=200.0)  # type: ignore[arg-type]
    again.decision = next(iter(table.rows))
    again._news = lambda tags, since: {b"t": (("email", "unknown"),)}  # type: ignore[method-assign]
    assert again([{"lane": "esp", "event_id": "e", "tag": b"t", "since": 100.0}]) == {("esp", "e"): "defer"}


def test_what_was_decided_with_this_policy_is_not_decided_again(tmp_path: Path) -> None:
    assert asked(tmp_path, NO, 50.0) == {}
