"""Every vendor's manifest: real sockets, real failures. The channels themselves go through `test_sinks.py`.

Each shipped manifest is spoken to a server that answers as the manifest says, and then to one that does not.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import hmac
import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from vendor import Received, Reply, always, hang, honest, reset, serving, success_then_reset, token_reply, trickle

from tidings.channels import DIGEST_KEY, open_channel
from tidings.channels.call import Call, Channel, Limits, Member
from tidings.channels.client import Answer
from tidings.channels.faulty import FaultyChannel
from tidings.channels.http import HttpChannel
from tidings.channels.manifest import manifest_names, shipped_manifest
from tidings.channels.rehearsal import rehearsed
from tidings.channels.round import HASHED, Round
from tidings.channels.signing import decode_secrets, verify
from tidings.errors import ConfigurationError
from tidings.lanes.member import Feed, PlannedCall, Rules, Sent
from tidings.lanes.semantics import judge
from tidings.shapes import NetworkRules, Subscriber
from tidings.stages.envelope import render

SECRET, HOOK = "canary-4c1d9e", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SECRETS = {"file:api.key": SECRET, "file:pair.key": f"client:{SECRET}", "file:hook.key": HOOK, DIGEST_KEY: "00" * 32}
NETWORK = NetworkRules(allow=("127.0.0.0/8",))
NAMES = [name for name in manifest_names() if shipped_manifest(name).sink is None]
# How a consent reaches a manifest of this kind; a vendor has no verb for another channel's.
CONSENTED = {"sms": "sms", "ads": "ads"}


@functools.cache
def service_account() -> str:
    """A key file as Google gives it out, of a key of our own."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = key.private_bytes(*form).decode()
    return json.dumps({"client_email": f"{SECRET}@example.com", "private_key": pem, "token_uri": "https://example.com"})


def auth_of(name: str, url: str) -> dict[str, str]:
    """The subscriber's `auth`, as an operator of this manifest would write it."""
    kind = shipped_manifest(name).auth.kind
    if kind == "body":
        return {"kind": "bearer", "secret": "file:api.key"}
    if kind == "google":
        return {"kind": kind, "secret": "file:google.json", "token_url": f"{url}/token"}
    return {"kind": kind, "secret": "file:pair.key" if kind == "oauth2" else "file:api.key"}


def subscriber(name: str, url: str, **own: Any) -> Subscriber:
    manifest = shipped_manifest(name)
    settings: dict[str, Any] = {"manifest": name, "name": name, "url": url, "role": "service", "region": "US"}
    settings["vars"] = {key: f"v-{key.replace('_', '')}" for key, value in manifest.vars.items() if value is None}
    if "subscription_id" in settings["vars"]:
        settings["vars"]["subscription_id"] = "7"
    if manifest.webhook:
        settings["signing_secret"] = "file:hook.key"
    else:
        settings["auth"] = auth_of(name, url)
    return Subscriber.model_validate({**settings, "rate": {"per_second": 1000}, **own})


def opened(name: str, url: str, **own: Any) -> Channel:
    """The channel, at no vendor's pace unless a test asks for one."""
    channel = open_channel(subscriber(name, url, **own), {**SECRETS, "file:google.json": service_account()}, NETWORK)
    if isinstance(channel, HttpChannel) and "rate" not in own:
        return replace(channel, limits=replace(channel.limits, per_second=1000))
    return channel


def member(
    number: int = 1, change_type: str = "consent", subject: str | None = None, name: str = "twilio", **data: Any
) -> Member:
    """An event about one person, whose record holds the ids that some vendors gave them."""
    event_id = f"0190a1b2-c3d4-7e5f-8a9b-{number:012x}"
    ids = {one: f"{one}-{number}" for one in ("klaviyo_id", "hubspot_id", "ga_client_id", "message_sid")}
    images: dict[str, Any] = {"before": {"email": f"old{number}@example.com", "phone": "+14155550100", **ids}}
    images["after"] = {"email": f"new{number}@example.com", "phone": f"+1415555{number:04d}", "first_name": "Jo", **ids}
    consent = {
        "channel": CONSENTED.get(shipped_manifest(name).kind, "email"),
        "state": "withdrawn",
        "class": "marketing",
        "request_time": None,
    }
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


def typical(name: str, number: int = 1) -> Member:
    """An event that the manifest has a verb for."""
    kinds = ("consent", "email", "tier", "suppression", "delete")
    return next(one for kind in kinds if taken(name, one := member(number, kind, name=name)))


def taken(name: str, one: Member) -> bool:
    """Whether the manifest has a verb for such an event."""
    return "no_verb" not in rehearsed(subscriber(name, "https://example.com"), one).outcome


def several(name: str = "twilio", count: int = 3) -> tuple[Member, ...]:
    return tuple(typical(name, number) for number in range(1, count + 1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change_type", ["consent", "email", "delete", "insert"])
def test_an_honest_vendor_is_acknowledged_as_strongly_as_declared(name: str, change_type: str) -> None:
    manifest = shipped_manifest(name)
    members = tuple(member(number, change_type, name=name) for number in (1, 2, 3))
    with serving(honest(manifest)) as vendor:
        outcomes = opened(name, vendor.url).send(call(*members))
    assert [outcome.event_id for outcome in outcomes] == [one.event_id for one in members]
    if not taken(name, members[0]):
        assert {(outcome.result, outcome.code) for outcome in outcomes} == {("refused", "no_verb")}
        assert vendor.received == []
        return
    # What has a job that can be followed is accepted until somebody has asked; all else is a yes.
    assert {outcome.result for outcome in outcomes} == {"accepted" if outcomes[0].reference else "acknowledged"}
    assert {outcome.code for outcome in outcomes} <= {"ok", HASHED}
    assert all(outcome.strength >= manifest.strength(change_type) for outcome in outcomes)
    assert all(len(outcome.digest) == 64 for outcome in outcomes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change_type", ["consent", "email", "delete", "insert", "household"])
def test_what_is_rehearsed_is_what_is_sent(name: str, change_type: str) -> None:
    one = member(1, change_type, name=name)
    with serving(honest(shipped_manifest(name))) as vendor:
        opened(name, vendor.url).send(call(one))
        shown = rehearsed(subscriber(name, vendor.url), one).requests
    sent = [(got.method, vendor.url + got.target, got.body) for got in vendor.received]
    if shipped_manifest(name).webhook:
        sent = [(method, url.removesuffix("/"), body) for method, url, body in sent]
    if shipped_manifest(name).auth.kind == "query":
        sent = [(method, url.replace(SECRET, "<file:api.key>"), body) for method, url, body in sent]
    if shipped_manifest(name).auth.kind == "body":
        sent = [(method, url, body.replace(SECRET.encode(), b"<file:api.key>")) for method, url, body in sent]
    assert [(request.method, request.url, request.body) for _, request in shown] == sent
    for (_, request), got in zip(shown, vendor.received, strict=True):
        ours = {header.lower(): value for header, value in request.headers.items()}
        assert set(got.headers) - set(ours) <= {"host", "accept-encoding", "user-agent", "content-length"}
        same = set(ours) - {"authorization", shipped_manifest(name).auth.header.lower()}
        same -= {"webhook-signature", "webhook-timestamp"}
        assert {header: ours[header] for header in same} == {header: got.headers[header] for header in same}
        assert SECRET not in json.dumps(ours) + request.url + request.body.decode()


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
        outcomes = opened(name, vendor.url).send(call(*several(name), timeout=0.4))
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
        [outcome] = opened(name, vendor.url).send(call(typical(name)))
    expected = ("acknowledged", "ok") if shipped_manifest(name).webhook else ("transient", "error_inside")
    assert (outcome.result, outcome.code) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_port_was_not_sent(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    outcomes = opened(name, f"http://127.0.0.1:{port}").send(call(*several(name)))
    assert {(outcome.result, outcome.code.removeprefix("token_")) for outcome in outcomes} == {("transient", "connect")}


@pytest.mark.parametrize("name", NAMES)
def test_an_inside_address_is_refused(name: str) -> None:
    outcomes = opened(name, "https://169.254.169.254").send(call(typical(name)))
    assert [(outcome.result, outcome.code) for outcome in outcomes] == [("refused", "blocked_address")]


WAITS: list[tuple[str, float | None]] = [
    ("7", 7.0),
    (" 7 ", 7.0),
    ("0", 0.0),
    ("1.5", 1.5),
    ("-5", None),
    ("999999999999", 86_400.0),
    ("9" * 40, 86_400.0),
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
        [outcome] = opened(name, vendor.url).send(call(typical(name)))
    assert outcome.result == "throttled"
    assert outcome.retry_after == (expected if expected is None else pytest.approx(expected, abs=3))


@pytest.mark.parametrize("name", NAMES)
def test_a_repeat_carries_the_same_bytes_and_the_same_key(name: str) -> None:
    with serving(honest(shipped_manifest(name))) as vendor:
        channel = opened(name, vendor.url)
        channel.send(call(typical(name), typical(name, 2)))
        half = len(vendor.received)
        channel.send(call(typical(name), typical(name, 2)))
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
        outcomes = channel.send(call(typical(name)))
    [*_, request] = [*vendor.received[-1:], *vendor.asked[-1:]]
    told = request.target + json.dumps(request.headers) + request.body.decode()
    if shipped_manifest(name).auth.kind == "google":
        _, claims, _ = parse_qs(request.body.decode())["assertion"][0].split(".")
        told += base64.urlsafe_b64decode(claims + "==").decode()
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
    bad = member(1, change_type, name=name)
    bad.body.update(HOSTILE[case])
    with serving(honest(shipped_manifest(name))) as vendor:
        outcomes = opened(name, vendor.url).send(call(bad, member(2, change_type, name=name)))
    assert [outcome.event_id for outcome in outcomes] == [bad.event_id, member(2).event_id]
    routed = taken(name, member(2, change_type, name=name))
    assert outcomes[1].result in (("acknowledged", "accepted") if routed else ("refused",))
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


WEBHOOK_AUTH: list[dict[str, str]] = [
    {"kind": "oauth2", "secret": "file:pair.key", "token_url": "/token"},
    {"kind": "hmac", "secret": "file:api.key", "header": "Authorization", "signs": "{method} {path} {body}"},
    {"kind": "sigv4", "secret": "file:pair.key", "region": "eu-west-1", "service": "execute-api"},
    {"kind": "query", "secret": "file:api.key", "param": "token"},
]


@pytest.mark.parametrize("auth", WEBHOOK_AUTH, ids=[one["kind"] for one in WEBHOOK_AUTH])
def test_a_webhook_may_have_any_auth_beside_its_signature(auth: dict[str, str]) -> None:
    with serving(always(204)) as vendor:
        [outcome] = opened("webhook", vendor.url, auth=auth).send(call())
    [request] = vendor.received
    assert outcome.result == "acknowledged"
    verify(decode_secrets(HOOK), request.headers, request.body, time.time())
    told = request.headers.get("authorization", "")
    expected = {
        "oauth2": "Bearer token-1",
        "hmac": hmac.new(SECRET.encode(), b"POST / " + request.body, "sha256").hexdigest(),
        "sigv4": "AWS4-HMAC-SHA256 Credential=client/",
        "query": "",
    }[auth["kind"]]
    assert told.startswith(expected)
    assert (auth["kind"] == "query") == (request.query == {"token": [SECRET]})


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


def test_a_batch_that_is_too_large_as_a_whole_is_refused_as_a_whole_so_that_it_is_halved() -> None:
    with serving(always(200)) as vendor:
        channel = opened("webhook", vendor.url, vars={"mode": "batched"}, rate={"batch": 50})
        outcomes = channel.send(call(*(member(n, after={"note": "x" * 600_000}) for n in range(2))))
    assert {(one.result, one.code) for one in outcomes} == {("terminal", "too_large")}
    assert vendor.received == []


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


def test_what_is_larger_than_the_vendor_takes_is_not_sent() -> None:
    large = member(1, "email", after={"email": "a@example.com", "first_name": "x" * 150_000})
    with serving(honest(shipped_manifest("klaviyo"))) as vendor:
        outcomes = opened("klaviyo", vendor.url).send(call(large, member(2, "email")))
    assert [(one.result, one.code) for one in outcomes] == [("refused", "too_large"), ("acknowledged", "ok")]
    assert len(vendor.received) == 1


def test_hubspot_names_the_inputs_that_failed() -> None:
    bad, busy = member(2, "phone"), member(3, "phone")
    errors = [
        {
            "category": "VALIDATION_ERROR",
            "context": {"objectWriteTraceId": [bad.event_id]},
            "message": "jo@example.com is bad",
        },
        {"category": "RATE_LIMITS", "context": {"objectWriteTraceId": [busy.event_id]}},
    ]
    with serving(always(207, {}, json.dumps({"results": [], "errors": errors}).encode())) as vendor:
        outcomes = opened("hubspot", vendor.url).send(call(member(1, "phone"), bad, busy))
    assert [(one.result, one.code) for one in outcomes] == [
        ("acknowledged", "ok"),
        ("terminal", "VALIDATION_ERROR"),
        ("transient", "RATE_LIMITS"),
    ]
    assert "example.com" not in repr(outcomes)


def test_a_failure_that_names_nobody_leaves_all_in_doubt() -> None:
    reply = json.dumps({"errors": [{"category": "VALIDATION_ERROR", "context": {}}]}).encode()
    with serving(always(207, {}, reply)) as vendor:
        outcomes = opened("hubspot", vendor.url).send(call(member(1, "phone"), member(2, "phone")))
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


NO_WORD: list[tuple[str, bytes | None]] = [
    (
        "an unknown member",
        b'{"errors":[{"context":{"objectWriteTraceId":["nobody"]},"category":"X"}],"items":[{}],"failed":[{"id":"x"}]}',
    ),
    (
        "a place that is not there",
        b'{"errors":[{"index":99,"batch_index":99,"type":"x"}],"items":[{}],"failed":[{"id":"x"}]}',
    ),
    ("no member at all", b'{"errors":[{}],"items":[],"failed":[{}]}'),
    ("a list where there is none", b"[]"),
    ("a zip bomb", None),
]
BY_ITEM = [name for name in NAMES if any(verb.items for verb in shipped_manifest(name).verbs.values())]


@pytest.mark.parametrize("name", BY_ITEM)
@pytest.mark.parametrize(("case", "reply"), NO_WORD, ids=[row[0] for row in NO_WORD])
def test_an_answer_that_speaks_of(name: str, case: str, reply: bytes | None) -> None:
    """Nobody is taken for done by an answer about somebody else; where only failures are listed, none is a yes."""
    verb = next(verb for verb in shipped_manifest(name).verbs.values() if verb.items)
    body: Any = {check.path: check.equals for check in verb.success.body}
    headers = {"Content-Encoding": "gzip"} if reply is None else {}
    sent = gzip.compress(b" " * 20_000_000) if reply is None else reply
    if reply is not None and body:
        sent = json.dumps({**json.loads(reply), **body} if reply != b"[]" else body).encode()
    status = next(one for one in verb.success.status if isinstance(one, int))
    kind = {"twilio": "consent"}.get(name, "phone")
    with serving(always(status, headers, sent)) as vendor:
        outcomes = opened(name, vendor.url).send(call(member(1, kind, name=name), member(2, kind, name=name)))
    assert verb.items is not None
    silent = verb.items.style == "failures" and reply == b"[]"
    assert {one.result for one in outcomes} == {"acknowledged" if silent else "in_doubt"}
    if not silent:
        assert {one.code for one in outcomes} <= {"no_result", "answer_unreadable", "answer_too_large"}


def test_braze_lists_the_places_that_failed() -> None:
    reply = {"message": "success", "errors": [{"type": "too_long", "input_array": "attributes", "index": 1}]}
    with serving(always(201, {}, json.dumps(reply).encode())) as vendor:
        outcomes = opened("braze", vendor.url).send(call(*(member(number, "phone") for number in (1, 2, 3))))
    assert [(one.result, one.code) for one in outcomes] == [
        ("acknowledged", "ok"),
        ("terminal", "too_long"),
        ("acknowledged", "ok"),
    ]


def test_braze_says_when_as_a_moment() -> None:
    for moment, expected in ((time.time() + 30, 30.0), (time.time() - 30, 0.0), (time.time() + 1e9, 86_400.0)):
        with serving(always(429, {"X-RateLimit-Reset": str(int(moment))})) as vendor:
            [outcome] = opened("braze", vendor.url).send(call(member(1, "phone")))
        assert outcome.result == "throttled"
        assert outcome.retry_after == pytest.approx(expected, abs=2)


def test_customer_io_lists_the_places_that_failed() -> None:
    reply = {"errors": [{"reason": "invalid", "field": "email", "message": "jo@example.com", "batch_index": 0}]}
    with serving(always(207, {}, json.dumps(reply).encode())) as vendor:
        outcomes = opened("customerio", vendor.url).send(call(member(1, "phone"), member(2, "phone")))
    assert [(one.result, one.code) for one in outcomes] == [("terminal", "invalid"), ("acknowledged", "ok")]
    assert "example.com" not in repr(outcomes)


def test_salesforce_answers_200_and_each_record_for_itself() -> None:
    reply = [
        {"success": True, "errors": []},
        {"success": False, "errors": [{"statusCode": "UNABLE_TO_LOCK_ROW"}]},
        {"success": False, "errors": [{"statusCode": "INVALID_EMAIL_ADDRESS"}]},
    ]
    with serving(always(200, {}, json.dumps(reply).encode())) as vendor:
        outcomes = opened("salesforce", vendor.url).send(call(*(member(number, "phone") for number in (1, 2, 3, 4))))
    assert [(one.result, one.code) for one in outcomes] == [
        ("acknowledged", "ok"),
        ("transient", "UNABLE_TO_LOCK_ROW"),
        ("terminal", "INVALID_EMAIL_ADDRESS"),
        ("in_doubt", "no_result"),
    ]


SAID: list[tuple[str, int, Any, tuple[str, str, int]]] = [
    ("salesforce", 403, [{"errorCode": "REQUEST_LIMIT_EXCEEDED"}], ("throttled", "salesforce_limit", 403)),
    ("salesforce", 403, [{"errorCode": "INSUFFICIENT_ACCESS"}], ("terminal", "status_403", 403)),
    ("meta_audiences", 400, {"error": {"code": 190}}, ("terminal", "meta_token", 401)),
    ("meta_audiences", 400, {"error": {"code": 17}}, ("throttled", "meta_rate_limit", 400)),
    ("google_customer_match", 429, {"error": {"status": "RESOURCE_EXHAUSTED"}}, ("throttled", "google_quota", 429)),
    ("ga4_deletion", 403, {"error": {"errors": [{"reason": "quotaExceeded"}]}}, ("throttled", "google_quota", 403)),
    ("iterable", 400, {"code": "BadApiKey"}, ("terminal", "iterable_key", 401)),
    ("iterable", 200, {"code": "BadParams"}, ("terminal", "iterable_refused", 200)),
    ("twilio_messages", 400, {"code": 21610}, ("terminal", "opted_out", 400)),
    ("twilio_messages", 429, {"code": 20429}, ("throttled", "20429", 429)),
]


@pytest.mark.parametrize(("name", "status", "body", "expected"), SAID)
def test_a_vendors_own_words(name: str, status: int, body: Any, expected: tuple[str, str, int]) -> None:
    """A 401 in the outcome is a shut door: the lane waits for credentials and empties nothing into the dead letters."""
    with serving(always(status, {}, json.dumps(body).encode())) as vendor:
        [outcome] = opened(name, vendor.url).send(call(typical(name)))
    assert (outcome.result, outcome.code, outcome.status) == expected


def test_a_token_is_fetched_once_for_many_requests_and_again_when_it_is_not_taken() -> None:
    kind = honest(shipped_manifest("salesforce"))
    suppressed = [member(number, "suppression") for number in (1, 2, 3)]
    with serving(kind) as vendor:
        channel = opened("salesforce", vendor.url)
        assert {one.result for one in channel.send(call(*suppressed))} == {"acknowledged"}
        assert (len(vendor.asked), len(vendor.received)) == (1, 6)  # e-mail and telephone of each
        vendor.behave = lambda request, sock: (
            kind(request, sock) if request.headers["authorization"] == "Bearer token-2" else (401, {}, b"")
        )
        assert {one.result for one in channel.send(call(*suppressed))} == {"acknowledged"}
        assert len(vendor.asked) == 2


def test_credentials_that_are_not_taken_shut_the_door_and_lose_nothing() -> None:
    with serving(honest(shipped_manifest("salesforce"))) as vendor:
        vendor.tokens = lambda number: (400, {}, b'{"error":"invalid_client"}')
        [outcome] = opened("salesforce", vendor.url).send(call(member(1, "suppression")))
        assert (outcome.result, outcome.code, outcome.status) == ("terminal", "token_refused", 401)
        assert vendor.received == []
        vendor.tokens = lambda number: token_reply("good")
        [outcome] = opened("salesforce", vendor.url).send(call(member(1, "suppression")))
    assert outcome.result == "acknowledged"


READS = [
    (name, verb)
    for name in NAMES
    for verb, spec in shipped_manifest(name).verbs.items()
    if spec.verify is not None or spec.probe is not None
]


@pytest.mark.parametrize(("name", "verb"), READS)
def test_a_read_that_comes_back_as_hoped_is_proof_and_any_other_is_none(name: str, verb: str) -> None:
    probe = shipped_manifest(name).verbs[verb].asks
    assert probe is not None
    channel = opened(name, "https://example.com")
    assert isinstance(channel, HttpChannel)
    asking = Round(channel, time.monotonic())
    rule = next(rule for rule in probe.rules if rule.result == "acknowledged")
    body: Any = {}
    if rule.path:
        at, found = rule.path, rule.among[0] if rule.among else rule.equals
        value = ([] if rule.empty else ["x"]) if rule.empty is not None else found
        put_in(body, at, value)
    status = next((one for one in rule.status if isinstance(one, int)), 200)
    good = asking._probed(probe, Answer(status, {}, json.dumps(body).encode()))
    assert (good.result, good.strength) == ("acknowledged", "A3")
    for status, text in ((500, b""), (200, b"<html>"), (200, b'{"users":[{}],"data":[{}],"user":{"a":1}}')):
        if name == "warehouse_http" and status == 200:
            continue  # there the row being found is the proof
        assert asking._probed(probe, Answer(status, {}, text)).result in ("in_doubt", "transient")


def put_in(body: Any, path: str, value: Any) -> None:
    """Like `put`, with arrays where a step is a number."""
    *steps, last = path.split(".")
    for step, after in zip(steps, path.split(".")[1:], strict=True):
        inner: Any = [] if after.isdigit() else {}
        if isinstance(body, list):
            body.append(inner)
        else:
            body[step] = inner
        body = inner
    if isinstance(body, list):
        body.append(value)
    else:
        body[last] = value


TIKTOK = [(40100, "throttled"), (40002, "terminal"), (50002, "transient"), (12345, "transient")]


@pytest.mark.parametrize(("code", "result"), TIKTOK)
def test_tiktok_says_no_with_200(code: int, result: str) -> None:
    with serving(always(200, {}, json.dumps({"code": code, "message": "x"}).encode())) as vendor:
        [outcome] = opened("tiktok_audiences", vendor.url).send(call(member(1, "insert")))
    assert (outcome.result, outcome.strength) == (result, "A0")


@pytest.mark.parametrize("name", ["tiktok_audiences", "mixpanel", "segment", "google_customer_match", "meta_audiences"])
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
    ("braze", 404, "already_erased"),
    ("customerio", 404, "already_erased"),
    ("iterable", 404, "already_erased"),
    ("klaviyo", 404, "already_erased"),
    ("salesforce", 404, "already_erased"),
    ("twilio_messages", 404, "already_erased"),
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
        assert {one.result for one in channel.send(call(*members))} == {"acknowledged", "accepted"}
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
        [outcome] = opened(name, vendor.url).send(call(member(1, change_type, name=name)))
    assert (outcome.result, outcome.code) == ("in_doubt", "answer_unreadable")


def test_a_job_without_an_id_cannot_be_followed_and_is_claimed_as_no_more_than_taken() -> None:
    with serving(always(200)) as vendor:
        [outcome] = opened("segment_privacy", vendor.url).send(call(typical("segment_privacy")))
    assert (outcome.result, outcome.strength, outcome.reference) == ("acknowledged", "A1", "")


def test_a_job_is_followed_until_it_is_done() -> None:
    withdrawn = member(1, consent={"channel": "email", "state": "withdrawn"})
    with serving(honest(shipped_manifest("klaviyo"))) as vendor:
        channel = opened("klaviyo", vendor.url)
        [sent] = channel.send(call(withdrawn))
        assert (sent.result, sent.reference, sent.strength) == ("accepted", "job-1", "A2")
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


def lane_rules(name: str) -> Rules:
    """What a lane knows of a manifest."""
    manifest = shipped_manifest(name)
    types = ("consent", "email", "delete", "insert")
    able = {one: manifest.capabilities(one) for one in types}
    return Rules(name, capable=manifest.capabilities(), capabilities=able, notices=frozenset({"delete"}))


FOLLOWED = [
    # manifest, event, what the vendor answers, the read that settles it
    ("klaviyo", "consent", (202, {"data": {"id": "j1"}}), (200, {"data": {"attributes": {"status": "complete"}}})),
    ("klaviyo", "delete", (202, {}), (200, {"data": []})),
    ("braze", "delete", (201, {"message": "success", "deleted": 1}), (201, {"users": []})),
    ("hubspot", "delete", (204, {}), (404, {})),
    (
        "segment_privacy",
        "delete",
        (200, {"data": {"regulateId": "r1"}}),
        (200, {"data": {"regulation": {"overallStatus": "FINISHED"}}}),
    ),
    ("opendsr", "delete", (201, {"subject_request_id": "x"}), (200, {"request_status": "completed"})),
    (
        "google_customer_match",
        "insert",
        (200, {"requestId": "q1"}),
        (200, {"requestStatusPerDestination": [{"requestStatus": "SUCCESS"}]}),
    ),
]


@pytest.mark.parametrize(("name", "change_type", "answer", "proof"), FOLLOWED)
def test_a_lane_asks_until_it_is_done(
    name: str, change_type: str, answer: tuple[int, Any], proof: tuple[int, Any]
) -> None:
    """Taken is not done: the delivery stays open until a read proves it, and is then acknowledged as the read says."""
    one = member(1, change_type, name=name)
    sent = Sent(one.event_id, 1, "at-least-once", 1, change_type)
    rules, feed = lane_rules(name), Feed("crm", "g1")
    with serving(always(answer[0], {}, json.dumps(answer[1]).encode())) as vendor:
        channel = opened(name, vendor.url)
        outcomes = channel.send(call(one))
        _, [verdict] = judge(rules, PlannedCall(name, 1, feed, "send", (sent,), 100.0, False), outcomes, 100.0, 101.0)
        assert (verdict.final, verdict.awaiting) == (None, True)
        assert 101.0 < verdict.due < 200.0, "the lane can ask, and asks soon"
        waiting = replace(sent, attempt=2, awaiting=True, reference=verdict.reference, first=100.0)
        asked = replace(one, reference=verdict.reference)
        probe = PlannedCall(name, 2, feed, "probe", (waiting,), 150.0, False)
        vendor.behave = always(200, {}, b"<html>please sign in</html>")
        _, [verdict] = judge(rules, probe, channel.probe(call(asked)), 150.0, 151.0)
        assert (verdict.final, verdict.awaiting) == (None, True), "a login page proves nothing"
        vendor.behave = always(proof[0], {}, json.dumps(proof[1]).encode())
        [told], [verdict] = judge(rules, probe, channel.probe(call(asked)), 150.0, 151.0)
    assert (verdict.final, told.strength) == ("acknowledged", "A3")
