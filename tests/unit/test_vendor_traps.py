"""Verbs that look alike and are not: what each vendor's manifest must never do, seen in the requests it would make."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tidings.channels.auth import Signing, scheme_of
from tidings.channels.call import Call, Member
from tidings.channels.client import Request
from tidings.channels.manifest import manifest_names, shipped_manifest
from tidings.channels.pace import Pace
from tidings.channels.rehearsal import Rendered, rehearsed
from tidings.channels.verbs import VERBS
from tidings.lanes.member import Feed, PlannedCall, Rules, Sent
from tidings.lanes.semantics import judge
from tidings.shapes import Subscriber

EVENT = "0190a1b2-c3d4-7e5f-8a9b-000000000001"
PERSON = {"email": "jo@example.com", "phone": "+14155550100", "first_name": "Jo"}
HTTP = [name for name in manifest_names() if shipped_manifest(name).channel == "http"]
TWELVE = {
    "klaviyo": {"upsert", "suppress", "resubscribe", "erase", "merge", "track"},
    "iterable": {"upsert", "rectify", "suppress", "resubscribe", "erase", "merge", "track"},
    "braze": {"upsert", "suppress", "resubscribe", "erase", "merge", "track"},
    "customerio": {"upsert", "suppress", "resubscribe", "erase", "merge", "track"},
    "hubspot": {"upsert", "rectify", "suppress", "resubscribe", "erase", "merge", "track"},
    "salesforce": {"upsert", "suppress", "resubscribe", "erase"},
    "segment": {"upsert", "track", "merge"},
    "segment_privacy": {"suppress", "resubscribe", "erase"},
    "mparticle": {"upsert", "suppress", "resubscribe", "track"},
    "mparticle_privacy": {"erase"},
    "meta_audiences": {"upsert", "rectify", "suppress", "erase"},
    "meta_conversions": {"track", "suppress"},
    "google_customer_match": {"upsert", "rectify", "suppress"},
    "google_conversions": {"track"},
    "ga4": {"track"},
    "ga4_deletion": {"erase"},
    "twilio": {"suppress", "resubscribe"},
    "twilio_messages": {"track", "erase"},
}


def subscriber(name: str) -> Subscriber:
    variables = {key: "7" for key, value in shipped_manifest(name).vars.items() if value is None}
    url = shipped_manifest(name).url or "https://subscriber.example.com"
    return Subscriber(name=name, manifest=name, url=url, vars=variables, role="service", region="US")


def member(change_type: str, **data: Any) -> Member:
    usual = {"key": {"id": "1001"}, "before": {"email": "old@example.com"}, "after": PERSON, "changed": []}
    body = {"id": EVENT, "time": "2026-11-15T12:00:00Z", "data": {**usual, **data}}
    return Member(EVENT, "s", change_type, "1", body, EVENT, 1)


def rendered(name: str, change_type: str, **data: Any) -> Rendered:
    return rehearsed(subscriber(name), member(change_type, **data))


def requests(name: str, change_type: str, **data: Any) -> list[Request]:
    return [request for _, request in rendered(name, change_type, **data).requests]


def consent(channel: str | None, state: str, kind: str = "marketing") -> dict[str, Any]:
    return {"consent": {"channel": channel, "state": state, "class": kind, "request_time": None}}


@pytest.mark.parametrize(("name", "verbs"), TWELVE.items())
def test_a_vendor_has_its_verbs(name: str, verbs: set[str]) -> None:
    found = {verb.partition("_")[0] for verb in shipped_manifest(name).verbs}
    assert found == verbs
    assert found <= set(VERBS)


@pytest.mark.parametrize("name", HTTP)
def test_every_verb_is_used_and_a_weak_one_is_verified_or_says_why_not(name: str) -> None:
    manifest = shipped_manifest(name)
    assert {verb for route in manifest.routes for verb in route.verbs} == set(manifest.verbs)
    for verb, spec in manifest.verbs.items():
        assert spec.ack > "A1" or spec.asks or spec.note, verb
        assert not spec.job or spec.probe, f"{verb}: a job that nobody can ask about"


@pytest.mark.parametrize("name", HTTP)
@pytest.mark.parametrize("channel", ["email", "sms", "ads", "phone"])
@pytest.mark.parametrize("kind", ["marketing", "transactional"])
def test_a_grant_on_one_channel_opens_no_other(name: str, channel: str, kind: str) -> None:
    granted = [verb for verb, _ in rendered(name, "consent", **consent(channel, "granted", kind)).requests]
    opened = {verb.partition("_")[2] or "all" for verb in granted if verb.startswith("resubscribe")}
    own = {"email": {"email", "all"}, "sms": {"sms", "phone", "all"}, "phone": {"phone"}, "ads": set()}[channel]
    if name != "mparticle":  # it keeps an answer for each channel, under its name
        assert opened <= (own if kind == "marketing" else set())
    if channel == "sms" and name == "hubspot":
        assert granted == [], "HubSpot knows e-mail alone"


def test_customer_io_suppress_is_only_ever_an_erasure() -> None:
    for change_type in ("consent", "suppression", "soft_delete", "subscription"):
        for request in requests("customerio", change_type, **consent("email", "withdrawn")):
            assert not request.url.endswith("/suppress")
            assert json.loads(request.body) == {"unsubscribed": True}
    [erased] = requests("customerio", "delete")
    assert (erased.method, erased.url) == ("POST", "https://track.customer.io/api/v1/customers/1001/suppress")
    [sms] = requests("customerio", "consent", **consent("sms", "withdrawn"))
    assert json.loads(sms.body) == {"cio_subscription_preferences": {"topics": {"7": False}}}


def test_a_customer_data_platform_keeps_channels_apart() -> None:
    [sms] = requests("mparticle", "consent", **consent("sms", "granted"))
    [told] = json.loads(sms.body)
    assert set(told["consent_state"]["gdpr"]) == {"sms"}
    for state in ("granted", "withdrawn"):
        assert requests("segment_privacy", "consent", **consent("email", state)) == [], (
            "it would stop, or free, everything"
        )
        [request] = requests("segment_privacy", "consent", **consent(None, state, "processing"))
        assert (
            json.loads(request.body)["regulationType"] == {"granted": "UNSUPPRESS", "withdrawn": "SUPPRESS_ONLY"}[state]
        )


def test_customer_io_gets_a_ulid_of_the_same_bits() -> None:
    [request] = requests("customerio", "household")
    told = json.loads(request.body)["id"]
    value = 0
    for letter in told:
        value = value * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(letter)
    assert (len(told), value) == (26, int(EVENT.replace("-", ""), 16))


def test_klaviyo_is_never_told_a_list() -> None:
    for channel in ("email", "sms"):
        for state in ("withdrawn", "granted"):
            [request] = requests("klaviyo", "consent", **consent(channel, state))
            assert b"list" not in request.body
            assert b"relationships" not in request.body
    [sms] = requests("klaviyo", "consent", **consent("sms", "withdrawn"))
    assert sms.url.endswith("/profile-subscription-bulk-delete-jobs"), "suppression is for e-mail only"


def test_klaviyo_erases_by_one_identifier() -> None:
    [by_email] = requests("klaviyo", "delete")
    assert json.loads(by_email.body)["data"]["attributes"]["profile"]["data"]["attributes"] == {
        "email": "jo@example.com"
    }
    [by_phone] = requests("klaviyo", "delete", after={"phone": "+14155550100"}, before=None)
    found = json.loads(by_phone.body)["data"]["attributes"]["profile"]["data"]["attributes"]
    assert found == {"phone_number": "+14155550100"}


def test_iterable_is_never_given_an_array_to_replace() -> None:
    for channel in ("email", "sms"):
        for state in ("withdrawn", "granted"):
            [request] = requests("iterable", "consent", **consent(channel, state))
            assert "updateSubscriptions" not in request.url
            assert request.body == b""
    [erased] = requests("iterable", "delete")
    assert erased.url.endswith("/api/users/forget"), "deleting alone would let the person come back"


def test_hubspot_erases_by_gdpr_delete_and_moves_a_changed_address() -> None:
    [erased] = requests("hubspot", "delete")
    assert (erased.method, erased.url) == ("POST", "https://api.hubapi.com/crm/v3/objects/contacts/gdpr-delete")
    moved, told = requests("hubspot", "email")
    assert moved.url.endswith("/contacts/old%40example.com?idProperty=email")
    assert json.loads(moved.body) == {"properties": {"email": "jo@example.com"}}
    assert told.url.endswith("/batch/upsert")


def test_salesforce_is_emptied_before_it_is_deleted_and_never_merges() -> None:
    masked, gone = requests("salesforce", "delete")
    assert (masked.method, gone.method) == ("PATCH", "DELETE")
    assert json.loads(masked.body)["Email"] is None
    assert masked.url.split("?")[0] == gone.url
    assert rendered("salesforce", "identity_merge").outcome.startswith("refused: no_verb")
    [upsert] = requests("salesforce", "phone")
    assert json.loads(upsert.body)["records"][0]["Tidings_Id__c"] == "1001"


def test_meta_conversions_travel_alone_so_that_an_old_one_fails_alone() -> None:
    verb = shipped_manifest("meta_conversions").verbs["track"]
    assert verb.batch is None
    [request] = requests("meta_conversions", "insert")
    [told] = json.loads(request.body)["data"]
    assert told["event_time"] == 1794744000
    assert told["user_data"]["em"] == [hashlib.sha256(b"jo@example.com").hexdigest()]
    [limited] = requests("meta_conversions", "suppression")
    assert json.loads(limited.body)["data"][0]["data_processing_options"] == ["LDU"]


def test_one_phone_is_two_digests() -> None:
    [meta] = requests("meta_audiences", "insert")
    [google] = requests("google_customer_match", "insert")
    assert hashlib.sha256(b"14155550100").hexdigest() in meta.body.decode()
    assert hashlib.sha256(b"+14155550100").hexdigest() in google.body.decode()


def test_what_a_platform_wants_in_clear_is_not_hashed() -> None:
    person = {
        **PERSON,
        "last_name": "Doe",
        "country": "us",
        "postcode": " 94111 ",
        "ad_id": "AB-12",
        "gender": "Female",
    }
    [google] = requests("google_customer_match", "insert", after=person)
    address = json.loads(google.body)["audienceMembers"][0]["userData"]["userIdentifiers"][2]["address"]
    assert (address["regionCode"], address["postalCode"]) == ("US", "94111")
    assert address["givenName"] == hashlib.sha256(b"jo").hexdigest()
    partly = requests("google_customer_match", "insert", after={**person, "postcode": None})[0]
    assert b"address" not in partly.body.replace(b"emailAddress", b""), "half an address fails the whole request"
    [meta] = requests("meta_audiences", "insert", after={**person, "birth_date": "1990-04-07"})
    payload = json.loads(meta.body)["payload"]
    row = dict(zip(payload["schema"], payload["data"][0], strict=True))
    assert (row["EXTERN_ID"], row["MADID"]) == ("1001", "ab-12")
    for name, text in {"DOBY": "1990", "DOBM": "04", "DOBD": "07", "GEN": "f", "COUNTRY": "us", "ZIP": "94111"}.items():
        assert row[name] == hashlib.sha256(text.encode()).hexdigest()


def test_one_bad_field_is_dropped_and_the_person_is_not() -> None:
    bad = {**PERSON, "phone": "+0000000000", "country": "Nowhere", "birth_date": "yesterday", "gender": "?"}
    [meta] = requests("meta_audiences", "insert", after=bad)
    payload = json.loads(meta.body)["payload"]
    row = dict(zip(payload["schema"], payload["data"][0], strict=True))
    assert row["EMAIL"] == hashlib.sha256(b"jo@example.com").hexdigest()
    assert [row[name] for name in ("PHONE", "COUNTRY", "DOBY", "GEN")] == [""] * 4
    assert hashlib.sha256(b"").hexdigest() not in meta.body.decode()


MERGES = [
    ("iterable", {"sourceUserId": "1001", "destinationUserId": "7"}),
    ("customerio", {"primary": {"id": "7"}, "secondary": {"id": "1001"}}),
    (
        "braze",
        {
            "merge_updates": [
                {"identifier_to_merge": {"external_id": "1001"}, "identifier_to_keep": {"external_id": "7"}}
            ]
        },
    ),
]


@pytest.mark.parametrize(("name", "body"), MERGES)
def test_the_survivor_survives(name: str, body: Any) -> None:
    moved = [{"field": "merged_into", "from": None, "to": "7"}]
    [request] = requests(name, "identity_merge", moved=moved)
    assert json.loads(request.body) == body
    told = [{"field": "person_id", "from": "17", "to": "23"}]
    [request] = requests(name, "identity_merge", moved=told, key={"identifier": "jo@example.com"})
    assert json.dumps(body).replace('"1001"', '"17"').replace('"7"', '"23"') == json.dumps(json.loads(request.body))
    assert "exactly-once" not in shipped_manifest(name).capabilities("identity_merge").semantics or name != "customerio"


UNSAFE = ["../regulations", "a/b", "a\\b", "a?b", "a#b", "a%2fb", "%2e%2e", "..", ".", "a\nb", "%252e", "\ud800", ""]


@pytest.mark.parametrize("key", UNSAFE)
@pytest.mark.parametrize("name", ["customerio", "salesforce"])
def test_an_id_that_could_leave_its_place_in_a_path_is_refused(name: str, key: str) -> None:
    found = rendered(name, "suppression", key={"id": key})
    assert found.requests == ()
    assert found.outcome.startswith(("refused: unsafe_path", "refused: missing_field"))
    assert key == "" or repr(key)[1:-1] not in found.outcome.replace("/ ", "").replace("?, #", "")


def test_an_odd_but_harmless_id_is_encoded() -> None:
    [request] = requests("customerio", "suppression", key={"id": "jo+x@example.com ünï:1"})
    assert request.url.endswith("/customers/jo%2Bx%40example.com%20%C3%BCn%C3%AF%3A1")


def test_two_windows_at_once() -> None:
    pace = Pace([(3, 1.0), (5, 60.0)])
    assert [pace.take(0.0) for _ in range(4)] == [0, 0, 0, 1.0]
    assert [pace.take(1.0), pace.take(1.1)] == [0, 0]
    assert pace.take(2.5) == pytest.approx(57.5)
    assert pace.take(60.0) == 0
    slow = Pace([(0.5, 60.0)])
    assert [slow.take(0.0), slow.take(1.0)] == [0, 119.0]


@pytest.mark.parametrize(("name", "verb"), [("klaviyo", "erase"), ("ga4_deletion", "erase")])
def test_a_full_window_says_how_long_and_nothing_is_sent(name: str, verb: str) -> None:
    from tidings.channels import http_channel
    from tidings.channels.client import Answer, Fault

    class Counts:
        made = 0

        def request(self, request: Request, timeout_s: float, cap: int = 0) -> Answer | Fault:
            self.made += 1
            return Answer(202 if name == "klaviyo" else 200, {}, b'{"deletionRequestTime":"x"}')

    client = Counts()
    manifest = shipped_manifest(name)
    channel = http_channel(subscriber(name), manifest, Signing(client, scheme_of(manifest.auth, "", client, "")))
    for pace in channel.paces(verb):
        pace._made.extend([1e12] * 2000)  # the windows of this hour, and of today, are full
    [outcome] = channel.send(Call(name, (member("delete"),), 0.2))
    assert (outcome.result, outcome.code) == ("throttled", "window_full")
    assert (outcome.retry_after or 0) > 0
    assert client.made == 0
    once = Sent(EVENT, 1, "at-most-once", 1, "delete")
    waiting = PlannedCall(name, 1, Feed("crm", "g1"), "send", (once,), 0.0, True)
    _, [verdict] = judge(Rules(name), waiting, [outcome], 0.0, 1.0)
    assert verdict.final is None, "what never left may still leave, also where nothing is sent twice"
