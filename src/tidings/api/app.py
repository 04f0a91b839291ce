"""The routes: read, stream and answer for a subscriber's events; signed callbacks. docs/api.md is the same in words.

Every route of a subscriber asks for a token of that subscriber, in the same way, before it looks at anything else. Work that touches
the disk runs in threads, so a slow disk does not hold the door.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tidings.api import cursors, replays
from tidings.api.access import Tokens
from tidings.api.answers import BadAnswer, Said, read_acks, take
from tidings.api.bodies import body_of
from tidings.api.callbacks import Callbacks
from tidings.api.cursors import BadCursor, Place
from tidings.api.doors import Doors
from tidings.api.drp import Business
from tidings.api.errors import ApiError
from tidings.api.nonces import Nonces
from tidings.api.opendsr import Processor
from tidings.api.proof import Proving
from tidings.api.rates import Rates
from tidings.api.rights import rights_routes
from tidings.api.shelf import Shelf
from tidings.settings import Settings
from tidings.stages.envelope import BATCH_TYPE

MOST_EVENTS = 500
LONGEST_WAIT_S = 30.0
LOOK_EVERY_S = 0.25
HEARTBEAT_S = 15.0
STREAM_S = 3_600.0  # a stream is closed after this long; the reader comes back with its Last-Event-ID
MOST_STREAMS = 4  # of one subscriber


@dataclass
class Api:
    """What the routes share."""

    settings: Settings
    public_url: str = ""
    clock: Callable[[], float] = time.time
    asked: Rates = field(default_factory=lambda: Rates(50, 100))  # of one subscriber
    failed: Rates = field(
        default_factory=lambda: Rates(0.5, 20, networks=True)
    )  # wrong tokens and signatures of one address
    doors: Doors = field(default_factory=Doors)  # of the public form
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    streams: dict[str, int] = field(default_factory=dict)
    proving: Proving | None = None  # sends codes while the server runs

    def __post_init__(self) -> None:
        self.shelf, self.tokens = Shelf(self.settings), Tokens(self.settings.data_path)
        self.callbacks = Callbacks(self.shelf, Nonces(self.settings.data_path), self.clock)
        self.key = self.settings.keyring.derive("cursor")
        rights = self.settings.operator.rights
        self.processor = Processor(self, rights.opendsr) if rights and rights.opendsr else None
        self.business = Business(self, rights.drp) if rights and rights.drp else None

    def admit(self, request: Request, cost: float = 1.0) -> str:
        """The subscriber of this path, for whoever holds a token of it."""
        subscriber = str(request.path_params["subscriber"])
        who, holder = self.known(request)
        if holder != subscriber or subscriber not in self.settings.subscribers:
            self.failed.wait(who)
            raise ApiError("not_yours")
        if wait := self.asked.wait(subscriber, cost):
            raise ApiError("too_often", wait)
        return subscriber

    def known(self, request: Request) -> tuple[str, str]:
        """Where a request comes from, and whose token it shows."""
        who = request.client.host if request.client else ""
        if wait := self.failed.wait(who, 0):
            raise ApiError("too_often", wait)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        holder = self.tokens.holder(token.strip()) if scheme.lower() == "bearer" and token else None
        if holder is None:
            self.failed.wait(who)
            raise ApiError("wrong_token" if token else "no_token")
        return who, holder

    def scoped(self, request: Request, *scopes: str) -> tuple[str, str]:
        """Scope and name of a token that is for one of these."""
        who, holder = self.known(request)
        scope, mark, name = holder.partition(":")
        if not mark or scope not in scopes:
            self.failed.wait(who)
            raise ApiError("no_scope")
        if wait := self.asked.wait(holder):
            raise ApiError("too_often", wait)
        return scope, name

    def cursor(self, subscriber: str, place: Place) -> str:
        return cursors.written(self.key, subscriber, place)

    def place(self, subscriber: str, text: str) -> Place:
        try:
            return cursors.read(self.key, subscriber, text)
        except BadCursor:
            raise ApiError("bad_cursor") from None

    async def events(self, request: Request) -> Response:
        subscriber = self.admit(request)
        after = self.place(subscriber, request.query_params.get("after", ""))
        limit = int(_number(request, "limit", 100, (1, MOST_EVENTS)))
        until = time.monotonic() + _number(request, "wait", 0, (0, LONGEST_WAIT_S))
        while True:
            found = await run_in_threadpool(self.shelf.page, subscriber, after, limit)
            if found or time.monotonic() >= until or self.stopping.is_set() or await request.is_disconnected():
                break
            await self._pause(min(LOOK_EVERY_S, max(0.0, until - time.monotonic())))
        last = found[-1][0] if found else after
        headers = {"Tidings-Cursor": self.cursor(subscriber, last), "Cache-Control": "no-store"}
        return JSONResponse([event for _, event in found], 200, headers, media_type=BATCH_TYPE)

    async def stream(self, request: Request) -> Response:
        subscriber = self.admit(request)
        text = request.headers.get("last-event-id") or request.query_params.get("after", "")
        after = self.place(subscriber, text)
        if self.streams.get(subscriber, 0) >= MOST_STREAMS:
            raise ApiError("too_often", 5)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._stream(subscriber, after), 200, headers, media_type="text/event-stream")

    async def _stream(self, subscriber: str, after: Place) -> AsyncIterator[bytes]:
        self.streams[subscriber] = self.streams.get(subscriber, 0) + 1
        try:
            begun = spoken = time.monotonic()
            yield b"retry: 2000\n\n"
            while not self.stopping.is_set() and time.monotonic() - begun < STREAM_S:
                page = await run_in_threadpool(self.shelf.page, subscriber, after, 100)
                for after, event in page:
                    yield _sent(self.cursor(subscriber, after), event)
                    spoken = time.monotonic()
                if time.monotonic() - spoken > HEARTBEAT_S:
                    yield b": still here\n\n"
                    spoken = time.monotonic()
                await self._pause(LOOK_EVERY_S)
        finally:
            self.streams[subscriber] -= 1

    async def where(self, request: Request) -> Response:
        subscriber = self.admit(request)
        offers = await run_in_threadpool(self.shelf.offers, subscriber)
        head = offers[-1].place if offers else cursors.START
        told = {"open": len(offers), "start": self.cursor(subscriber, cursors.START)}
        return JSONResponse(told | {"head": self.cursor(subscriber, head)}, headers={"Cache-Control": "no-store"})

    async def acks(self, request: Request) -> Response:
        subscriber = self.admit(request)
        body = await body_of(request)
        try:
            acks = read_acks(body)
        except BadAnswer as bad:
            raise ApiError(bad.code) from None
        said = Said(f"pull of {subscriber}", "A3")
        return JSONResponse({"results": await run_in_threadpool(take, self.shelf, subscriber, acks, said)})

    async def replay(self, request: Request) -> Response:
        subscriber = self.admit(request, cost=10)
        body = await body_of(request)
        status, told = await run_in_threadpool(replays.order, self.shelf, subscriber, body)
        return JSONResponse(told, status)

    async def replayed(self, request: Request) -> Response:
        subscriber = self.admit(request)
        name = str(request.path_params["name"])
        return JSONResponse(await run_in_threadpool(replays.show, self.shelf, subscriber, name))

    async def callback(self, request: Request) -> Response:
        who = request.client.host if request.client else ""
        if wait := self.failed.wait(who, 0):
            raise ApiError("too_often", wait)
        body = await body_of(request)
        target = self.public_url.rstrip("/") + request.url.path if self.public_url else str(request.url)
        subscriber = str(request.path_params["subscriber"])
        try:
            status, told = await run_in_threadpool(self.callbacks.take, subscriber, target, dict(request.headers), body)
        except ApiError as error:
            if error.status == 401:
                self.failed.wait(who)
            raise
        return JSONResponse(told, status)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)


def _sent(cursor: str, event: dict[str, Any]) -> bytes:
    text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
    return f"id: {cursor}\nevent: {event['type']}\ndata: {text}\n\n".encode()


def _number(request: Request, name: str, usual: float, between: tuple[float, float]) -> float:
    text = request.query_params.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) < 6 and between[0] <= int(text) <= between[1]):
        raise ApiError("bad_parameter")
    return int(text)


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = ApiError("method_not_allowed" if error.status_code == 405 else "not_found")
    assert isinstance(error, ApiError)
    headers = {"Retry-After": str(max(1, round(error.retry_after)))} if error.retry_after is not None else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status in (408, 413):
        headers["Connection"] = "close"
    told = {"code": error.code, "message": error.words} | ({"problems": error.problems} if error.problems else {})
    return JSONResponse({"error": told}, error.status, headers)


async def _broken(request: Request, error: Exception) -> Response:
    """The last line of defence: a code, and nothing of what broke."""
    return await _refused(request, ApiError("unexpected"))


def application(api: Api) -> Starlette:
    from tidings.api.consent_hooks import ConsentRoutes
    from tidings.api.signals import SignalRoutes

    def at(path: str, handler: Callable[[Request], Awaitable[Response]], method: str) -> Route:
        return Route(f"/v1/{path}", handler, methods=[method])

    routes = [
        at("subscribers/{subscriber}/events", api.events, "GET"),
        at("subscribers/{subscriber}/stream", api.stream, "GET"),
        at("subscribers/{subscriber}/cursor", api.where, "GET"),
        at("subscribers/{subscriber}/acks", api.acks, "POST"),
        at("subscribers/{subscriber}/replays", api.replay, "POST"),
        at("subscribers/{subscriber}/replays/{name}", api.replayed, "GET"),
        at("callbacks/{subscriber}", api.callback, "POST"),
        *SignalRoutes(api).routes(),
        *ConsentRoutes(api).routes(),
    ]
    for one in (api.processor, api.business):
        routes += one.routes() if one is not None else []
    return Starlette(
        routes=[*routes, *rights_routes(api)],
        exception_handlers={ApiError: _refused, HTTPException: _refused, Exception: _broken},
    )
