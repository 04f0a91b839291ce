"""An anchor is watched, then counts for a share of the people, then for all: what arrives, what the report says, what the ledger holds.

The contract says who is a child, which field is health data and on what ground: facts that the gate must have natively.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small import Small, small
from typer.testing import CliRunner

from tidings.cli import application
from tidings.gate.decisions import decided_in
from tidings.lanes.policies import LANE, in_force

pytestmark = pytest.mark.timeout(400)
PEOPLE = range(1, 61)
CONTRACT = """\
kind: customer
version: "1"
key: [id]
lawful_basis: contract
fields:
  email: {type: email, class: personal, category: user.contact.email}
  tier: {type: tier}
  minor: {type: account, person: child}
  diagnosis: {type: preference, class: sensitive, category: user.health_and_medical, lawful_basis: consent}
"""
POLICY = """\
version: "1"
rules:
  - id: no-children
    anchor: privacy
    when: {all: [{fact: child, is: true}, {recipient: subscriber, is: least}]}
    effect: {deny: "this person is a child"}
    examples:
      - {given: {change_type: email, child: true}, to: {subscriber: least}, gives: deny}
      - {given: {change_type: email}, to: {subscriber: least}, gives: nothing}
  - id: no-health-data
    anchor: vertical
    when: {recipient: subscriber, is_not: once}
    effect: {redact: ["kind:phi"], tags: [health.redacted]}
    examples:
      - {given: {change_type: email}, to: {subscriber: most}, gives: applies}
      - {given: {change_type: email}, to: {subscriber: once}, gives: nothing}
  - id: labels
    anchor: event
    when: {any: [{fact: categories, is: user.health_and_medical}, {fact: lawful_basis, is: consent}, {fact: phi, is: true}]}
    effect: {priority: 4}
    examples:
      - {given: {change_type: preference, phi: true}, gives: applies}
      - {given: {change_type: email, lawful_basis: contract}, gives: nothing}
"""


def publish(one: Small, number: int) -> None:
    """Everybody's address changes; every second one is a child."""
    lines = []
    for who in PEOPLE:
        one.world.serial += 1
        lsn = 10_000_000 + one.world.serial * 8
        row = {"id": who, "email": f"p{who}.{number}@example.com", "tier": "basic", "minor": who % 2 == 0}
        row |= {"diagnosis": f"secret-diagnosis-{who}"}
        source = {"connector": "postgresql", "name": "crm", "ts_ms": 1_780_000_000_000 + one.world.serial}
        source |= {"snapshot": "false", "db": "crm", "schema": "public", "table": "customers", "txId": lsn, "lsn": lsn}
        old = row | {"email": f"p{who}.{number - 1}@example.com"} if number else None
        value = {"before": old, "after": row, "source": source, "op": "u" if number else "c"}
        lines.append(json.dumps({"topic": "crm.public.customers", "key": {"id": who}, "value": value}))
    one.world.publish("crm", lines)


def told(one: Small, subscriber: str, marker: str) -> int:
    """How many requests of this subscriber carried the marker."""
    return sum(marker in json.dumps(row) for row in one.arrivals() if row["endpoint"] == subscriber)


def verb(one: Small, *words: str) -> dict[str, Any]:
    said = CliRunner().invoke(application("gate"), ["gate", *words, "-C", str(one.folder), "--json"])
    assert said.exit_code == 0, said.output
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer


def test_from_shadow_to_canary(tmp_path: Path) -> None:
    with small(tmp_path, "crm") as one:
        (one.folder / "entities/customer.yaml").write_text(CONTRACT)
        (one.folder / "policy/own.yaml").write_text(POLICY)
        verb(one, "rollout", "privacy", "--to", "shadow")
        publish(one, 0)
        one.finish()
        assert told(one, "least", ".0@example.com") == len(PEOPLE), "in shadow everybody is told"
        said = verb(one, "rollout", "privacy")
        assert [(c["rule"], c["now"], c["would"], c["pairs"]) for c in said["changes"]] == [
            ("no-children", "allow", "deny", len(PEOPLE) // 2)
        ]

        too_soon = CliRunner().invoke(
            application("gate"), ["gate", "rollout", "privacy", "--to", "enforce", "-C", str(one.folder)]
        )
        assert too_soon.exit_code != 0
        verb(one, "rollout", "privacy", "--to", "canary", "--share", "0.5", "--counsel", "General Counsel")
        publish(one, 1)
        one.finish()
        reached = told(one, "least", ".1@example.com")
        assert len(PEOPLE) // 2 < reached < len(PEOPLE), "half of the children are refused, and nobody else"
        outcomes = Counter(_outcome(one, row) for row in _journal(one))
        assert outcomes["deny", True] + outcomes["allow", True] == len(PEOPLE)
        assert outcomes["deny", True] == len(PEOPLE) - reached

        assert told(one, "least", "secret-diagnosis") == told(one, "most", "secret-diagnosis") == 0
        assert told(one, "once", "secret-diagnosis") > 0
        entries = [json.loads(row) for row in _entries(one)]
        changed = [entry for entry in entries if entry["kind"] == "policy_changed"]
        assert [entry["previous_version"] for entry in changed] == ["none", changed[0]["policy_version"]]
        assert "General Counsel" in changed[1]["reason"]
        assert in_force(one.store) == changed[1]["policy_version"]


def _journal(one: Small) -> list[dict[str, Any]]:
    return one.store.arrow("journal", ["decision", "change_type", "entry"]).to_pylist()


def _outcome(one: Small, row: dict[str, Any]) -> tuple[str, bool]:
    decided = decided_in(one.store.decisions).get(row["decision"])
    assert decided is not None
    assert "health.redacted" in json.loads(row["entry"])["decision"]["tags"]
    told = next(each for each in decided["recipients"] if each["subscriber"] == "least")
    return told["outcome"], row["change_type"] == "email"


def _entries(one: Small) -> list[bytes]:
    rows = one.store.arrow("attempts", ["lane", "cycle", "entry"]).sort_by("cycle").to_pylist()
    return [row["entry"] for row in rows if row["lane"] == LANE]
