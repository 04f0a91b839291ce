"""One policy in every language: whatever the engine, the decisions are those of our own rules; and no failure is an allowance."""

from __future__ import annotations

import itertools
import random
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from engine_servers import Server, cerbos, opa, unavailable

from examples.shop import prepare
from tidings import settings as folder
from tidings.gate.decide import Decision, Policy, Recipient, decide
from tidings.gate.loading import described, load_policy

HERE = Path(__file__).parent / "engines"
FACTS = ["jurisdiction", "personal", "duty", "consent_email", "phi", "material"]
ANCHORS = ["privacy", "channel", "vertical", "governance"]
LOCAL = {
    "rego": ["gate.rego"],
    "cedar": ["gate.cedar"],
    "casbin": ["gate.conf", "gate.csv"],
    "oso": ["gate.polar"],
}
KINDS = (*LOCAL, "opa", "cerbos")
RECIPIENTS = [
    described(facts, name)
    for name, facts in {
        "mailer": {"role": "marketing", "region": "US", "dpa": True, "purposes": ["marketing"]},
        "stranger": {"role": "ads", "region": "US", "dpa": False, "purposes": ["marketing", "ads"], "rate": 2.5},
        "clinic": {"role": "service", "region": "DE", "dpa": True, "baa": True, "purposes": ["service"]},
        "agent": {"role": "agent", "region": "US", "dpa": True, "llm": True, "zero_retention": True},
        "model": {"role": "agent", "region": "IE", "dpa": False, "llm": True, "zero_retention": False},
    }.items()
]


def situations() -> list[dict[str, object]]:
    """A third of all combinations, always the same ones."""
    changes = [
        ("email", "update", "none"),
        ("consent", "update", "withdrawn"),
        ("consent", "update", "granted"),
        ("consent", "update", "unknown"),
        ("delete", "delete", "none"),
    ]
    names = ("personal", "jurisdiction", "consent_email", "phi", "material")
    rest = itertools.product(
        (True, False, None), (None, "DE", "US-CA", "BR"), ("granted", "withdrawn", None), (True, False), (True, False)
    )
    every = [
        {"change_type": kind, "operation": what, "consent_state": state, "entity": "customer"}
        | dict(zip(names, values, strict=True))
        for (kind, what, state), values in itertools.product(changes, rest)
    ]
    return random.Random(4).sample(every, len(every) // 3)


def written(at: Path, document: dict[str, object], **files: str) -> Path:
    """An operator's folder with this policy."""
    prepare.copy(at)
    shutil.rmtree(at / "policy")
    (at / "policy").mkdir()
    (at / "policy" / "own.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    # The bundle that comes with requests of people would decide beside it.
    own = yaml.safe_load((at / "tidings.yaml").read_text(encoding="utf-8"))
    (at / "tidings.yaml").write_text(yaml.safe_dump({k: v for k, v in own.items() if k != "rights"}), encoding="utf-8")
    for name, text in files.items():
        (at / "policy" / name).write_text(text, encoding="utf-8")
    return at


def loaded(at: Path) -> Policy:
    return load_policy(folder.load(at, secrets=False))


def asking(kind: str, source: dict[str, object]) -> dict[str, object]:
    return {"version": "conformance", "engines": [{"kind": kind, "facts": FACTS, "anchor": ANCHORS, **source}]}


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    document = yaml.safe_load((HERE / "native.yaml").read_text(encoding="utf-8"))
    return loaded(written(tmp_path_factory.mktemp("native") / "shop", document))


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    """Started when first asked for."""
    running: dict[str, Server] = {}
    yield running
    for server in running.values():
        server.stop()


def needed(kind: str) -> None:
    """Oso is legacy and not among the locked packages: it may be missing where the others may not."""
    if kind == "oso" and find_spec("oso") is None:
        unavailable("oso is not installed")


def policy_in(kind: str, at: Path, servers: dict[str, Server]) -> Policy:
    needed(kind)
    if kind in LOCAL:
        files = {name: (HERE / name).read_text(encoding="utf-8") for name in LOCAL[kind]}
        return loaded(written(at, asking(kind, {"files": [f"policy/{name}" for name in files]}), **files))
    if kind not in servers:
        servers[kind] = {"opa": opa, "cerbos": cerbos}[kind](HERE)
    return loaded(written(at, asking(kind, {"url": servers[kind].url, "revision": "2026-11", "timeout_ms": 10_000})))


def every(policy: Policy, recipients: list[Recipient]) -> list[Decision]:
    return [decide(policy, situation, each) for situation in situations() for each in recipients]


# The first time, OPA and Cerbos are built.
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("kind", KINDS)
def test_every_engine_decides_as_our_rules(
    kind: str, native: Policy, tmp_path: Path, servers: dict[str, Server]
) -> None:
    policy = policy_in(kind, tmp_path / "shop", servers)
    wanted, found = every(native, RECIPIENTS), every(policy, RECIPIENTS)
    assert len(wanted) > 1_000
    differing = [pair for pair in zip(wanted, found, strict=True) if pair[0] != pair[1]]
    assert differing[:1] == []


def test_the_grid_meets_every_rule_and_every_gap(native: Policy) -> None:
    decisions = every(native, RECIPIENTS)
    assert {decision.outcome for decision in decisions} == {"allow", "deny", "defer"}
    assert {name for decision in decisions for name in decision.rules} >= {rule.id for rule in native.rules}
    assert {decision.missing for decision in decisions} >= {
        ("consent_email",),
        ("personal",),
        ("consent_state",),
        ("consent_email", "consent_state", "jurisdiction"),
    }
    assert {True, False} == {decision.review for decision in decisions}


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("kind", ["opa", "cerbos"])
def test_another_revision_is_no_answer(kind: str, tmp_path: Path, servers: dict[str, Server]) -> None:
    policy_in(kind, tmp_path / "shop", servers)
    newer = loaded(written(tmp_path / "newer", asking(kind, {"url": servers[kind].url, "revision": "2026-12"})))
    decision = decide(newer, situations()[0], RECIPIENTS[0])
    assert (decision.outcome, decision.rules) == ("defer", ("policy-failed",))
    assert "'2026-11'" in decision.reasons[0]


REVISION = 'package tidings.gate\nimport rego.v1\nrevision := "2026-11"\n'
RULE = {"actions": ["receive"], "roles": ["recipient"]}
TELLS = {**RULE, "effect": "EFFECT_ALLOW", "output": {"when": {"ruleActivated": '{"revision": "2026-11"}'}}}
ON_SERVERS: list[tuple[str, object, str]] = [
    ("opa", REVISION + 'findings contains {"rule": "a", "tags": ["b"]} if 1 / 0 == 1\n', "500"),
    ("opa", REVISION, "undefined"),
    ("opa", REVISION + "findings := 7\n", "list"),
    ("cerbos", [TELLS, {**RULE, "effect": "EFFECT_DENY"}], "not allowed"),
    ("cerbos", [{**TELLS, "effect": "EFFECT_DENY"}], "not allowed"),
    ("cerbos", [{**RULE, "effect": "EFFECT_ALLOW"}], "no revision"),
    ("cerbos", [TELLS, {**TELLS, "output": {"when": {"ruleActivated": '{"rule": "a", "outcome": "alow"}'}}}], "alow"),
    ("cerbos", [TELLS, {**TELLS, "output": {"when": {"ruleActivated": '{"rule": R.attr.nope}'}}}], ""),
]


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("kind", "policy", "why"), ON_SERVERS)
def test_a_server_whose_policy_fails_defers(kind: str, policy: object, why: str, tmp_path: Path) -> None:
    (tmp_path / "cerbos").mkdir()
    resource = {"resource": "event", "version": "default", "rules": policy}
    page = {"apiVersion": "api.cerbos.dev/v1", "resourcePolicy": resource}
    (tmp_path / "cerbos" / "gate.yaml").write_text(yaml.safe_dump(page), encoding="utf-8")
    (tmp_path / "gate.rego").write_text(str(policy), encoding="utf-8")
    server = {"opa": opa, "cerbos": cerbos}[kind](tmp_path)
    try:
        asked = asking(kind, {"url": server.url, "revision": "2026-11", "timeout_ms": 10_000})
        decision = decide(loaded(written(tmp_path / "shop", asked)), situations()[0], RECIPIENTS[0])
    finally:
        server.stop()
    assert (decision.outcome, decision.rules) == ("defer", ("policy-failed",))
    assert why in decision.reasons[0]


BLOCKS = {"rego": ["rego"], "cedar": ["cedar"], "casbin": ["ini", "csv"], "oso": ["polar"], "cerbos": ["yaml"]}
SUFFIXES = {"ini": "conf"}


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("kind", BLOCKS)
def test_the_examples_of_the_docs_mean_what_they_say(kind: str, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    words = "|".join(BLOCKS[kind])
    blocks = [found for found in re.findall(rf"```({words})\n(.*?)```", page, re.DOTALL) if "engines:" not in found[1]]
    files = {f"own.{SUFFIXES.get(word, word)}": text for word, text in reversed(blocks)}
    engine: dict[str, object] = {"kind": kind, "facts": ["personal"], "timeout_ms": 10_000}
    needed(kind)
    if kind == "cerbos":
        (tmp_path / "cerbos").mkdir()
        (tmp_path / "cerbos" / "gate.yaml").write_text(files.pop("own.yaml"), encoding="utf-8")
        server = cerbos(tmp_path)
        engine |= {"url": server.url, "revision": "2026-11"}
    else:
        engine["files"] = [f"policy/{name}" for name in files]
    policy = loaded(written(tmp_path / "shop", {"engines": [engine]}, **files))
    email = {"change_type": "email", "operation": "update", "entity": "customer"}
    try:
        found = [decide(policy, {**email, "personal": personal}, RECIPIENTS[1]) for personal in (True, None, False)]
    finally:
        if kind == "cerbos":
            server.stop()
    assert [(each.outcome, each.rules, each.missing) for each in found] == [
        ("deny", ("no-agreement",), ()),
        ("defer", ("no-agreement",), ("personal",)),
        ("allow", (), ()),
    ]
