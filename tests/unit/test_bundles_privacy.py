"""The privacy and channel bundles: every example runs, every rule can be switched off and is missed, and no duty is ever held back."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tidings import policy as documents
from tidings.gate.decide import Decision, decide, told
from tidings.gate.facts import CHANNELS, DERIVED, FACTS, PURPOSES, complete, known
from tidings.gate.loading import catalogue_statutes, compile_rules, described
from tidings.gate.policy import Approval, Policy, Recipient
from tidings.gate.rules import Compare, Condition, Either, Every, Example, Measure, Not, Rule

CATCHES = {"deny", "defer", "applies"}
STATUTES, _ = catalogue_statutes()


def bundle(folder: Any, *names: str) -> Policy:
    """What an operator gets that includes these documents."""
    (folder / "own.yaml").write_text(f'version: "1"\ninclude: [{", ".join(names)}]\n', encoding="utf-8")
    read, wrong = documents.read(folder, "policy")
    rules, problems = compile_rules(read.rules, STATUTES)
    assert not wrong
    assert not problems
    return Policy("bundle", tuple(rules), STATUTES)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return bundle(tmp_path_factory.mktemp("policy"), "privacy", "channel")


def test_each_rule_has_an_example_that_it_catches_and_one_that_it_does_not(policy: Policy) -> None:
    assert len(policy.rules) > 150
    for rule in policy.rules:
        gives = {example.gives for example in rule.examples}
        assert gives & CATCHES, rule.id
        assert gives & {"passes", "nothing"}, rule.id


def test_the_bundles_stand_beside_the_starter(tmp_path: Any) -> None:
    both = bundle(tmp_path, "privacy", "channel", "starter", "masters")
    ids = [rule.id for rule in both.rules]
    assert len(set(ids)) == len(ids)


def test_a_blocking_rule_lets_duties_pass(policy: Policy) -> None:
    """Whatever the recipient lacks and wherever the person lives: what a person is owed reaches everyone."""
    worst = Recipient(
        "worst",
        "ads",
        "IN",
        dpa=False,
        sla={"default": 900},
        approvals=(),
        terms={"transfer_mechanism": "none", "sells": True, "llm": True, "high_risk_ai": True, "human_oversight": False}
        | {"acts_as": "third_party", "impact_assessed": False, "purposes": ("marketing", "ads", "profiling")},
    )
    bad = dict.fromkeys(("child", "objected", "restricted", "limited", "no_automated", "erased", "late"), True)
    bad |= dict.fromkeys(("special", "phi", "biometric", "children", "sensitive", "geolocation"), True)
    bad |= {f"consent_{word}": "withdrawn" for word in (*CHANNELS, *PURPOSES)}
    duties = (
        {"change_type": "delete", "operation": "delete"},
        {"change_type": "erasure"},
        {"change_type": "rectification"},
        {"change_type": "restriction"},
        {"change_type": "objection"},
        {"change_type": "consent", "consent_state": "withdrawn", "consent_channel": "sms"},
        {"change_type": "suppression", "operation": "insert"},
    )
    places = (None, "DE", "GB", "CH", "BR", "IN", "CA-QC", "US", "US-CA", "US-WA", "US-IL", "US-TX", "JP")
    for duty, place in product(duties, places):
        decision = decide(policy, {**bad, **duty, "personal": True, "jurisdiction": place}, worst)
        assert decision.outcome == "allow", (duty, place, decision.reasons)
        assert decision.semantics == "at-least-once"
        assert decision.priority < 5
        assert decision.reach != "subscribed", (duty, place)
        assert decision.clocks or place in ("US-IL", "US-TX", "US-WA"), (
            duty,
            place,
        )  # a state need not have a law on it
        assert len(decision.tags) <= 10, decision.tags


def test_no_decision_carries_more_tags_than_somebody_reads(policy: Policy) -> None:
    flags = dict.fromkeys(("child", "special", "phi", "biometric", "children", "payment", "no_automated"), True)
    kinds = ("insert", "email", "phone", "consent", "access", "incident", "complaint", "sensitive_data")
    sides: list[dict[str, Any]] = [
        {"role": "marketing", "channels": ["email", "sms"], "acts_as": "controller", "region": "US"},
        {"role": "agent", "llm": True, "human_oversight": True, "region": "IN", "transfer_mechanism": "scc"},
    ]
    for kind, place, to in product(kinds, (None, "DE", "GB", "US-IL", "US-TX", "US-CA", "CA-QC", "IN"), sides):
        said = decide(policy, {**flags, "personal": True, "change_type": kind, "jurisdiction": place}, described(to))
        assert len(said.tags) <= 10, (kind, place, said.tags)


# What no rule objects to; an example's own facts are laid over it.
CALM: dict[str, Any] = {
    "personal": True,
    "jurisdiction": "DE",
    "lawful_basis": "contract",
    "parent_consent": True,
    "health_consent": True,
    "biometric_release": True,
    **{f"consent_{word}": "granted" for word in (*CHANNELS, *PURPOSES)},
}
SOUND: dict[str, Any] = {
    "role": "service",
    "region": "FR",
    "dpa": True,
    "transfer_mechanism": "scc",
    "human_oversight": True,
    "impact_assessed": True,
}


def named(condition: Condition) -> set[str]:
    """Every fact a condition asks for; those of the recipient behind a dot."""
    if isinstance(condition, Compare):
        return (
            {f".{condition.name}"} if condition.recipient else {*DERIVED.get(condition.name, (0, [condition.name]))[1]}
        )
    if isinstance(condition, Measure):
        return {f".{condition.name}"}
    if isinstance(condition, Not):
        return named(condition.part)
    assert isinstance(condition, Every | Either)
    return {name for part in condition.parts for name in named(part)}


def in_full(rule: Rule, example: Example) -> tuple[dict[str, Any], Recipient]:
    """The example with everything calm that its rule does not ask for, and its recipient as a run would know it."""
    asked = named(rule.scope) | named(rule.when)
    given = {name: value for name, value in CALM.items() if name not in asked} | dict(example.given)
    to = {name: value for name, value in SOUND.items() if f".{name}" not in asked} | dict(example.to)
    sound = described(to)
    if "approved" in to:
        known_only = (
            () if to["approved"] is False else (Approval(("*",), ("DE",) if known(to["approved"]) is None else ("*",)),)
        )
        sound = replace(sound, approvals=known_only)
        given = {**given, "jurisdiction": example.given.get("jurisdiction")}
    once = (str(given.get("change_type")),) if to.get("exactly_once", True) else ()
    return given, replace(sound, once=once)


def blocked(rule: Rule, decision: Decision) -> bool:
    return decision.outcome in ("deny", "defer") and rule.id in decision.rules


def test_a_rule_that_is_switched_off_is_missed(policy: Policy) -> None:
    """Each blocking rule has an example that it alone holds back: without the rule the pair would leave."""
    blocking = [rule for rule in policy.rules if rule.effect.blocks]
    assert len(blocking) >= 35
    lost = []
    for rule in blocking:
        without = replace(policy, rules=tuple(other for other in policy.rules if other is not rule))
        alone = False
        for example in rule.examples:
            if example.gives not in ("deny", "defer"):
                continue
            given, to = in_full(rule, example)
            if blocked(rule, decide(policy, given, to)):
                after = decide(without, given, to)
                assert not blocked(rule, after)
                alone |= after.outcome == "allow"
        if not alone:
            lost.append(rule.id)
    assert not lost


def test_what_is_calm_leaves(policy: Policy) -> None:
    """Were the background of the test above held back anyway, the test would show nothing."""
    calm = decide(policy, {**CALM, "change_type": "email"}, replace(described(SOUND), once=("email",)))
    assert calm.outcome == "allow"


def opt_out(policy: Policy, **facts: Any) -> Decision:
    said = {"change_type": "consent", "consent_state": "withdrawn", "personal": True, "jurisdiction": "US-CA"} | facts
    return decide(policy, said, replace(described(SOUND), sla={"default": 900}))


def test_the_queue_has_tiers(policy: Policy) -> None:
    text, call = opt_out(policy, consent_channel="sms"), opt_out(policy, consent_channel="phone")
    mail, limit = (
        opt_out(policy, consent_channel="email"),
        opt_out(policy, change_type="restriction", consent_state=None),
    )
    audience = opt_out(policy, consent_channel="ads", consent_purpose="advertising")
    cleaning = opt_out(
        policy, change_type="suppression", consent_state=None, consent_channel="email", consent_class="bounce"
    )
    ordinary = opt_out(policy, change_type="email", consent_state=None)
    order = [each.priority for each in (text, call, mail, limit, audience, cleaning, ordinary)]
    assert order == [0, 0, 1, 0, 2, 3, 5]


def test_an_opt_in_is_given_once_or_looked_at(policy: Policy) -> None:
    said = {**CALM, "change_type": "consent", "consent_state": "granted", "consent_channel": "email"}
    able = replace(described(SOUND | {"role": "marketing"}), once=("consent",))
    assert decide(policy, said, able).semantics == "exactly-once"
    unable = decide(policy, said, replace(able, once=()))
    assert unable.outcome == "defer"
    assert unable.review
    assert unable.rules == ("opt-in-not-once",)
    looked_at = decide(policy, {**said, "reviewed": True}, replace(able, once=()))
    assert looked_at.outcome == "allow"
    assert looked_at.semantics == "at-least-once"
    store = replace(described(SOUND | {"role": "warehouse"}), once=())
    assert decide(policy, said, store).outcome == "allow"


STATES = sorted(
    name[3:5] for name in STATUTES if name.startswith("us-") and name.endswith("-delete") and name.count("-") == 2
)


@pytest.mark.parametrize("state", STATES)
def test_a_state_counts_by_its_own_law_alone(policy: Policy, state: str) -> None:
    place = f"US-{state.upper()}"
    for kind, right in (("delete", "delete"), ("access", "access"), ("rectification", "correct"), ("appeal", "appeal")):
        statute = STATUTES.get(f"us-{state}-{right}")
        said = decide(policy, {"change_type": kind, "personal": True, "jurisdiction": place}, described(SOUND))
        assert all(name.startswith(f"us-{state}-") for name in said.statutes), said.statutes
        assert set(said.clocks) == (set(statute.clocks("request")) if statute else set()), (kind, said.clocks)
        assert statute is None or statute.id in said.statutes


@pytest.mark.parametrize(
    ("place", "ours"), [("DE", "eu-"), ("GB", "gb- eu-"), ("BR", "br-"), ("CA-QC", "ca-"), ("US-TX", "us-")]
)
def test_a_duty_cites_the_law_of_the_place(policy: Policy, place: str, ours: str) -> None:
    """Texts and calls have no tier of their own in law, so a German's opt-out cites nothing American."""
    consents = [{"consent_state": "withdrawn", "consent_channel": channel} for channel in CHANNELS]
    duties = [{"change_type": kind} for kind in ("delete", "rectification", "restriction", "access", "objection")]
    for said in [*duties, *({"change_type": "consent"} | each for each in consents)]:
        decision = decide(policy, {**said, "personal": True, "jurisdiction": place}, described(SOUND))
        assert all(name.startswith(tuple(ours.split())) for name in decision.statutes), decision.statutes


def test_a_place_nobody_knows_cites_few_laws(policy: Policy) -> None:
    said = decide(policy, {"change_type": "delete", "personal": True}, replace(described(SOUND), sla={"default": 900}))
    assert [(clock.unit, clock.amount) for clock in said.clocks] == [("seconds", 900)]
    assert len(said.statutes) < 6
    assert "place.unknown-strictest-law" in said.tags


def test_who_is_not_approved_is_told_of_erasures_only(policy: Policy) -> None:
    stranger = replace(described(SOUND), approvals=(), types=("email",), sla={"default": 900})
    alone = replace(policy, recipients=(stranger,))
    email, erasure = (
        told(alone, complete({**CALM, "change_type": kind, "entity": "customer"})) for kind in ("email", "delete")
    )
    assert [each.outcome for each in email] == ["deny"]
    assert email[0].rules == ("recipient-not-approved",)
    assert [each.outcome for each in erasure] == ["allow"]


def test_rules_ask_only_for_what_a_situation_can_hold(policy: Policy) -> None:
    """Facts that differ from event to event without end would make a situation of every event."""
    assert set(policy.facts) <= set(FACTS)
    assert not {"source", "banner", "capture", "categories"} & set(policy.facts)
