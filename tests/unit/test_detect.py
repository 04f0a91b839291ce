"""Detection: cases are rows. One run of the flow over many small stories, each about its own subject."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidings.rehearse import rehearse
from tidings.settings import Settings, load
from tidings.verbs.init import write as write_operator

CONTRACT = """\
kind: customer
version: "1"
key: [id]
identifiers: {email: email}
fields:
  email: {type: email, normalise: email}
  phone: {type: phone, normalise: phone}
  address: {type: address, normalise: text}
  newsletter: {type: preference}
  email_ok: {type: consent, consent: {class: marketing, channel: email}}
  sms_ok: {type: consent, consent: {class: marketing, channel: sms, granted: ["yes"], withdrawn: ["no"]}}
  plan: {type: subscription}
  tier: {type: tier}
  segment: {type: segment}
  cohort: {type: cohort}
  suppressed: {type: suppression}
  household_id: {type: household}
  account_id: {type: account}
  card: {type: payment_method}
  merged_into: {type: identity_merge}
  split_from: {type: identity_split}
  points: {type: loyalty_points}
  deleted_at: {lifecycle: soft_delete}
  store_id: {lifecycle: reparent}
  nickname: {}
types: {loyalty_points: {description: points of the programme}}
"""
BASE = {
    "email": "a@example.com", "phone": "+1 415 555 0101", "address": "12 Alder St", "newsletter": "weekly", "email_ok": True,
    "sms_ok": "no", "plan": "basic", "tier": "silver", "segment": "s1", "cohort": "c1", "suppressed": False, "household_id": 1,
    "account_id": 1, "card": "tok_1", "merged_into": None, "split_from": None, "points": 1, "deleted_at": None, "store_id": 1,
    "nickname": "x", "unmapped": 1,
}  # fmt: skip

# name → (op, what changes, the units that must come out); the before-image is in the message
UPDATES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "email": ({"email": "b@example.com"}, ["email"]),
    "phone": ({"phone": "+14155550199"}, ["phone"]),
    "address": ({"address": "13 Alder St"}, ["address"]),
    "preference": ({"newsletter": "daily"}, ["preference"]),
    "consent withdrawn": ({"email_ok": False}, ["consent/email/withdrawn"]),
    "consent granted by a listed value": ({"sms_ok": "yes"}, ["consent/sms/granted"]),
    "consent to nothing said": ({"sms_ok": None}, ["consent/sms/unknown"]),
    "two consents are two events": (
        {"email_ok": False, "sms_ok": "yes"},
        ["consent/email/withdrawn", "consent/sms/granted"],
    ),
    "subscription": ({"plan": "plus"}, ["subscription"]),
    "tier": ({"tier": "gold"}, ["tier"]),
    "segment": ({"segment": "s2"}, ["segment"]),
    "cohort": ({"cohort": "c2"}, ["cohort"]),
    "suppression": ({"suppressed": True}, ["suppression"]),
    "household": ({"household_id": 2}, ["household"]),
    "account": ({"account_id": 2}, ["account"]),
    "payment method": ({"card": "tok_2"}, ["payment_method"]),
    "merge": ({"merged_into": 7}, ["identity_merge"]),
    "split": ({"split_from": 7}, ["identity_split"]),
    "own type": ({"points": 2}, ["loyalty_points"]),
    "soft delete": ({"deleted_at": "2026-03-02"}, ["soft_delete"]),
    "reparent": ({"store_id": 2}, ["reparent"]),
    "a field without a type": ({"nickname": "y"}, ["update"]),
    "several types at once": (
        {"email": "b@example.com", "tier": "gold", "points": 3},
        ["email", "loyalty_points", "tier"],
    ),
    "case of an address is no change": ({"email": "A@Example.com "}, []),
    "punctuation of a phone is no change": ({"phone": "+1 (415) 555-0101"}, []),
    "white space is no change": ({"address": "12  Alder   St"}, []),
    "an unmapped field is no event": ({"unmapped": 2}, []),
    "a big integer is compared exactly": ({"points": 9007199254740993}, ["loyalty_points"]),
}


def message(
    number: int, op: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, lsn: int = 0
) -> str:
    place = lsn or number * 100
    source = {
        "connector": "postgresql",
        "schema": "public",
        "table": "customers",
        "ts_us": 1_772_443_000_000_000 + place,
    }
    source |= {"lsn": place, "sequence": json.dumps([str(place), str(place)]), "txId": place, "snapshot": "false"}
    value = {"op": op, "before": before, "after": after, "source": source, "ts_ms": 1}
    return json.dumps({"topic": "crm.public.customers", "key": {"id": number}, "value": value})


def image(number: int, **changed: Any) -> dict[str, Any]:
    return {"id": number, **BASE, **changed}


def said(row: Mapping[str, Any]) -> str:
    consent = row.get("consent")
    return f"consent/{consent['channel']}/{consent['state']}" if consent else str(row["change_type"])


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder: Path = tmp_path_factory.mktemp("detect") / "operator"
    write_operator(folder)
    (folder / "entities" / "customer.yaml").write_text(CONTRACT)
    (folder / "subscribers" / "newsletter.yaml").unlink()
    return load(folder)


def told(spark: SparkSession, settings: Settings, lines: list[str]) -> list[dict[str, Any]]:
    return [row for row in rehearse(spark, settings, settings.sources["crm"], lines) if row["out"] == "journal"]


def of(rows: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    return [row for row in rows if json.loads(row["payload"])["key"] == {"id": number}]


def test_every_change_type(spark: SparkSession, settings: Settings) -> None:
    lines = [message(n, "u", image(n), image(n, **what)) for n, (what, _) in enumerate(UPDATES.values(), 1)]
    rows = told(spark, settings, lines)
    found = {name: sorted(map(said, of(rows, n))) for n, name in enumerate(UPDATES, 1)}
    assert found == {name: sorted(units) for name, (_, units) in UPDATES.items()}
    together = of(rows, list(UPDATES).index("several types at once") + 1)
    assert len({row["correlation"] for row in together}) == 1
    assert len({row["event_id"] for row in rows}) == len({row["offset"] for row in rows}) == len(rows)


def test_the_life_of_a_record(spark: SparkSession, settings: Settings) -> None:
    lines = [
        message(1, "c", None, image(1), 10),
        message(1, "u", None, image(1, tier="gold"), 20),  # no before-image: the last one of this batch is
        message(1, "u", image(1, tier="gold"), image(1, tier="gold", deleted_at="x"), 30),
        message(1, "u", image(1, deleted_at="x"), image(1), 40),
        message(1, "d", image(1), None, 50),
        message(2, "r", None, image(2), 60),  # a snapshot row is state, not news
        message(2, "u", None, image(2, email="n@example.com"), 70),
        message(3, "u", None, image(3), 80),  # first sight of a key is an insert
        message(4, "u", image(4), image(5), 90),  # the key itself changed
    ]
    rows = told(spark, settings, lines)
    assert [said(r) for r in of(rows, 1)] == [
        "insert", "consent/email/granted", "consent/sms/withdrawn", "tier", "soft_delete", "restore", "delete",
    ]  # fmt: skip
    assert [said(r) for r in of(rows, 2)] == ["email"]
    assert of(rows, 3)[0]["change_type"] == "insert"
    assert [said(r) for r in of(rows, 4)] == ["rekey"]
    clocks = [row["hlc"] for row in of(rows, 1)]
    assert clocks == sorted(clocks)


def test_a_repeat_and_a_clock_ahead(spark: SparkSession, settings: Settings) -> None:
    line = message(1, "u", image(1), image(1, tier="gold"))
    future = json.loads(message(2, "u", image(2), image(2, tier="gold")))
    future["value"]["source"]["ts_us"] = 4_102_444_800_000_000
    rows = told(spark, settings, [line, line, json.dumps(future)])
    assert [said(r) for r in of(rows, 1)] == ["tier"]
    assert of(rows, 2)[0]["flags"] == ["clock_ahead"]
    assert of(rows, 2)[0]["hlc"] < "4102444800000"


def test_the_same_message_has_the_same_id(spark: SparkSession, settings: Settings) -> None:
    """In its place; delivered again elsewhere it is the same change, which is how it is recognised and makes no second event."""
    line, other = message(1, "u", image(1), image(1, tier="gold")), message(9, "c", None, image(9))
    one, two, elsewhere = (told(spark, settings, lines) for lines in ([line], [line, other], [other, line]))
    assert of(one, 1)[0]["event_id"] == of(two, 1)[0]["event_id"]
    assert of(one, 1)[0]["change"] == of(elsewhere, 1)[0]["change"]
    assert of(one, 1)[0]["event_id"][14] == "7"


def test_a_subject_told_of_many_times_is_compared_with_what_was_told_last(
    spark: SparkSession, settings: Settings
) -> None:
    count = 1_200
    lines = [
        message(1, "u", None, image(1, email=f"n{n}@example.com", tier=f"t{n // 2}"), 10 + n) for n in range(1, count)
    ]
    rows = sorted(told(spark, settings, [message(1, "c", None, image(1), 5), *lines]), key=lambda row: row["hlc"])
    mails = [row for row in rows if row["change_type"] == "email"]
    assert len(mails) == count - 1
    assert sum(row["change_type"] == "tier" for row in rows) == count // 2
    before = [json.loads(row["payload"])["before"]["email"] for row in mails]
    assert before == ["a@example.com", *[f"n{n}@example.com" for n in range(1, count - 1)]]
