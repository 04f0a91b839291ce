"""The routes of the Data Rights Protocol 1.0: an agent gets a token for a signed message, asks for a person, looks, and takes it back.

A token is a keyed digest over the agent, its verify key and the time: nothing is stored, and an agent that is taken out of the folder,
or gets another key, has none from then on. A signed message is taken once; it is remembered for longer than it lives.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidings.api.bodies import body_of
from tidings.api.callbacks_out import CallbacksOut, agreed, known
from tidings.api.errors import ApiError
from tidings.api.nonces import Full, Nonces, Replayed
from tidings.api.opendsr_register import Register, Row
from tidings.api.rates import Rates
from tidings.errors import Refused
from tidings.opendsr_shapes import Drp
from tidings.rights import drp, intake
from tidings.rights.asks import BadAsk, Word
from tidings.rights.book import Book
from tidings.rights.opendsr import Wrong, strict_json
from tidings.rights.opendsr_clock import expected_by
from tidings.store import Store

if TYPE_CHECKING:
    from tidings.api.app import Api

PATH = "/v1/data-rights-request"
CANCELLABLE = ("received", "verifying", "waiting", "review")
Handler = Callable[[Request], Awaitable[dict[str, Any]]]


class Business:
    """We, as agents see us."""

    def __init__(self, api: Api, declared: Drp) -> None:
        self.api, self.settings, self.declared = api, api.settings, declared
        self.register, self.nonces = Register(api.settings), Nonces(api.settings.data_path)
        self.book = Book(Store(api.settings.data_path / "tables"))
        self.out = CallbacksOut(api.settings, self.register, self.book, clock=api.clock)
        self.asked, self._key = Rates(10, 40), api.settings.keyring.derive("drp-token")

    def routes(self) -> list[Route]:
        found = [
            ("/v1/agent/{agent}", "POST", self.pair),
            ("/v1/agent/{agent}", "GET", self.agent),
            (PATH, "POST", self.exercise),
            (PATH + "/", "POST", self.exercise),
            (PATH + "/{id}", "GET", self.status),
            (PATH + "/{id}", "DELETE", self.revoke),
        ]
        return [Route(path, self._answering(handler), methods=[method]) for path, method, handler in found]

    def _answering(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            who = request.client.host if request.client else ""
            try:
                if wait := self.api.failed.wait(who, 0):
                    raise Wrong(429, ("too_often", "Too many failed attempts."), retry_after=wait)
                return JSONResponse(await handler(request), headers={"Cache-Control": "no-store"})
            except (Wrong, ApiError) as error:
                wrong = error if isinstance(error, Wrong) else _from(error)
                if wrong.status in (401, 403):
                    self.api.failed.wait(who)
                headers = {} if wrong.retry_after is None else {"Retry-After": str(max(1, round(wrong.retry_after)))}
                return JSONResponse(drp.error_body(wrong), wrong.status, headers)

        return answer

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.api.clock(), UTC)

    def token(self, agent: str) -> str:
        said = f"{agent}\x1f{self.declared.agents[agent].verify_key}".encode()
        return f"drp_{agent}_{hmac.new(self._key, said, hashlib.sha256).hexdigest()}"

    def _holder(self, request: Request) -> str:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        found = ""
        for agent in self.declared.agents:
            if hmac.compare_digest(self.token(agent).encode(), given.strip().encode()):
                found = agent
        if scheme.lower() != "bearer" or not found:
            raise Wrong(401, ("wrong_token", "This token is not known."))
        if wait := self.asked.wait(found):
            raise Wrong(429, ("too_often", "Too many requests."), retry_after=wait)
        return found

    def _once(self, agent: str, body: bytes) -> Any:
        return self.nonces.once(f"drp:{agent}", drp.digest(body), self.api.clock())

    async def pair(self, request: Request) -> dict[str, Any]:
        agent, body = str(request.path_params["agent"]), await body_of(request)
        known = self.declared.agents.get(agent)
        if known is None:
            raise Wrong(403, ("other_agent", "The message is not signed with this agent's key."))
        drp.message(known.verify_key, agent, self.declared.business_id, body, self.now())
        await run_in_threadpool(self._first, agent, body)
        return {"agent-id": agent, "token": self.token(agent)}

    def _first(self, agent: str, body: bytes) -> None:
        """A message that somebody saw on its way brings them no token."""
        try:
            with self._once(agent, body):
                return
        except Replayed:
            raise Wrong(409, ("replayed", "This message was taken before.")) from None
        except Full:
            raise Wrong(429, ("too_often", "Too many requests."), retry_after=60) from None

    async def agent(self, request: Request) -> dict[str, Any]:
        if self._holder(request) != request.path_params["agent"]:
            raise Wrong(403, ("other_agent", "This token is another agent's."))
        return {}

    async def exercise(self, request: Request) -> dict[str, Any]:
        agent = self._holder(request)
        body = await body_of(request)
        return await run_in_threadpool(self._exercise, agent, body)

    def _exercise(self, agent: str, body: bytes) -> dict[str, Any]:
        declared, now = self.declared.agents[agent], self.now().replace(microsecond=0)
        said = drp.message(declared.verify_key, agent, self.declared.business_id, body, self.now())
        reference = str(said.get("agent-request-id") or drp.digest(body))[:200]
        ask = drp.ask_of(said, agent, declared.assurance, reference, now)
        if not all(agreed(url, declared.callback_hosts, self.settings.network.allow) for url in ask.callbacks):
            raise Wrong(400, ("callback", "status_callback is not an address that callbacks go to."))
        try:
            with self._once(agent, body), self.register.open() as connection:
                row = self.register.by_reference(connection, agent, reference)
                if row is None:
                    name = intake.hand_in(self.settings, ask)
                    head = (name, "drp", "1.0", agent, reference, ask.kind, now)
                    row = Row(*head, expected_by(self.settings, ask), ask.callbacks)
                    likeness = self.register.likeness(agent, ask.kind, ask.identifiers)
                    self.register.note(connection, row, body, likeness)
        except Replayed:
            raise Wrong(409, ("replayed", "This message was taken before.")) from None
        except BadAsk:
            raise Wrong(400, ("bad_request", "A field of the request is not one that is taken.")) from None
        except (Full, Refused):
            raise Wrong(429, ("too_often", "Too many requests wait."), retry_after=60) from None
        return self._told(row)

    def _told(self, row: Row) -> dict[str, Any]:
        return drp.status_body(known(self.book, row.request), row)

    def _row(self, request: Request, agent: str) -> Row:
        with self.register.open() as connection:
            row = self.register.one(connection, str(request.path_params["id"]).replace("-", "").lower())
        if row is None or row.protocol != "drp":
            raise Wrong(404, ("unknown", "There is no such request."))
        if row.agent != agent:
            raise Wrong(403, ("other_agent", "This request is another agent's."))
        self.book.refresh()
        return row

    async def status(self, request: Request) -> dict[str, Any]:
        agent = self._holder(request)
        return self._told(await run_in_threadpool(self._row, request, agent))

    async def revoke(self, request: Request) -> dict[str, Any]:
        agent = self._holder(request)
        strict_json(drp.unpacked(self.declared.agents[agent].verify_key, await body_of(request)))

        def said() -> dict[str, Any]:
            row = self._row(request, agent)
            found = self.book.requests.get(row.request)
            if found is not None and found.details.get("same_as"):
                raise Wrong(409, ("Merged", "The request was merged with another of the same person."))
            if found is not None and found.state not in (*CANCELLABLE, "cancelled"):
                raise Wrong(409, ("too_late", "The request can no longer be taken back."))
            if found is None or found.open:  # the reason is the person's own words, so it is not kept
                intake.say(self.settings, Word(row.request, "cancel", f"agent {agent}", "revoked_by_agent"))
            return self._told(row) | {"status": "revoked"}

        return await run_in_threadpool(said)


def _from(error: ApiError) -> Wrong:
    return Wrong(error.status, (error.code, error.words), retry_after=error.retry_after)
