"""What is left out of a situation never changes an answer: held against every rule that is shipped, over situations drawn at random."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidings.contract import Contract
from tidings.gate.categories import facts_of
from tidings.gate.decide import Policy, Recipient, decide, situation_id
from tidings.gate.facts import FACTS, Fact, Value, complete
from tidings.gate.policy import Approval
from tidings.gate.relevance import OPERATIONS, reduced, relevant
from tidings.gate.rulebook import shipped_rules
from tidings.gate.situations import kindred
from tidings.gate.situations import situation as situation_column
from tidings.gate.situations import situation_id as situation_column_id

PLACES = ("US-CA", "US-TX", "US-NY", "US-WA", "US", "DE", "FR", "GB", "CA-QC", "CA-ON", "BR", "IN", "CH", "ZZ", None)
CUSTOMER = Contract.model_validate(
    {
        "kind": "customer",
        "version": "1",
        "key": ["id"],
        "fields": {
            "email": {"type": "email", "category": "user.contact.email"},
            "phone": {"type": "phone"},
            "face": {"type": "account", "class": "sensitive", "category": "user.biometric"},
            "ok": {"type": "consent", "consent": {"channel": "email"}},
            "off": {"type": "suppression"},
            "diet": {"type": "preference", "category": "user.health_and_medical", "lawful_basis": "consent"},
        },
    }
)
STORE = Contract.model_validate(
    {"kind": "location", "version": "1", "key": ["id"], "fields": {"name": {"type": "name"}}}
)
CONTRACTS = {"customer": CUSTOMER, "store": STORE}
LIST = (Approval(("marketing",), ("US-CA", "DE")),)
PEOPLE = (
    Recipient("esp", "marketing", "US", True, terms={"channels": ("email", "sms"), "purposes": ("marketing",)}),
    Recipient("ads", "ads", "US", True, terms={"sells": True, "acts_as": "third_party"}),
    Recipient("bot", "agent", "US", True, terms={"llm": True}),
    Recipient("erp", "service", "DE", False),
)
POLICY = Policy("all", tuple(shipped_rules()), {}, PEOPLE, CONTRACTS)


def drawn(fact: Fact, dice: random.Random) -> Value:
    if fact.kind == "flag":
        return dice.random() < 0.3
    if fact.kind == "place":
        return dice.choice(PLACES)
    if fact.kind == "choice":
        return dice.choice((*fact.values, None))
    return fact.default


def situation(dice: random.Random, policy: Policy) -> dict[str, Value]:
    """Some event of some contract: what the contract says is as it says, everything else is drawn."""
    entity = dice.choice(list(CONTRACTS))
    change = dice.choice(CONTRACTS[entity].event_types)
    facts = {name: drawn(FACTS[name], dice) for name in policy.facts}
    if change not in ("consent", "suppression"):
        facts["consent_state"] = "none"
    facts |= {k: v for k, v in facts_of(CONTRACTS[entity], change).items() if k in facts} | {"test_mode": False}
    operation = change if change in ("insert", "delete", "rekey", "update") else dice.choice(OPERATIONS)
    return complete(facts | {"entity": entity, "change_type": change, "operation": operation})


@pytest.mark.parametrize("approving", [False, True])
def test_nothing_that_counts_is_left_out(approving: bool) -> None:
    people = tuple(Recipient(**{**vars(one), "approvals": LIST}) for one in PEOPLE) if approving else PEOPLE
    policy = Policy("all", POLICY.rules, {}, people, CONTRACTS)
    counts = relevant(policy, CONTRACTS, {"test_mode": False})
    dice = random.Random(7)
    for _ in range(400):
        facts = situation(dice, policy)
        kept = reduced(facts, counts[str(facts["entity"]), str(facts["change_type"]), str(facts["operation"])])
        for one in policy.recipients:
            assert decide(policy, kept, one) == decide(policy, facts, one), facts


def test_situations_stay_few() -> None:
    """A changed address has to be decided per country and consent, not per state of the union."""
    counts = relevant(POLICY, CONTRACTS, {"test_mode": False})
    email = counts["customer", "email", "update"]
    assert email.regions is not None
    assert "US-NY" not in email.regions
    assert "consent_post" not in email.facts
    deletion = counts["customer", "delete", "delete"]
    assert not [name for name in deletion.facts if name.startswith("consent_") and name.removeprefix("consent_") in ("email", "sms", "ads")]  # fmt: skip


@pytest.mark.spark
def test_the_native_twin_leaves_out_the_same(spark: SparkSession) -> None:
    counts = relevant(POLICY, CONTRACTS, {"test_mode": False})
    dice = random.Random(11)
    rows = [situation(dice, POLICY) for _ in range(150)]
    schema = ", ".join(f"{n} {'boolean' if FACTS[n].kind == 'flag' else 'string'}" for n in POLICY.facts)
    plain: list[Any] = [{name: row[name] for name in POLICY.facts} for row in rows]
    frame = spark.createDataFrame(plain, schema).withColumn("kindred", kindred(counts))
    frame = frame.withColumn(
        "situation", situation_column(POLICY, {name: F.col(name) for name in POLICY.facts}, counts)
    )
    found = [row["d"] for row in frame.select(situation_column_id(POLICY).alias("d")).collect()]
    for row, native in zip(rows, found, strict=True):
        kept = reduced(row, counts[str(row["entity"]), str(row["change_type"]), str(row["operation"])])
        assert native == situation_id(POLICY.version, {name: kept[name] for name in POLICY.facts})
