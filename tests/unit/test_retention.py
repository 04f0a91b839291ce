"""How long a record is kept: the longest duty wins, a hold outweighs all of them, and nothing goes that nobody named."""

from __future__ import annotations

from datetime import date
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings import yaml_lines
from tidings.errors import Problem
from tidings.gate.loading import catalogue_statutes
from tidings.gate.retention import OWN, Duty, Hold, Retention, Schedule, classes
from tidings.gate.retention_reader import read_retention
from tidings.gate.rules import Compare, Effect, Rule
from tidings.gate.statutes import Amount

STATUTES, _ = catalogue_statutes()
DAY = date(2020, 2, 29)
days = st.dates(date(2000, 1, 1), date(2100, 1, 1))
amounts = st.one_of(
    st.builds(Amount, st.just("days"), st.integers(1, 4000)),
    st.builds(Amount, st.just("months"), st.integers(1, 130)),
    st.builds(Amount, st.just("years"), st.integers(1, 12)),
)


def read(text: str, *rules: Rule) -> tuple[Retention, list[Problem]]:
    document, problems = yaml_lines.parse(text, "policy/own.yaml")
    assert document is not None, problems
    return read_retention([document], rules, STATUTES)


def rule(statute: str) -> Rule:
    return Rule("kept", "privacy", (), Compare("change_type", ("email",)), Effect(retention=statute), (), (), "own.yaml", 7)  # fmt: skip


def test_the_longest_duty_wins_and_is_named_with_its_law() -> None:
    said, problems = read("retention: {proof: {years: 2, statutes: [us-tsr-records, us-hipaa-docs]}}")
    assert problems == []
    proof = said["proof"]
    assert proof.until(date(2026, 11, 16)) == date(2032, 11, 16)
    duty = proof.decides(date(2026, 11, 16))
    assert duty is not None
    assert (duty.name, duty.amount) == ("us-hipaa-docs", Amount("years", 6))
    steps = proof.steps(date(2026, 11, 16))
    assert steps[-1] == "The longest wins: us-hipaa-docs, until 2032-11-16."
    assert any("16 CFR 310.5" in step and "2031-11-16" in step for step in steps)


def test_a_rule_lengthens_what_is_named_and_names_nothing_itself() -> None:
    named, _ = read("retention: {proof: {years: 2}}", rule("us-hipaa-docs"))
    assert named["proof"].until(DAY) == date(2026, 2, 28)
    unnamed, _ = read("retention: {events: {months: 13}}", rule("us-hipaa-docs"))
    assert unnamed["proof"].until(DAY) is None
    assert unnamed["events"].until(DAY) == date(2021, 3, 29)


def test_nothing_goes_that_nobody_named() -> None:
    said, problems = read("rules: []")
    assert problems == []
    for name in classes():
        assert said[name].until(DAY) is None
        assert not said[name].over(DAY, date(9000, 1, 1))
        assert "for ever" in said[name].steps(DAY)[0]


def test_the_last_day_is_kept_and_the_next_is_not() -> None:
    schedule = Schedule("events", (Duty(OWN, Amount("days", 90)),), named=True)
    assert not schedule.over(date(2026, 1, 1), date(2026, 4, 1))
    assert schedule.over(date(2026, 1, 1), date(2026, 4, 2))


@given(days, st.lists(amounts, min_size=1, max_size=5), amounts)
def test_another_duty_never_shortens(day: date, some: list[Amount], more: Amount) -> None:
    duties = tuple(Duty(f"law-{place}", amount) for place, amount in enumerate(some))
    before = Schedule("proof", duties, named=True).until(day)
    after = Schedule("proof", (*duties, Duty("law-more", more)), named=True).until(day)
    assert before is not None
    assert after is not None
    assert after == max(before, Duty("", more).until(day)) >= day


@given(days, days, amounts)
def test_what_is_younger_is_kept_as_long_or_longer(one: date, other: date, amount: Amount) -> None:
    """Files go by their newest record, so this must hold."""
    duty = Duty(OWN, amount)
    assert duty.until(min(one, other)) <= duty.until(max(one, other))


WRONG = [
    ("retention: {events: {months: 24, at_most: [us-glba-disposal]}}", "beyond_disposal"),
    ("retention: {proof: {statutes: [us-canspam-optout]}}", "no_period"),
    ("retention: {proof: {statutes: [us-hipaa-dox]}}", "unknown_statute"),
    ("retention: {events: {months: 13, at_most: [us-hipaa-docs]}}", "no_period"),
    ("retention: {evnts: {months: 13}}", "choice"),
    ("retention: {ledger: {years: 7}}", "choice"),
    ("retention: {events: {months: 0}}", "amount"),
    ("retention: {events: {months: true}}", "amount"),
    ("retention: {events: {months: 1, days: 3}}", "amount"),
    ("retention: {events: {}}", "amount"),
    ("retention: {events: {weeks: 3}}", "unknown_key"),
    ("retention: {proof: {statutes: us-hipaa-docs}}", "not_a_list"),
    ("retention: [events]", "not_a_mapping"),
    ("holds: {class: events}", "not_a_list"),
    ("holds: [{class: events, by: counsel, since: '2026-01-01'}]", "missing"),
    ("holds: [{reason: case, by: counsel, since: yesterday}]", "date"),
    ("holds: [{reason: case, by: counsel, since: '2026-01-01', class: evens}]", "choice"),
    ("holds: [{reason: case, by: counsel, since: '2026-01-01', person: 12}]", "unknown_key"),
]


@pytest.mark.parametrize(("text", "code"), WRONG)
def test_what_cannot_be_meant_is_refused_with_its_line(text: str, code: str) -> None:
    _, problems = read("version: '1'\n" + text)
    assert code in {problem.code for problem in problems}
    assert {(problem.file, problem.line) for problem in problems} == {("policy/own.yaml", 2)}


def test_a_month_less_than_a_law_allows_is_allowed() -> None:
    _, problems = read("retention: {events: {months: 22, at_most: [us-glba-disposal]}}")
    assert problems == []


def test_a_rule_that_names_no_law_is_refused() -> None:
    _, problems = read("rules: []", rule("us-hipaa-dox"))
    assert [(problem.code, problem.line) for problem in problems] == [("unknown_statute", 7)]


def test_the_rules_that_come_with_the_package_name_laws() -> None:
    shelf = files("tidings").joinpath("catalog/anchors")
    pages = [yaml_lines.parse(one.read_text(encoding="utf-8"), one.name)[0] for one in shelf.iterdir() if one.name.endswith(".yaml")]  # fmt: skip
    rules = [rule for page in pages if page for rule in page.data.get("rules", ())]
    named = {rule["effect"]["retention"] for rule in rules if "retention" in (rule.get("effect") or {})}
    assert "us-hipaa-docs" in named
    assert named <= set(STATUTES)


def test_a_bundle_may_hold_and_never_lets_go() -> None:
    hold = "holds: [{reason: case, by: counsel, since: '2026-01-01'}]"
    document, _ = yaml_lines.parse(f"retention: {{events: {{days: 1}}}}\n{hold}", "policy/bundles/theirs.yaml")
    assert document is not None
    said, problems = read_retention([document], (), STATUTES)
    assert [problem.code for problem in problems] == ["not_own"]
    assert said["events"].until(DAY) is None
    assert len(said.holds) == 1


WEEK = (date(2026, 1, 1), date(2026, 1, 7))
COVERS = [
    ({}, True),
    ({"record_class": "events"}, True),
    ({"record_class": "proof"}, False),
    ({"source": "crm"}, True),
    ({"source": "erp"}, False),
    ({"entity": "customer"}, True),
    ({"entity": "shopper"}, False),
    ({"first": date(2026, 1, 7)}, True),
    ({"first": date(2026, 1, 8)}, False),
    ({"last": date(2026, 1, 1)}, True),
    ({"last": date(2025, 12, 31)}, False),
]


@pytest.mark.parametrize(("narrowed", "expected"), COVERS)
def test_a_hold_covers_what_it_does_not_narrow_down(narrowed: dict[str, object], expected: bool) -> None:
    hold = Hold("case 12", "counsel", date(2026, 1, 1), **narrowed)  # type: ignore[arg-type]
    assert hold.covers("events", WEEK, {"crm"}, {"customer"}) is expected


def test_where_nobody_can_tell_a_hold_covers() -> None:
    assert Hold("case 12", "counsel", date(2026, 1, 1), source="crm", entity="customer").covers("proof", WEEK)


def test_holds_are_read_as_written() -> None:
    text = "holds: [{class: events, source: crm, from: '2025-01-01', to: '2025-06-30', since: '2026-01-01', reason: case 12, by: counsel}]"
    said, problems = read(text)
    assert problems == []
    [hold] = said.holds
    assert (hold.record_class, hold.source, hold.first, hold.last) == ("events", "crm", date(2025, 1, 1), date(2025, 6, 30))  # fmt: skip
    assert str(hold) == "case 12 (counsel, since 2026-01-01)"
