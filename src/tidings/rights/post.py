"""How letters leave: by the operator's e-mail subscriber, or as a task for a person.

Before a letter leaves, the step that says so is committed; after it, the step that says what became of it. A crash in between leaves a
letter in doubt, which a person takes over: a letter leaves at most once by itself. The address is opened for the one letter and kept nowhere.
"""

from __future__ import annotations

import re
import smtplib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from typing import TYPE_CHECKING

from tidings.channels import open_channel
from tidings.channels.addresses import BadTarget
from tidings.channels.email import EmailChannel, Post, ended, handed_over
from tidings.channels.line import NotReached
from tidings.errors import Refused
from tidings.rights.book import Request
from tidings.rights.clocks import Laws, clocks_of
from tidings.rights.drafts import Draft
from tidings.rights.letters import Letter, Sender, owed, sending, sent, task, texts, unsettled, written
from tidings.rights_shapes import Rights

if TYPE_CHECKING:
    from tidings.settings import Settings

AT_ONCE = 20  # letters of one round, so that the desk does not stand still for them
WITHIN_S = 20.0
_MAIL = re.compile(r"[^\s@<>\",;:\\]{1,64}@[A-Za-z0-9.-]{1,255}")


@dataclass(frozen=True)
class Ready:
    """A letter with where it goes."""

    letter: Letter
    to: str


@dataclass(frozen=True)
class Office:
    """Writes what is owed and hands it to the mail server, if there is one."""

    laws: Laws
    sender: Sender
    post: Post | None = None

    def prepare(
        self, requests: Iterable[Request], contact_of: Callable[[Request], str], now: datetime
    ) -> tuple[list[Draft], list[Ready]]:
        """Steps to commit first, and what may leave after they are committed."""
        drafts: list[Draft] = []
        ready: list[Ready] = []
        for request in requests:
            drafts += unsettled(request, now)
            for kind in owed(request, self.laws, now) if len(ready) < AT_ONCE else ():
                to = contact_of(request) if self.post is not None else ""
                if self.post is not None and _MAIL.fullmatch(to):
                    letter = written(request, kind, self.sender, self.laws, now)
                    drafts.append(sending(letter))
                    ready.append(Ready(letter, to))
                elif kind != "receipt" or self._must_confirm(request, now):
                    why = (
                        "No address that mail goes to."
                        if self.post
                        else "No subscriber for letters (`rights.letters_by`)."
                    )
                    drafts.append(task(request, kind, why))
        return drafts, ready

    def give(self, ready: Sequence[Ready]) -> list[Draft]:
        """Hand letters over in one session, after their steps are committed; what became of each."""
        if not ready or self.post is None:
            return []
        deadline = time.monotonic() + WITHIN_S
        try:
            server = self.post.connected(deadline)
        except (BadTarget, NotReached) as reason:
            code = reason.code if isinstance(reason, BadTarget) else reason.outcome.code
            return [sent(one.letter, "transient", code) for one in ready]
        try:
            return [self._given(server, self.post, one, deadline) for one in ready]
        finally:
            ended(server)

    def _must_confirm(self, request: Request, now: datetime) -> bool:
        return any(clock.duty == "confirm" for clock in clocks_of(request, self.laws, now))

    def _given(self, server: smtplib.SMTP, post: Post, one: Ready, deadline: float) -> Draft:
        name = f"{one.letter.request}.{one.letter.kind}"
        if time.monotonic() >= deadline:
            return sent(one.letter, "transient", "not_reached")
        own = replace(post, receivers=(one.to,))
        found = handed_over(server, own, _message(post, one, name), name, deadline)
        return sent(one.letter, found.result, found.code)


def _message(post: Post, one: Ready, name: str) -> EmailMessage:
    message = EmailMessage(policy=SMTP.clone(max_line_length=900))
    message["From"], message["To"] = post.sender, one.to
    message["Subject"] = f"{one.letter.subject} [{one.letter.request[:8]}]"
    message["Message-ID"] = f"<{name}@{post.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-replied"
    message.set_content(one.letter.text)
    return message


def sender_of(settings: Settings) -> Sender:
    rights = settings.operator.rights or Rights()
    portfolio = settings.operator.portfolio
    name = portfolio.name if portfolio else settings.operator.tenant
    return Sender(name, rights.contact or name, texts(rights.language, settings.directory))


def office_of(settings: Settings, laws: Laws) -> Office:
    """The office of an operator's folder; a subscriber that is no e-mail is refused."""
    name = (settings.operator.rights or Rights()).letters_by
    if name is None:
        return Office(laws, sender_of(settings))
    expected = "a subscriber whose manifest is email"
    if name not in settings.subscribers:
        raise Refused("letters_by", f"rights.letters_by: {name}", expected, "Name one, or leave it out.")
    channel = open_channel(settings.subscribers[name], settings.secrets_of(name), settings.network)
    if not isinstance(channel, EmailChannel):
        raise Refused("letters_by", f"rights.letters_by: {name}", expected, "Name one, or leave it out.")
    return Office(laws, sender_of(settings), channel.post)
