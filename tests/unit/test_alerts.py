"""Alerts reach a real HTTP server and a real SMTP receiver, once an hour per matter, and say nothing of a person."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from email import message_from_bytes
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tidings.alerts import Alerts, plain
from tidings.channels.signing import decode_secrets, verify
from tidings.matters import ANSWER_WITHIN as SEVERITIES
from tidings.matters import KINDS, MATTERS, Kind
from tidings.shapes import EmailAlert, NetworkRules, WebhookAlert

HOOK = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SECRETS = {"file:hook.key": HOOK, "file:mail.key": "ops:pass word"}
LOOPBACK = NetworkRules(allow=("127.0.0.0/8",))
START = 1_700_000_000.0
PAGES = Path(__file__).parents[2] / "docs" / "runbooks"


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@contextlib.contextmanager
def http_receiver(status: int = 204) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    got: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/alerts", got
        server.shutdown()


@contextlib.contextmanager
def smtp_receiver(refuse: bool = False) -> Iterator[tuple[str, list[tuple[list[str], bytes]]]]:
    """Just enough SMTP to take a message; keeps the envelope's recipients and the bytes."""
    got: list[tuple[list[str], bytes]] = []
    ready = threading.Event()
    place: dict[str, Any] = {}

    async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(line: str) -> None:
            writer.write(f"{line}\r\n".encode())

        recipients: list[str] = []
        say("220 test")
        while line := await reader.readline():
            word = line.decode().strip().upper()
            if word.startswith("EHLO"):
                say("250-test")
                say("250 AUTH PLAIN")
            elif word.startswith("AUTH"):
                place["auth"] = line.decode().split()[-1]
                say("235 ok")
            elif word.startswith("RCPT"):
                recipients.append(line.decode().split("<")[1].split(">")[0])
                say("550 no" if refuse else "250 ok")
            elif word == "DATA":
                say("354 go")
                await writer.drain()
                got.append((recipients, await reader.readuntil(b"\r\n.\r\n")))
                say("250 taken")
            elif word == "QUIT":
                say("221 bye")
                break
            else:
                say("250 ok")
            await writer.drain()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(session, "127.0.0.1", 0)
        place.update(port=server.sockets[0].getsockname()[1], loop=asyncio.get_running_loop(), stop=asyncio.Event())
        ready.set()
        await place["stop"].wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(5)
    try:
        yield f"127.0.0.1:{place['port']}", got
    finally:
        place["loop"].call_soon_threadsafe(place["stop"].set)
        thread.join(5)


def hook(url: str, **own: Any) -> WebhookAlert:
    return WebhookAlert.model_validate({"kind": "webhook", "url": url, "secret": "file:hook.key", **own})


def mailbox(smtp: str, **own: Any) -> EmailAlert:
    given = {
        "kind": "email",
        "smtp": smtp,
        "from": "tidings@example.com",
        "to": ["ops@example.com", "on-call@example.com"],
    }
    return EmailAlert.model_validate({**given, **own})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reaches_a_webhook_signed_and_an_inbox(kind: Kind) -> None:
    with http_receiver() as (url, posts), smtp_receiver() as (smtp, mails):
        asked = [*SEVERITIES]
        alerts = Alerts([hook(url, on=asked), mailbox(smtp, on=asked)], SECRETS, LOOPBACK, clock=Clock())
        sent = alerts.raise_(kind, "klaviyo", "12 deliveries wait")
    assert [(one.receiver, one.ok) for one in sent] == [("webhook", True), ("email", True)]
    [(headers, body)] = posts
    verify(decode_secrets(HOOK), headers, body, START)
    told = json.loads(body)
    assert (told["type"], told["timestamp"]) == (f"tidings.alert.{kind}", "2023-11-14T22:13:20Z")
    assert (told["data"]["subject"], told["data"]["detail"]) == ("klaviyo", "12 deliveries wait")
    assert (told["data"]["severity"], told["data"]["state"]) == (MATTERS[kind].severity, "raised")
    assert (PAGES / told["data"]["runbook"].rpartition("/")[2]).is_file()
    [(recipients, raw)] = mails
    message = message_from_bytes(raw, policy=default)
    assert recipients == ["ops@example.com", "on-call@example.com"]
    assert "klaviyo" in message["Subject"]
    assert "12 deliveries wait" in message.get_content()


def test_a_matter_is_told_once_an_hour_and_each_matter_on_its_own() -> None:
    clock = Clock()
    with http_receiver() as (url, posts):
        alerts = Alerts([hook(url)], SECRETS, LOOPBACK, clock=clock)
        for kind, subject in (
            ("breaker_open", "a"),
            ("breaker_open", "a"),
            ("breaker_open", "b"),
            ("dead_letters", "a"),
        ):
            alerts.raise_(kind, subject)  # type: ignore[arg-type]
        assert len(posts) == 3
        clock.now += 3599
        assert alerts.raise_("breaker_open", "a") == []
        clock.now += 1
        assert [one.ok for one in alerts.raise_("breaker_open", "a")] == [True]
    assert len({headers["webhook-id"] for headers, _ in posts}) == 4


def test_the_end_of_a_matter_is_told_and_the_next_one_is_told_at_once() -> None:
    with http_receiver() as (url, posts):
        alerts = Alerts([hook(url)], SECRETS, LOOPBACK, clock=Clock(), runbooks="https://wiki.example.com/ops/")
        alerts.raise_("order_violation", "a")
        alerts.clear("order_violation", "a")
        alerts.raise_("order_violation", "a")
        assert alerts.raise_("documentation", "a") == [], "P4 is for those who ask for it"
    said = [json.loads(body)["data"] for _, body in posts]
    assert [one["state"] for one in said] == ["raised", "cleared", "raised"]
    assert said[0]["answer_by"] == "2023-11-14T22:13:20Z", "at once"
    assert said[1]["answer_by"] is None
    assert said[0]["runbook"] == "https://wiki.example.com/ops/order-violation.md"
    ids = [headers["webhook-id"] for headers, _ in posts]
    assert ids[0] != ids[1]


def test_threads_that_raise_the_same_matter_tell_it_once() -> None:
    with http_receiver() as (url, posts):
        alerts = Alerts([hook(url)], SECRETS, LOOPBACK)
        threads = [threading.Thread(target=alerts.raise_, args=("breaker_open", "a")) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(posts) == 1


def test_only_those_who_asked_are_told() -> None:
    with http_receiver() as (url, posts):
        alerts = Alerts([hook(url, on=["dead_letters"]), hook(url, on=["silent_source"])], SECRETS, LOOPBACK)
        alerts.raise_("dead_letters", "a")
        alerts.raise_("source_stopped", "crm")
        assert alerts.raise_("breaker_open", "a") == []
    assert [json.loads(body)["data"]["subject"] for _, body in posts] == ["a", "crm"]


def test_a_failed_alert_is_told_to_the_caller_and_tried_again() -> None:
    with http_receiver(500) as (url, posts), smtp_receiver(refuse=True) as (smtp, _):
        alerts = Alerts([hook(url), mailbox(smtp)], SECRETS, LOOPBACK)
        for _ in range(2):
            assert [(one.ok, one.code) for one in alerts.raise_("dead_letters", "a")] == [
                (False, "status_500"),
                (False, "SMTPRecipientsRefused"),
            ]
    assert len(posts) == 2


def test_nobody_there_is_no_exception() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    alerts = Alerts([hook(f"http://127.0.0.1:{port}/"), mailbox(f"127.0.0.1:{port}")], SECRETS, LOOPBACK)
    assert [(one.ok, one.code) for one in alerts.raise_("dead_letters", "a")] == [
        (False, "connect"),
        (False, "ConnectionRefusedError"),
    ]


def test_alerts_pass_the_same_guard_as_everything_else() -> None:
    with http_receiver() as (url, posts), smtp_receiver() as (smtp, mails):
        alerts = Alerts([hook(url), mailbox(smtp)], SECRETS, NetworkRules())
        assert [one.code for one in alerts.raise_("dead_letters", "a")] == ["blocked_address", "blocked_address"]
    assert (posts, mails) == ([], [])


def test_a_mail_server_is_signed_in_to_with_the_secret() -> None:
    with smtp_receiver() as (smtp, mails):
        [sent] = Alerts([mailbox(smtp, secret="file:mail.key")], SECRETS, LOOPBACK).raise_("dead_letters", "a")
    assert (sent.ok, len(mails)) == (True, 1)
    assert b"pass word" not in mails[0][1]


PLAIN = [
    ("lane klaviyo/0", "lane klaviyo/0"),
    ("jo.smith+x@example.com failed", "[address] failed"),
    ("called +1 (415) 555-0100 twice", "called [number] twice"),
    ("card 4111 1111 1111 1111", "card [number]"),
    ("due 2026-11-15 12:00", "due 2026-11-15 12:00"),
    ("a\r\nBcc: x", "a  Bcc: x"),
    ("\x1b[31mred", " [31mred"),
    ("x" * 300, "x" * 119 + "…"),
]


@pytest.mark.parametrize(("text", "expected"), PLAIN)
def test_what_could_be_a_person_is_blotted_out(text: str, expected: str) -> None:
    assert plain(text, 120) == expected


def test_a_crafted_subject_adds_no_header_to_the_mail() -> None:
    with smtp_receiver() as (smtp, mails):
        Alerts([mailbox(smtp)], SECRETS, LOOPBACK).raise_("dead_letters", "a\r\nBcc: eve@example.com", "jo@example.com")
    [(recipients, raw)] = mails
    message = message_from_bytes(raw, policy=default)
    assert message["Bcc"] is None
    assert "eve@example.com" not in recipients
    assert b"jo@example.com" not in raw


def test_an_unknown_kind_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="not an alert"):
        Alerts([], {}, LOOPBACK).raise_("surprise", "a")  # type: ignore[arg-type]
