"""A downstream agent's inbox: Standard Webhooks, verified, each webhook-id taken once."""

from __future__ import annotations

import base64
import hmac
import time

from .api import Request, Vendor, Verb, item, says
from .books import Item

TOLERANCE_S = 300


def signature(secret: str, name: str, at: str, body: bytes) -> str:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join((name.encode(), at.encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def verified(request: Request, secret: str, now: float | None = None) -> bool:
    """All three headers, a fresh timestamp, and one good v1 signature among those given."""
    name, at, given = (request.headers.get(f"webhook-{part}", "") for part in ("id", "timestamp", "signature"))
    if not (name and at.isdigit() and given) or len(secret.removeprefix("whsec_")) == 0:
        return False
    if abs((now if now is not None else time.time()) - int(at)) > TOLERANCE_S:
        return False
    expected = signature(secret, name, at, request.body)
    return any(hmac.compare_digest(each.encode(), expected.encode()) for each in given.split(" "))


def _event(request: Request) -> list[Item]:
    """Structured mode has the attributes in the body, binary mode in ce- headers; a batch is an array."""
    body = request.json()
    found = []
    for each in body if isinstance(body, list) else [body]:
        attribute = {
            name: each.get(name) or request.headers.get(f"ce-{name}") for name in ("subject", "source", "sequence")
        }
        if each.get("type") == "tidings.ping":  # says that it could; it is about nobody
            continue
        name = each.get("id") if isinstance(body, list) else request.headers["webhook-id"]
        found.append(item(attribute["subject"], each, name, (attribute["source"], attribute["sequence"])))
    return found


CONCIERGE = Vendor("concierge", (Verb("event", "POST", r"/?", _event, says(202), 100, 413, "ignored"),), verified)
