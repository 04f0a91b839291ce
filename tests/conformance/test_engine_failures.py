"""A policy that loops, throws, says what nobody understands or is not there: deferred with a reason, or refused before anything starts."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from test_engines import ANCHORS, FACTS, HERE, LOCAL, RECIPIENTS, asking, loaded, needed, written

from tidings import settings as folder
from tidings.engines import rego
from tidings.errors import Problem
from tidings.gate.again import Again
from tidings.gate.decide import Decision, Policy, decide
from tidings.gate.decisions import DecisionTable
from tidings.gate.loading import examine_policy
from tidings.gate.policy import Mode

EMAIL = {"change_type": "email", "operation": "update", "entity": "customer", "personal": True, "jurisdiction": "DE"}
HEAD = "package tidings.gate\nimport rego.v1\n"
MODEL = """[request_definition]
r = facts, recipient
[policy_definition]
p = rule, outcome, reason, statutes, when
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = eval(p.when)
"""
PERMIT = "permit (principal, action, resource);\n"


def local(kind: str, text: str) -> dict[str, str]:
    """The files of a one-file policy."""
    if kind == "casbin":
        return {"own.conf": MODEL, "own.csv": text}
    return {f"own.{kind}": text}


def policy(at: Path, kind: str, text: str, **more: object) -> Policy:
    needed(kind)
    files = local(kind, text)
    document = asking(kind, {"files": [f"policy/{name}" for name in files], **more})
    return loaded(written(at, document, **files))


def said(found: Policy) -> Decision:
    return decide(found, EMAIL, RECIPIENTS[0])


def failed(decision: Decision, why: str) -> None:
    assert decision.outcome == "defer"
    assert decision.rules == ("policy-failed",)
    assert decision.reasons[0].startswith("policy_failed: ")
    assert why in decision.reasons[0]
    assert not decision.review
    assert {decision.anchors[anchor] for anchor in ANCHORS} == {"defer"}


LOOPS = [
    (
        "rego",
        HEAD + 'findings contains {"rule": "a", "tags": ["b"]} if {\n\tsome x in numbers.range(1, 4000)\n'
        "\tsome y in numbers.range(1, 4000)\n\tx * y == 0\n}\n",
    ),
    ("oso", "finding(facts, to, found) if finding(facts, to, found);"),
    ("casbin", 'p, a, deny, no, , regexMatch("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "(a+)+$")'),
]


@pytest.mark.parametrize(("kind", "text"), LOOPS, ids=lambda value: value if len(value) < 9 else "")
def test_a_policy_that_does_not_end_is_ended(kind: str, text: str, tmp_path: Path) -> None:
    found = policy(tmp_path / "shop", kind, text, timeout_ms=300)
    began = time.monotonic()
    failed(said(found), "no answer within 0.3 seconds")
    assert time.monotonic() - began < 10
    for _ in range(3):
        last = said(found)
    failed(last, "left alone for a while")


THROWS = [
    ("rego", HEAD + 'findings contains {"rule": "a", "tags": ["b"]} if 1 / 0 == 1\n', "error"),
    ("rego", HEAD + 'findings := [] if input.facts.personal == false\n', "undefined"),
    ("rego", HEAD + "findings := [] if true\nfindings := [1] if true\n", "error"),
    ("cedar", PERMIT + '@id("a") forbid (principal, action, resource) when { context.facts.persona };', "persona"),
    ("cedar", PERMIT + '@id("a") forbid (principal, action, resource) when { context.facts.jurisdiction < 3 };', "type"),
    ("cedar", '@id("a") @reason("no") forbid (principal, action, resource) when { false };', "nothing permits"),
    ("casbin", "p, a, deny, no, , r.facts.persona == True", "persona"),
    ("casbin", 'p, a, deny, no, , r.facts.jurisdiction < 3', "TypeError"),
    ("oso", "finding(facts, _to, {rule: \"a\"}) if facts.persona = true;", "persona"),
    ("oso", "other(1);", "finding"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "why"), THROWS)
def test_a_policy_that_throws_defers(kind: str, text: str, why: str, tmp_path: Path) -> None:
    failed(said(policy(tmp_path / "shop", kind, text)), why)


GARBAGE = [
    ('{"rule": "a", "outcome": "alow", "reason": "typing"}', "alow"),
    ('{"rule": "a", "outcome": "deny"}', "reason"),
    ('{"rule": "a", "outcome": "deny", "reason": "no", "statutes": ["eu-gdpr-99"]}', "eu-gdpr-99"),
    ('{"rule": "a", "deadline": {"statute": "eu-gdpr-99"}}', "eu-gdpr-99"),
    ('{"rule": "a", "deadline": {"days": 100000}}', "100000"),
    ('{"rule": "a", "anchor": "event", "tags": ["b"]}', "event"),
    ('{"rule": "a", "tags": ["NOT A TAG"]}', "tags"),
    ('{"rule": "a", "priority": 12}', "12"),
    ('{"rule": "a", "semantics": "mostly-once"}', "mostly-once"),
    ('{"rule": "a", "redact": ["kind:nothing"]}', "kind:nothing"),
    ('{"rule": "a", "ack": "A9"}', "A9"),
    ('{"rule": "a", "reach": "nobody"}', "nobody"),
    ('{"rule": "a", "outcome": "deny", "reason": "no", "missing": ["weather"]}', "missing"),
    ('{"rule": "a", "alow": true}', "alow"),
    ('{"rule": "a"}', "effect"),
    ('{"rule": "No Name", "tags": ["b"]}', "name"),
    ('{"outcome": "allow", "reason": "yes"}', "name"),
    ('"allow"', "object"),
]


def test_a_finding_nobody_understands_defers(tmp_path: Path) -> None:
    rules = [f'findings contains {text} if input.facts.change_type == "case{n}"' for n, (text, _) in enumerate(GARBAGE)]
    found = policy(tmp_path / "shop", "rego", HEAD + "\n".join(rules))
    assert said(found).outcome == "allow"
    for number, (_, why) in enumerate(GARBAGE):
        failed(decide(found, EMAIL | {"change_type": f"case{number}"}, RECIPIENTS[0]), why)


TEXTS = [
    ("cedar", PERMIT + '@id("a") @reason("no") @statutes("eu-gdpr-99") forbid (principal, action, resource);', "99"),
    ("cedar", PERMIT + '@id("a") @deadline("days") permit (principal, action, resource);', "pairs"),
    ("casbin", "p, a, alow, typing, , True", "alow"),
    ("casbin", "p, a, deny, no, eu-gdpr-99, True", "eu-gdpr-99"),
    ("oso", 'finding(_facts, _to, {rule: "a", outcome: "alow", reason: "typing"});', "alow"),
    ("oso", 'finding(_facts, _to, "allow");', "object"),
    ("oso", "finding(_facts, _to, _found);", "object"),
]


@pytest.mark.parametrize(("kind", "text", "why"), TEXTS)
def test_garbage_in_other_languages_is_refused_or_defers(kind: str, text: str, why: str, tmp_path: Path) -> None:
    """What stands in the text is seen when it is read; what is computed, when it is found."""
    needed(kind)
    files = local(kind, text)
    at = written(tmp_path / "shop", asking(kind, {"files": [f"policy/{name}" for name in files]}), **files)
    found, problems = examine_policy(folder.load(at, secrets=False))
    if problems:
        assert [problem.code for problem in problems] == ["policy_broken"]
        assert why in problems[0].found
    else:
        failed(said(found), why)


def problems_of(at: Path, engine: dict[str, object], **files: str) -> list[Problem]:
    document = {"version": "own", "engines": [engine]}
    return examine_policy(folder.load(written(at, document, **files), secrets=False))[1]


GOOD = {"kind": "rego", "files": ["policy/own.rego"], "facts": ["personal"]}
OWN = HEAD + 'findings contains {"rule": "a", "outcome": "deny", "reason": "no"} if input.facts.personal == true\n'
REFUSED = [
    (GOOD | {"kind": "prolog"}, OWN, "own.yaml", "choice", "rego"),
    (GOOD | {"facts": ["persona"]}, OWN, "own.yaml", "unknown_fact", "personal"),
    ({"kind": "rego", "files": ["policy/own.rego"]}, OWN, "own.yaml", "missing_key", "facts"),
    (GOOD | {"files": []}, OWN, "own.yaml", "missing_key", "files"),
    (GOOD | {"files": ["policy/gone.rego"]}, OWN, "own.yaml", "unreadable", "folder"),
    (GOOD | {"files": ["../../../etc/hostname"]}, OWN, "own.yaml", "unreadable", "inside"),
    (GOOD | {"url": "http://127.0.0.1:1/"}, OWN, "own.yaml", "unknown_key", "kind"),
    (GOOD | {"anchor": "moral"}, OWN, "own.yaml", "choice", "privacy"),
    (GOOD | {"timeout_ms": 0}, OWN, "own.yaml", "wrong_value", "whole number"),
    (GOOD | {"facts": ["jurisdiction"]}, OWN, "own.rego", "unknown_fact", "jurisdiction"),
    (GOOD, OWN.replace("input.facts.personal", "input.fact.personal"), "own.rego", "unknown_fact", "input.facts"),
    (GOOD, OWN.replace("input.facts.personal", "input.recipient.dba"), "own.rego", "unknown_fact", "dpa"),
    (
        GOOD,
        OWN.replace('"no"', '"# no"').replace("facts.personal", "facts.persona"),
        "own.rego",
        "unknown_fact",
        "personal",
    ),
    (GOOD, OWN + "whole := input\n", "own.rego", "unknown_fact", "input.facts"),
    (GOOD, OWN + 'name := "dpa"\nother := input.recipient[name]\n', "own.rego", "unknown_fact", "input.facts"),
    (GOOD, HEAD + "findings contains {\n", "own.yaml", "policy_broken", "read"),
    (GOOD, "package other\nimport rego.v1\nx := 1\n", "own.yaml", "policy_broken", "read"),
    ({"kind": "opa", "facts": [], "url": "http://127.0.0.1:1/v1/data/x"}, OWN, "own.yaml", "missing_key", "revision"),
    ({"kind": "cerbos", "facts": [], "revision": "1"}, OWN, "own.yaml", "missing_key", "url"),
]


@pytest.mark.parametrize(("engine", "text", "file", "code", "expected"), REFUSED)
def test_what_cannot_work_is_refused_with_its_place(
    engine: dict[str, object], text: str, file: str, code: str, expected: str, tmp_path: Path
) -> None:
    found = problems_of(tmp_path / "shop", engine, **{"own.rego": text})
    assert [problem.code for problem in found] == [code]
    assert found[0].file == f"policy/{file}"
    assert found[0].line > 0
    assert expected in found[0].expected


def test_the_word_input_may_stand_in_texts_and_comments(tmp_path: Path) -> None:
    text = OWN.replace('"no"', '"no input"') + "# input is what is asked\nraw := `input.x`\n"
    assert problems_of(tmp_path / "shop", GOOD, **{"own.rego": text}) == []


def test_a_missing_extra_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rego, "MODULE", "no_such_engine")
    (problem,) = problems_of(tmp_path / "shop", GOOD, **{"own.rego": OWN})
    assert (problem.code, problem.what_now) == ("extra_missing", "pip install 'tidings[rego]'")


@pytest.mark.parametrize("kind", LOCAL)
def test_an_edit_makes_a_new_version(kind: str, tmp_path: Path) -> None:
    needed(kind)
    files = {name: (HERE / name).read_text(encoding="utf-8") for name in LOCAL[kind]}
    document = asking(kind, {"files": [f"policy/{name}" for name in files]})
    before = loaded(written(tmp_path / "one", document, **files))
    same = loaded(written(tmp_path / "two", document, **files))
    *_, last = files
    after = loaded(written(tmp_path / "three", document, **files | {last: files[last].replace("no data", "No data")}))
    assert before.version == same.version != after.version
    assert before.facts == same.facts
    assert set(before.facts) > {"jurisdiction", "consent_state"}


@pytest.mark.parametrize("kind", ["opa", "cerbos"])
def test_a_server_that_is_not_there_defers(kind: str, tmp_path: Path) -> None:
    document = asking(kind, {"url": "http://127.0.0.1:1", "revision": "2026-11"})
    found = loaded(written(tmp_path / "shop", document))
    failed(said(found), "connect")


def test_the_process_may_die_and_comes_back(tmp_path: Path) -> None:
    found = policy(tmp_path / "shop", "rego", OWN)
    assert said(found).outcome == "deny"
    worker = found.engines[0].ask  # type: ignore[attr-defined]
    os.kill(worker._process.pid, signal.SIGKILL)
    failed(said(found), "its process ended")
    assert said(found).outcome == "deny"


def test_a_failure_is_not_remembered_at_the_second_look(tmp_path: Path) -> None:
    """A pair that waits because an engine was away is decided as soon as it is back."""
    found = policy(tmp_path / "shop", "rego", OWN)
    table = DecisionTable(tmp_path / "decisions", found)
    table.extend([EMAIL])
    (situation,) = table.rows
    lane = found.recipients[0].subscriber
    again = Again(None, table)  # type: ignore[arg-type]
    os.kill(found.engines[0].ask._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    silent = again._judged(situation, (), lane)
    assert (silent.outcome, silent.reason.partition(":")[0]) == ("defer", "policy_failed")
    assert again._judged(situation, (), lane)[:2] == ("deny", "no")
    assert again._kept.cache_info().currsize == 1


def test_an_interrupted_question_leaves_no_answer_behind(tmp_path: Path) -> None:
    """The answer to one question must never be taken for the answer to the next."""
    text = OWN + 'findings contains {"rule": "b", "tags": ["late"]} if input.facts.change_type == "late"\n'
    found = policy(tmp_path / "shop", "rego", text)
    worker = found.engines[0].ask  # type: ignore[attr-defined]

    class Interrupted:
        def write(self, line: bytes) -> int:
            return pipe.write(line)

        def flush(self) -> None:
            pipe.flush()
            raise KeyboardInterrupt

        def close(self) -> None:
            pipe.close()

    pipe = worker._process.stdin
    worker._process.stdin = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        decide(found, EMAIL | {"change_type": "late"}, RECIPIENTS[0])
    assert said(found).rules == ("a",)
    assert said(found).tags == ()


def test_a_failure_counts_for_the_anchors_that_are_enforced(tmp_path: Path) -> None:
    text = HEAD + 'findings contains {"rule": "a", "tags": ["b"]} if 1 / 0 == 1\n'
    found = policy(tmp_path / "shop", "rego", text)
    one = replace(found, rollout={"privacy": Mode("shadow")})
    assert said(one).outcome == "defer"
    every = replace(found, rollout=dict.fromkeys(ANCHORS, Mode("shadow")))
    assert (said(every).outcome, said(every).would) == ("allow", "defer")


def test_a_person_may_lift_what_an_engine_wants_reviewed(tmp_path: Path) -> None:
    text = HEAD + 'findings contains {"rule": "a", "outcome": "review", "reason": "look"} if true\n'
    found = policy(tmp_path / "shop", "rego", text)
    assert (said(found).outcome, said(found).review) == ("defer", True)
    assert decide(found, EMAIL | {"reviewed": True}, RECIPIENTS[0]).outcome == "allow"


def test_an_engine_sees_only_what_it_asked_for(tmp_path: Path) -> None:
    """Otherwise two events of one situation could be decided differently."""
    text = HEAD + 'findings contains {"rule": "a", "outcome": "deny", "reason": "no"} if input.facts.regime == "eu"\n'
    files = local("rego", text)
    engine = {"kind": "rego", "files": ["policy/own.rego"], "facts": ["personal"]}
    blind = loaded(written(tmp_path / "blind", {"engines": [engine]}, **files))
    seeing = loaded(written(tmp_path / "seeing", {"engines": [engine | {"facts": ["regime"]}]}, **files))
    assert (said(blind).outcome, said(seeing).outcome) == ("allow", "deny")
    assert "jurisdiction" not in blind.facts
    assert "jurisdiction" in seeing.facts
    assert set(FACTS) - {"duty"} <= set(
        loaded(written(tmp_path / "all", asking("rego", {"files": ["policy/own.rego"]}), **files)).facts
    )
