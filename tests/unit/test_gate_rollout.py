"""Anchors that are watched before they count, the list of approved recipients, and rules that cannot be meant."""

from __future__ import annotations

from datetime import date

import pytest

from tidings import yaml_lines
from tidings.gate.approvals import read_approvals
from tidings.gate.contradictions import contradictions
from tidings.gate.decide import Decision, Policy, Recipient, decide
from tidings.gate.loading import starter_policy
from tidings.gate.policy import Approval, Mode
from tidings.gate.rollout import modes, read_rollout
from tidings.gate.rules import Compare, Effect, Every, Rule
from tidings.yaml_lines import Document

TODAY = date(2026, 11, 16)
EMAIL = {"change_type": "email", "entity": "customer", "personal": True, "jurisdiction": "US-CA"}


def page(text: str) -> Document:
    document, problems = yaml_lines.parse(text, "policy/own.yaml")
    assert document is not None, problems
    return document


def told(mode: Mode | None, **facts: str | bool) -> Decision:
    policy = starter_policy()
    rollout = {"privacy": mode} if mode else {}
    policy = Policy(policy.name, policy.rules, policy.statutes, rollout=rollout)
    return decide(policy, EMAIL | facts, Recipient("stranger", "service", "US", dpa=False))


def test_shadow_decides_nothing_and_remembers_what_it_would_have() -> None:
    enforced, shadow = told(None), told(Mode("shadow"))
    assert (enforced.outcome, enforced.would, enforced.anchors["privacy"]) == ("deny", "", "deny")
    assert (shadow.outcome, shadow.would, shadow.anchors["privacy"]) == ("allow", "deny", "shadow_deny")
    assert "no-agreement" in shadow.shadowed
    assert "no-agreement" not in shadow.rules


def test_a_canary_counts_for_its_people_only() -> None:
    canary = Mode("canary", 0.1)
    assert told(canary, canary_privacy=True).outcome == "deny"
    outside = told(canary, canary_privacy=False)
    assert (outside.outcome, outside.would) == ("allow", "deny")


def test_only_a_canary_makes_the_share_part_of_a_situation() -> None:
    rules = starter_policy().rules
    assert "canary_privacy" not in Policy("own", rules, rollout={"privacy": Mode("shadow")}).facts
    assert "canary_privacy" in Policy("own", rules, rollout={"privacy": Mode("canary", 0.5)}).facts


def test_a_change_of_mode_is_another_policy() -> None:
    rules = starter_policy().rules
    versions = {
        Policy("own", rules, rollout={"privacy": mode}).version
        for mode in (Mode(), Mode("shadow"), Mode("canary", 0.1), Mode("canary", 0.2))
    }
    assert len(versions) == 4


STEPS = [
    ("- {mode: shadow, from: '2026-11-01'}\n    - {mode: enforce, from: '2026-11-10'}", "too_soon", 4),
    ("- {mode: shadow, from: '2026-11-01'}\n    - {mode: canary, share: 0.1, from: '2026-11-10'}", "too_soon", 4),
    ("- {mode: canary, from: '2026-11-01'}", "share", 3),
    ("- {mode: canary, share: 1.5, from: '2026-11-01'}", "share", 3),
    ("- {mode: enforce, share: 0.5, from: '2026-11-01'}", "share", 3),
    ("- {mode: loud, from: '2026-11-01'}", "choice", 3),
    ("- {mode: enforce, from: soon}", "date", 3),
    ("- {mode: enforce, from: '2026-12-01'}", "date", 3),
    ("- {mode: shadow, from: '2026-11-01'}\n    - {mode: shadow, from: '2026-10-01'}", "date", 4),
    ("- {mode: shadow, from: '2026-11-01', colour: red}", "unknown_key", 3),
]


@pytest.mark.parametrize(("steps", "code", "line"), STEPS)
def test_a_step_that_is_refused(steps: str, code: str, line: int) -> None:
    _, problems = read_rollout([page(f"rollout:\n  privacy:\n    {steps}\n")], TODAY)
    assert [(p.code, p.line) for p in problems] == [(code, line)]


@pytest.mark.parametrize(
    "steps",
    [
        "- {mode: shadow, from: '2026-10-01'}\n    - {mode: enforce, from: '2026-10-31'}",
        "- {mode: shadow, from: '2026-11-01'}\n    - {mode: enforce, from: '2026-11-10', counsel: General Counsel}",
        "- {mode: enforce, from: '2026-11-10'}",
        "- {mode: shadow, from: '2026-09-01'}\n    - {mode: canary, share: 0.2, from: '2026-10-05'}\n    - {mode: enforce, from: '2026-10-06'}",
    ],
)
def test_a_step_that_is_taken(steps: str) -> None:
    found, problems = read_rollout([page(f"rollout:\n  privacy:\n    {steps}\n")], TODAY)
    assert not problems
    assert modes(found) == {}


APPROVED = "recipients:\n  - {subscriber: esp, purposes: [marketing], jurisdictions: [US, EU], approved_by: Counsel, on: '2026-11-01'}\n"


def test_whoever_is_not_on_the_list_is_not_approved() -> None:
    approvals, problems = read_approvals([page(APPROVED)], ["esp", "cdp"])
    assert not problems
    assert approvals is not None
    esp = Recipient("esp", "marketing", "US", approvals=approvals["esp"])
    assert [esp.facts({"jurisdiction": place})["approved"] for place in ("US-CA", "DE", "BR", None)] == [True, True, False, None]  # fmt: skip
    both = Recipient("esp", "marketing", approvals=approvals["esp"], terms={"purposes": ("marketing", "analytics")})
    assert both.facts({"jurisdiction": "US"})["approved"] is False
    assert Recipient("cdp", "analytics", approvals=approvals["cdp"]).facts({"jurisdiction": "US"})["approved"] is False


def test_without_a_list_the_folder_is_the_list() -> None:
    assert read_approvals([page("rules: []\n")], ["esp"]) == (None, [])
    assert Recipient("esp", "marketing").facts({})["approved"] is True
    assert Recipient("esp", "marketing", approvals=(Approval(("*",), ("*",)),)).facts({})["approved"] is True


def test_every_problem_of_the_list_at_once() -> None:
    text = "recipients:\n  - {subscriber: spe, purposes: [], jurisdictions: [Europe], on: soon, colour: red}\n"
    _, problems = read_approvals([page(text)], ["esp"])
    assert sorted(p.code for p in problems) == [
        "date",
        "missing",
        "unknown_key",
        "unknown_subscriber",
        "wrong_value",
        "wrong_value",
    ]


def rule(name: str, outcome: str, *parts: Compare, scope: tuple[Compare, ...] = ()) -> Rule:
    return Rule(name, "event", Every(scope), Every(parts), Effect(outcome, "because"))


def test_two_rules_that_answer_the_same_question_differently() -> None:
    email, personal = Compare("change_type", ("email",)), Compare("personal", (True,))
    yes, no = rule("yes", "allow", email, personal), rule("no", "deny", personal, scope=(email,))
    assert [p.code for p in contradictions([yes, no])] == ["contradiction"]
    assert contradictions([yes, rule("narrow", "deny", email)]) == []


def test_a_rule_that_can_never_hold() -> None:
    us, eu = Compare("regime", ("us",)), Compare("regime", ("eu", "uk"))
    assert [p.code for p in contradictions([rule("never", "deny", eu, scope=(us,))])] == ["never_holds"]
    assert contradictions([rule("sometimes", "deny", eu, scope=(Compare("regime", ("eu", "us")),))]) == []


@pytest.mark.parametrize("place", ["ZZ", "QQ-1", "XX"])
def test_a_place_nobody_listed_is_unknown(place: str) -> None:
    """A code that is no place must not pass as `other`: the pair waits."""
    facts = EMAIL | {"jurisdiction": place}
    assert decide(starter_policy(), facts, Recipient("esp", "marketing", "US", dpa=True)).outcome == "defer"
