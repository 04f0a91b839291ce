"""A task for a person, told by e-mail: the channel `email`.

Acknowledges: the mail server's answer to the message is only *accepted* (A1); what counts is the person's word, with
evidence. Orders: not at all. Deduplicates: not at all; a repeat after a doubt is a second mail with the same
Message-ID, which many mail programs show once. The subject line names the task and the event's id and never a person.
The body holds the task, the person's pseudonym and a link; what the event says about the person is in it only with
`vars.personal_data: yes`.

What breaks its guarantee: a mail that is thrown away after it was taken, and a person. Outside `network.allow` the
server must offer TLS.
"""

from __future__ import annotations

import ipaddress
import json
import smtplib
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tidings.channels.addresses import BadTarget, canonical, is_allowed
from tidings.channels.call import Call, Capabilities, Limits, Member, Outcome, in_order, never_raises
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import LOST, PING_S, NotReached, written
from tidings.channels.reach import reachable
from tidings.errors import Refused

GUARANTEE = Guarantee(
    title="E-mail to a person",
    ack="a person's word, with evidence; the mail server's yes is no more than accepted",
    strength="A1",
    order="none",
    dedup="none; a repeat has the same Message-ID",
    breaks="a mail thrown away after it was taken; the person",
)
TASKS = {
    "delete": "Delete this person's data",
    "erasure": "Delete this person's data",
    "suppression": "Stop contacting this person",
    "consent": "Apply this person's consent",
    "email": "Correct this person's e-mail address",
    "phone": "Correct this person's telephone number",
}


@dataclass(frozen=True)
class Post:
    """Where mail is handed in, and how it is written."""

    host: str
    port: int
    tls: bool  # from the first byte; otherwise STARTTLS
    user: str
    password: str = field(repr=False)
    sender: str
    receivers: tuple[str, ...]
    link: str
    personal_data: bool
    network: Sequence[str] = ()
    ca: str | None = None  # a file of certificates to trust instead of the usual ones

    def connected(self, deadline: float) -> smtplib.SMTP:
        """A session that is allowed, encrypted where it must be, and logged in; otherwise NotReached or BadTarget."""
        address = reachable(self.host, self.port, self.network)
        inside = is_allowed(canonical(address), [ipaddress.ip_network(text) for text in self.network])
        context, left = ssl.create_default_context(cafile=self.ca), max(0.1, deadline - time.monotonic())
        server: smtplib.SMTP = (
            smtplib.SMTP_SSL(timeout=left, context=context) if self.tls else smtplib.SMTP(timeout=left)
        )
        try:
            # The connection goes to the checked address; the certificate must speak of the name.
            server._host = self.host  # type: ignore[attr-defined]
            server.connect(address, self.port)
            server.ehlo()
            if not self.tls and server.has_extn("starttls"):
                server.starttls(context=context)
                server.ehlo()
            elif not self.tls and not inside:
                raise BadTarget("cleartext", "outside network.allow a mail server must offer TLS")
            if self.user:
                server.login(self.user, self.password)
        except smtplib.SMTPAuthenticationError:
            server.close()
            raise NotReached("unauthorised", "the mail server does not take the password") from None
        except (smtplib.SMTPException, OSError) as error:
            server.close()
            raise NotReached(LOST, f"no session ({type(error).__name__})") from None
        except BadTarget:
            server.close()
            raise
        return server

    def message(self, member: Member) -> EmailMessage:
        task = TASKS.get(member.change_type, f"Apply this change: {member.change_type}")
        message = EmailMessage(
            policy=SMTP.clone(max_line_length=900)
        )  # not folded: a subject line is read as it stands
        message["From"], message["To"] = self.sender, ", ".join(self.receivers)
        message["Subject"] = f"{task} [{member.event_id}]"
        message["Message-ID"] = f"<{member.event_id}@{self.sender.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        said = [
            f"{task}.",
            "",
            f"event: {member.event_id}",
            f"person: {member.subject}",
            f"change: {member.change_type}",
        ]
        if self.link:
            said += ["", f"Say that it is done: {self.link.replace('{event}', quote(member.event_id, safe=''))}"]
        if self.personal_data:
            said += ["", json.dumps(member.body.get("data"), indent=2, ensure_ascii=False, allow_nan=False)]
        message.set_content("\n".join(said))
        return message


@dataclass(frozen=True)
class EmailChannel:
    post: Post
    limits: Limits

    @property
    def capabilities(self) -> Capabilities:
        return GUARANTEE.capabilities

    @never_raises
    def send(self, call: Call) -> list[Outcome]:
        deadline = time.monotonic() + call.timeout_s
        good, found = written(call.members, "structured", self.limits.max_bytes)
        if not good:
            return in_order(call, found)
        try:
            server = self.post.connected(deadline)
        except BadTarget as reason:
            result: Any = "transient" if reason.code == "dns" else "refused"
            return in_order(call, [*found, *(one.outcome(result, reason.code, reason.detail) for one in good)])
        except NotReached as reason:
            told = reason.outcome
            return in_order(call, [*found, *(one.outcome(told.result, told.code, told.detail) for one in good)])
        try:
            for one in good:
                found.append(self._mailed(server, one.member, deadline))
        finally:
            ended(server)
        return in_order(call, found)

    @never_raises
    def probe(self, call: Call) -> list[Outcome]:
        """A mail server cannot be asked, and a person answers in their own time."""
        doubt = Outcome("", "in_doubt", "no_probe", detail="a mail server cannot be asked")
        waiting = Outcome("", "accepted", "awaiting_person", "A1")
        return [replace(waiting if one.reference else doubt, event_id=one.event_id) for one in call.members]

    def ping(self) -> Outcome:
        try:
            ended(self.post.connected(time.monotonic() + PING_S))
        except BadTarget as reason:
            return Outcome("ping", "refused", reason.code, detail=reason.detail)
        except NotReached as reason:
            return Outcome("ping", "transient", reason.outcome.code, detail=reason.outcome.detail)
        return Outcome("ping", "acknowledged", "ok")

    def close(self) -> None:
        """A session lasts as long as a call."""

    def _mailed(self, server: smtplib.SMTP, member: Member, deadline: float) -> Outcome:
        """One message. Until its last line has left nothing has happened; after it only the answer tells."""
        if time.monotonic() >= deadline:
            return Outcome(
                member.event_id, "transient", "not_reached", detail="the call's time was over before its turn"
            )
        return handed_over(server, self.post, self.post.message(member), member.event_id, deadline)


def handed_over(server: smtplib.SMTP, post: Post, message: EmailMessage, name: str, deadline: float) -> Outcome:
    """Give one message to the mail server, for the receivers of `post`."""
    given = False
    try:
        if server.sock is not None:
            server.sock.settimeout(max(0.1, deadline - time.monotonic()))
        _yes(server.mail(post.sender))
        for receiver in post.receivers:
            _yes(server.rcpt(receiver))
        given = True
        _yes(server.data(message.as_bytes()))
    except smtplib.SMTPResponseException as answer:
        with suppress(smtplib.SMTPException, OSError):
            server.rset()
        result: Any = "transient" if answer.smtp_code < 500 else "terminal"
        return Outcome(name, result, f"smtp_{answer.smtp_code}", detail="the mail server says no")
    except UnicodeError:  # an address outside ASCII: no server that we speak to in ASCII can be told it
        with suppress(smtplib.SMTPException, OSError):
            server.rset()
        return Outcome(name, "terminal", "bad_address", detail="an address that cannot be told to the mail server")
    except (smtplib.SMTPException, OSError) as error:
        lost: Any = "in_doubt" if given else "transient"
        return Outcome(name, lost, LOST, detail=type(error).__name__)
    return Outcome(name, "accepted", "awaiting_person", "A1", reference=message["Message-ID"])


def _yes(answer: tuple[int, bytes]) -> None:
    if not 200 <= answer[0] < 300:
        raise smtplib.SMTPResponseException(answer[0], b"")  # its words may repeat an address


def ended(server: smtplib.SMTP) -> None:
    try:
        server.quit()
    except (smtplib.SMTPException, OSError):
        server.close()


def open_sink(opening: Opening) -> EmailChannel:
    said = opening.variables
    try:
        parts = urlsplit(opening.connection.strip())
        usual = {"smtp": 587, "smtps": 465}[parts.scheme]
        port = parts.port or usual
    except (ValueError, KeyError):
        parts, port = urlsplit(""), 0
    options = dict(parse_qsl(parts.query))
    receivers = tuple(text.strip() for text in said["to"].split(",") if text.strip())
    plain = all("@" in one and one.isprintable() and " " not in one for one in (said["from"], *receivers))
    if not parts.hostname or not receivers or not plain or not set(options) <= {"ca"}:
        expected = "smtp://user:password@host:587 or smtps://…, and vars from and to with addresses"
        raise Refused("sink_connection", "a mail server or an address that cannot be read", expected, "Mend it.")
    return EmailChannel(
        Post(
            host=parts.hostname,
            port=port,
            tls=parts.scheme == "smtps",
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            sender=said["from"],
            receivers=receivers,
            link=said["link"],
            personal_data=said["personal_data"].lower() in ("yes", "true"),
            network=opening.network,
            ca=options.get("ca"),
        ),
        opening.limits,
    )
