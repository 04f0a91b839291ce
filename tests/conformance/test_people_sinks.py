"""Channels that end at a person: what is told, what is never told, and that a mail server's yes is not the person's."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from sinks import LOOPBACK, member, members

from tidings.channels import open_channel
from tidings.channels.call import Call, Channel, Outcome
from tidings.channels.manifest import shipped_manifest
from tidings.errors import Refused
from tidings.shapes import NetworkRules, Subscriber

PASSWORD = "canary-31"
PLACE = {"from": "tidings@shop.example", "to": "privacy@shop.example, it@shop.example"}


class Inbox:
    """A mail server's handler: keeps what it took, and says no where it is told to."""

    def __init__(self, refuses: str = "", dies: bool = False) -> None:
        self.mails: list[EmailMessage] = []
        self.encrypted: list[bool] = []
        self.refuses, self.dies = refuses, dies

    async def handle_RCPT(self, server: SMTP, session: Any, envelope: Envelope, address: str, options: Any) -> str:
        if self.refuses:
            return self.refuses
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Any, envelope: Envelope) -> str:
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))  # type: ignore[arg-type]
        self.encrypted.append(session.ssl is not None)
        if self.dies:
            server.transport.abort()
        return "250 taken"


def _authenticates(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
    return AuthResult(success=isinstance(data, LoginPassword) and data.password == PASSWORD.encode(), handled=False)


@contextmanager
def mail_server(inbox: Inbox, **more: Any) -> Iterator[int]:
    controller = Controller(inbox, hostname="127.0.0.1", port=_free_port(), **more)
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def opened(connection: str, allow: tuple[str, ...] = LOOPBACK, **place: str) -> Channel:
    said = {"manifest": "email", "name": "people", "role": "service", "region": "US", "vars": {**PLACE, **place}}
    subscriber = Subscriber.model_validate({**said, "connection": "file:mail.key"})
    return open_channel(subscriber, {"file:mail.key": connection}, NetworkRules(allow=allow))


def sent(channel: Channel, *, timeout: float = 10.0) -> list[Outcome]:
    outcomes = channel.send(Call("people", members(1, 2), timeout, 1))
    shown = f"{channel!r} {outcomes!r}"
    assert PASSWORD not in shown
    assert "example.com" not in shown
    return outcomes


def test_a_mail_is_a_task_and_says_nothing_about_the_person() -> None:
    inbox = Inbox()
    with mail_server(inbox) as port:
        outcomes = sent(opened(f"smtp://127.0.0.1:{port}", link="https://ops.shop.example/done?event={event}"))
    assert [(one.result, one.code, one.strength) for one in outcomes] == [("accepted", "awaiting_person", "A1")] * 2
    first = inbox.mails[0]
    assert first["Subject"] == f"Correct this person's e-mail address [{member(1).event_id}]"
    assert first["Message-ID"] == f"<{member(1).event_id}@shop.example>" == outcomes[0].reference
    assert first["To"] == PLACE["to"]
    body = first.get_content()
    assert f"event: {member(1).event_id}" in body
    assert f"https://ops.shop.example/done?event={member(1).event_id}" in body
    assert "person: subject-1" in body
    assert "example.com" not in first.as_string()  # the person's own address


def test_personal_data_is_in_the_body_when_the_operator_says_so_and_never_in_the_subject() -> None:
    inbox = Inbox()
    with mail_server(inbox) as port:
        sent(opened(f"smtp://127.0.0.1:{port}", personal_data="yes"))
    assert "jörg1@example.com" in inbox.mails[0].get_content()
    assert "example.com" not in inbox.mails[0]["Subject"]


@pytest.mark.parametrize(("said", "result"), [("550 no such user", "terminal"), ("451 later", "transient")])
def test_a_no_is_told_by_its_code_alone(said: str, result: str) -> None:
    with mail_server(Inbox(refuses=said)) as port:
        outcomes = sent(opened(f"smtp://127.0.0.1:{port}"))
    assert {(one.result, one.code) for one in outcomes} == {(result, f"smtp_{said[:3]}")}


def test_a_server_that_dies_after_the_last_line_leaves_a_doubt() -> None:
    inbox = Inbox(dies=True)
    with mail_server(inbox) as port:
        outcomes = sent(opened(f"smtp://127.0.0.1:{port}"))
    assert [one.result for one in outcomes] == ["in_doubt", "transient"]
    assert len(inbox.mails) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A certificate of 127.0.0.1, its own authority."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mail")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(*form))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return folder / "cert.pem", context


def test_starttls_is_used_its_certificate_checked_and_the_password_shown_after(certificate: Any) -> None:
    trusted, context = certificate
    inbox = Inbox()
    more = {"tls_context": context, "require_starttls": True, "authenticator": _authenticates, "auth_required": True}
    with mail_server(inbox, **more) as port:
        good = opened(f"smtp://robot:{PASSWORD}@127.0.0.1:{port}?ca={trusted}")
        assert {one.result for one in sent(good)} == {"accepted"}
        assert good.ping().result == "acknowledged"
        unknown = opened(f"smtp://robot:{PASSWORD}@127.0.0.1:{port}")
        assert {one.result for one in sent(unknown)} == {"transient"}
    assert inbox.encrypted == [True, True]


@pytest.mark.parametrize(
    ("connection", "place"),
    [
        ("http://canary@host", {}),
        ("smtp://", {}),
        ("smtp://host:99999", {}),
        ("smtp://host", {"to": "nobody"}),
        ("smtp://host", {"from": "a@b.example\nBcc: x@y.example"}),
    ],
)
def test_what_cannot_be_read_is_refused_at_the_start(connection: str, place: dict[str, str]) -> None:
    with pytest.raises(Refused, match="sink_connection") as refused:
        opened(connection, **place)
    assert "canary" not in str(refused.value)


def test_a_persons_word_is_weak_and_a_mail_is_promised_once_to_nobody() -> None:
    for name in ("manual", "email"):
        assert shipped_manifest(name).strength("erasure") == "A1"
    assert "exactly-once" not in shipped_manifest("email").capabilities().semantics
