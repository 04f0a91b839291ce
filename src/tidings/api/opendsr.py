"""The routes of OpenDSR 1, 2, mParticle's 3 and our own profile: discovery, create, status, cancel. docs/opendsr.md is the same in words.

Every answer is signed over its bytes, errors too. Who asks is checked before the body is read, and the body is not larger than we take.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidings.api.bodies import body_of
from tidings.api.callbacks_out import CallbacksOut, agreed, known
from tidings.api.errors import ApiError
from tidings.api.opendsr_register import Register, Row
from tidings.api.opendsr_results import handed_out
from tidings.api.opendsr_sign import signer
from tidings.api.rates import Rates
from tidings.errors import Refused
from tidings.opendsr_shapes import OpenDsr
from tidings.rights import intake, opendsr
from tidings.rights import opendsr_bodies as bodies
from tidings.rights.asks import BadAsk, Word
from tidings.rights.book import Book
from tidings.rights.opendsr import Order, Version, Wrong
from tidings.rights.opendsr_clock import expected_by
from tidings.store import Store

if TYPE_CHECKING:
    from tidings.api.app import Api

CERTIFICATE = "/v2/certificate.pem"
CANCELLABLE = ("received", "verifying", "waiting", "review")
NAMES = {
    "v1": ("opengdpr_requests", "opendsr_requests", "requests"),
    "v2": ("requests", "opengdpr_requests", "opendsr_requests"),
}
_JSON = re.compile(r"application/([a-z0-9.-]+\+)?json\s*(;|$)", re.IGNORECASE)
Handler = Callable[[Version, Request], Awaitable[tuple[int, Any]]]


class Processor:
    """We, as controllers see us."""

    def __init__(self, api: Api, declared: OpenDsr) -> None:
        self.api, self.settings, self.declared = api, api.settings, declared
        self.signer, self.register = signer(api.settings, declared), Register(api.settings)
        self.book = Book(Store(api.settings.data_path / "tables"))
        self.out = CallbacksOut(api.settings, self.register, self.book, self.signer, api.clock)
        self.asked = Rates(20, 60)
        self.known = {"email": "email"} | self._keys() | dict(declared.identities)

    def _keys(self) -> dict[str, str]:
        rights = self.settings.operator.rights
        people = (rights and rights.entity) or (
            next(iter(self.settings.entities)) if len(self.settings.entities) == 1 else ""
        )
        return dict.fromkeys(opendsr.PHONES, "phone") | ({"controller_customer_id": people} if people else {})

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.api.clock(), UTC)

    def routes(self) -> list[Route]:
        found = [Route(CERTIFICATE, self.certificate, methods=["GET"])]
        for path, version in opendsr.VERSIONS.items():
            found += self._pair(version, f"/{path}/discovery", "GET", self.discovery)
            for name in NAMES.get(path, ("requests",)):
                found += self._pair(version, f"/{path}/{name}", "POST", self.create)
                found += self._pair(version, f"/{path}/{name}", "GET", self.group)
                found += self._pair(version, f"/{path}/{name}/{{id}}", "GET", self.status)
                found += self._pair(version, f"/{path}/{name}/{{id}}/results", "GET", self.results)
                found += self._pair(version, f"/{path}/{name}/{{id}}", "DELETE", self.cancel)
        return found

    def _pair(self, version: Version, path: str, method: str, handler: Handler) -> list[Route]:
        async def answer(request: Request) -> Response:
            return await self._answered(version, request, handler)

        return [Route(path + end, answer, methods=[method]) for end in ("", "/")]

    async def _answered(self, version: Version, request: Request, handler: Handler) -> Response:
        headers = {"Cache-Control": "no-store", "Content-Type": "application/json"}
        try:
            status, told = await handler(version, request)
        except (Wrong, ApiError) as error:
            wrong = (
                error
                if isinstance(error, Wrong)
                else Wrong(error.status, (error.code, error.words), retry_after=error.retry_after)
            )
            status, told = wrong.status, bodies.error_body(version, wrong)
            if wrong.retry_after is not None:
                headers["Retry-After"] = str(max(1, round(wrong.retry_after)))
            if status == 401:
                headers["WWW-Authenticate"] = 'Basic realm="opendsr"'
        body = json.dumps(told).encode()
        return Response(body, status, headers | self.signer.headers(body))

    async def certificate(self, request: Request) -> Response:
        return Response(self.signer.chain, media_type="application/x-pem-file")

    async def discovery(self, version: Version, request: Request) -> tuple[int, Any]:
        self._paced("discovery " + (request.client.host if request.client else ""))
        return 200, bodies.discovery(version, self.known, f"https://{self.signer.domain}{CERTIFICATE}")

    def _paced(self, who: str) -> None:
        if wait := self.asked.wait(who):
            raise Wrong(429, ("TooManyRequests", "Too many requests have been submitted."), retry_after=wait)

    def _controller(self, request: Request) -> str:
        """Whose credentials these are. Every controller's are compared, so the time taken tells nothing."""
        who = request.client.host if request.client else ""
        if wait := self.api.failed.wait(who, 0):
            raise Wrong(429, ("TooManyRequests", "Too many failed attempts."), retry_after=wait)
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        given = b""
        with suppress(binascii.Error, ValueError):
            given = base64.b64decode(text.strip(), validate=True) if scheme.lower() == "basic" else b""
        found = ""
        for name, one in self.declared.controllers.items():
            ours = self.settings.secret(one.credentials).reveal_bytes()
            if hmac.compare_digest(sha256(ours).digest(), sha256(given).digest()) and given:
                found = name
        if not found:
            self.api.failed.wait(who)
            raise Wrong(401, ("InvalidCredentials", "The credentials provided in the request are not valid."))
        self._paced(found)
        return found

    async def create(self, version: Version, request: Request) -> tuple[int, Any]:
        controller = self._controller(request)
        if (media := request.headers.get("content-type", "")) and not _JSON.match(media):
            # Credentials of HTTP Basic are kept by browsers, and a form of another site can send all types but this.
            raise Wrong(415, ("UnsupportedMediaType", "Content-Type must be application/json."))
        body = await body_of(request)
        row = await run_in_threadpool(self._create, version, controller, body)
        return 201, {
            "controller_id": controller,
            "expected_completion_time": bodies.rfc3339(row.expected),
            "received_time": bodies.rfc3339(row.received),
            "encoded_request": base64.b64encode(body).decode(),
            "subject_request_id": row.reference,
        }

    def _create(self, version: Version, controller: str, body: bytes) -> Row:
        order = opendsr.read(version, body, self.known, self.now(), self.signer.domain)
        declared = self.declared.controllers[controller]
        if declared.types and order.type not in declared.types:
            raise Wrong(403, ("Forbidden", "This type of request is not open to this controller."))
        self._reachable(order, declared.callback_hosts)
        likeness = self.register.likeness(controller, order.kind, order.identifiers)
        with self.register.open() as connection:
            if row := self.register.by_reference(connection, controller, order.id):
                if row.same_body(body):
                    return row
                raise Wrong(400, ("InvalidOperationException", "Subject request already exists."))
            if version.path == "v3" and self.register.alike(connection, likeness):
                told = "There is an in progress request with the same identities, extensions and type."
                raise Wrong(409, ("InvalidOperationException", told))
            row = self._handed_in(order, controller, declared.assurance)
            self.register.note(connection, row, body, likeness)
        return row

    def _handed_in(self, order: Order, controller: str, assurance: str) -> Row:
        ask = order.ask(controller, assurance)
        try:
            name = intake.hand_in(self.settings, ask)
        except BadAsk:
            raise Wrong(400, ("IllegalArgumentException", "A field of the request is not one that is taken.")) from None
        except Refused:
            raise Wrong(429, ("TooManyRequests", "Too many requests wait."), retry_after=60) from None
        head = (name, "opendsr", order.version.api, controller, order.id, order.kind, self.now().replace(microsecond=0))
        return Row(*head, expected_by(self.settings, ask), order.callbacks, order.group)

    def _reachable(self, order: Order, hosts: tuple[str, ...]) -> None:
        if not all(agreed(url, hosts, self.settings.network.allow) for url in order.callbacks):
            raise Wrong(400, ("ForbiddenCallback", "A status_callback_url is not one that callbacks go to."))

    def _row(self, request: Request, controller: str) -> Row:
        with self.register.open() as connection:
            row = self.register.by_reference(connection, controller, str(request.path_params["id"]))
        if row is None or row.protocol != "opendsr":
            raise Wrong(404, ("NotFound", "The specified subject request id could not be found."))
        self.book.refresh()
        return row

    def _told(self, row: Row, version: Version) -> dict[str, Any]:
        status = bodies.status_of(known(self.book, row.request))
        return self.out.document(replace(row, version=version.api), status)

    async def status(self, version: Version, request: Request) -> tuple[int, Any]:
        controller = self._controller(request)
        row = await run_in_threadpool(self._row, request, controller)
        return 200, self._told(row, version)

    async def results(self, version: Version, request: Request) -> tuple[int, Any]:
        """What somebody gets who asked for their data, for the controller that passed it on and for seven days."""
        controller = self._controller(request)
        row = await run_in_threadpool(self._row, request, controller)
        return 200, await run_in_threadpool(
            handed_out, self.settings, known(self.book, row.request), controller, self.now()
        )

    async def group(self, version: Version, request: Request) -> tuple[int, Any]:
        controller, name = self._controller(request), request.query_params.get("group_id", "")
        if version.path != "v3" or not name:
            raise Wrong(400, ("IllegalArgumentException", "group_id is required, with version 3."))

        def look() -> list[dict[str, Any]]:
            with self.register.open() as connection:
                rows = self.register.by_group(connection, controller, name)
            self.book.refresh()
            return [self._told(row, version) for row in rows]

        return 200, await run_in_threadpool(look)

    async def cancel(self, version: Version, request: Request) -> tuple[int, Any]:
        controller = self._controller(request)

        def said() -> Row:
            row = self._row(request, controller)
            found = self.book.requests.get(row.request)
            if found is not None and found.details.get("same_as"):
                raise Wrong(409, ("Merged", "The request was merged with another of the same person."))
            if found is not None and found.state not in (*CANCELLABLE, "cancelled"):
                raise Wrong(400, ("InvalidOperationException", "Only a pending request can be cancelled."))
            if found is None or found.open:
                intake.say(
                    self.settings, Word(row.request, "cancel", f"controller {controller}", "cancelled_by_controller")
                )
            return row

        row = await run_in_threadpool(said)
        received = {"received_time": bodies.rfc3339(self.now()), "subject_request_id": row.reference}
        more = {"expected_completion_time": None} if version.path == "v3" else {"api_version": version.api}
        return 202, {"controller_id": controller} | received | more
