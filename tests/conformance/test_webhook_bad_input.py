"""Everything an endpoint can do to a webhook, with the name of what comes of it. Real sockets; each call keeps its time."""

from __future__ import annotations

import gzip
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from vendor import Received, Reply, always, serving

from tidings.channels import open_channel
from tidings.channels.call import Call, Channel, Member, Outcome
from tidings.channels.client import Client
from tidings.channels.rehearsal import rehearsed
from tidings.errors import ConfigurationError
from tidings.shapes import NetworkRules, Subscriber

NETWORK = NetworkRules(allow=("127.0.0.0/8",))
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
Behaviour = Callable[[Received, socket.socket], Reply | None]


def opened(url: str, client: Client | None = None, **variables: str) -> Channel:
    given = {"manifest": "webhook", "name": "hook", "url": url, "role": "service", "region": "US", "vars": variables}
    subscriber = Subscriber.model_validate({**given, "signing_secret": "file:hook.key", "rate": {"per_second": 1000}})
    return open_channel(subscriber, {"file:hook.key": SECRET}, NETWORK, client=client)


def member(number: int = 1) -> Member:
    body = {
        "specversion": "1.0",
        "id": f"e{number}",
        "source": "/shop/crm",
        "type": "tidings.email.changed",
        "data": {},
    }
    return Member(body["id"], f"p{number}", "email", "1", body, body["id"], 1)  # type: ignore[arg-type]


def sent(channel: Channel, timeout: float = 0.5) -> tuple[Outcome, float]:
    begun = time.monotonic()
    [outcome] = channel.send(Call("hook", (member(),), timeout))
    return outcome, time.monotonic() - begun


def drip(head: bytes, part: bytes = b"x") -> Behaviour:
    def behave(request: Received, sock: socket.socket) -> None:
        sock.sendall(head)
        for _ in range(100):
            sock.sendall(part)
            time.sleep(0.05)

    return behave


def flood(request: Received, sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        sock.sendall(b"x" * 65_536)


def broken_off(request: Received, sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


def cut_head(request: Received, sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 2")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


BOMB = gzip.compress(b"\0" * 30_000_000)
INSIDE = {"Location": "http://169.254.169.254/latest/meta-data/"}
CASES: list[tuple[str, Behaviour, str, str]] = [
    ("headers at a byte a time", drip(b"HTTP/1.1 200 OK\r\nX-A: "), "in_doubt", "timeout"),
    ("a body at a byte a time", drip(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"), "in_doubt", "timeout"),
    ("early hints for ever", drip(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"), "in_doubt", "timeout"),
    ("a body without end", flood, "acknowledged", "ok"),
    ("a reset in the status line", cut_head, "in_doubt", "reset"),
    ("a yes, then a reset", broken_off, "in_doubt", "reset"),
    ("a bomb of gzip", always(200, {"Content-Encoding": "gzip"}, BOMB), "acknowledged", "ok"),
    ("gzip that is none", always(200, {"Content-Encoding": "gzip"}, b"plain"), "in_doubt", "bad_encoding"),
    ("a redirect inside", always(307, INSIDE), "transient", "redirect"),
    ("not modified", always(304), "transient", "redirect"),
    ("gone", always(410), "terminal", "gone"),
    ("a yes in no known form", always(200, {"Content-Type": "application/json"}, b"{"), "acknowledged", "ok"),
    ("a status of another world", always(999), "transient", "status_999"),
]


@pytest.mark.parametrize(("case", "behave", "result", "code"), CASES, ids=[row[0] for row in CASES])
def test_an_endpoint_that_answers_with(case: str, behave: Behaviour, result: str, code: str) -> None:
    with serving(behave) as vendor:
        outcome, took = sent(opened(vendor.url))
    assert (outcome.result, outcome.code) == (result, code)
    assert took < 1.5
    assert len(vendor.received) == 1, "a redirect is not followed, and nothing is sent twice"


def test_a_listener_that_never_accepts_was_sent_to() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        outcome, took = sent(opened(f"http://127.0.0.1:{listener.getsockname()[1]}/"))
    assert (outcome.result, outcome.code) == ("in_doubt", "timeout")
    assert took < 1.5


def test_a_listener_whose_queue_is_full_was_not_sent_to() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        place = listener.getsockname()
        crowd = [socket.socket() for _ in range(4)]
        for one in crowd:
            one.setblocking(False)
            one.connect_ex(place)
        time.sleep(0.1)
        outcome, took = sent(opened(f"http://127.0.0.1:{place[1]}/"))
        for one in crowd:
            one.close()
    assert (outcome.result, outcome.code) == ("transient", "timeout")
    assert took < 1.5


@pytest.mark.parametrize(("text", "wait"), [("99999999999999", 86_400.0), ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0)])
def test_a_huge_retry_after_is_a_day(text: str, wait: float) -> None:
    with serving(always(503, {"Retry-After": text})) as vendor:
        outcome, _ = sent(opened(vendor.url))
    assert (outcome.result, outcome.code, outcome.retry_after) == ("throttled", "status_503", wait)


def test_a_name_that_turns_inside_between_two_calls_is_refused() -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.8"]])
    with serving(always(200, {"Connection": "close"})) as vendor:
        client = Client(NETWORK.allow, resolver=lambda host, port: next(answers))
        channel = opened(f"http://hook.example:{vendor.port}/", client)
        first, _ = sent(channel)
        time.sleep(0.05)
        second, _ = sent(channel)
        client.close()
    assert first.result == "acknowledged"
    assert (second.result, second.code) in {("refused", "blocked_address"), ("refused", "cleartext")}
    assert len(vendor.received) == 1


# What is only taken, and the leave to send


def test_a_yes_is_only_taken_where_a_callback_says_the_rest() -> None:
    with serving(always(202)) as vendor:
        outcome, _ = sent(opened(vendor.url, answers="callback"))
    assert (outcome.result, outcome.strength, outcome.status) == ("accepted", "A0", 202)
    with serving(always(500)) as vendor:
        outcome, _ = sent(opened(vendor.url, answers="callback"))
    assert (outcome.result, outcome.code) == ("transient", "status_500")


def leave(status: int = 200, **headers: str) -> Behaviour:
    """Answers the question so, and takes every event."""

    def behave(request: Received, sock: socket.socket) -> Reply:
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        return (status, said, b"") if request.method == "OPTIONS" else (200, {}, b"")

    return behave


ORIGIN = "events.shop.example"
LEAVES: list[tuple[str, Behaviour, str, str]] = [
    ("our origin", leave(WebHook_Allowed_Origin=ORIGIN), "acknowledged", "ok"),
    ("any origin", leave(204, WebHook_Allowed_Origin="*", WebHook_Allowed_Rate="*"), "acknowledged", "ok"),
    ("another origin", leave(WebHook_Allowed_Origin="other.example"), "transient", "handshake_denied"),
    ("no word", leave(), "transient", "handshake_denied"),
    ("a no", leave(405, WebHook_Allowed_Origin="*"), "transient", "handshake_denied"),
    ("a rate of nothing", leave(WebHook_Allowed_Origin="*", WebHook_Allowed_Rate="0"), "transient", "handshake_denied"),
    ("a rate that is none", leave(WebHook_Allowed_Origin="*", WebHook_Allowed_Rate="lots"), "acknowledged", "ok"),
]


@pytest.mark.parametrize(("case", "behave", "result", "code"), LEAVES, ids=[row[0] for row in LEAVES])
def test_an_endpoint_that_is_asked_first(case: str, behave: Behaviour, result: str, code: str) -> None:
    with serving(behave) as vendor:
        channel = opened(vendor.url, handshake=ORIGIN)
        found = [sent(channel)[0] for _ in range(3)]
        pinged = channel.ping()
    assert {(one.result, one.code) for one in found} == {(result, code)}
    assert (pinged.result == "acknowledged") is (result == "acknowledged")
    methods = [request.method for request in vendor.received]
    # Asked once, remembered; `ping` asks again whatever is remembered.
    expected = ["OPTIONS", *["POST"] * 3, "OPTIONS", "POST"] if result == "acknowledged" else ["OPTIONS"] * 2
    assert methods == expected
    assert vendor.received[0].headers["webhook-request-origin"] == ORIGIN
    assert int(vendor.received[0].headers["webhook-request-rate"]) > 0
    assert all(one.headers["webhook-request-origin"] == ORIGIN for one in vendor.received)


def test_an_endpoint_that_cannot_be_asked_is_asked_again_and_nothing_left() -> None:
    def hang(request: Received, sock: socket.socket) -> None:
        time.sleep(1)

    with serving(hang) as vendor:
        channel = opened(vendor.url, handshake=ORIGIN)
        for _ in range(2):
            outcome, took = sent(channel, 0.3)
            # A question is no event: however it ended, at-most-once may still send.
            assert (outcome.result, outcome.code) == ("transient", "timeout")
            assert took < 1
        assert [request.method for request in vendor.received] == ["OPTIONS"] * 2


BAD_VARS: list[dict[str, Any]] = [
    {"signing": "md5"},
    {"answers": "perhaps"},
    {"handshake": "https://shop.example"},
    {"handshake": "a b"},
    {"mode": "xml"},
]


@pytest.mark.parametrize("variables", BAD_VARS)
def test_settings_that_say_nothing_are_named(variables: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        opened("https://hook.example/", **variables)
    assert caught.value.problems[0].path == f"vars.{next(iter(variables))}"


@pytest.mark.parametrize("variables", [{"signing": "rfc9421"}, {"answers": "callback"}])
def test_what_needs_a_secret_is_refused_without_one(variables: dict[str, str]) -> None:
    given = {"manifest": "webhook", "name": "hook", "url": "https://hook.example/", "role": "service", "region": "US"}
    with pytest.raises(ConfigurationError) as caught:
        open_channel(Subscriber.model_validate({**given, "vars": variables}), {}, NETWORK)
    assert caught.value.problems[0].path == "signing_secret"


def test_a_rehearsal_shows_the_question_and_the_event() -> None:
    given = {"manifest": "webhook", "name": "hook", "url": "https://hook.example/", "role": "service", "region": "US"}
    subscriber = Subscriber.model_validate({**given, "vars": {"handshake": ORIGIN}, "signing_secret": "file:hook.key"})
    rendered = rehearsed(subscriber, member())
    assert [request.method for _, request in rendered.requests] == ["OPTIONS", "POST"]
    assert "webhook-signature" not in rendered.requests[0][1].headers
    assert "file:hook.key" in rendered.requests[1][1].headers["webhook-signature"]
