"""The bundles of event discipline, vertical law and governance: every example holds, and each rule is what blocks what it blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tidings.errors import Problem
from tidings.gate.decide import Policy, Recipient, decide
from tidings.gate.facts import ROLES, Value
from tidings.gate.loading import catalogue_statutes, compile_rules, described
from tidings.gate.rules import Example, Rule
from tidings.policy import read

STATUTES, _ = catalogue_statutes()
MAX_TAGS = 10  # of one event: an attestation is to be read


def included(*names: str) -> tuple[list[Rule], list[Problem]]:
    """The rules of an operator that includes these bundles and has none of its own."""
    with TemporaryDirectory() as folder:
        Path(folder, "all.yaml").write_text(f"include: [{', '.join(names)}]\n", encoding="utf-8")
        policies, problems = read(Path(folder), "policy")
    rules, wrong = compile_rules(policies.rules, STATUTES)
    return rules, [*problems, *wrong]


RULES, PROBLEMS = included("event", "vertical", "governance")
BLOCKING = [rule for rule in RULES if rule.effect.blocks]
WHOLE = Policy("whole", tuple(included("event", "privacy", "channel", "vertical", "governance")[0]))


def test_the_bundles_are_right_as_they_stand() -> None:
    assert [str(problem) for problem in PROBLEMS] == []
    assert {rule.anchor for rule in RULES} == {"event", "vertical", "governance"}


def test_they_stand_beside_the_starter_bundle() -> None:
    rules, problems = included("starter", "event", "vertical", "governance")
    assert problems == []
    assert len(rules) == len(RULES) + len(included("starter")[0])


def test_what_a_rule_wants_kept_has_a_period_in_law() -> None:
    wanted = {rule.effect.retention for rule in RULES if rule.effect.retention}
    kept = {name for name, law in STATUTES.items() if law.retention or law.bound == "keep"}
    assert wanted - kept == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_has_an_example_it_catches_and_one_it_does_not(rule: Rule) -> None:
    given = {example.gives for example in rule.examples}
    assert given & ({rule.effect.outcome} if rule.effect.blocks else {"applies"})
    assert given & {"passes", "nothing"}


def recipient(example: Example) -> Recipient:
    """The example's recipient, with what depends on the change as its manifest would say it."""
    kind, said = str(example.given.get("change_type")), example.to
    return replace(
        described(said),
        acks={kind: str(said["ack"])} if "ack" in said else {},
        once=(kind,) if said.get("exactly_once") else (),
        approvals=() if said.get("approved") is False else None,
    )


@pytest.mark.parametrize("rule", BLOCKING, ids=lambda rule: rule.id)
def test_a_rule_is_heard_among_the_others(rule: Rule) -> None:
    """That it is missed when it is gone is shown in `test_rulebook`."""
    whole = Policy("all", tuple(RULES))
    told = []
    for example in rule.examples:
        if example.gives in ("deny", "defer"):
            with_it = decide(whole, example.given, recipient(example))
            assert with_it.outcome in ("deny", example.gives)
            told.append(rule.id in with_it.rules and with_it.outcome == rule.effect.outcome)
    assert any(told), f"another rule always speaks louder than {rule.id}"


USUAL: dict[str, Value] = {
    "operation": "update",
    "entity": "customer",
    "entity_kind": "customer",
    "personal": True,
    "capture": "postgresql",
    "transactional": True,
    "ai_routing": True,
    "public_company": True,
    "material": True,
}


@pytest.mark.parametrize("vertical", ["Store", "Hospital", "BankOrCreditUnion", "BrokerDealer", "LegalService"])
@pytest.mark.parametrize("place", ["US-NY", "DE"])
def test_an_attestation_stays_short(vertical: str, place: str) -> None:
    """Of an operator to whom nearly everything applies, with a recipient of every role."""
    terms = {"dpa": True, "baa": True, "certifications": ["soc2"], "region": "US"}
    people = [described(terms | {"role": role, "llm": role == "agent"}) for role in ROLES]
    for kind in ("email", "consent", "delete", "insert", "tier", "payment_method", "cross_sell_signal"):
        facts = USUAL | {"change_type": kind, "vertical": vertical, "jurisdiction": place}
        tags = {tag for one in people for tag in decide(WHOLE, facts, one).tags}
        assert len(tags) <= MAX_TAGS, (kind, sorted(tags))


DUTIES: tuple[dict[str, Value], ...] = (
    {"change_type": "delete", "operation": "delete"},
    {"change_type": "consent", "operation": "update", "consent_state": "withdrawn"},
    {"change_type": "rectification", "operation": "update"},
    {"change_type": "restriction", "operation": "update"},
)
KNOWN: dict[str, Value] = {
    "entity": "customer",
    "entity_kind": "customer",
    "personal": True,
    "special": True,
    "phi": True,
}
STRANGERS: tuple[dict[str, object], ...] = tuple(
    {"role": role, "llm": llm, "high_risk_ai": llm, "acts_as": "third_party", "region": "US"}
    for role in ROLES
    for llm in (False, True)
)


@pytest.mark.parametrize("vertical", ["Store", "Hospital", "BankOrCreditUnion", "BrokerDealer", "LegalService"])
def test_a_duty_is_never_held_back(vertical: str) -> None:
    """Whoever the recipient is: what must reach everybody does. Card numbers, tokens, holds and test mode are the exceptions."""
    known = KNOWN | {"vertical": vertical, "public_company": True, "material": True}
    for duty in DUTIES:
        for place in ("US-NY", "DE", None):
            for to in STRANGERS:
                decision = decide(WHOLE, known | duty | {"jurisdiction": place}, described(to))
                assert decision.outcome == "allow", (duty, place, to, decision.rules)
