"""Rules: what is refused with file and line, what three-valued logic says, and that the starter bundle means what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tidings import yaml_lines
from tidings.errors import Damaged, Problem, SourceStopped
from tidings.gate import decisions
from tidings.gate.decide import Policy, Recipient, decide, decide_all
from tidings.gate.decisions import Decided, DecisionTable
from tidings.gate.facts import ANCHORS, FACTS, UNKNOWN, complete, derive
from tidings.gate.loading import catalogue_statutes, compile_rules, starter_policy
from tidings.policy import RuleDocument
from tidings.verbs import try_gate

STARTER = starter_policy()
KLAVIYO = Recipient("klaviyo", "marketing", "US", True, sla={"default": 900, "consent": 60})
META = Recipient("meta", "ads", "US", True, types=("email", "consent"))
ERP = Recipient("erp", "service", "US", True, types=("email",), entities=("customer",))
STRANGER = Recipient("stranger", "service", "US", False)
EMAIL = {"change_type": "email", "operation": "update", "entity": "customer", "personal": True}
OPT_OUT = {
    "change_type": "consent",
    "operation": "update",
    "entity": "customer",
    "personal": True,
    "consent_state": "withdrawn",
}
DELETE = {"change_type": "delete", "operation": "delete", "entity": "customer", "personal": True}


def rules_of(text: str) -> tuple[Policy, list[Problem]]:
    document, problems = yaml_lines.parse(text, "policy/own.yaml")
    assert document is not None, problems
    written = [RuleDocument(str(d.get("id")), d, document, ("rules", n)) for n, d in enumerate(document.data["rules"])]
    statutes, _ = catalogue_statutes()
    rules, problems = compile_rules(written, statutes)
    return Policy("own", tuple(rules), statutes), problems


def rule(when: str, effect: str = '{deny: "no"}', more: str = "", gives: str = "nothing") -> str:
    given = "{change_type: zzz}"
    return f"rules:\n  - id: one\n    anchor: event\n    when: {when}\n    effect: {effect}\n{more}    examples: [{{given: {given}, gives: {gives}}}]\n"


IS_EMAIL = "{fact: change_type, is: email}"
WRONG = [
    (rule("{fact: chnge_type, is: email}"), 4, "unknown_fact", "change_type"),
    (rule("{recipient: rol, is: ads}"), 4, "unknown_fact", "role"),
    (rule("{recipient: role, is: boss}"), 4, "fact_value", "marketing"),
    (rule("{fact: masked, is: yes}"), 4, "fact_value", "true or false"),
    (rule("{fact: change_type, is: 7}"), 4, "fact_value", "a name"),
    (rule("{fact: consent_email, is: perhaps}"), 4, "fact_value", "granted"),
    (rule("{fact: jurisdiction, is: germany}"), 4, "fact_value", "US-CA"),
    (rule("{fact: change_type, in: email}"), 4, "not_a_list", "a list"),
    (rule("{fact: change_type, is: email, in: [x]}"), 4, "comparison", "exactly one"),
    (rule("{fact: change_type, equals: email}"), 4, "unknown_key", "is_not"),
    (rule("{all: []}"), 4, "condition", "a list of conditions"),
    (rule("{any: [{fact: change_type}]}"), 4, "comparison", "exactly one"),
    (rule(IS_EMAIL, "{deny: true}"), 5, "no_reason", "plain words"),
    (rule(IS_EMAIL, '{deny: "a", allow: "b"}'), 5, "outcome", "at most one"),
    (rule(IS_EMAIL, "{priority: 11}"), 5, "priority", "0 (first) to 9"),
    (rule(IS_EMAIL, "{semantics: twice}"), 5, "choice", "exactly-once"),
    (rule(IS_EMAIL, "{deadline: {weeks: 1}}"), 5, "unknown_key", "business_days"),
    (rule(IS_EMAIL, "{deadline: {days: 0}}"), 5, "amount", "whole number"),
    (rule(IS_EMAIL, "{deadline: {months: 2, business: true}}"), 5, "business", "days"),
    (rule(IS_EMAIL, "{deadline: {days: 5, calendar: mars}}"), 5, "choice", "us-federal"),
    (rule(IS_EMAIL, "{deadline: {statute: nowhere}}"), 5, "unknown_statute", "a statute"),
    (rule(IS_EMAIL, "{}"), 5, "missing", "what the rule does"),
    (rule(IS_EMAIL, "{redact: email}"), 5, "redact", "field names"),
    (rule(IS_EMAIL, more="    statutes: [nowhere]\n"), 6, "unknown_statute", "a statute"),
    (rule(IS_EMAIL, more="    colour: red\n"), 6, "unknown_key", "anchor"),
    (rule(IS_EMAIL, gives="deny"), 6, "example_failed", "deny"),
    (rule(IS_EMAIL, gives="maybe"), 6, "choice", "applies"),
    ("rules:\n  - id: one\n    anchor: event\n    when: {fact: masked, is: true}\n    effect: {priority: 1}\n", 2, "no_examples", "at least one"),
    ("rules:\n  - id: one\n    anchor: moon\n    effect: {priority: 1}\n    examples: [{gives: applies}]\n", 3, "choice", "privacy"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "code", "expected"), WRONG)
def test_what_is_wrong_has_a_line(text: str, line: int, code: str, expected: str) -> None:
    _, problems = rules_of(text)
    found = [p for p in problems if p.code == code]
    assert found, problems
    assert found[0].file == "policy/own.yaml"
    assert found[0].line == line
    assert expected in found[0].expected


def test_all_problems_at_once() -> None:
    _, problems = rules_of(
        rule("{all: [{fact: nope, is: 1}, {recipient: nope, is: 1}]}", "{priority: x, semantics: y}")
    )
    assert [p.code for p in problems] == ["unknown_fact", "unknown_fact", "choice", "priority"]


TRUTH = [
    # a blocking rule that cannot be answered defers and names what is missing
    ("{fact: consent_email, is: granted}", {}, "defer", ("consent_email",)),
    ("{fact: consent_email, is_not: granted}", {}, "defer", ("consent_email",)),
    ("{fact: consent_email, is_not: granted}", {"consent_email": UNKNOWN}, "defer", ("consent_email",)),
    ("{fact: consent_email, is_not: granted}", {"consent_email": "withdrawn"}, "deny", ()),
    # asking for unknown by name is an answer
    ("{fact: consent_email, in: [withdrawn, unknown]}", {}, "deny", ()),
    ("{fact: consent_email, not_in: [granted, unknown]}", {}, "allow", ()),
    ("{not: {fact: consent_email, is: unknown}}", {}, "allow", ()),
    # what cannot matter is not missing
    ("{all: [{fact: masked, is: true}, {fact: consent_email, is: granted}]}", {"masked": False}, "allow", ()),
    ("{any: [{fact: masked, is: true}, {fact: consent_email, is: granted}]}", {"masked": True}, "deny", ()),
    ("{any: [{fact: masked, is: true}, {fact: consent_email, is: granted}]}", {"masked": False}, "defer", ("consent_email",)),
    ("{not: {fact: consent_email, is: granted}}", {}, "defer", ("consent_email",)),
    # a derived fact is missing what it follows from
    ("{fact: regime, is: eu}", {}, "defer", ("jurisdiction",)),
    ("{fact: regime, is: eu}", {"jurisdiction": "FR"}, "deny", ()),
    ("{fact: country, is: US}", {"jurisdiction": "US-CA"}, "deny", ()),
    ("{fact: duty, is: opt_out}", {"change_type": "consent", "consent_state": UNKNOWN}, "defer", ("consent_state",)),
    # recipients too
    ("{recipient: region, is: US}", {}, "defer", ("recipient.region",)),
    ("{recipient: types, is: email}", {}, "deny", ()),
    ("{recipient: entities, not_in: [employee]}", {}, "allow", ()),
]  # fmt: skip


@pytest.mark.parametrize(("when", "facts", "outcome", "missing"), TRUTH)
def test_three_values(when: str, facts: dict[str, object], outcome: str, missing: tuple[str, ...]) -> None:
    policy, problems = rules_of(rule(when))
    assert [p for p in problems if p.code != "example_failed"] == []
    decision = decide(policy, {"change_type": "email", "operation": "update", **facts}, Recipient("r"))  # type: ignore[dict-item]
    assert (decision.outcome, decision.missing) == (outcome, missing)
    for name in missing:
        assert name in decision.reasons[0]


def test_the_strictest_wins() -> None:
    def one(name: str, effect: str) -> str:
        return f"  - {{id: {name}, anchor: channel, when: {IS_EMAIL}, effect: {effect}, examples: [{{given: {{change_type: email}}, gives: applies}}]}}\n"

    text = "rules:\n" + one("a", "{priority: 3, semantics: at-most-once, redact: [b], ack: A1, deadline: {days: 3}}")
    text += one("b", "{priority: 1, semantics: exactly-once, redact: [a, b], ack: A3, deadline: {hours: 5}}")
    text += one("c", "{retention: finance, reach: types}")
    policy, problems = rules_of(text)
    assert problems == []
    decision = decide(policy, {"change_type": "email"}, Recipient("r"))
    assert (decision.priority, decision.semantics, decision.redact, decision.ack) == (
        1,
        "exactly-once",
        ("a", "b"),
        "A3",
    )
    assert [str(clock) for clock in decision.clocks] == ["3 days from the request", "5 hours from the request"]
    assert (decision.retention, decision.reach) == (("finance",), "types")


def test_deny_beats_defer_beats_allow() -> None:
    effects = ['{allow: "yes"}', '{defer: "wait"}', '{deny: "no"}']
    for count, outcome in ((1, "allow"), (2, "defer"), (3, "deny")):
        gives = ("applies", "defer", "deny")
        rows = [
            f"  - {{id: r{n}, anchor: {ANCHORS[n]}, when: {IS_EMAIL}, effect: {effects[n]}, examples: [{{given: {{change_type: email}}, gives: {gives[n]}}}]}}\n"
            for n in range(count)
        ]
        policy, problems = rules_of("rules:\n" + "".join(rows))
        assert problems == []
        decision = decide(policy, {"change_type": "email"}, Recipient("r"))
        assert decision.outcome == outcome
        assert [decision.anchors[a] for a in ANCHORS[:count]] == ["pass", "defer", "deny"][:count]
        assert decision.anchors["governance"] == "not_applicable"


STORIES = [
    (EMAIL | {"jurisdiction": "DE", "consent_email": "granted"}, KLAVIYO, "allow", "no rule objects"),
    (EMAIL | {"jurisdiction": "DE"}, KLAVIYO, "deny", "no consent to marketing is on record"),
    (EMAIL | {"jurisdiction": "US-CA"}, KLAVIYO, "allow", "no rule objects"),
    (EMAIL | {"jurisdiction": "US-CA", "consent_email": "withdrawn"}, KLAVIYO, "deny", "opted out"),
    (EMAIL, KLAVIYO, "defer", "cannot tell: jurisdiction is not known"),
    (EMAIL | {"consent_email": "granted"}, KLAVIYO, "allow", "no rule objects"),
    (EMAIL | {"jurisdiction": "IT"}, META, "deny", "advertising"),
    (EMAIL | {"jurisdiction": "IT"}, ERP, "allow", "no rule objects"),
    (EMAIL | {"jurisdiction": "IT"}, STRANGER, "deny", "no data processing agreement"),
    (EMAIL | {"personal": False}, STRANGER, "allow", "no rule objects"),
    (OPT_OUT | {"jurisdiction": "DE", "consent_email": "withdrawn"}, KLAVIYO, "allow", "an opt-out always passes"),
    (OPT_OUT | {"jurisdiction": "DE", "consent_email": "withdrawn"}, STRANGER, "allow", "an opt-out always passes"),
    (DELETE | {"jurisdiction": "DE"}, META, "allow", "a deletion reaches everyone"),
    (DELETE | {"jurisdiction": "DE", "legal_hold": True}, META, "defer", "legal hold"),
    (EMAIL | {"erased": True, "jurisdiction": "DE", "consent_email": "granted"}, KLAVIYO, "deny", "has been erased"),
    (EMAIL | {"conflict": True, "jurisdiction": "DE"}, ERP, "defer", "two systems"),
    (EMAIL | {"test_mode": True, "jurisdiction": "DE"}, ERP, "deny", "test mode is on"),
    (EMAIL | {"change_type": "payment_method", "masked": True, "jurisdiction": "DE"}, ERP, "deny", "card number"),
    (EMAIL | {"change_type": "phone", "jurisdiction": "US-CA"}, KLAVIYO, "deny", "texts or calls"),
    (EMAIL | {"child": True, "jurisdiction": "US-CA"}, META, "deny", "a child"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "recipient", "outcome", "reason"), STORIES)
def test_the_starter_bundle(facts: dict[str, object], recipient: Recipient, outcome: str, reason: str) -> None:
    decision = decide(STARTER, facts, recipient)  # type: ignore[arg-type]
    assert decision.outcome == outcome, decision
    assert reason in decision.reasons[0]


def test_an_opt_out_has_a_clock_and_goes_first() -> None:
    decision = decide(STARTER, OPT_OUT | {"jurisdiction": "US-CA", "consent_channel": "email"}, KLAVIYO)
    assert (decision.priority, decision.semantics, decision.reach) == (0, "at-least-once", "types")
    assert [str(clock) for clock in decision.clocks] == ["10 business days from the request"]
    assert "us-canspam-optout" in decision.statutes
    europe = decide(STARTER, OPT_OUT | {"jurisdiction": "FR", "consent_channel": "email"}, KLAVIYO)
    assert [str(clock) for clock in europe.clocks] == ["60 seconds from the request"]  # the operator's own number
    nowhere = decide(STARTER, OPT_OUT | {"consent_channel": "email"}, KLAVIYO)
    assert nowhere.outcome == "allow"
    assert {"60 seconds from the request", "10 business days from the request"} <= {str(c) for c in nowhere.clocks}
    assert "jurisdiction is not known, so the strict reading applies" in nowhere.reasons


def test_who_is_part_of_a_situation() -> None:
    policy = Policy("p", STARTER.rules, STARTER.statutes, (META, KLAVIYO, ERP))
    names = lambda facts: [one["subscriber"] for one in decide_all(policy, facts)["recipients"]]  # noqa: E731
    assert names(EMAIL) == ["erp", "klaviyo", "meta"]
    assert names(EMAIL | {"change_type": "tier"}) == ["klaviyo"]
    assert names(DELETE) == ["erp", "klaviyo", "meta"]  # types do not hold a deletion back
    assert names(DELETE | {"entity": "store"}) == ["klaviyo", "meta"]  # erp never held a store
    assert names(OPT_OUT) == ["erp", "klaviyo", "meta"]


def test_every_rule_of_the_bundle_cites_what_exists_and_is_exercised() -> None:
    assert 15 <= len(STARTER.rules) <= 40
    for each in STARTER.rules:
        assert set(each.statutes) <= set(STARTER.statutes), each.id
        assert len({example.gives for example in each.examples}) >= 2, (
            f"{each.id} needs an example that goes the other way"
        )
    assert all(law.source and law.confidence for law in STARTER.statutes.values())


def test_a_situation_holds_only_what_rules_ask() -> None:
    policy, _ = rules_of(rule("{fact: masked, is: true}"))
    assert policy.facts == ("change_type", "operation", "entity", "masked")
    assert set(STARTER.facts) < set(FACTS)


def test_facts_derive_duties() -> None:
    duty = lambda **facts: derive(complete(facts))["duty"]  # noqa: E731
    assert duty(change_type="delete") == "erasure"
    assert duty(change_type="email", operation="delete") == "erasure"
    assert duty(change_type="suppression", operation="insert") == "opt_out"
    assert duty(change_type="suppression", operation="delete") == "none"
    assert duty(change_type="consent", consent_state="granted") == "none"
    assert duty(change_type="consent", consent_state="unknown") is None
    assert duty(change_type="tier") == "none"


def test_the_table_is_durable_and_repeats_itself(tmp_path: Path) -> None:
    policy = Policy("p", STARTER.rules, STARTER.statutes, (META, KLAVIYO))
    first = DecisionTable(tmp_path / "a", policy)
    assert first.extend([EMAIL, DELETE, EMAIL]) == 2
    assert first.extend([EMAIL]) == 0
    again = DecisionTable(tmp_path / "b", policy)
    assert again.extend([DELETE, EMAIL]) == 2
    assert first.path.read_bytes() == again.path.read_bytes()
    with first.path.open("ab") as file:
        file.write(b'{"situation": "torn')
    reopened = DecisionTable(tmp_path / "a", policy)
    assert reopened.rows == first.rows
    assert first.path.read_bytes() == again.path.read_bytes()
    assert reopened.extend([OPT_OUT]) == 1
    (found,) = [name for name, row in reopened.rows.items() if row["facts"]["change_type"] == "consent"]
    decided = Decided(tmp_path / "a")
    assert decided.get(found) == reopened.rows[found]
    assert decided.get("0" * 32) is None
    assert reopened.extend([EMAIL | {"change_type": "phone"}]) == 1  # what is appended later is found too
    assert "klaviyo" in decided.choices(list(reopened.rows)[-1])
    with pytest.raises(Damaged):
        decided.choices("0" * 32)
    other = Policy("p", STARTER.rules, STARTER.statutes, (META,))
    assert DecisionTable(tmp_path / "a", other).rows == {}  # another recipient is another policy
    first.path.write_bytes(b"nonsense\n")
    with pytest.raises(Damaged):
        DecisionTable(tmp_path / "a", policy)


def test_too_many_situations_name_the_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MAX_SITUATIONS", 50)
    table = DecisionTable(tmp_path, Policy("p", STARTER.rules, STARTER.statutes, (KLAVIYO,)))
    with pytest.raises(SourceStopped, match="the fact entity alone has 60 values"):
        table.extend([EMAIL | {"entity": f"e{n}"} for n in range(60)])
    assert not table.path.exists()


def _try(args: list[str], lines: str) -> tuple[int, list[dict[str, object]], str]:
    app = typer.Typer()
    app.callback()(lambda: None)
    try_gate.register(app)
    result = CliRunner().invoke(app, ["gate", *args], input=lines)
    said = [json.loads(line) for line in result.stdout.splitlines()] if "--json" in args else []
    return result.exit_code, said, result.stdout


def test_try_gate_for_a_described_recipient(tmp_path: Path) -> None:
    line = json.dumps(
        OPT_OUT | {"jurisdiction": "US-CA", "consent_channel": "email", "request_time": "2026-12-21T10:00:00Z"}
    )
    code, (said,), _ = _try(["--json", "--recipient", '{"role":"marketing"}', "-C", str(tmp_path)], line)
    (one,) = said["recipients"]  # type: ignore[misc]
    assert code == 0
    assert (one["outcome"], one["priority"], one["deadline"]) == ("allow", 0, "2027-01-06T10:00:00+00:00")
    assert one["statutes"][0]["citation"].startswith("15 USC 7704")
    assert one["anchors"]["channel"] == "pass"


def test_try_gate_says_what_is_wrong_with_a_line(tmp_path: Path) -> None:
    code, said, _ = _try(
        ["--json", "--recipient", "{}", "-C", str(tmp_path)],
        'x\n[1]\n{"change_typ":"email"}\n{"change_type":"email","masked":"no"}\n{"change_type":"tier"}\n',
    )
    assert code == 2
    assert [("problems" in each) for each in said] == [True, True, True, True, False]
    assert "expected change_type" in said[2]["problems"][0]  # type: ignore[index]
    assert "true or false" in said[3]["problems"][0]  # type: ignore[index]
    _, _, text = _try(["--recipient", "{}", "-C", str(tmp_path)], '{"change_type":"email","jurisdiction":"DE"}\n')
    assert "deny  recipient: there is no data processing agreement with this recipient [Art. 28(3)]" in text
