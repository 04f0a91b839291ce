"""One mail to one person, through the mail server of the subscriber that `rights.letters_by` names.

Acknowledges: the mail server took it, nothing more. What breaks it: a mail that is thrown away after it was taken. A subject line never
says who somebody is or what they asked for.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from email.message import EmailMessage
from email.policy import SMTP
from typing import TYPE_CHECKING

from tidings.channels.addresses import BadTarget
from tidings.channels.email import EmailChannel, Post, ended, handed_over
from tidings.channels.line import NotReached
from tidings.errors import Refused
from tidings.plan import open_subscriber

if TYPE_CHECKING:
    from tidings.settings import Settings

TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Letter:
    """What is written to whom; `name` becomes the Message-ID, so that a repeat can be seen to be one."""

    name: str
    to: str
    subject: str
    text: str


def post_of(settings: Settings) -> Post | None:
    """The mail server by which people are written to, if there is one."""
    name = settings.rights.letters_by
    if name is None:
        return None
    channel = open_subscriber(settings, name) if name in settings.subscribers else None
    if not isinstance(channel, EmailChannel):
        found = f"rights.letters_by: {name}, which is no subscriber of the channel email"
        raise Refused("letters_by", found, "a subscriber whose manifest is email", "Mend tidings.yaml.")
    return channel.post


def mailed(post: Post, letter: Letter, timeout_s: float = TIMEOUT_S) -> str:
    """`accepted`, or how it ended otherwise: transient, terminal, in_doubt, refused."""
    deadline = time.monotonic() + timeout_s
    try:
        message = _message(post, letter)
        server = post.connected(deadline)
    except BadTarget:
        return "refused"
    except NotReached:
        return "transient"
    except (ValueError, UnicodeError):
        return "terminal"  # an address that no mail can carry
    try:
        with suppress(UnicodeError):
            return handed_over(server, replace(post, receivers=(letter.to,)), message, letter.name, deadline).result
        return "terminal"
    finally:
        ended(server)


def _message(post: Post, letter: Letter) -> EmailMessage:
    message = EmailMessage(policy=SMTP.clone(max_line_length=900))
    message["From"], message["To"], message["Subject"] = post.sender, letter.to, letter.subject
    message["Message-ID"] = f"<{letter.name}@{post.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(letter.text)
    return message
