"""Signals over HTTP: sites and tag managers say what a person's browser said, and hear what it means before they fire anything.

The answer comes after what the signal asks for is durable in the desk's inbox, so a page that waits for it lets nothing out first.
The token is of the scope `signals`: it opens nothing else, and no other token opens this.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidings.api.bodies import body_of
from tidings.api.errors import ApiError
from tidings.errors import Refused
from tidings.rights import intake, signals
from tidings.rights.applied import Applied
from tidings.rights.asks import BadAsk
from tidings.rights.bits import BadSignal
from tidings.strict import strict_value

if TYPE_CHECKING:
    from tidings.api.app import Api

SCOPE = "signals"
BODY_BYTES = 65_536


class SignalRoutes:
    def __init__(self, api: Api) -> None:
        self.api = api
        self._applied: Applied | None = None

    def routes(self) -> list[Route]:
        return [
            Route("/v1/signals", self.take, methods=["POST"]),
            Route("/v1/signals", self.tally, methods=["GET"]),
            Route("/.well-known/gpc.json", self.gpc, methods=["GET"]),
        ]

    @property
    def applied(self) -> Applied:
        if self._applied is None:
            self._applied = Applied(self.api.settings)
        return self._applied

    async def take(self, request: Request) -> Response:
        agent = self._admit(request)
        body = await body_of(request, BODY_BYTES)
        header = request.headers.get("sec-gpc")
        return JSONResponse(await run_in_threadpool(self._taken, body, header, agent), 202, _PRIVATE)

    async def tally(self, request: Request) -> Response:
        self._admit(request)
        return JSONResponse({"applied": await run_in_threadpool(self.applied.rows)}, 200, _PRIVATE)

    async def gpc(self, request: Request) -> Response:
        rights = self.api.settings.operator.rights
        if rights is None or rights.gpc_since is None:
            raise ApiError("not_found")
        return JSONResponse({"gpc": True, "lastUpdate": rights.gpc_since})

    def _admit(self, request: Request) -> str:
        api, who = self.api, request.client.host if request.client else ""
        if wait := api.failed.wait(who, 0):
            raise ApiError("too_often", wait)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        holder = api.tokens.holder(token.strip()) if scheme.lower() == "bearer" and token else None
        scope, _, name = (holder or "").partition(":")
        if scope != SCOPE or not name:
            api.failed.wait(who)
            raise ApiError("not_yours" if holder else "wrong_token" if token else "no_token")
        if wait := api.asked.wait(holder or ""):
            raise ApiError("too_often", wait)
        return name

    def _taken(self, body: bytes, header: str | None, agent: str) -> dict[str, Any]:
        try:
            said = strict_value(body)
        except ValueError:
            raise ApiError("not_json") from None
        if self.api.settings.operator.rights is None:
            raise ApiError("not_found")
        now = datetime.fromtimestamp(self.api.clock(), UTC)
        try:
            if isinstance(said, dict) and signals.sec_gpc(header):
                said = said | {"gpc": True}
            signal = signals.Signal.of(said)
            heard = signals.hear(signal)
            wanted = [ask.checked() for ask in signals.asks(signal, heard, now, agent)]
        except (BadSignal, BadAsk):
            raise ApiError("bad_signal") from None
        fresh = self.applied.fresh(wanted, now)
        try:
            requests = [{"kind": ask.kind, "request": intake.hand_in(self.api.settings, ask)} for ask in fresh]
        except BadAsk:
            raise ApiError("bad_signal") from None
        except Refused:
            raise ApiError("busy", 60) from None
        self.applied.note(signal, heard, fresh, now)
        means = [{"kind": one.kind, "scope": one.scope, "said_by": one.said_by} for one in heard.meanings]
        told: dict[str, Any] = {"means": means, "granted": heard.granted, "unread": heard.unread}
        return told | {"requests": requests, "known": bool(signal.identifiers), "again": len(wanted) - len(fresh)}


_PRIVATE = {"Cache-Control": "no-store"}
