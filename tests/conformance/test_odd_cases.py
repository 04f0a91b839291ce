"""Odd cases of dialects whose messages are no flat row: several changes, several shapes, requests instead of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidings.verbs.try_decode import decoded

pytestmark = [
    pytest.mark.spark,
    # PySpark leaves the socket to its JVM open when it hands over rows.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SAMPLES = Path(__file__).parent / "samples"


def sample(dialect: str, case: str) -> Any:
    lines = (SAMPLES / f"{dialect}.jsonl").read_text(encoding="utf-8").splitlines()
    return next(found["message"] for found in map(json.loads, lines) if found["case"] == case)


def swapped(message: Any, **values: Any) -> Any:
    """The message with other values; `a__b` names a field inside another."""
    made = json.loads(json.dumps(message))
    for name, value in values.items():
        *path, last = name.split("__")
        inner = made
        for step in path:
            inner = inner[step]
        inner[last] = value
    return made


IDENTIFY, TRACK = sample("segment", "identify_new_user"), sample("segment", "track_event")
ATTRIBUTE = sample("mparticle", "user_attribute_new")
OLDEST = swapped(ATTRIBUTE["events"][0], data__timestamp_unixtime_ms=-(2**63))
CONTACT = sample("salesforce_cdc", "update_email_changed_fields_only")
HEADER = "data__payload__ChangeEventHeader"
LOGGED = sample("mysql_rows", "insert")
NOTICE = sample("hubspot", "contact_property_change_email")[0]
UPDATED = sample("dataverse", "update_email_with_pre_image")
PARTNER = sample("sap_odp", "update_email")
ERASE = sample("ketch", "dsr_delete_request")
SHARED = {"tealium_account": "acme", "tealium_visitor_id": "v1", "city": "Cork"}
PREFERENCES = {"consent": {"categoryPreferences": {"Advertising": False}}}
SHOP = {"X-Shopify-Topic": "customers_email_marketing_consent/update"}

# dialect, what is odd, message, what must come: a skip, a code, or the fields named
CASES: list[tuple[str, str, Any, Any]] = [
    ("segment", "a batch", {"batch": [TRACK, IDENTIFY]}, {"entity": "users", "op": "update"}),
    ("segment", "a batch of behaviour", {"batch": [TRACK]}, "behavioural_event"),
    ("segment", "a batch with no object", {"batch": [IDENTIFY, 7]}, [{"op": "update"}, "missing_field"]),
    ("segment", "a key that is an object", swapped(IDENTIFY, userId={"a": 1}), "wrong_type"),
    (
        "segment",
        "a consent",
        swapped(TRACK, event="Segment Consent Preference Updated", context=PREFERENCES),
        {"entity": "consents", "after": {"Advertising": False}},
    ),
    (
        "mparticle",
        "nothing but consent",
        swapped(ATTRIBUTE, events=[], consent_state={"gdpr": {}}),
        {"entity": "consent_state", "after": {"gdpr": {}}, "position": "-54119"},
    ),
    ("mparticle", "the smallest integer", swapped(ATTRIBUTE, events=[OLDEST]), {"op": "insert"}),
    (
        "tealium",
        "a bulk message",
        {
            "shared": SHARED,
            "events": [{"tealium_event": "page_view"}, {"tealium_event": "user_update", "city": "Bray"}],
        },
        {"op": "update", "key": {"tealium_visitor_id": "v1"}, "after": {"city": "Bray"}},
    ),
    ("treasure_data", "a tuple", ["td.crm.people", 1772442965, {"id": 5}], {"entity": "crm.people", "key": {"id": 5}}),
    ("salesforce_cdc", "two records", swapped(CONTACT, **{f"{HEADER}__recordIds": ["a", "b"]}), [{}, {}]),
    ("salesforce_cdc", "all records", swapped(CONTACT, **{f"{HEADER}__recordIds": ["003*"]}), "gap_overflow"),
    ("salesforce_cdc", "too many", swapped(CONTACT, **{f"{HEADER}__changeType": "GAP_OVERFLOW"}), "gap_overflow"),
    (
        "salesforce_cdc",
        "a field that became null",
        swapped(CONTACT, **{f"{HEADER}__nulledFields": ["Email", "Phone"]}),
        {"after": {"Email": "maya.o@example.net", "LastModifiedDate": "2026-03-02T09:17:06.123Z", "Phone": None}},
    ),
    (
        "salesforce_cdc",
        "a bitmap",
        swapped(CONTACT, **{f"{HEADER}__changedFields": ["0x40"], "data__payload__Phone": None}),
        {"after": {"Email": "maya.o@example.net", "LastModifiedDate": "2026-03-02T09:17:06.123Z"}},
    ),
    ("mysql_rows", "no text in its column", swapped(LOGGED, op="unreadable", after=None), "unknown_operation"),
    ("mysql_rows", "a statement as text", swapped(LOGGED, op="statement", key=None, after=None), "unknown_operation"),
    ("hubspot", "one notice", NOTICE, {"entity": "contact"}),
    ("hubspot", "an empty list", [], "empty_transaction"),
    (
        "hubspot",
        "an association",
        [swapped(NOTICE, subscriptionType="contact.associationChange")],
        "association_change",
    ),
    (
        "hubspot",
        "a generic object",
        [swapped(NOTICE, subscriptionType="object.restore", objectTypeId="0-1")],
        {"op": "insert", "entity": "0-1"},
    ),
    ("dataverse", "too large", swapped(UPDATED, body__InputParameters=None), {"op": "update", "after": None}),
    ("dataverse", "no parameters", swapped(UPDATED, body__InputParameters={"a": 1}), "wrong_type"),
    ("dataverse", "an association", swapped(UPDATED, body__MessageName="Associate"), "association_change"),
    ("sap_odp", "a before image", swapped(PARTNER, row__ODQ_ENTITYCNTR=-1), "update_before_image"),
    ("ketch", "one space twice", swapped(ERASE, request__identities=ERASE["request"]["identities"] * 2), "missing_key"),
    ("ketch", "a restriction", swapped(ERASE, kind="RestrictProcessingRequest"), {"op": "update", "before": None}),
    (
        "trustarc",
        "not verified",
        swapped(sample("trustarc", "request_deletion"), requestStatus="UNVERIFIED"),
        "unverified_request",
    ),
    (
        "trustarc",
        "nobody knows whether verified",
        swapped(sample("trustarc", "request_deletion"), requestStatus=None),
        "unknown_operation",
    ),
    ("bigid", "told again", swapped(sample("bigid", "dsr_deletion"), status="completed"), "status_update"),
    ("shopify", "a consent", {"headers": SHOP, "body": {"customer_id": 7}}, {"op": "update", "key": {"id": 7}}),
]


def agrees(answer: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        pairs = list(zip(answer, wanted, strict=True))
        return all(agrees(one, other) for one, other in pairs)
    if isinstance(wanted, str):
        return wanted in (answer.get("skip"), answer.get("quarantine", {}).get("code"))
    return "op" in answer and {name: answer[name] for name in wanted} == wanted


@pytest.mark.parametrize("dialect", sorted({dialect for dialect, *_ in CASES}))
def test_odd_cases(spark: SparkSession, dialect: str) -> None:
    cases = [case for case in CASES if case[0] == dialect]
    lines = [json.dumps(message).encode() for _, _, message, _ in cases]
    answers = [json.loads(text) for text in decoded(spark, lines, dialect, {})]
    wrong = {
        odd: answer for (_, odd, _, wanted), answer in zip(cases, answers, strict=True) if not agrees(answer, wanted)
    }
    assert wrong == {}


def test_a_list_is_a_message_only_for_those_who_send_lists(spark: SparkSession) -> None:
    line = json.dumps([IDENTIFY]).encode()
    found = {dialect: json.loads(next(iter(decoded(spark, [line], dialect, {})))) for dialect in ("segment", "hubspot")}
    assert {dialect: answer["quarantine"]["code"] for dialect, answer in found.items()} == {
        "segment": "not_an_object",
        "hubspot": "missing_field",
    }
