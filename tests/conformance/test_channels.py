"""One suite for every channel: real sockets, real failures, the same promises.

Each shipped manifest is spoken to a server that answers as the manifest says, and then to one that does not.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs

import pytest
from vendor import Received, Reply, always, hang, honest, reset, serving, success_then_reset, trickle

from tidings.channels import DIGEST_KEY, open_channel
from tidings.channels.call import Call, Channel, Limits, Member
from tidings.channels.faulty import FaultyChannel
from tidings.channels.manifest import manifest_names, shipped_manifest
from tidings.channels.signing import decode_secrets, verify
from tidings.errors import ConfigurationError
from tidings.shapes import NetworkRules, Subscriber
from tidings.stages.envelope import render

SECRET, HOOK = "canary-4c1d9e", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SECRETS = {"file:api.key": SECRET, "file:hook.key": HOOK, DIGEST_KEY: "00" * 32}
NETWORK = NetworkRules(allow=("127.0.0.0/8",))
NAMES = manifest_names()
AUTH: dict[str, dict[str, str]] = {
    "klaviyo": {"kind": "header", "header": "Authorization"},
    "tiktok_audiences": {"kind": "header", "header": "Access-Token"},
    "yotpo_loyalty": {"kind": "header", "header": "x-api-key"},
    "mailchimp": {"kind": "basic"},
    "segment": {"kind": "basic"},
    "twilio": {"kind": "basic"},
}


def subscriber(name: str, url: str, **own: Any) -> Subscriber:
    manifest = shipped_manifest(name)
    settings: dict[str, Any] = {"manifest": name, "name": name, "url": url, "role": "service", "region": "US"}
    settings["vars"] = {key: f"v-{key.replace('_', '')}" for key, value in manifest.vars.items() if value is None}
    if "subscription_id" in settings["vars"]:
        settings["vars"]["subscription_id"] = "7"
    if manifest.webhook:
        settings["signing_secret"] = "file:hook.key"
    else:
        settings["auth"] = {**AUTH.get(name, {"kind": "bearer"}), "secret": "file:api.key"}
    return Subscriber.model_validate({**settings, "rate": {"per_second": 1000}, **own})


def opened(name: str, url: str, **own: Any) -> Channel:
    return open_channel(subscriber(name, url, **own), SECRETS, NETWORK)


def member(number: int = 1, change_type: str = "consent", subject: str | None = None, **data: Any) -> Member:
    event_id = f"0190a1b2-c3d4-7e5f-8a9b-{number:012x}"
    images = {"before": {"email": f"old{number}@example.com", "phone": "+14155550100"}}
    images["after"] = {"email": f"new{number}@example.com", "phone": f"+1415555{number:04d}", "first_name": "Jo"}
    consent = {"channel": "sms", "state": "withdrawn", "class": "marketing", "request_time": None}
    row = {
        "event_id": event_id,
        "change_type": change_type,
        "entity": "customer",
        "source": "crm",
        "tenant": "shop",
        "offset": number,
    }
    body = render(
        row,
        subject or f"subject-{number}",
        {"key": {"id": 1000 + number}, **images, "changed": ["email"], "consent": consent, **data},
    )
    return Member(event_id, subject or f"subject-{number}", change_type, f"{number:020d}", body, event_id, 1)


def call(*members: Member, timeout: float = 5.0) -> Call:
    return Call("someone", members or (member(),), timeout)


def several(count: int = 3) -> tuple[Member, ...]:
    return tuple(member(number) for number in range(1, count + 1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change_type", ["consent", "email", "delete", "insert"])
def test_an_honest_vendor_is_acknowledged_as_strongly_as_declared(name: str, change_type: str) -> None:
    manifest = shipped_manifest(name)
    members = tuple(member(number, change_type) for number in (1, 2, 3))
    with serving(honest(manifest)) as vendor:
        outcomes = opened(name, vendor.url).send(call(*members))
    assert [outcome.event_id for outcome in outcomes] == [one.event_id for one in members]
    if not manifest.webhook and not manifest.routed(change_type):
        assert {(outcome.result, outcome.code) for outcome in outcomes} == {("refused", "no_verb")}
        assert vendor.received == []
        return
    assert {(outcome.result, outcome.code) for outcome in outcomes} == {("acknowledged", "ok")}
    assert all(outcome.strength >= manifest.strength(change_type) for outcome in outcomes)
    assert all(len(outcome.digest) == 64 for outcome in outcomes)


Behaviour = Callable[[Received, socket.socket], Reply | None]
HTML = b"<html>please sign in</html>"
FAILURES: list[tuple[str, Behaviour, set[str], str]] = [
    ("hangs", hang, {"in_doubt"}, "timeout"),
    ("resets", reset, {"in_doubt"}, "reset"),
    ("trickles", trickle, {"in_doubt"}, "timeout"),
    ("says yes, then resets", success_then_reset, {"in_doubt"}, "reset"),
    ("throttles", always(429, {"Retry-After": "7"}), {"throttled"}, "status_429"),
    ("is closed for a while", always(503, {"Retry-After": "7"}), {"throttled"}, "status_503"),
    ("is closed", always(503), {"transient"}, "status_503"),
    ("breaks", always(500), {"transient"}, "status_500"),
    ("times out behind a gateway", always(504), {"transient"}, "status_504"),
    ("is slow", always(408), {"transient"}, "status_408"),
    ("is early", always(425), {"transient"}, "status_425"),
    ("moved", always(302, {"Location": "http://169.254.169.254/"}), {"transient"}, "redirect"),
    ("moved for good", always(308, {"Location": "https://example.com/"}), {"transient"}, "redirect"),
    ("is gone", always(410), {"terminal"}, "gone"),
    ("does not like it", always(400), {"terminal"}, "status_400"),
    ("does not know us", always(401), {"terminal"}, "status_401"),
    ("does not understand", always(422, {}, HTML), {"terminal"}, "status_422"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("case", "behave", "results", "code"), FAILURES, ids=[row[0] for row in FAILURES])
def test_a_vendor_that(name: str, case: str, behave: Behaviour, results: set[str], code: str) -> None:
    with serving(behave) as vendor:
        begun = time.monotonic()
        outcomes = opened(name, vendor.url).send(call(*several(), timeout=0.6))
        took = time.monotonic() - begun
    assert len(outcomes) == 3
    # What the time did not suffice for was not sent, and says so.
    later = [outcome for outcome in outcomes if outcome.code == "not_reached"]
    assert {outcome.result for outcome in outcomes if outcome not in later} <= results
    assert all(outcome.result == "transient" for outcome in later)
    assert outcomes[0].code == code
    assert took < 1.5
    assert all(outcome.strength == "A0" for outcome in outcomes if outcome.result != "acknowledged")
    if "throttled" in results:
        assert outcomes[0].retry_after == 7.0


@pytest.mark.parametrize("name", NAMES)
def test_a_status_nobody_documented_is_success_only_for_a_webhook(name: str) -> None:
    with serving(always(299, {}, b"")) as vendor:
        [outcome] = opened(name, vendor.url).send(call())
    expected = ("acknowledged", "ok") if shipped_manifest(name).webhook else ("transient", "error_inside")
    assert (outcome.result, outcome.code) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_port_was_not_sent(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    outcomes = opened(name, f"http://127.0.0.1:{port}").send(call(*several()))
    assert {(outcome.result, outcome.code) for outcome in outcomes} == {("transient", "connect")}


@pytest.mark.parametrize("name", NAMES)
def test_an_inside_address_is_refused(name: str) -> None:
    outcomes = opened(name, "https://169.254.169.254").send(call())
    assert [(outcome.result, outcome.code) for outcome in outcomes] == [("refused", "blocked_address")]


WAITS: list[tuple[str, float | None]] = [
    ("7", 7.0),
    (" 7 ", 7.0),
    ("0", 0.0),
    ("1.5", 1.5),
    ("-5", None),
    ("999999999999", 86_400.0),
    ("9" * 40, None),
    ("soon", None),
    ("", None),
    ("nan", None),
    ("7, 8", None),
    ("date:60", 60.0),
    ("date:-60", 0.0),
    ("date:9999999", 86_400.0),
    ("Fri, 32 Foo 2026 99:99:99 GMT", None),
]


@pytest.mark.parametrize("name", ["webhook", "klaviyo"])
@pytest.mark.parametrize(("text", "expected"), WAITS)
def test_every_form_of_retry_after(name: str, text: str, expected: float | None) -> None:
    if text.startswith("date:"):
        text = formatdate(time.time() + float(text[5:]), usegmt=True)
    with serving(always(429, {"Retry-After": text})) as vendor:
        [outcome] = opened(name, vendor.url).send(call())
    assert outcome.result == "throttled"
    assert outcome.retry_after == (expected if expected is None else pytest.approx(expected, abs=3))


@pytest.mark.parametrize("name", NAMES)
def test_a_repeat_carries_the_same_bytes_and_the_same_key(name: str) -> None:
    with serving(honest(shipped_manifest(name))) as vendor:
        channel = opened(name, vendor.url)
        channel.send(call(member(1), member(2)))
        half = len(vendor.received)
        channel.send(call(member(1), member(2)))
    first, again = vendor.received[:half], vendor.received[half:]
    assert [(one.method, one.target, one.body) for one in first] == [
        (one.method, one.target, one.body) for one in again
    ]
    for before, after in zip(first, again, strict=True):
        for header in ("idempotency-key", "webhook-id"):
            assert before.headers.get(header) == after.headers.get(header)


@pytest.mark.parametrize("name", NAMES)
def test_the_secret_is_shown_to_the_vendor_and_to_nobody_else(name: str) -> None:
    with serving(honest(shipped_manifest(name))) as vendor:
        channel = opened(name, vendor.url)
        outcomes = channel.send(call())
    [*_, request] = vendor.received
    told = json.dumps(request.headers) + request.body.decode()
    encoded = base64.b64encode(f"tidings:{SECRET}".encode()).decode(), base64.b64encode(f"{SECRET}:".encode()).decode()
    if not shipped_manifest(name).webhook:
        assert any(form in told for form in (SECRET, *encoded, base64.b64encode(SECRET.encode()).decode()))
    for shown in (repr(channel), repr(outcomes), str(outcomes)):
        assert SECRET not in shown
        assert HOOK.removeprefix("whsec_") not in shown
        assert "example.com" not in shown


@pytest.mark.parametrize("name", NAMES)
def test_a_ping_is_harmless_and_tells_whether_the_vendor_is_there(name: str) -> None:
    with serving(honest(shipped_manifest(name))) as vendor:
        assert opened(name, vendor.url).ping().result == "acknowledged"
        assert len(vendor.received) == 1
        vendor.behave = always(401)
        assert opened(name, vendor.url).ping().result == "terminal"
    assert opened(name, vendor.url).ping().result == "transient"


HOSTILE: dict[str, dict[str, Any]] = {
    "no data": {"data": None},
    "data of another kind": {"data": "text"},
    "not a number": {
        "data": {"key": {"id": 1}, "after": {"email": "a@example.com", "phone": "+14155550100", "x": float("nan")}}
    },
    "wrong types": {
        "data": {
            "key": [1],
            "after": "text",
            "before": 7,
            "changed": "x",
            "consent": {"state": "withdrawn", "channel": "sms"},
        }
    },
    "dots": {"data": {"key": {"id": "../../admin"}, "after": {"email": "../x@example.com", "phone": "+14155550100"}}},
    "line breaks": {"data": {"key": {"id": "a\r\nX: y"}, "after": {"email": "a\r\nX: y@example.com", "phone": "\r\n"}}},
    "lone surrogate": {"data": {"key": {"id": "\ud800"}, "after": {"email": "\ud800@example.com", "phone": "\ud800"}}},
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("change_type", ["consent", "email", "delete", "insert"])
def test_nothing_raises_and_a_bad_member_does_not_take_others_along(name: str, case: str, change_type: str) -> None:
    bad = member(1, change_type)
    bad.body.update(HOSTILE[case])
    with serving(honest(shipped_manifest(name))) as vendor:
        outcomes = opened(name, vendor.url).send(call(bad, member(2, change_type)))
    assert [outcome.event_id for outcome in outcomes] == [bad.event_id, member(2).event_id]
    routed = shipped_manifest(name).webhook or shipped_manifest(name).routed(change_type)
    assert outcomes[1].result == ("acknowledged" if routed else "refused")
    assert all(".." not in one.path and "\r" not in one.target for one in vendor.received)


@pytest.mark.parametrize("name", ["webhook", "hubspot"])
def test_a_fault_of_our_own_leaves_doubt_and_raises_nothing(name: str) -> None:
    """A body that is no dict breaks a promise of the caller's; the lane goes on all the same."""
    broken = Member("e", "s", "email", "1", {1, 2}, "e", 1)  # type: ignore[arg-type]
    [outcome] = opened(name, "http://127.0.0.1:9").send(call(broken))
    assert outcome.event_id == "e"
    assert outcome.result in ("in_doubt", "refused")


def test_a_webhook_is_signed_so_that_the_receiver_can_tell() -> None:
    with serving(always(204)) as vendor:
        [outcome] = opened("webhook", vendor.url).send(call())
    [request] = vendor.received
    verify(decode_secrets(HOOK), request.headers, request.body, time.time())
    assert request.headers["webhook-id"] == member().event_id
    assert request.headers["idempotency-key"] == f'"{member().event_id}"'
    assert request.headers["content-type"].startswith("application/cloudevents+json")
    assert request.json == member().body
    assert outcome.strength == "A2"


def test_a_webhook_in_binary_form() -> None:
    with serving(always(200)) as vendor:
        [outcome] = opened("webhook", vendor.url, vars={"mode": "binary"}).send(call())
    [request] = vendor.received
    assert outcome.result == "acknowledged"
    assert request.headers["ce-id"] == member().event_id
    assert request.headers["content-type"] == "application/json"
    assert request.json == member().body["data"]
    verify(decode_secrets(HOOK), request.headers, request.body, time.time())


def test_a_webhook_in_batched_form() -> None:
    with serving(always(202)) as vendor:
        channel = opened("webhook", vendor.url, vars={"mode": "batched"}, rate={"batch": 50})
        outcomes = channel.send(call(*several()))
    [request] = vendor.received
    assert channel.limits.max_batch == 50
    assert request.headers["content-type"].startswith("application/cloudevents-batch+json")
    assert [one["id"] for one in request.json] == [outcome.event_id for outcome in outcomes]
    assert {outcome.result for outcome in outcomes} == {"acknowledged"}


def test_a_webhook_that_is_too_large_is_not_sent() -> None:
    with serving(always(200)) as vendor:
        [outcome] = opened("agent_webhook", vendor.url).send(call(member(1, after={"note": "x" * 70_000})))
    assert (outcome.result, outcome.code, vendor.received) == ("refused", "too_large", [])


@pytest.mark.parametrize(
    ("name", "expected"), [("webhook", ("acknowledged", "ok")), ("mixpanel", ("in_doubt", "answer_too_large"))]
)
def test_an_answer_past_the_cap_counts_only_where_the_status_is_enough(name: str, expected: tuple[str, str]) -> None:
    with serving(always(200, {}, b'{"status":1,"x":"' + b"x" * 3_000_000 + b'"}')) as vendor:
        [outcome] = opened(name, vendor.url).send(call(member(1, "email")))
    assert (outcome.result, outcome.code) == expected


@pytest.mark.parametrize(
    ("name", "size"), [("klaviyo", 150_000), ("warehouse_http", 6_000_000), ("webhook", 1_500_000)]
)
def test_what_is_larger_than_the_vendor_takes_is_not_sent(name: str, size: int) -> None:
    large = member(1, "email", after={"email": "a@example.com", "first_name": "x" * size})
    with serving(honest(shipped_manifest(name))) as vendor:
        outcomes = opened(name, vendor.url).send(call(large, member(2, "email")))
    assert [(one.result, one.code) for one in outcomes] == [("refused", "too_large"), ("acknowledged", "ok")]
    assert len(vendor.received) == 1


def test_hubspot_names_the_inputs_that_failed() -> None:
    bad, busy = member(2, "email"), member(3, "email")
    errors = [
        {
            "category": "VALIDATION_ERROR",
            "context": {"objectWriteTraceId": [bad.event_id]},
            "message": "jo@example.com is bad",
        },
        {"category": "RATE_LIMITS", "context": {"objectWriteTraceId": [busy.event_id]}},
    ]
    with serving(always(207, {}, json.dumps({"results": [], "errors": errors}).encode())) as vendor:
        outcomes = opened("hubspot", vendor.url).send(call(member(1, "email"), bad, busy))
    assert [(one.result, one.code) for one in outcomes] == [
        ("acknowledged", "ok"),
        ("terminal", "VALIDATION_ERROR"),
        ("transient", "RATE_LIMITS"),
    ]
    assert "example.com" not in repr(outcomes)


def test_a_failure_that_names_nobody_leaves_all_in_doubt() -> None:
    reply = json.dumps({"errors": [{"category": "VALIDATION_ERROR", "context": {}}]}).encode()
    with serving(always(207, {}, reply)) as vendor:
        outcomes = opened("hubspot", vendor.url).send(call(member(1, "email"), member(2, "email")))
    assert {(one.result, one.code) for one in outcomes} == {("in_doubt", "no_result")}


def test_twilio_may_create_and_still_have_failed() -> None:
    members = several()
    items = [{"correlation_id": members[0].event_id.replace("-", ""), "error_code": 0}]
    items += [{"correlation_id": members[1].event_id.replace("-", ""), "error_code": 30646}]
    with serving(always(201, {}, json.dumps({"items": items}).encode())) as vendor:
        outcomes = opened("twilio", vendor.url).send(call(*members))
    assert [(one.result, one.code) for one in outcomes] == [
        ("acknowledged", "ok"),
        ("terminal", "30646"),
        ("in_doubt", "no_result"),
    ]
    [request] = vendor.received
    sent = [json.loads(text) for text in parse_qs(request.body.decode())["Items"]]
    assert [one["contact_id"] for one in sent] == ["+14155550001", "+14155550002", "+14155550003"]
    assert {one["status"] for one in sent} == {"opt-out"}


TIKTOK = [(40100, "throttled"), (40002, "terminal"), (50002, "transient"), (12345, "transient")]


@pytest.mark.parametrize(("code", "result"), TIKTOK)
def test_tiktok_says_no_with_200(code: int, result: str) -> None:
    with serving(always(200, {}, json.dumps({"code": code, "message": "x"}).encode())) as vendor:
        [outcome] = opened("tiktok_audiences", vendor.url).send(call(member(1, "insert")))
    assert (outcome.result, outcome.strength) == (result, "A0")


@pytest.mark.parametrize("name", ["tiktok_audiences", "mixpanel", "segment", "google_customer_match"])
@pytest.mark.parametrize("reply", [HTML, b"", b'{"code":NaN}', b"[" * 100_000])
def test_a_200_that_cannot_be_read_is_no_acknowledgement(name: str, reply: bytes) -> None:
    with serving(always(200, {}, reply)) as vendor:
        [outcome] = opened(name, vendor.url).send(call(member(1, "email")))
    assert (outcome.result, outcome.code) == ("in_doubt", "answer_unreadable")


def test_meta_only_counts_so_the_bad_row_is_found_by_halving() -> None:
    bad = hashlib.sha256(b"new5@example.com").hexdigest()

    def behave(request: Received, sock: socket.socket) -> Reply:
        rows = request.json["payload"]["data"]
        invalid = sum(bad in row for row in rows)
        return 200, {}, json.dumps({"num_received": len(rows), "num_invalid_entries": invalid}).encode()

    members = tuple(member(number, "insert") for number in range(1, 9))
    with serving(behave) as vendor:
        outcomes = opened("meta_audiences", vendor.url).send(call(*members))
    results = {one.event_id: one.result for one in outcomes}
    assert {event for event, result in results.items() if result != "acknowledged"} == {member(5).event_id}
    assert results[member(5).event_id] == "terminal"
    assert len(vendor.received) <= 2 * 4


def test_a_changed_address_leaves_the_audience_before_the_new_one_enters() -> None:
    with serving(honest(shipped_manifest("meta_audiences"))) as vendor:
        [outcome] = opened("meta_audiences", vendor.url).send(call(member(1, "email")))
    assert outcome.result == "acknowledged"
    assert [one.method for one in vendor.received] == ["DELETE", "POST"]
    assert hashlib.sha256(b"old1@example.com").hexdigest() in vendor.received[0].body.decode()
    assert hashlib.sha256(b"new1@example.com").hexdigest() in vendor.received[1].body.decode()
    assert b"example.com" not in b"".join(one.body for one in vendor.received)


def test_the_second_step_does_not_run_when_the_first_failed() -> None:
    with serving(always(500)) as vendor:
        [outcome] = opened("meta_audiences", vendor.url).send(call(member(1, "email")))
    assert (outcome.result, len(vendor.received)) == ("transient", 1)


GONE = [
    ("mailchimp", 404, "already_erased"),
    ("mailchimp", 405, "already_erased"),
    ("hubspot", 404, "already_erased"),
    ("yotpo_loyalty", 404, "already_erased"),
]


@pytest.mark.parametrize(("name", "status", "code"), GONE)
def test_erasing_what_is_erased_is_done(name: str, status: int, code: str) -> None:
    with serving(always(status)) as vendor:
        [outcome] = opened(name, vendor.url).send(call(member(1, "delete")))
    assert (outcome.result, outcome.code, outcome.strength) == (
        "acknowledged",
        code,
        shipped_manifest(name).strength("delete"),
    )


def test_events_of_one_subject_keep_their_order_and_stop_at_the_first_failure() -> None:
    granted = {"channel": "email", "state": "granted"}
    withdrawn = {"channel": "email", "state": "withdrawn"}
    members = (
        member(1, "email", "jo"),
        member(2, "consent", "jo", consent=withdrawn),
        member(3, "consent", "al", consent=withdrawn),
        member(4, "email", "jo"),
        member(5, "consent", "jo", consent=granted),
        member(6, "email", "al"),
    )
    with serving(honest(shipped_manifest("klaviyo"))) as vendor:
        channel = opened("klaviyo", vendor.url)
        assert {one.result for one in channel.send(call(*members))} == {"acknowledged"}
        paths = [one.path.rsplit("/", 1)[-1] for one in vendor.received]
        upsert, suppress = "profile-import", "profile-suppression-bulk-create-jobs"
        assert paths == [upsert, suppress, upsert, upsert, "profile-subscription-bulk-create-jobs"]

        vendor.behave = lambda request, sock: (
            (400, {}, b"") if suppress in request.path else honest(shipped_manifest("klaviyo"))(request, sock)
        )
        codes = [(one.result, one.code) for one in channel.send(call(*members))]
    assert codes[0] == ("acknowledged", "ok")
    assert codes[1] == codes[2] == ("terminal", "status_400")
    assert codes[3:] == [("transient", "held_behind")] * 3


@pytest.mark.parametrize("name", ["webhook", "yotpo_loyalty", "klaviyo"])
def test_a_failure_holds_back_the_same_subject_and_nobody_else(name: str) -> None:
    """One request each here; the second of the first subject must not overtake."""
    members = (member(1, "email", "jo"), member(2, "email", "jo"), member(3, "email", "al"))
    with serving(honest(shipped_manifest(name))) as vendor:
        kind = honest(shipped_manifest(name))
        vendor.behave = lambda request, sock: (500, {}, b"") if len(vendor.received) == 1 else kind(request, sock)
        outcomes = opened(name, vendor.url).send(call(*members))
    assert [one.code for one in outcomes] == ["status_500", "held_behind", "ok"]
    assert len(vendor.received) == 2


def test_what_was_refused_holds_nobody() -> None:
    members = (member(1, "email", "jo", after={}), member(2, "email", "jo"))
    with serving(honest(shipped_manifest("yotpo_loyalty"))) as vendor:
        outcomes = opened("yotpo_loyalty", vendor.url).send(call(*members))
    assert [one.code for one in outcomes] == ["missing_field", "ok"]


@pytest.mark.parametrize("name", ["hubspot", "warehouse_http", "twilio"])
def test_an_answer_that_should_speak_of_members_and_cannot_be_read_leaves_doubt(name: str) -> None:
    status = {"twilio": 201}.get(name, 200)
    change_type = "consent" if name == "twilio" else "email"
    with serving(always(status, {}, HTML)) as vendor:
        [outcome] = opened(name, vendor.url).send(call(member(1, change_type)))
    assert (outcome.result, outcome.code) == ("in_doubt", "answer_unreadable")


def test_a_job_without_an_id_cannot_be_followed_and_is_claimed_as_no_more_than_taken() -> None:
    with serving(always(200)) as vendor:
        [outcome] = opened("segment_privacy", vendor.url).send(call())
    assert (outcome.result, outcome.strength, outcome.reference) == ("acknowledged", "A1", "")


def test_a_job_is_followed_until_it_is_done() -> None:
    withdrawn = member(1, consent={"channel": "email", "state": "withdrawn"})
    with serving(honest(shipped_manifest("klaviyo"))) as vendor:
        channel = opened("klaviyo", vendor.url)
        [sent] = channel.send(call(withdrawn))
        assert (sent.reference, sent.strength) == ("job-1", "A2")
        asked = Member(**{**vars(withdrawn), "reference": sent.reference})
        for state, expected in (("processing", "in_doubt"), ("complete", "acknowledged"), ("cancelled", "terminal")):
            vendor.behave = always(200, {}, json.dumps({"data": {"attributes": {"status": state}}}).encode())
            assert [one.result for one in channel.probe(call(asked))] == [expected]
        assert vendor.received[-1].path.endswith("/profile-suppression-bulk-create-jobs/job-1")
        vendor.behave = always(500)
        assert [one.result for one in channel.probe(call(asked))] == ["in_doubt"]
        assert [one.code for one in channel.probe(call(withdrawn))] == ["probe_missing_field"]


def test_doubt_about_an_erasure_is_settled_by_looking() -> None:
    erased = member(1, "delete")
    with serving(always(200, {}, b'{"data":[]}')) as vendor:
        channel = opened("klaviyo", vendor.url)
        assert [one.result for one in channel.probe(call(erased))] == ["acknowledged"]
        assert vendor.received[0].query == {"filter": ['equals(email,"new1@example.com")']}
        vendor.behave = always(200, {}, b'{"data":[{"id":"1"}]}')
        assert [one.result for one in channel.probe(call(erased))] == ["in_doubt"]


def test_a_warehouse_tells_what_it_holds() -> None:
    reply = json.dumps(
        {"failed": [{"id": member(2).event_id, "code": "retry"}, {"id": member(3).event_id, "code": "bad_row"}]}
    )
    with serving(always(200, {}, reply.encode())) as vendor:
        channel = opened("warehouse_http", vendor.url)
        outcomes = channel.send(call(*several()))
        assert [one.result for one in outcomes] == ["acknowledged", "transient", "terminal"]
        assert [one["id"] for one in vendor.received[0].json["events"]] == [one.event_id for one in outcomes]
        vendor.behave = always(404)
        assert [one.result for one in channel.probe(call())] == ["transient"]
        vendor.behave = always(200)
        assert [one.result for one in channel.probe(call())] == ["acknowledged"]


def test_batches_are_cut_at_the_vendors_number_and_bytes() -> None:
    with serving(honest(shipped_manifest("segment"))) as vendor:
        opened("segment", vendor.url).send(call(*(member(number, "email") for number in range(1, 251))))
        assert [len(one.json["batch"]) for one in vendor.received] == [100, 100, 50]
        vendor.received.clear()
        large = tuple(
            member(number, "email", after={"email": f"{number}@example.com", "tier": "x" * 150_000})
            for number in range(1, 7)
        )
        outcomes = opened("segment", vendor.url).send(call(*large))
    assert [len(one.json["batch"]) for one in vendor.received] == [3, 3]
    assert {one.result for one in outcomes} == {"acknowledged"}


def test_requests_inside_one_call_keep_the_pace() -> None:
    with serving(honest(shipped_manifest("yotpo_loyalty"))) as vendor:
        channel = opened("yotpo_loyalty", vendor.url, rate={"per_second": 4})
        begun = time.monotonic()
        outcomes = channel.send(call(*(member(number, "email") for number in range(1, 9)), timeout=1.1))
        took = time.monotonic() - begun
    assert [one.code for one in outcomes] == ["ok"] * 5 + ["not_reached"] * 3
    assert {one.result for one in outcomes[5:]} == {"transient"}
    assert 0.9 < took < 1.4


def test_an_event_without_what_the_vendor_needs_is_refused_by_the_fields_name() -> None:
    nobody = member(1, "insert", after={"first_name": "Jo"}, before=None)
    with serving(honest(shipped_manifest("mailchimp"))) as vendor:
        [outcome] = opened("mailchimp", vendor.url).send(call(nobody))
    assert (outcome.result, outcome.code, outcome.detail) == ("refused", "missing_field", "the event has no email")
    assert vendor.received == []


def test_the_operator_may_say_where_a_field_is() -> None:
    with serving(honest(shipped_manifest("mixpanel"))) as vendor:
        channel = opened("mixpanel", vendor.url, vars={"field_email": "after.contact.mail"})
        channel.send(call(member(1, "email", after={"contact": {"mail": "z@example.com"}})))
    [request] = vendor.received
    assert request.json[0]["$set"]["$email"] == "z@example.com"
    assert request.json[0]["$token"] == SECRET


WRONG: list[dict[str, Any]] = [
    {"manifest": "nobody"},
    {"vars": {}},
    {"vars": {"list_id": "1", "typo": "2"}},
    {"manifest": "webhook", "vars": {"mode": "loud"}},
    {"manifest": "webhook", "vars": {}, "url": None},
]


@pytest.mark.parametrize("own", WRONG)
def test_settings_that_do_not_fit_the_manifest_are_named(own: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_channel(subscriber("mailchimp", "https://example.com").model_copy(update=own), SECRETS, NETWORK)
    assert caught.value.problems[0].code in ("unknown_manifest", "subscriber_settings")


def test_a_secret_that_was_not_resolved_is_named_and_not_guessed() -> None:
    for name, path in (("mailchimp", "auth.secret"), ("webhook", "signing_secret")):
        with pytest.raises(ConfigurationError) as caught:
            open_channel(subscriber(name, "https://example.com"), {}, NETWORK)
        assert caught.value.problems[0].path == path


def test_the_operators_limits_are_kept_when_they_are_narrower() -> None:
    narrow = opened("hubspot", "https://example.com", rate={"per_second": 2, "concurrency": 1, "batch": 10}).limits
    wide = opened("hubspot", "https://example.com", rate={"per_second": 9999, "concurrency": 99, "batch": 9999}).limits
    assert (narrow.per_second, narrow.concurrency, narrow.max_batch) == (2, 1, 10)
    assert (wide.per_second, wide.concurrency, wide.max_batch) == (15, 5, 30)


def test_the_faulty_channel_does_what_its_script_says_and_counts_effects() -> None:
    channel: Channel = FaultyChannel(
        {member(1).event_id: ["transient", "in_doubt*", "throttled"]}, retry_after=9, limits=Limits(2)
    )
    assert isinstance(channel, FaultyChannel)
    results = [channel.send(call(member(1), member(2))) for _ in range(4)]
    assert [one[0].result for one in results] == ["transient", "in_doubt", "throttled", "acknowledged"]
    assert results[2][0].retry_after == 9
    assert channel.effects == {member(1).event_id: 1, member(2).event_id: 1}
    assert [one.result for one in channel.probe(call(member(1), member(3)))] == ["acknowledged", "transient"]
    with pytest.raises(ValueError, match="explodes"):
        FaultyChannel({"a": ["explodes"]})
