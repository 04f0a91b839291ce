"""What was said to a subscriber about one member and what came back: what a person needs to see when a delivery was given up.

It holds this member's part of the request alone, never another's; of an answer to several members only the status. Credentials
are not in it: authentication is added to a request after this is taken from it, and a secret that a manifest puts into a body is
blotted out. It is personal data all the same and leaves a channel only inside an outcome, to be sealed at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from tidings.channels.client import Answer, Fault, Request

MOST_ANSWER = 8 * 1024
MOST_BODY = 256 * 1024
BLOT = "[secret]"


@dataclass(frozen=True)
class Transcript:
    """One request and its answer; `fault` says why there is none."""

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    status: int = 0
    answer: bytes = field(default=b"", repr=False)
    cut: bool = False  # the answer or the body went on
    fault: str = ""

    def encode(self) -> bytes:
        """As it is sealed."""
        request = {"method": self.method, "url": self.url, "headers": dict(self.headers), "body": _text(self.body)}
        response = {"status": self.status, "body": _text(self.answer), "fault": self.fault}
        return json.dumps({"request": request, "response": response, "cut": self.cut}, ensure_ascii=False).encode()


def exchanged(
    request: Request, found: Answer | Fault, *, body: bytes | None = None, alone: bool = True, secret: str = ""
) -> Transcript:
    """`request` without its credentials; `body` is this member's part, and `alone` whether the answer is about it only."""
    whole = request.body if body is None else body
    said = found.body if isinstance(found, Answer) and alone else b""
    cut = len(whole) > MOST_BODY or len(said) > MOST_ANSWER or (isinstance(found, Answer) and found.cut)
    return Transcript(
        method=request.method,
        url=_blotted(request.url, secret),
        headers={name: _blotted(value, secret) for name, value in request.headers.items()},
        body=_blotted(_text(whole[:MOST_BODY]), secret).encode() if secret else whole[:MOST_BODY],
        status=found.status if isinstance(found, Answer) else 0,
        answer=_blotted(_text(said[:MOST_ANSWER]), secret).encode() if secret else said[:MOST_ANSWER],
        cut=cut,
        fault=found.code if isinstance(found, Fault) else "",
    )


def _blotted(text: str, secret: str) -> str:
    if not secret:
        return text
    inside = json.dumps(secret, ensure_ascii=False)[1:-1]
    for form in {secret, quote(secret, safe=""), inside}:
        text = text.replace(form, BLOT)
    return text


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
