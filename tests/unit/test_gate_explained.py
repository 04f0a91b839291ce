"""A decision explained: what would change it is found by deciding again, deadlines are told step by step, input comes in three forms."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gate_rules import DELETE, EMAIL, OPT_OUT, STARTER, _try, rules_of

from tidings.gate import hours
from tidings.gate.decide import Policy, Recipient, decide
from tidings.gate.facts import FACTS
from tidings.gate.hours import _zones, closed, opens
from tidings.gate.policy import Mode
from tidings.gate.suppose import MOST_TOLD, Supposed, what_would_change
from tidings.verbs import try_gate

SHOP = Recipient("shop", "marketing", "US", False, terms={"channels": ("email",), "purposes": ("marketing",)})


def changed(policy: Policy, facts: dict[str, Any], recipient: Recipient, changes: list[dict[str, Any]]) -> str:
    """The outcome when the changes are made by hand."""
    own = {each["fact"]: each["to"] for each in changes if not each["fact"].startswith("recipient.")}
    theirs = {each["fact"].removeprefix("recipient."): each["to"] for each in changes if "." in each["fact"]}
    return decide(policy, facts | own, Supposed.of(recipient, theirs)).outcome


SITUATIONS = [
    EMAIL,
    EMAIL | {"jurisdiction": "DE"},
    EMAIL | {"jurisdiction": "US-CA", "consent_email": "withdrawn"},
    EMAIL | {"jurisdiction": "DE", "child": True, "sensitive": True},
    EMAIL | {"jurisdiction": "DE", "test_mode": True, "erased": True, "child": True},
    DELETE | {"legal_hold": True},
    OPT_OUT | {"jurisdiction": "US-CA", "consent_channel": "sms"},
    {"change_type": "phone", "personal": True, "jurisdiction": "US-TX"},
]


@pytest.mark.parametrize("facts", SITUATIONS, ids=str)
@pytest.mark.parametrize(
    "recipient", [SHOP, Recipient("erp", "service", "US", True), Recipient("ads", "ads", "US", True)]
)
def test_what_is_said_to_change_it_does(facts: dict[str, Any], recipient: Recipient) -> None:
    now = decide(STARTER, facts, recipient).outcome
    for each in what_would_change(STARTER, facts, recipient):
        assert each["outcome"] != now
        assert changed(STARTER, facts, recipient, each["changes"]) == each["outcome"]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from([n for n, f in FACTS.items() if f.kind == "flag"]), st.booleans(), max_size=5))
def test_the_smallest_sets_are_said(flags: dict[str, bool]) -> None:
    """Nothing smaller than what is said would do: every part of a set alone leaves the outcome short of an allowance."""
    facts = EMAIL | {"jurisdiction": "DE"} | flags
    for each in what_would_change(STARTER, facts, SHOP):
        for size in range(1, len(each["changes"])):
            for part in combinations(each["changes"], size):
                assert changed(STARTER, facts, SHOP, list(part)) != "allow"


def test_a_single_change_comes_first_and_two_where_one_is_not_enough() -> None:
    alone = what_would_change(STARTER, EMAIL | {"jurisdiction": "DE", "consent_email": "granted"}, SHOP)
    assert [[each["fact"] for each in one["changes"]] for one in alone if one["outcome"] == "allow"] == [
        ["recipient.dpa"]
    ]
    both = what_would_change(STARTER, EMAIL | {"jurisdiction": "DE"}, SHOP)
    sets = [{each["fact"]: each["to"] for each in one["changes"]} for one in both if one["outcome"] == "allow"]
    assert {"consent_email": "granted", "recipient.dpa": True} in sets
    assert all(len(one) == 2 for one in sets)
    assert len(both) <= MOST_TOLD


def test_an_unknown_place_is_asked_for_by_place() -> None:
    said = what_would_change(STARTER, EMAIL, Recipient("shop", "marketing", "US", True))
    outcomes = {each["to"]: one["outcome"] for one in said for each in one["changes"] if each["fact"] == "jurisdiction"}
    assert (outcomes["US"], outcomes["GB"]) == ("allow", "deny")


def test_a_review_is_what_a_person_can_do() -> None:
    text = """\
rules:
  - id: look
    anchor: governance
    when: {recipient: rate, below: 5}
    effect: {review: "somebody looks at it first"}
    examples:
      - {given: {change_type: email}, to: {rate: 1}, gives: defer}
      - {given: {change_type: email}, to: {rate: 9}, gives: nothing}
"""
    policy, problems = rules_of(text)
    assert problems == []
    said = what_would_change(policy, EMAIL, Recipient("slow", terms={"rate": 2}))
    assert [({each["fact"]: each["to"] for each in one["changes"]}, one["outcome"]) for one in said] == [
        ({"reviewed": True}, "allow"),
        ({"recipient.rate": 5.0}, "allow"),
    ]


def test_a_silent_anchor_is_named_with_what_it_would_have_done(tmp_path: Path) -> None:
    watched = Policy("p", STARTER.rules, STARTER.statutes, (SHOP,), rollout={"privacy": Mode("shadow")})
    decision = decide(watched, EMAIL | {"jurisdiction": "DE"}, SHOP)
    assert (decision.outcome, decision.would) == ("allow", "deny")
    from tidings.verbs.why import lines, modes

    shown = {"laws": [], "anchors": decision.anchors, "would": decision.would, "shadowed": decision.shadowed}
    text = "\n".join(lines(shown | {"modes": modes(watched, decision.anchors)}))
    assert "not enforced: privacy shadow: shadow_deny" in text
    assert "if all were enforced: deny by" in text


ONE = {"change_type": "email", "jurisdiction": "DE", "time": "2026-11-16T09:00:00Z"}
FORMS = {
    "an object over lines": json.dumps(ONE, indent=2),
    "a list": json.dumps([ONE]),
    "a line": json.dumps(ONE) + "\n",
    "facts and recipient": json.dumps({"facts": ONE, "recipient": {"role": "marketing"}}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_facts_is_one_answer(tmp_path: Path, form: str) -> None:
    options = ["--json", "-C", str(tmp_path)] + ([] if "recipient" in form else ["--recipient", '{"role":"marketing"}'])
    code, (said,), _ = _try(options, FORMS[form])
    (one,) = said["recipients"]  # type: ignore[misc]
    assert (code, said["line"], one["outcome"]) == (0, 1, "deny")
    assert {
        name: value
        for change in one["would_change"]
        for each in change["changes"]
        if each["fact"] == "recipient.dpa"
        for name, value in each.items()
        if name != "about"
    } == {"fact": "recipient.dpa", "from": False, "to": True}


def test_all_problems_of_all_situations_come_at_once(tmp_path: Path) -> None:
    lines = [{"facts": {"change_typ": "x"}, "recipient": {"rol": "ads", "dpa": "yes"}}, {"change_type": "email"}, 7]
    code, said, _ = _try(["--json", "--recipient", "{}", "-C", str(tmp_path)], json.dumps(lines))
    assert code == 2
    assert [len(each.get("problems", ())) for each in said] == [4, 0, 1]  # type: ignore[arg-type]


def test_what_is_said_of_a_recipient_counts_also_where_it_is_worked_out_for_others() -> None:
    text = """\
rules:
  - id: listed
    anchor: privacy
    when: {recipient: approved, is: false}
    effect: {deny: "not on the list"}
    examples:
      - {given: {change_type: email}, to: {approved: false}, gives: deny}
      - {given: {change_type: email}, gives: nothing}
"""
    policy, _ = rules_of(text)
    assert decide(policy, EMAIL, try_gate._described({"approved": False})).outcome == "deny"
    assert decide(policy, EMAIL, try_gate._described({})).outcome == "allow"


def test_a_deadline_is_told_step_by_step(tmp_path: Path) -> None:
    line = json.dumps(
        OPT_OUT | {"jurisdiction": "US-CA", "consent_channel": "sms", "request_time": "2026-12-21T10:00:00Z"}
    )
    _, (said,), _ = _try(["--json", "--recipient", '{"role":"marketing"}', "-C", str(tmp_path)], line)
    clock = said["recipients"][0]["arithmetic"][0]  # type: ignore[index]
    assert (clock["due"], clock["rules"], clock["statutes"]) == (
        "2027-01-06T10:00:00+00:00",
        ["opt-out-text-us"],
        ["us-tcpa-revoke-sms"],
    )
    text = " ".join(clock["steps"])
    assert "47 CFR 64.1200(a)(10)" in text
    assert "2026-12-22" in text
    assert "2027-01-06" in text


HOURS = [
    ("US-FL", "2026-11-16T13:30:00", True),  # half past eight in Miami, half past seven in Pensacola
    ("US-FL", "2026-11-16T14:00:00", False),
    ("US-NY", "2026-11-17T01:59:00", False),
    ("US-NY", "2026-11-17T02:00:00", True),  # nine in the evening
    ("US-NY", "2026-07-01T12:00:00", False),  # eight, in summer
    ("US-NY", "2026-01-05T12:00:00", True),  # seven, in winter
    ("US", "2026-11-16T20:00:00", False),
    ("US", "2026-11-16T17:00:00", True),  # seven in Honolulu
    ("US-ZZ", "2026-11-16T17:00:00", True),  # a region nobody listed counts as the whole country
    ("DE", "2026-11-16T02:00:00", False),
]


@pytest.mark.parametrize(("place", "at", "shut"), HOURS)
def test_a_channel_is_closed_by_the_clock_where_the_person_is(place: str, at: str, shut: bool) -> None:
    moment = datetime.fromisoformat(at).replace(tzinfo=UTC)
    assert (closed(place, "sms", moment) is not None) == shut
    assert closed(place, "email", moment) is None
    if shut:
        assert closed(place, "sms", opens(place, "sms", moment)) is None


def test_every_zone_exists() -> None:
    assert {len(_zones(place)) > 0 for zone in hours._hours()["zones"].values() for place in zone} == {True}
