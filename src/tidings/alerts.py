"""Telling a person that something needs them, and when it no longer does: by webhook or e-mail, once an hour per matter.

An alert names a source, a lane or a subscriber and counts; it never carries personal data, so `subject` and `detail` are held
to short plain text and anything that looks like an address or a long number is blotted out. A failed alert is reported
to the caller and tried again at the next raise; it never stops the run.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import smtplib
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from tidings.channels import NetworkLike
from tidings.channels.addresses import BadTarget, Network, Target, check_addresses, is_allowed
from tidings.channels.client import Answer, Client, Request, shared_client
from tidings.channels.signing import decode_secrets, sign
from tidings.channels.wire import resolve_within, system_resolver
from tidings.matters import ANSWER_WITHIN, KINDS, MATTERS, Kind, Matter, runbook

RUNBOOKS = "docs/runbooks"
QUIET_S = 3600.0
TIMEOUT_S = 10.0
_ADDRESS = re.compile(r"[^\s@<>\"']+@[^\s@<>\"']+")
_LONG_NUMBER = re.compile(r"(?<![\w-])\+?\d[\d ().-]{6,}\d(?![\w-])")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class Notice:
    """What is told: a matter, what it is about, and where its page is."""

    kind: Kind
    subject: str
    detail: str
    at: float
    runbook: str
    cleared: bool = False

    @property
    def matter(self) -> Matter:
        return MATTERS[self.kind]

    @property
    def title(self) -> str:
        return f"Over: {self.matter.title}" if self.cleared else self.matter.title

    @property
    def answer_by(self) -> str | None:
        within = ANSWER_WITHIN[self.matter.severity]
        return None if within is None or self.cleared else _moment(self.at + within)


@dataclass(frozen=True)
class Sent:
    """What became of one alert at one receiver. `code` is ours or the protocol's; nothing of the receiver's text."""

    receiver: str
    ok: bool
    code: str


class Alerts:
    """Receivers from `settings.alerts`. `secrets` maps references to values; `clock` is the time of day."""

    def __init__(
        self,
        receivers: Sequence[Any],
        secrets: Mapping[str, str],
        network: NetworkLike,
        *,
        clock: Callable[[], float] = time.time,
        client: Client | None = None,
        runbooks: str = RUNBOOKS,
    ) -> None:
        self._runbooks = runbooks
        self._receivers, self._secrets, self._allow = tuple(receivers), secrets, tuple(network.allow)
        self._client = client
        self._clock = clock
        self._raised: dict[tuple[str, str, int], float] = {}
        self._lock = threading.Lock()

    def raise_(self, kind: Kind, subject: str, detail: str = "") -> list[Sent]:
        """Tell everyone who asked for this kind, unless they were told of this subject within the hour."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not an alert; there are {', '.join(KINDS)}")
        now = self._clock()
        notice = self._notice(kind, subject, detail, now)
        found = []
        for place, receiver in enumerate(self._receivers):
            if _wants(receiver, kind) and self._due((kind, notice.subject, place), now):
                sent = self._send(receiver, notice)
                if not sent.ok:
                    self._forget((kind, notice.subject, place))
                found.append(sent)
        return found

    def clear(self, kind: Kind, subject: str, detail: str = "") -> list[Sent]:
        """Tell everyone who asked for this kind that it is over; if it comes again, it is told at once."""
        notice = replace(self._notice(kind, subject, detail, self._clock()), cleared=True)
        wanting = [(place, receiver) for place, receiver in enumerate(self._receivers) if _wants(receiver, kind)]
        for place, _ in wanting:
            self._forget((kind, notice.subject, place))
        return [self._send(receiver, notice) for _, receiver in wanting]

    def _notice(self, kind: Kind, subject: str, detail: str, now: float) -> Notice:
        return Notice(kind, plain(subject, 120), plain(detail, 500), now, runbook(kind, self._runbooks))

    def _due(self, key: tuple[str, str, int], now: float) -> bool:
        with self._lock:
            if now - self._raised.get(key, -QUIET_S) < QUIET_S:
                return False
            # Matters of the last hour only: the memory of the others is of no use.
            self._raised = {one: at for one, at in self._raised.items() if now - at < QUIET_S}
            self._raised[key] = now
            return True

    def _forget(self, key: tuple[str, str, int]) -> None:
        with self._lock:
            self._raised.pop(key, None)

    def _send(self, receiver: Any, notice: Notice) -> Sent:
        try:
            if receiver.kind == "webhook":
                return self._webhook(receiver, notice)
            return self._email(receiver, notice)
        except Exception as error:  # an alert that cannot be sent must not become a second failure
            return Sent(receiver.kind, False, type(error).__name__)

    def _webhook(self, receiver: Any, notice: Notice) -> Sent:
        body = json.dumps(alert(notice), separators=(",", ":"), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", "webhook-id": alert_id(notice)}
        if receiver.secret:
            keys = decode_secrets(self._secrets[receiver.secret])
            headers.update(sign(keys, headers["webhook-id"], int(notice.at), body))
        client = self._client or shared_client(self._allow)
        found = client.request(Request("POST", receiver.url, headers, body), TIMEOUT_S)
        if isinstance(found, Answer):
            return Sent("webhook", 200 <= found.status < 300, f"status_{found.status}")
        return Sent("webhook", False, found.code)

    def _email(self, receiver: Any, notice: Notice) -> Sent:
        host, _, port = receiver.smtp.rpartition(":")
        host = host.strip("[]")
        try:
            address, inside = _mail_address(host, int(port), self._allow)
        except BadTarget as reason:
            return Sent("email", False, reason.code)
        context = ssl.create_default_context()
        implicit = int(port) == 465
        server = smtplib.SMTP_SSL(timeout=TIMEOUT_S, context=context) if implicit else smtplib.SMTP(timeout=TIMEOUT_S)
        with server:
            # The connection goes to the checked address; the certificate must speak of the name.
            server._host = host  # type: ignore[attr-defined]
            server.connect(address, int(port))
            server.ehlo()
            if not implicit and server.has_extn("starttls"):
                server.starttls(context=context)
                server.ehlo()
            elif not implicit and not inside:
                return Sent("email", False, "cleartext")
            if receiver.secret:
                user, _, password = self._secrets[receiver.secret].partition(":")
                server.login(user, password)
            refused = server.send_message(mail(receiver, notice))
        return Sent("email", not refused, "partly_refused" if refused else "sent")


def alert(notice: Notice) -> dict[str, Any]:
    """The alert as JSON, in the form that Standard Webhooks advises."""
    data = {
        "state": "cleared" if notice.cleared else "raised",
        "severity": notice.matter.severity,
        "title": notice.title,
        "subject": notice.subject,
        "detail": notice.detail,
        "answer_by": notice.answer_by,
        "what_now": notice.matter.advice,
        "runbook": notice.runbook,
    }
    return {"type": f"tidings.alert.{notice.kind}", "timestamp": _moment(notice.at), "data": data}


def alert_id(notice: Notice) -> str:
    """The same for every telling of one matter in one hour, so that a receiver can drop a repeat."""
    state = "\x1fcleared" if notice.cleared else ""
    text = f"{notice.kind}\x1f{notice.subject}\x1f{int(notice.at // QUIET_S)}{state}"
    return "alert_" + hashlib.sha256(text.encode()).hexdigest()[:32]


def mail(receiver: Any, notice: Notice) -> EmailMessage:
    """The alert as a plain-text message."""
    message = EmailMessage()
    message["Subject"] = f"[tidings {notice.matter.severity}] {notice.title}: {notice.subject}"
    message["From"] = receiver.from_
    message["To"] = ", ".join(receiver.to)
    message["Date"] = format_datetime(datetime.fromtimestamp(notice.at, UTC))
    message["Message-ID"] = f"<{alert_id(notice)}@tidings.invalid>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(
        f"{notice.title}.\n\nabout:    {notice.subject}\ndetail:   {notice.detail or '-'}\n"
        f"answer:   {notice.answer_by or '-'}\nwhat now: {notice.matter.advice}\nrunbook:  {notice.runbook}\n"
    )
    return message


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def plain(text: str, most: int) -> str:
    """One line of printable text with what looks like an address or a number of a person blotted out."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    line = _ADDRESS.sub("[address]", line)
    line = _LONG_NUMBER.sub(lambda found: found[0] if _DATE.match(found[0]) else "[number]", line)
    return line if len(line) <= most else line[: most - 1] + "…"


def _wants(receiver: Any, kind: Kind) -> bool:
    # A stopped source is told to whoever asked about silent ones: it is silent for good.
    return bool(
        {kind, MATTERS[kind].severity, "silent_source" if kind == "source_stopped" else kind} & set(receiver.on)
    )


def _mail_address(host: str, port: int, allow: Sequence[str]) -> tuple[str, bool]:
    """The mail server's address under the same guard as every other connection, and whether it is one of `allow`."""
    networks: list[Network] = [ipaddress.ip_network(text) for text in allow]
    found = resolve_within(system_resolver, host, port, TIMEOUT_S)
    # Mail has ports and a TLS of its own, so only the address is asked about here.
    address = check_addresses(Target("https", host, 443, "/"), found, networks)[0]
    return str(address), is_allowed(address, networks)
