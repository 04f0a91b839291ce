"""The envelope: what the specification's schema accepts, the three HTTP forms, and that the same row is the same bytes."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.stages.envelope import addressed, batched, binary, header_value, redacted, render, structured

ROW: dict[str, Any] = {
    "offset": 16777219,
    "source": "crm",
    "generation": "g1",
    "event_id": "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
    "change_type": "email",
    "operation": "update",
    "entity": "customer",
    "tenant": "shop",
    "banner": "shop",
    "location": "sf-01",
    "locale": "en-US",
    "routing_hint": "us-west",
    "time": datetime(2026, 11, 15, 12, 0, 0, 123456, UTC),
    "recorded": datetime(2026, 11, 15, 12, 0, 1, tzinfo=timezone(timedelta(hours=2))),
    "correlation": "571",
    "causation": None,
    "hlc": "0190a1b2c3d40001",
    "vector": {"loyalty": 3, "crm": 12},
    "subjectseq": 42,
    "schema_version": "1",
    "policy_version": "9f86d081884c7d65",
    "consent": None,
}
DATA = {
    "key": {"id": 1001},
    "before": {"email": "a@example.com"},
    "after": {"email": "b@example.com", "x": None},
    "changed": ["email"],
}
SUBJECT = "c3ViamVjdA"

SCHEMA = json.loads(files("tidings").joinpath("catalog/schemas/cloudevents.json").read_text())
VALIDATOR = jsonschema_rs.Draft7Validator(SCHEMA, validate_formats=True)


def test_a_whole_row_becomes_these_attributes() -> None:
    assert render(ROW, SUBJECT, DATA) == {
        "specversion": "1.0",
        "id": "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
        "source": "/shop/crm",
        "type": "tidings.email.changed",
        "subject": SUBJECT,
        "time": "2026-11-15T12:00:00.123456Z",
        "datacontenttype": "application/json",
        "dataschema": "urn:tidings:customer:1",
        "sequence": "00000000000016777219",
        "partitionkey": SUBJECT,
        "correlationid": "571",
        "recordedtime": "2026-11-15T10:00:01Z",
        "dataclassification": "confidential",
        "traceparent": "00-433f1bc22b5ef96e449cce59e290e442-02ccdcec95560e2b-01",
        "tenant": "shop",
        "banner": "shop",
        "location": "sf-01",
        "locale": "en-US",
        "routinghint": "us-west",
        "hlctime": "0190a1b2c3d40001",
        "subjectseq": "00000000000000000042",
        "causality": "crm=12,loyalty=3",
        "schemaversion": "1",
        "policyversion": "9f86d081884c7d65",
        "data": DATA,
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "little": {
        name: None for name in ROW if name not in ("offset", "source", "event_id", "change_type", "entity", "tenant")
    },
    "odd names": {"source": "cr m/ü", "tenant": "a b", "entity": "über", "correlation": "x y", "banner": 'ü%"\n'},
    "life cycle": {"change_type": "delete", "operation": "delete"},
    "naive time": {"time": datetime(2026, 1, 2, 3, 4, 5)},  # what Arrow hands over for a UTC column
    "consent": {
        "change_type": "consent",
        "consent": {"channel": "sms", "state": "withdrawn", "request_time": ROW["time"]},
    },
    "regulated": {"regulations": ["gdpr", "ccpa"]},
    "arrow map": {"vector": [("b", 2), ("a", 1)]},
}


@pytest.mark.parametrize("case", VARIANTS)
def test_every_envelope_fits_the_specification(case: str) -> None:
    envelope = render({**ROW, **VARIANTS[case]}, SUBJECT, DATA)
    VALIDATOR.validate(json.loads(structured(envelope)[1]))
    assert all(re.fullmatch(r"[a-z0-9]{1,20}", name) for name in envelope)
    assert all(isinstance(value, str) for name, value in envelope.items() if name != "data")


UNFIT = [
    {"id": ""},
    {"source": ""},
    {"specversion": "0.3"},
    {"type": None},
    {"time": "yesterday"},
    {"dataschema": "not a uri"},
    {"datacontenttype": "json"},
    {"Upper": "x"},
    {"under_score": "x"},
    {"extension": {"no": "objects"}},
    {"subject": ""},
    {"data_base64": "YQ=="},
]


@pytest.mark.parametrize("change", UNFIT, ids=str)
def test_the_schema_refuses_what_the_specification_does(change: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid({**render(ROW, SUBJECT, DATA), **change})


@pytest.mark.parametrize("name", ["id", "source", "specversion", "type"])
def test_the_schema_requires_the_four(name: str) -> None:
    envelope = render(ROW, SUBJECT, DATA)
    del envelope[name]
    assert not VALIDATOR.is_valid(envelope)


@pytest.mark.parametrize(
    ("change_type", "expected"),
    [
        ("email", "tidings.email.changed"),
        ("loyalty_points", "tidings.loyalty_points.changed"),
        ("soft_delete", "tidings.customer.soft_delete"),
    ],
)
def test_the_type_says_what_changed_or_which_step_of_life(change_type: str, expected: str) -> None:
    assert render({**ROW, "change_type": change_type}, SUBJECT, DATA)["type"] == expected


def test_consent_of_the_row_is_told_with_its_time_as_text() -> None:
    row = {**ROW, **VARIANTS["consent"]}
    told = {"channel": "sms", "state": "withdrawn", "request_time": "2026-11-15T12:00:00.123456Z"}
    assert render(row, SUBJECT, DATA)["data"]["consent"] == told
    assert render(row, SUBJECT, redacted({**DATA, "consent": row["consent"]}, ["consent"]))["data"]["consent"] is None
    assert render(row, SUBJECT, DATA)["dataclassification"] == "restricted"


def test_the_same_row_is_the_same_bytes_and_another_event_another_trace() -> None:
    assert structured(render(ROW, SUBJECT, DATA)) == structured(render(dict(reversed(ROW.items())), SUBJECT, DATA))
    other = render({**ROW, "event_id": "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5c"}, SUBJECT, DATA)
    assert other["traceparent"] != render(ROW, SUBJECT, DATA)["traceparent"]
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", other["traceparent"])


def test_sequences_sort_as_their_numbers() -> None:
    numbers = [0, 9, 10, 2**24, 2**62]
    texts = [render({**ROW, "offset": number}, SUBJECT, DATA)["sequence"] for number in numbers]
    assert texts == sorted(texts)


def test_only_what_may_be_told_is_told() -> None:
    data = {
        **DATA,
        "secret_part": 1,
        "after": {"email": "b@example.com", "address": {"city": "X", "zip": "1"}},
        "changed": ["email", "address.zip"],
    }
    without = redacted(data, ["email", "address.zip"])
    assert without["after"] == {"address": {"city": "X"}}
    assert without["before"] == {}
    assert without["changed"] == []
    envelope = render(ROW, SUBJECT, without)
    assert set(envelope["data"]) == {"key", "before", "after", "changed"}
    assert "example.com" not in json.dumps(envelope)
    assert data["after"]["email"] == "b@example.com"


def test_what_was_made_of_a_hidden_field_is_hidden_with_it() -> None:
    row = {**ROW, "consent": {"channel": "sms", "state": "granted"}, "change_type": "consent"}
    data = {**DATA, "changed": ["sms_ok"]}
    told = addressed(row, SUBJECT, data, ["sms_ok", "attribute:locale"])
    assert "locale" not in told
    assert told["location"] == "sf-01"
    assert "consent" not in told["data"]
    assert addressed(row, SUBJECT, data, ["email"])["data"]["consent"]["state"] == "granted"


def test_a_withdrawal_is_told_also_where_its_field_is_hidden() -> None:
    row = {**ROW, "consent": {"channel": "sms", "state": "withdrawn"}}
    told = addressed(row, SUBJECT, {**DATA, "changed": ["sms_ok"]}, ["sms_ok"])["data"]
    assert (told["consent"]["state"], told["changed"]) == ("withdrawn", [])


def test_a_label_that_no_contract_resolved_hides_every_image() -> None:
    told = addressed(ROW, SUBJECT, DATA, ["kind:phi"])["data"]
    assert (told["before"], told["after"], told["changed"]) == (None, None, [])
    assert "example.com" not in json.dumps(told)


names = st.text("ab.", min_size=1, max_size=4)
values = st.recursive(
    st.just("secret"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


def reached(value: Any, steps: list[str]) -> bool:
    """Whether any way to spell the path leads to something, lists walked through."""
    if not steps:
        return True
    if isinstance(value, list):
        return any(reached(one, steps) for one in value)
    if not isinstance(value, dict):
        return False
    spelt = [(".".join(steps[:n]), steps[n:]) for n in range(1, len(steps) + 1)]
    return any(name in value and reached(value[name], rest) for name, rest in spelt)


@given(st.dictionaries(names, values, max_size=4), st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=3))
def test_no_way_to_spell_a_hidden_path_leads_anywhere(image: dict[str, Any], steps: list[str]) -> None:
    left = redacted({"after": image}, [".".join(steps)])["after"]
    assert not reached(left, steps)
    if not reached(image, steps) and not any("." in name for name in json.dumps(image).split('"')):
        assert left == image


def test_a_redacted_field_that_is_not_there_changes_nothing() -> None:
    assert redacted(DATA, ["phone", "after.email", "email.deeper"]) == DATA


def test_the_binary_form_carries_attributes_as_headers() -> None:
    envelope = render({**ROW, **VARIANTS["odd names"]}, SUBJECT, DATA)
    headers, body = binary(envelope)
    assert headers.pop("Content-Type") == "application/json"
    assert json.loads(body) == DATA
    told = {name.removeprefix("ce-"): unquote(value) for name, value in headers.items()}
    assert told == {name: value for name, value in envelope.items() if name not in ("data", "datacontenttype")}
    assert headers["ce-banner"] == "%C3%BC%25%22%0A"


def test_the_batched_form_is_an_array() -> None:
    headers, body = batched([render(ROW, SUBJECT, DATA)] * 2)
    assert headers["Content-Type"].startswith("application/cloudevents-batch+json")
    assert [one["id"] for one in json.loads(body)] == [ROW["event_id"]] * 2


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_header_value_is_printable_ascii_and_decodes_to_itself(text: str) -> None:
    found = header_value(text)
    assert re.fullmatch(r"[!-~]*", found)
    assert '"' not in found
    assert unquote(found) == text


@pytest.mark.parametrize(
    ("text", "expected"), [("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"), ("a%b", "a%25b"), ("a+b", "a+b")]
)
def test_header_values_as_the_http_binding_shows_them(text: str, expected: str) -> None:
    assert header_value(text) == expected


def test_what_is_not_json_is_an_error_and_not_a_wrong_document() -> None:
    with pytest.raises(ValueError, match="JSON"):
        structured({"data": float("nan")})
