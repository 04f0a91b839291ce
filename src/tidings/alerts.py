"""Telling a person that something needs them: by webhook or e-mail, once an hour per matter.

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
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Literal, get_args

from tidings.channels import NetworkLike
from tidings.channels.addresses import BadTarget, Network, Target, check_addresses, is_allowed
from tidings.channels.client import Answer, Client, Request, shared_client
from tidings.channels.signing import decode_secrets, sign
from tidings.channels.wire import resolve_within, system_resolver

Kind = Literal["deadline_at_risk", "breaker_open", "dead_letters", "silent_source", "source_stopped"]
KINDS: tuple[Kind, ...] = get_args(Kind)
QUIET_S = 3600.0
TIMEOUT_S = 10.0
_ADDRESS = re.compile(r"[^\s@<>\"']+@[^\s@<>\"']+")
_LONG_NUMBER = re.compile(r"(?<![\w-])\+?\d[\d ().-]{6,}\d(?![\w-])")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")

TITLES: dict[Kind, str] = {
    "deadline_at_risk": "A deadline is at risk",
    "breaker_open": "A subscriber is not answering",
    "dead_letters": "Deliveries were given up",
    "silent_source": "A source has gone silent",
    "source_stopped": "A source has stopped",
}
ADVICE: dict[Kind, str] = {
    "deadline_at_risk": "See `tidings lanes`; a lane behind its deadline needs a rate, a mended subscriber or a decision.",
    "breaker_open": "See `tidings lanes`; deliveries wait and go on by themselves when it answers again.",
    "dead_letters": "See `tidings dead-letters`; each can be sent again or closed with a reason.",
    "silent_source": "See `tidings status`; is the producer running, and does it still write to the same place?",
    "source_stopped": "See `tidings source`; it does not go on without a person.",
}


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
    ) -> None:
        self._receivers, self._secrets, self._allow = tuple(receivers), secrets, tuple(network.allow)
        self._client = client
        self._clock = clock
        self._raised: dict[tuple[str, str, int], float] = {}
        self._lock = threading.Lock()

    def raise_(self, kind: Kind, subject: str, detail: str = "") -> list[Sent]:
        """Tell everyone who asked for this kind, unless they were told of this subject within the hour."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not an alert; there are {', '.join(KINDS)}")
        subject, detail = plain(subject, 120), plain(detail, 500)
        now = self._clock()
        found = []
        for place, receiver in enumerate(self._receivers):
            if kind in _wanted(receiver) and self._due((kind, subject, place), now):
                sent = self._send(receiver, kind, (subject, detail), now)
                if not sent.ok:
                    self._forget((kind, subject, place))
                found.append(sent)
        return found

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

    def _send(self, receiver: Any, kind: Kind, says: tuple[str, str], now: float) -> Sent:
        try:
            if receiver.kind == "webhook":
                return self._webhook(receiver, kind, says, now)
            return self._email(receiver, kind, says, now)
        except Exception as error:  # an alert that cannot be sent must not become a second failure
            return Sent(receiver.kind, False, type(error).__name__)

    def _webhook(self, receiver: Any, kind: Kind, says: tuple[str, str], now: float) -> Sent:
        body = json.dumps(alert(kind, *says, now), separators=(",", ":"), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", "webhook-id": alert_id(kind, says[0], now)}
        if receiver.secret:
            keys = decode_secrets(self._secrets[receiver.secret])
            headers.update(sign(keys, headers["webhook-id"], int(now), body))
        client = self._client or shared_client(self._allow)
        found = client.request(Request("POST", receiver.url, headers, body), TIMEOUT_S)
        if isinstance(found, Answer):
            return Sent("webhook", 200 <= found.status < 300, f"status_{found.status}")
        return Sent("webhook", False, found.code)

    def _email(self, receiver: Any, kind: Kind, says: tuple[str, str], now: float) -> Sent:
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
            refused = server.send_message(mail(receiver, kind, says, now))
        return Sent("email", not refused, "partly_refused" if refused else "sent")


def alert(kind: Kind, subject: str, detail: str, now: float) -> dict[str, Any]:
    """The alert as JSON, in the form that Standard Webhooks advises."""
    moment = datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z")
    data = {"title": TITLES[kind], "subject": subject, "detail": detail, "what_now": ADVICE[kind]}
    return {"type": f"tidings.alert.{kind}", "timestamp": moment, "data": data}


def alert_id(kind: Kind, subject: str, now: float) -> str:
    """The same for every telling of one matter in one hour, so that a receiver can drop a repeat."""
    text = f"{kind}\x1f{subject}\x1f{int(now // QUIET_S)}"
    return "alert_" + hashlib.sha256(text.encode()).hexdigest()[:32]


def mail(receiver: Any, kind: Kind, says: tuple[str, str], now: float) -> EmailMessage:
    """The alert as a plain-text message."""
    subject, detail = says
    message = EmailMessage()
    message["Subject"] = f"[tidings] {TITLES[kind]}: {subject}"
    message["From"] = receiver.from_
    message["To"] = ", ".join(receiver.to)
    message["Date"] = format_datetime(datetime.fromtimestamp(now, UTC))
    message["Message-ID"] = f"<{alert_id(kind, subject, now)}@tidings.invalid>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(
        f"{TITLES[kind]}.\n\nabout:    {subject}\ndetail:   {detail or '-'}\nwhat now: {ADVICE[kind]}\n"
    )
    return message


def plain(text: str, most: int) -> str:
    """One line of printable text with what looks like an address or a number of a person blotted out."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    line = _ADDRESS.sub("[address]", line)
    line = _LONG_NUMBER.sub(lambda found: found[0] if _DATE.match(found[0]) else "[number]", line)
    return line if len(line) <= most else line[: most - 1] + "…"


def _wanted(receiver: Any) -> Sequence[str]:
    # A stopped source is told to whoever asked about silent ones: it is silent for good.
    on = tuple(receiver.on)
    return (*on, "source_stopped") if "silent_source" in on else on


def _mail_address(host: str, port: int, allow: Sequence[str]) -> tuple[str, bool]:
    """The mail server's address under the same guard as every other connection, and whether it is one of `allow`."""
    networks: list[Network] = [ipaddress.ip_network(text) for text in allow]
    found = resolve_within(system_resolver, host, port, TIMEOUT_S)
    # Mail has ports and a TLS of its own, so only the address is asked about here.
    address = check_addresses(Target("https", host, 443, "/"), found, networks)[0]
    return str(address), is_allowed(address, networks)
