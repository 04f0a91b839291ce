"""Shopify's privacy webhooks: a customer wants a copy, a customer is to be forgotten, a shop is to be forgotten.

Signed with the app's client secret over the bytes as they came (`X-Shopify-Hmac-Sha256`). The signature covers the body alone: topic,
shop and id stand in headers that anybody who saw one message could change. So the topic must fit the body, the shop of the body counts,
and a body is known again by its digest, however often and under whatever id it comes; it is answered with 200 and asks once.

| topic | becomes |
|---|---|
| customers/data_request | access, verified: the shop vouches |
| customers/redact | erasure, verified |
| shop/redact | erasure of a whole shop, which waits for a human: no person is named. `done` with evidence ends it |

What breaks it: a client secret in other hands.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidings.api.bodies import body_of
from tidings.api.errors import ApiError
from tidings.errors import Refused
from tidings.rights.asks import SHOP, Ask, BadAsk, Identifier
from tidings.rights.intake import hand_in
from tidings.strict import strict_value

if TYPE_CHECKING:
    from tidings.api.app import Api
    from tidings.settings import Settings

# Topic → kind, how sure we are, and the field that only its body has.
TOPICS: Mapping[str, tuple[str, str, str]] = {
    "customers/data_request": ("access", "verified", "data_request"),
    "customers/redact": ("erasure", "verified", "orders_to_redact"),
    "shop/redact": ("erasure", "claimed", ""),
}
MARKS = ("data_request", "orders_to_redact")


class Shopify:
    def __init__(self, api: Api) -> None:
        self.api, self.settings = api, api.settings

    async def take(self, request: Request) -> Response:
        who = request.client.host if request.client else ""
        if wait := self.api.failed.wait(who, 0):
            raise ApiError("too_often", wait)
        body, headers = await body_of(request), request.headers
        if not await run_in_threadpool(self._signed, headers.get("x-shopify-hmac-sha256", ""), body):
            self.api.failed.wait(who)
            raise ApiError("wrong_signature")
        ask = ask_of(self.settings, headers.get("x-shopify-topic", "").lower(), body)
        try:
            name = await run_in_threadpool(hand_in, self.settings, ask)
        except BadAsk:
            raise ApiError("bad_webhook") from None
        except Refused as refused:
            raise ApiError("busy" if refused.code == "intake_full" else "bad_webhook", 60) from None
        return JSONResponse({"id": name})

    def _signed(self, given: str, body: bytes) -> bool:
        shopify = self.settings.rights.shopify
        assert shopify is not None
        try:
            keys = self.settings.secret(shopify.secret).reveal().split()  # two while one replaces the other
        except Refused:
            return False
        found = False
        for key in keys:
            right = base64.b64encode(hmac.new(key.encode(), body, hashlib.sha256).digest())
            found |= hmac.compare_digest(right, given.encode("latin-1", "replace"))
        return found


def ask_of(settings: Settings, topic: str, body: bytes) -> Ask:
    """The request of a webhook whose signature fits."""
    shopify = settings.rights.shopify
    assert shopify is not None
    try:
        said = strict_value(body)
    except ValueError:
        raise ApiError("not_json") from None
    if not isinstance(said, dict) or topic not in TOPICS:
        raise ApiError("bad_webhook")
    kind, assurance, mark = TOPICS[topic]
    if [one for one in MARKS if one in said] != ([mark] if mark else []) or ("customer" in said) != bool(mark):
        raise ApiError("bad_webhook")
    if str(said.get("shop_domain", "")).lower() not in {one.lower() for one in shopify.shops}:
        raise ApiError("wrong_shop")
    people = _people(settings, said["customer"]) if mark else _named((SHOP, said.get("shop_id")))
    if not people:
        raise ApiError("bad_webhook")
    return Ask(
        kind=kind,
        identifiers=people,
        way="shopify",
        received=datetime.now(UTC),
        assurance=assurance,
        reference=hashlib.sha256(body).hexdigest(),
        agent=str(said["shop_domain"]).lower(),
    )


def _people(settings: Settings, customer: Any) -> tuple[Identifier, ...]:
    if not isinstance(customer, dict):
        return ()
    rights = settings.rights
    assert rights.shopify is not None
    entity = rights.shopify.entity or rights.entity or next(iter(settings.entities))
    found = [(entity, customer.get("id")), ("email", customer.get("email")), ("phone", customer.get("phone"))]
    return _named(*found)


def _named(*found: tuple[str, Any]) -> tuple[Identifier, ...]:
    """Those that are there; nobody at all when one of them is neither text nor a number."""
    given = [(kind, value) for kind, value in found if value not in (None, "")]
    if any(isinstance(value, bool) or not isinstance(value, str | int) for _, value in given):
        return ()
    return tuple(Identifier(kind, str(value)) for kind, value in given)
