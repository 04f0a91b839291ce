"""Calls of consent platforms: proved over the bytes as they came, taken once, and handed on.

A request of a person goes to the desk; a change of consent goes into the inbox of the operator's source of that dialect and runs like
every other change. The proof is a secret header, or a keyed digest of the body; where a platform publishes neither a signature nor a
time, a copy of an old call cannot be told from the call itself: it has no second effect, because requests go by the platform's own
id and changes by its message id.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidings.api.bodies import body_of
from tidings.api.errors import ApiError
from tidings.api.nonces import Full, Nonces, Replayed
from tidings.errors import Refused
from tidings.rights import intake, platforms
from tidings.rights.asks import BadAsk
from tidings.rights_shapes import ConsentHook
from tidings.strict import strict_value

if TYPE_CHECKING:
    from tidings.api.app import Api


class ConsentRoutes:
    def __init__(self, api: Api) -> None:
        self.api, self.nonces = api, Nonces(api.settings.data_path)

    def routes(self) -> list[Route]:
        return [Route("/v1/consent/{platform}", self.take, methods=["POST"])]

    async def take(self, request: Request) -> Response:
        who = request.client.host if request.client else ""
        if wait := self.api.failed.wait(who, 0):
            raise ApiError("too_often", wait)
        body = await body_of(request)
        try:
            hook = self._proved(str(request.path_params["platform"]), who, dict(request.headers), body)
        except ApiError:
            self.api.failed.wait(who)
            raise
        return JSONResponse(await run_in_threadpool(self._taken, hook, body), 202)

    def _proved(self, platform: str, who: str, headers: dict[str, str], body: bytes) -> ConsentHook:
        """Whoever cannot be checked is told the same as whoever proved nothing."""
        rights = self.api.settings.operator.rights
        hook = next((one for one in rights.consent if one.platform == platform), None) if rights else None
        if hook is None or not _from(hook, who):
            raise ApiError("wrong_signature")
        try:
            secret = self.api.settings.secret(hook.secret).reveal().strip().encode()
        except Refused:
            raise ApiError("wrong_signature") from None
        name = hook.header or platforms.catalogue()["platforms"][platform]["header"]
        given = headers.get(name.lower(), "").removeprefix(hook.prefix).strip().encode()
        wanted = _digest(hook, secret, body) if hook.proof == "hmac" else secret
        if not wanted or not hmac.compare_digest(given, wanted):
            raise ApiError("wrong_signature")
        return hook

    def _taken(self, hook: ConsentHook, body: bytes) -> dict[str, Any]:
        try:
            said = strict_value(body)
        except ValueError:
            raise ApiError("not_json") from None
        messages = said if isinstance(said, list) else [said]
        if not messages or not all(isinstance(one, dict) for one in messages):
            raise ApiError("not_json")
        now = self.api.clock()
        try:
            with self.nonces.once(f"consent/{hook.platform}", hashlib.sha256(body).hexdigest(), now):
                return self._handed(hook, messages, datetime.fromtimestamp(now, UTC))
        except Replayed:  # a platform that got no answer sends again, and would for ever if it were refused
            return {"requests": [], "changes": 0, "already": True}
        except Full:
            raise ApiError("busy", 30) from None

    def _handed(self, hook: ConsentHook, messages: list[dict[str, Any]], now: datetime) -> dict[str, Any]:
        from tidings.sources import inbox

        calls = [(one, platforms.read(hook.platform, one, now)) for one in messages]
        try:
            requests = [intake.hand_in(self.api.settings, ask) for _, call in calls for ask in call.asks]
        except BadAsk:
            raise ApiError("bad_signal") from None
        except Refused:
            raise ApiError("busy", 60) from None
        changes = [json.dumps(one, ensure_ascii=False) for one, call in calls if not call.request]
        if changes:
            inbox.accept(self.api.settings.data_path / "inbox" / hook.source, self.api.settings.keyring, changes)
        if any(
            call.lacks for _, call in calls
        ):  # after the others, which count once: somebody must see that this one did not come in
            raise ApiError("bad_signal")
        return {"requests": requests, "changes": len(changes), "already": False}


def _from(hook: ConsentHook, who: str) -> bool:
    if not hook.networks:
        return not platforms.catalogue()["platforms"][hook.platform].get("networks_needed")
    try:
        address = ipaddress.ip_address(who)
    except ValueError:
        return False
    return any(address in ipaddress.ip_network(one) for one in hook.networks)


def _digest(hook: ConsentHook, secret: bytes, body: bytes) -> bytes:
    mac = hmac.new(secret, body, hashlib.sha256).digest()
    return mac.hex().encode() if hook.encoding == "hex" else base64.b64encode(mac)
