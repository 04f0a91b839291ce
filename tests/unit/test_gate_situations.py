"""Situations and decisions in Spark: the same ids as in Python, deadlines as instants, filters, and what is not yet decided."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tidings.contract import Contract
from tidings.gate.decide import Policy, Recipient, situation_id
from tidings.gate.decisions import Decided
from tidings.gate.facts import complete
from tidings.gate.loading import starter_policy
from tidings.gate.situations import (
    FRAME,
    DecisionTable,
    decision_frame,
    event_facts,
    situation,
    unknown_situations,
)
from tidings.gate.situations import situation_id as named
from tidings.stages.decision import decision

# Spark's own client leaves the socket of a small frame to the collector.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:unclosed.*socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

STARTER = starter_policy()
PEOPLE = (
    Recipient("klaviyo", "marketing", "US", True, sla={"default": 900}),
    Recipient("meta", "ads", "US", True, types=("email",)),
    Recipient("erp", "service", "US", True),
)
POLICY = Policy("2026-11", STARTER.rules, STARTER.statutes, PEOPLE)
CUSTOMER = Contract.model_validate(
    {"kind": "customer", "version": "1", "key": ["id"], "fields": {"email": {"type": "email"}, "diet": {"type": "preference", "class": "sensitive"}}}
)  # fmt: skip
STORE = Contract.model_validate(
    {"kind": "location", "version": "1", "key": ["id"], "fields": {"name": {"type": "name"}}}
)
CONTRACTS = {"customer": CUSTOMER, "store": STORE}
EVENTS = "event_id string, change_type string, operation string, entity string, source string, banner string, location string, jurisdiction string"
MORE = "consents map<string,string>, consent_event struct<class:string,channel:string,state:string>, flags array<string>, time timestamp, request_time timestamp, arrived timestamp"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def event(name: str, change: str, **facts: Any) -> dict[str, Any]:
    base = {
        "event_id": name,
        "change_type": change,
        "operation": "update",
        "entity": "customer",
        "source": "crm",
        "banner": None,
    }
    base |= {"location": "online", "jurisdiction": "US-CA", "consents": None, "consent_event": None, "flags": []}
    return (
        base | {"time": at("2026-12-21T10:00:00"), "request_time": None, "arrived": at("2027-06-01T00:00:00")} | facts
    )


ROWS = [
    event("mail", "email"),
    event("germany", "email", jurisdiction=" de ", consents={"email": "granted"}),
    event("nonsense", "email", jurisdiction="Wonderland, upstairs", consents={"email": "perhaps", "sms": "unknown"}),
    event("diet", "preference"),
    event("card", "payment_method", flags=["card_masked", "child"]),
    event("stop", "consent", consent_event={"class": "marketing", "channel": "email", "state": "withdrawn"}, request_time=at("2026-12-18T23:30:00")),
    event("vague", "consent", consent_event={"class": "marketing", "channel": "email", "state": None}),
    event("gone", "delete", operation="delete", jurisdiction="FR", location="sf-01", time=at("2027-01-31T08:00:00")),
    event("shop", "name", entity="store"),
    event("stranger", "email", entity="unheard_of"),
]  # fmt: skip


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    texts, moment = pa.map_(pa.string(), pa.string()), pa.timestamp("us", tz="UTC")
    consent = pa.struct({"class": pa.string(), "channel": pa.string(), "state": pa.string()})
    names = {part.split()[0]: pa.string() for part in EVENTS.split(", ")}
    kinds = names | {
        "consents": texts,
        "consent_event": consent,
        "flags": pa.list_(pa.string()),
        "time": moment,
        "request_time": moment,
        "arrived": moment,
    }
    rows = [row | {"consents": list(row["consents"].items()) if row["consents"] else None} for row in ROWS]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=pa.schema(kinds)))
    facts = event_facts(CONTRACTS, F.col("consents"), F.col("consent_event"), F.col("flags"))
    return frame.withColumn("situation", situation(POLICY, facts)).withColumn("decision", named(POLICY))


@pytest.fixture(scope="module")
def table(events: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> DecisionTable:
    table = DecisionTable(tmp_path_factory.mktemp("decisions"), POLICY)
    table.extend(row.situation.asDict() for row in events.select("situation").collect())
    return table


def test_facts_and_ids_are_those_of_python(events: DataFrame) -> None:
    rows = {row.event_id: row for row in events.collect()}
    for row in rows.values():
        facts = complete(row.situation.asDict())
        assert tuple(row.situation.asDict()) == POLICY.facts
        assert row.decision == situation_id(POLICY.version, {name: facts[name] for name in POLICY.facts})
    said = lambda name, fact: rows[name].situation[fact]  # noqa: E731
    assert [said("germany", "jurisdiction"), said("germany", "consent_email")] == ["DE", "granted"]
    wild = [said("nonsense", name) for name in ("jurisdiction", "consent_email", "consent_sms")]
    assert wild == [None] * 3  # a wild value is unknown
    assert [said("diet", "sensitive"), said("mail", "sensitive")] == [True, False]
    assert [said("card", "masked"), said("card", "child"), said("card", "erased")] == [True, True, False]
    states = [said(name, "consent_state") for name in ("stop", "vague", "mail")]
    assert states == ["withdrawn", "unknown", "none"]
    assert [said("mail", "personal"), said("shop", "personal"), said("stranger", "personal")] == [True, False, None]
    assert len({row.decision for row in rows.values()}) == len(ROWS)


def decided(
    events: DataFrame, table: DecisionTable, filters: dict[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Event → subscriber → what the row and the table say together."""
    kept = Decided(table.path.parent)
    rows = decision(events, decision_frame(events.sparkSession, table), filters, table.policy.free_days).collect()
    return {row.event_id: {one["subscriber"]: SimpleNamespace(**one) for one in kept.recipients(row)} for row in rows}


def test_recipients_and_deadlines(spark: SparkSession, events: DataFrame, table: DecisionTable) -> None:
    frame = decision_frame(spark, table)
    assert frame.schema.simpleString() == spark.createDataFrame([], FRAME).schema.simpleString()
    found = decided(events, table)
    assert {name: one.outcome for name, one in found["mail"].items()} == {
        "erp": "allow",
        "klaviyo": "allow",
        "meta": "allow",
    }
    assert found["nonsense"]["klaviyo"].outcome == "defer"
    assert found["nonsense"]["klaviyo"].reasons == ["cannot tell: jurisdiction is not known"]
    assert found["mail"]["erp"].deadline is None
    assert found["vague"]["klaviyo"].outcome == "defer"
    assert "consent_state" in found["vague"]["klaviyo"].reasons[0]
    stop = found["stop"]["erp"]
    # Friday evening, Christmas and New Year's Day between: ten business days from the request, not from the event
    assert (stop.deadline, stop.priority, stop.semantics) == (datetime(2027, 1, 5, 23, 30), 0, "at-least-once")
    # a month from 31 January ends on Sunday 28 February, and so on Monday
    assert found["gone"]["erp"].deadline == datetime(2027, 3, 1, 8, 0)
    assert set(found["gone"]) == {"erp", "klaviyo", "meta"}
    versions = {row.policy_version for row in decision(events, frame).collect()}
    assert versions == {POLICY.version}
    assert decision(events, frame).schema["recipients"].dataType.simpleString() == "array<string>"


def test_filters_make_no_pair_unless_everyone_must_know(events: DataFrame, table: DecisionTable) -> None:
    filters = {"klaviyo": F.col("location") == "la-01", "meta": F.lit(None).cast("boolean")}
    found = decided(events, table, filters)
    assert set(found["mail"]) == {"erp"}
    assert set(found["gone"]) == {"erp", "klaviyo", "meta"}


def test_undecided_situations_are_seen_while_writing(spark: SparkSession, events: DataFrame, tmp_path: Path) -> None:
    table = DecisionTable(tmp_path, POLICY)

    def undecided() -> list[Any]:
        seen = Observation()
        rows = decision(events, decision_frame(spark, table), {"klaviyo": F.col("location") == "la-01"})
        rows.observe(seen, unknown_situations().alias("unknown")).write.format("noop").mode("overwrite").save()
        found: list[Any] = seen.get["unknown"]
        return found

    assert table.extend(row.asDict() for row in undecided()) == len(ROWS)
    assert undecided() == []


def test_the_plan_is_native_and_broadcasts(spark: SparkSession, events: DataFrame, table: DecisionTable) -> None:
    plan = decision(events, decision_frame(spark, table))._jdf.queryExecution().executedPlan().toString()
    assert "BroadcastHashJoin" in plan
    assert "Python" not in plan
