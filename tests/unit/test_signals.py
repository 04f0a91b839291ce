"""Signals, technical fields and consents by purpose: cases are rows of one run, each about its own subject."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from test_detect import message, of, told

from tidings.settings import Settings, examine, load
from tidings.verbs.init import write as write_operator

CONTRACT = """\
kind: customer
version: "1"
key: [id]
fields:
  tier: {type: tier, class: internal}
  last_order_days: {class: internal}
  balance: {class: internal}
  categories: {type: segment, class: internal}
  tags: {type: segment, class: internal}
  plan: {type: subscription, class: internal}
  topic: {type: preference, class: sensitive}
  phone: {type: phone, normalise: phone, country_field: country}
  etl_batch: {class: internal}
  status: {class: internal}
  news: {type: consent, consent: {class: marketing, channel: email, purpose: marketing}}
  study: {type: consent, consent: {class: marketing, channel: email, purpose: research}}
  bills: {type: consent, consent: {class: transactional, channel: email}}
ignore: [orders_count, bounces, updated_at, "etl_*"]
types: {downgrade: {description: a paying member steps down}}
signals:
  tier-up: {type: tier_transition, when: {field: tier, moves: up, order: [basic, silver, gold]}}
  tier-down: {type: tier_transition, when: {field: tier, moves: down, order: [basic, silver, gold]}}
  idle: {type: churn_signal, when: {field: last_order_days, crosses: {above: 90}}}
  broke: {type: churn_signal, when: {field: balance, crosses: {below: 0.5}}}
  garden: {type: cross_sell_signal, when: {field: categories, gains: [garden, pets]}}
  untagged: {type: cross_sell_signal, when: {field: tags, loses: [vip]}}
  bought: {type: purchase, when: {field: orders_count, moves: up}}
  health: {type: sensitive_data, when: {field: topic, becomes: [health, faith]}}
  left-gold: {type: tier_transition, when: {field: tier, from: [gold]}}
  up-from-free: {type: tier_transition, when: {field: plan, from: [free], becomes: [plus, pro]}}
  bounced: {type: suppression, when: {field: bounces, crosses: {above: 3}}}
  merged: {type: identity_merge, when: {field: status, becomes: [merged]}}
  paying-down:
    type: downgrade
    when: {all: [{field: tier, moves: down, order: [basic, silver, gold]}, {field: plan, is: [pro]}]}
"""
BASE: dict[str, Any] = {
    "tier": "silver", "last_order_days": 10, "balance": 5, "categories": ["books"], "tags": "vip, new", "plan": "plus",
    "topic": "sport", "phone": "030 901820", "country": "DE", "etl_batch": 1, "orders_count": 9, "updated_at": "a",
    "bounces": 0, "status": "live", "news": True, "study": True, "bills": True, "unlisted": 1,
}  # fmt: skip

# name → (what it was, what it becomes, the signals and types that must come out)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "a step up": ({}, {"tier": "gold"}, ["tier", "tier-up"]),
    "a step up in capitals": ({}, {"tier": " GOLD"}, ["tier", "tier-up"]),
    "a step down": ({}, {"tier": "basic"}, ["tier", "tier-down"]),
    "two steps down": ({"tier": "gold"}, {"tier": "basic"}, ["left-gold", "tier", "tier-down"]),
    "a step nobody listed": ({}, {"tier": "platinum"}, ["tier"]),
    "from nothing is no step": ({"tier": None}, {"tier": "gold"}, ["tier"]),
    "to nothing is no step, and still away": ({"tier": "gold"}, {"tier": None}, ["left-gold", "tier"]),
    "over the line": ({}, {"last_order_days": 91}, ["idle", "update"]),
    "on the line": ({}, {"last_order_days": 90}, ["update"]),
    "from the line over it": ({"last_order_days": 90}, {"last_order_days": "90.1"}, ["idle", "update"]),
    "already over the line": ({"last_order_days": 95}, {"last_order_days": 99}, ["update"]),
    "back under the line": ({"last_order_days": 95}, {"last_order_days": 3}, ["update"]),
    "from no number": ({"last_order_days": None}, {"last_order_days": 99}, ["update"]),
    "not a number": ({}, {"last_order_days": "many"}, ["update"]),
    "under a line": ({}, {"balance": 0.25}, ["broke", "update"]),
    "to a line": ({}, {"balance": 0.5}, ["update"]),
    "a list gains": ({}, {"categories": ["books", "Garden"]}, ["garden", "segment"]),
    "a list in another order": ({"categories": ["books", "garden"]}, {"categories": ["garden", "books"]}, ["segment"]),
    "a list gains another": ({"categories": ["garden"]}, {"categories": ["garden", "pets"]}, ["garden", "segment"]),
    "a list gains what nobody asked for": ({}, {"categories": ["books", "toys"]}, ["segment"]),
    "from no list": ({"categories": None}, {"categories": ["pets"]}, ["garden", "segment"]),
    "text with commas loses": ({}, {"tags": "new"}, ["segment", "untagged"]),
    "text with commas keeps": ({}, {"tags": "new,vip"}, ["segment"]),
    "a technical field that a signal watches": ({}, {"orders_count": 10}, ["bought"]),
    "and the other way": ({}, {"orders_count": 8}, []),
    "as numbers, not as text": ({}, {"orders_count": "9.0"}, []),
    "becomes": ({}, {"topic": "health"}, ["health", "preference"]),
    "already was one of them": ({"topic": "health"}, {"topic": "faith"}, ["preference"]),
    "becomes from nothing": ({"topic": None}, {"topic": "faith"}, ["health", "preference"]),
    "from and becomes": ({"plan": "free"}, {"plan": "pro"}, ["subscription", "up-from-free"]),
    "becomes, from elsewhere": ({"plan": "plus"}, {"plan": "pro"}, ["subscription"]),
    "all of it": ({"plan": "pro"}, {"plan": "pro", "tier": "basic"}, ["paying-down", "tier", "tier-down"]),
    "how things stand after": ({}, {"plan": "pro", "tier": "basic"}, ["paying-down", "subscription", "tier", "tier-down"]),
    "half of it": ({"plan": "pro"}, {"plan": "plus", "tier": "basic"}, ["subscription", "tier", "tier-down"]),
    "one of the fifteen": ({}, {"bounces": 4}, ["bounced"]),
    "a merge that is a status": ({}, {"status": "Merged"}, ["merged", "update"]),
    "technical fields alone": ({}, {"updated_at": "b", "etl_batch": 2}, []),
    "technical beside another": ({}, {"updated_at": "b", "etl_batch": 2, "plan": "pro"}, ["subscription"]),
    "a field that is not listed": ({}, {"unlisted": 2}, []),
    "a number in the record's country": ({}, {"phone": "+49 (0)30 901820"}, []),
    "the same digits in another country": ({}, {"country": "AT"}, ["phone"]),
    "a consent": ({}, {"news": False}, ["email/marketing/withdrawn"]),
    "the same channel for another purpose": ({}, {"study": False}, ["email/research/withdrawn"]),
    "both": ({"study": False}, {"study": True, "news": False}, ["email/marketing/withdrawn", "email/research/granted"]),
    "another class": ({}, {"bills": False}, ["email/marketing/withdrawn"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder: Path = tmp_path_factory.mktemp("signals") / "operator"
    write_operator(folder)
    (folder / "entities" / "customer.yaml").write_text(CONTRACT)
    (folder / "subscribers" / "newsletter.yaml").unlink()
    return load(folder)


def said(row: dict[str, Any]) -> str:
    if row.get("consent"):
        return "/".join(row["consent"][name] for name in ("channel", "purpose", "state"))
    return json.loads(row["payload"]).get("signal") or str(row["change_type"])


def test_every_rule(spark: SparkSession, settings: Settings) -> None:
    lines = [
        message(n, "u", {"id": n, **BASE, **was}, {"id": n, **BASE, **was, **now})
        for n, (was, now, _) in enumerate(CASES.values(), 1)
    ]
    rows = told(spark, settings, [*lines, *lines[:5]])  # and the first five are delivered again
    found = {name: sorted(map(said, of(rows, n))) for n, name in enumerate(CASES, 1)}
    assert found == {name: sorted(units) for name, (_, _, units) in CASES.items()}
    assert len({row["event_id"] for row in rows}) == len({row["offset"] for row in rows}) == len(rows)
    both = {said(row): row for row in of(rows, list(CASES).index("how things stand after") + 1)}
    assert both["paying-down"]["change_type"] == "downgrade"
    assert json.loads(both["paying-down"]["payload"])["changed"] == ["plan", "tier"]
    assert json.loads(both["tier-down"]["payload"])["changed"] == ["tier"]
    assert json.loads(both["tier"]["payload"])["changed"] == ["plan", "tier"]
    assert "signal" not in json.loads(both["tier"]["payload"])
    assert len({row["correlation"] for row in both.values()}) == 1
    merged = {
        said(row): json.loads(row["payload"]) for row in of(rows, list(CASES).index("a merge that is a status") + 1)
    }
    assert merged["merged"]["moved"] == [{"field": "status", "from": "live", "to": "Merged"}]
    assert "moved" not in merged["update"]


def test_only_a_transition_is_a_signal(spark: SparkSession, settings: Settings) -> None:
    high = {"tier": "gold", "last_order_days": 99, "topic": "health", "orders_count": 50}
    lines = [
        message(1, "c", None, {"id": 1, **BASE, **high}, 10),
        message(2, "r", None, {"id": 2, **BASE}, 20),
        message(2, "r", None, {"id": 2, **BASE, **high}, 30),
        message(3, "d", {"id": 3, **BASE, **high}, None, 40),
        message(4, "c", None, {"id": 4, **BASE}, 50),
        message(4, "u", None, {"id": 4, **BASE, "orders_count": 10}, 60),  # compared with what was last known
        message(4, "u", None, {"id": 4, "orders_count": 11}, 70),  # only a part of the record
        message(5, "u", None, {"id": 5, **BASE, **high}, 80),  # seen for the first time
    ]
    rows = told(spark, settings, lines)
    signals = {n: [said(r) for r in of(rows, n) if "signal" in json.loads(r["payload"])] for n in range(1, 6)}
    assert signals == {1: [], 2: [], 3: [], 4: ["bought", "bought"], 5: []}


WRONG: dict[str, tuple[str, str, str]] = {
    "an unknown type": ("type: churn_signal, when: {field: last", "type: churn, when: {field: last", "unknown_type"),
    "a consent": ("type: churn_signal, when: {field: last", "type: consent, when: {field: last", "unknown_type"),
    "a step of life": ("type: churn_signal, when: {field: last", "type: delete, when: {field: last", "unknown_type"),
    "an unknown field": ("when: {field: balance", "when: {field: ballance", "unknown_field"),
    "an unknown field among all": ("{field: plan, is: [pro]}", "{field: plann, is: [pro]}", "unknown_field"),
    "no test": ("{field: tier, from: [gold]}", "{field: tier}", "wrong_value"),
    "two tests": ("{field: tier, from: [gold]}", "{field: tier, moves: up, becomes: [x]}", "wrong_value"),
    "from beside moves": ("{field: tier, from: [gold]}", "{field: tier, from: [gold], moves: up}", "wrong_value"),
    "an order of nothing": ("{field: tier, from: [gold]}", "{field: tier, from: [gold], order: [a, b]}", "wrong_value"),
    "an order with a repeat": ("{field: tier, from: [gold]}", "{field: tier, moves: up, order: [a, a]}", "duplicate_id"),
    "two lines": ("crosses: {above: 90}", "crosses: {above: 90, below: 3}", "wrong_value"),
    "no line": ("crosses: {above: 90}", "crosses: {}", "wrong_value"),
    "nothing happens": ("{field: tier, from: [gold]}", "{field: tier, is: [gold]}", "wrong_value"),
    "a word nobody knows": ("{field: tier, from: [gold]}", "{field: tier, form: [gold]}", "unknown_key"),
    "a key ignored": ('ignore: [orders_count', 'ignore: ["i*", orders_count', "wrong_value"),
    "a meaning ignored": ("ignore: [orders_count", "ignore: [tier, orders_count", "wrong_value"),
    "an own type of a signal's name": ("types: {downgrade", "types: {purchase: {description: x}, downgrade", "duplicate_id"),
    "the same consent twice": ("purpose: research", "purpose: marketing", "duplicate_id"),
    "a country nobody dials": ("country_field: country", "country: XX", "wrong_value"),
    "two countries": ("country_field: country", "country_field: country, country: DE", "wrong_value"),
    "a country without a phone": ("  balance: {", "  balance: {country: DE, ", "unknown_key"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_contract_gives_its_line(settings: Settings, tmp_path: Path, name: str) -> None:
    old, new, code = WRONG[name]
    assert old in CONTRACT
    write_operator(tmp_path / "operator")
    (tmp_path / "operator/subscribers/newsletter.yaml").unlink()
    (tmp_path / "operator/subscribers/hook.yaml").unlink()
    text = CONTRACT.replace(old, new, 1)
    (tmp_path / "operator/entities/customer.yaml").write_text(text)
    (line,) = [n for n, line in enumerate(text.splitlines(), 1) if line not in CONTRACT.splitlines()]
    _, problems = examine(tmp_path / "operator")
    found = {(p.line, p.code) for p in problems if p.file == "entities/customer.yaml"}
    also = {(line - 1, code)} if name == "the same consent twice" else set()
    assert found == {(line, code)} | also


def test_a_subscriber_may_ask_for_a_signal(settings: Settings) -> None:
    page = settings.directory / "subscribers" / "hook.yaml"
    kept = page.read_text()
    page.write_text("types: [churn_signal, consent, purchase, chrun_signal]\n" + kept.replace("types:", "#", 1))
    _, problems = examine(settings.directory)
    page.write_text(kept)
    assert [(p.path, p.code) for p in problems if p.code == "unknown_type"] == [("types[3]", "unknown_type")]


def test_a_signal_is_a_type_like_any_other(settings: Settings) -> None:
    contract = settings.entities["customer"]
    assert {"tier_transition", "downgrade", "purchase"} <= set(contract.change_types) & set(settings.change_types)
    assert "update" in contract.event_types  # last_order_days
    assert contract.purposes == {"study": "research"}
