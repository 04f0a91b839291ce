"""What signals ask for: by place, with two words that disagree, of a child, of nobody, and what a platform's call means."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from test_signals_strings import header, packed
from typer.testing import CliRunner

from tidings.cli import application
from tidings.rights import consent_mode, layouts, platforms
from tidings.rights.asks import enough
from tidings.rights.bits import BadSignal
from tidings.rights.signals import Meaning, Signal, asks, hear, sec_gpc

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
SOMEBODY = {"identifiers": {"email": "maya@example.com"}}


def us(number: int, gpc: bool | None = None, **values: Any) -> str:
    """A GPP string of one section in its newest version; what is not said does not apply."""
    layout = layouts.us()[number]
    version, bits = max(layout.versions), ""
    for at, part in enumerate(layout.versions[version]):
        width, _, many = part.how.partition("x")
        said = values.get(part.name, version if at == 0 else 0)
        numbers = [*said, *[0] * (int(many) - len(said))] if isinstance(said, list) else [said] * int(many or 1)
        bits += "".join(f"{one:0{width}b}" for one in numbers)
    rest = "" if gpc is None else "." + packed("01" + str(int(gpc)))
    return f"{header([number])}~{packed(bits)}{rest}"


def kinds(**said: Any) -> dict[str, tuple[str, ...]]:
    return {one.kind: one.scope for one in hear(Signal.of(said)).meanings}


@pytest.mark.parametrize("value", ["0", "", " 1", "1 ", "true", "1, 1", "01", None])
def test_only_1_is_global_privacy_control(value: str | None) -> None:
    assert sec_gpc("1")
    assert not sec_gpc(value)


@pytest.mark.parametrize(
    ("place", "kind"),
    [("US-CA", "opt_out_sale"), ("", "opt_out_sale"), ("BR", "opt_out_sale"), ("DE", "consent_narrowing")],
)
def test_global_privacy_control_by_place(place: str, kind: str) -> None:
    assert kinds(gpc=True, jurisdiction=place) == {kind: ("ads", "sale")}


def test_a_state_section() -> None:
    assert kinds(gpp=us(8, SaleOptOut=1)) == {"opt_out_sale": ("sale",)}
    assert kinds(gpp=us(9, TargetedAdvertisingOptOut=1)) == {"opt_out_sale": ("ads",)}
    assert kinds(gpp=us(8, gpc=True, SaleOptOut=2)) == {"opt_out_sale": ("ads", "sale")}
    assert kinds(gpp=us(8, gpc=False, SaleOptOut=2, SharingOptOut=2)) == {}
    assert kinds(gpp=us(8, SensitiveDataProcessing=[0, 0, 1, 2, 0, 1])) == {
        "limit_sensitive": ("genetic", "geolocation")
    }
    assert kinds(gpp=us(15, AdditionalDataProcessingConsent=1)) == {"consent_narrowing": ("additional",)}
    assert kinds(gpp=us(8, PersonalDataConsents=1)) == {}, "which value is the refusal is not settled there"


def test_the_strictest_word_counts() -> None:
    said = {"gpp": us(8, SaleOptOut=2), "gpc": True, "jurisdiction": "US-CA"}
    assert kinds(**said) == {"opt_out_sale": ("ads", "sale")}
    mode = [
        ["default", {"ad_user_data": "granted"}],
        ["update", {"ad_user_data": "denied", "analytics_storage": "granted"}],
    ]
    heard = hear(Signal.of({"consent_mode": mode}))
    assert heard.meanings[0].scope == ("ads", "sale")
    assert heard.granted == ("analytics",)


def test_a_child_is_named_as_one() -> None:
    signal = Signal.of({"gpp": us(8, SaleOptOut=1, KnownChildSensitiveDataConsents=[2, 0])} | SOMEBODY)
    (ask,) = asks(signal, hear(signal), NOW)
    assert ask.child


def test_an_ask_of_a_signal() -> None:
    signal = Signal.of({"gpp": us(10, SaleOptOut=1)} | SOMEBODY)
    (ask,) = asks(signal, hear(signal), NOW, "shop")
    assert (ask.kind, ask.way, ask.assurance, ask.jurisdiction, ask.agent) == (
        "opt_out_sale",
        "signal",
        "none",
        "US-CO",
        "shop",
    )
    assert enough(ask.kind, ask.assurance)
    assert ask.checked() is ask


def test_a_grant_is_a_request_only_where_asked_for_and_is_not_enough() -> None:
    said = {"consent_mode": {"analytics_storage": "granted"}} | SOMEBODY
    quiet, loud = Signal.of(said), Signal.of(said | {"grants": True})
    assert list(asks(quiet, hear(quiet), NOW)) == []
    (ask,) = asks(loud, hear(loud), NOW)
    assert (ask.kind, ask.scope) == ("opt_in", ("analytics",))
    assert not enough(ask.kind, ask.assurance)
    default = Signal.of({"consent_mode": [["default", {"analytics_storage": "granted"}]], "grants": True} | SOMEBODY)
    assert list(asks(default, hear(default), NOW)) == [], "a default is nobody's choice"


def test_nobody_asks_for_nothing() -> None:
    signal = Signal.of({"gpc": True})
    assert hear(signal).meanings
    assert list(asks(signal, hear(signal), NOW)) == []


def test_tcf_purposes() -> None:
    example = "CPXxRfAPXxRfAAfKABENB-CgAAAAAAAAAAYgAAAAAAAA"
    assert hear(Signal.of({"tcf": example})).meanings == (
        Meaning("consent_narrowing", ("ads", "analytics", "profiling"), ("tcfeuv2",), "EU"),
    )


def test_a_part_that_cannot_be_read_leaves_the_others() -> None:
    heard = hear(Signal.of({"gpc": True, "gpp": "DB", "tcf": "!", "usp": "1", "consent_mode": {"x": "granted"}}))
    assert [one.kind for one in heard.meanings] == ["opt_out_sale"]
    assert heard.unread == {"gpp": "cut_short", "tcf": "not_base64url", "usp": "bad_word", "consent_mode": "bad_word"}


@pytest.mark.parametrize(
    "said",
    [[], {"gpc": "1"}, {"gpc": 1}, {"other": 1}, {"gpp": 5}, {"identifiers": ["a"]}, {"identifiers": {"email": 5}}],
)
def test_a_signal_of_another_shape_is_refused(said: Any) -> None:
    with pytest.raises(BadSignal):
        Signal.of(said)


@pytest.mark.parametrize("said", ["granted", [], [["revoke", {}]], [[1]], {"ad_storage": True}, {"wait_for_update": 5}])
def test_consent_mode_of_another_shape_is_refused(said: Any) -> None:
    with pytest.raises(BadSignal):
        consent_mode.read(said)


CALLS = [
    (
        "onetrust",
        {"requestTypes": ["Delete my data"], "email": "a@x", "requestQueueId": "1", "status": "New"},
        "erasure",
    ),
    ("onetrust", {"identifier": "a@x", "purposes": [{"TransactionType": "WITHDRAWN"}]}, None),
    ("trustarc", {"requestType": "DELETION", "requestStatus": "VERIFIED", "email": "a@x", "requestId": "1"}, "erasure"),
    ("ketch", {"kind": "AccessRequest", "metadata": {"uid": "1"}, "request": {"subject": {"email": "a@x"}}}, "access"),
    ("ketch", {"kind": "ConsentRequest", "request": {"purposes": {"ads": False}}}, None),
    ("securiti", {"request_type": "do not sell", "ticket_id": 5, "data_subject": {"email": "a@x"}}, "opt_out_sale"),
    ("bigid", {"requestType": "portability", "requestId": "1", "profile": {"email": "a@x"}}, "portability"),
    ("bigid", {"requestType": "correction", "requestId": "1", "profile": {"email": "a@x"}}, None),
]


@pytest.mark.parametrize(("platform", "body", "kind"), CALLS)
def test_a_call_of_a_platform(platform: str, body: dict[str, Any], kind: str | None) -> None:
    call = platforms.read(platform, body, NOW)
    assert [one.kind for one in call.asks] == ([kind] if kind else [])
    assert call.request == (kind is not None)


@pytest.mark.parametrize(
    ("status", "assurance"), [("UNVERIFIED", "none"), ("VERIFIED", "verified"), ("NEW", "claimed"), ("CLOSED", None)]
)
def test_how_sure_a_platform_is(status: str, assurance: str | None) -> None:
    body = {"requestType": "DELETION", "requestStatus": status, "email": "a@x", "requestId": "1"}
    call = platforms.read("trustarc", body, NOW)
    assert call.request
    assert [one.assurance for one in call.asks] == ([assurance] if assurance else [])


def test_two_things_at_once_are_two_requests_and_what_is_lacking_is_said() -> None:
    both = {"requestTypes": ["Delete my data", "Access my data"], "email": "a@x", "requestQueueId": "1"}
    assert [one.kind for one in platforms.read("onetrust", both, NOW).asks] == ["erasure", "access"]
    mixed = platforms.read("onetrust", both | {"requestTypes": ["Delete", "Correct my name"]}, NOW)
    assert ([one.kind for one in mixed.asks], mixed.request) == (["erasure"], False), "the correction is a change"
    assert platforms.read("onetrust", both | {"email": ""}, NOW).lacks
    assert not platforms.read("onetrust", both | {"email": "", "status": "Closed"}, NOW).lacks


@pytest.mark.parametrize(
    ("platform", "body", "place", "law"),
    [
        ("trustarc", {"requestType": "DELETION", "email": "a@x", "requestId": "1", "residentOf": "EU_DE"}, "DE", ""),
        ("trustarc", {"requestType": "DELETION", "email": "a@x", "requestId": "1", "residentOf": "us_ca"}, "US-CA", ""),
        ("trustarc", {"requestType": "DELETION", "email": "a@x", "requestId": "1", "residentOf": "Mars"}, "", ""),
        (
            "securiti",
            {"request_type": "erasure", "ticket_id": 5, "data_subject": {"email": "a@x"}, "residency": "EU"},
            "EU",
            "",
        ),
        (
            "ketch",
            {
                "kind": "DeleteRequest",
                "metadata": {"uid": "1"},
                "request": {"subject": {"email": "a@x"}, "regulation": "gdpr"},
            },
            "",
            "gdpr",
        ),
    ],
)
def test_where_the_person_lives_comes_along(platform: str, body: dict[str, Any], place: str, law: str) -> None:
    (ask,) = platforms.read(platform, body, NOW).asks
    assert (ask.jurisdiction, ask.regulation) == (place, law)


def test_try_signal() -> None:
    run = CliRunner().invoke(application("try"), ["try", "signal", "--json", "--jurisdiction", "US-CA", "Sec-GPC: 1"])
    assert json.loads(run.stdout)[0]["meanings"][0]["kind"] == "opt_out_sale"
    run = CliRunner().invoke(application("try"), ["try", "signal"], input=f"{us(8, SaleOptOut=1)}\n1YYN\nSec-GPC: 0\n")
    assert run.stdout.count("asks for opt_out_sale") == 2
    assert "asks for nothing" in run.stdout
