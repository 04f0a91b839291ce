"""Answering later: a signed callback that says which events were done and which failed.

The same `message_id` makes a repeat harmless: the second one is told that it was seen (409), which is as good as a yes.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from tidings_receiver.receiver import Taken
from tidings_receiver.signatures import Key, sign

MOST_ACKS = 1_000


class CallbackFailed(Exception):
    """The sender did not take the callback; `status` is 0 when it could not be reached. Send it again under the same id."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(status)


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """A signed message is for one address."""


def send_callback(
    url: str, secret: str, taken: Sequence[Taken], *, message_id: str = "", timeout_s: float = 15.0
) -> str:
    """Tell the sender what became of these events; the id under which it may be repeated."""
    if not 0 < len(taken) <= MOST_ACKS:
        raise ValueError(f"a callback answers for 1 to {MOST_ACKS} events")
    if not url.startswith(("https://", "http://")):
        raise ValueError("a callback goes to an http or https address")
    good = ("ok", "duplicate", "stale")
    acks = [{"id": t.id, "status": "ok" if t.result in good else "failed", "reason": t.reason} for t in taken]
    body = json.dumps({"acks": acks}, separators=(",", ":")).encode()
    message_id = message_id or f"cb_{secrets.token_hex(16)}"
    headers = {"Content-Type": "application/json", **sign(Key.read(secret), message_id, int(time.time()), body)}
    try:
        request = Request(url, body, headers, method="POST")  # noqa: S310
        with build_opener(_Stay()).open(request, timeout=timeout_s):
            return message_id
    except HTTPError as error:
        error.close()
        if error.code == 409:
            return message_id
        raise CallbackFailed(error.code) from None
    except (URLError, OSError):
        raise CallbackFailed(0) from None
