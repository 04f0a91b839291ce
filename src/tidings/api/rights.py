"""Requests of people over the API: hand one in, see how it stands, take it back, say something of it, show evidence. docs/rights-intake.md.

| scope of a token | may |
|---|---|
| `ask` | hand in, look, take back; what it says of the person is a claim |
| `vouch` | the same, and say that it has checked who the person is |
| `desk` | the same, and answer for requests: the name of the token is who said it |

Work that touches the disk runs in threads. Nothing here looks a person up.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tidings.api import rights_bodies as bodies
from tidings.api.bodies import body_of
from tidings.api.errors import ApiError
from tidings.api.form import form_routes
from tidings.api.proof import Proving, proof_routes
from tidings.api.receipts import Receipts
from tidings.api.rights_shopify import Shopify
from tidings.errors import Problem, Refused
from tidings.rights import lists
from tidings.rights.asks import BadAsk, Word, enough
from tidings.rights.book import Book
from tidings.rights.book import Request as Asked
from tidings.rights.intake import folder_of, hand_in, say
from tidings.store import Store

if TYPE_CHECKING:
    from tidings.api.app import Api

ASKING, DESK = ("ask", "vouch", "desk"), "desk"
EVIDENCE_BYTES = 10_485_760
STILL = ("received", "verifying", "waiting")  # in these it can be taken back
_ID = re.compile(r"[0-9a-f]{32}")
CALM = {"Cache-Control": "no-store"}


class Rights:
    """What the routes about requests share."""

    def __init__(self, api: Api) -> None:
        self.api, self.settings = api, api.settings
        self._book, self._lock = Book(Store(api.settings.data_path / "tables")), threading.Lock()
        self.receipts = Receipts(api.settings.keyring.derive("receipt"))
        self.proving = Proving(api, self.receipts)

    def find(self, name: str) -> Asked | None:
        with self._lock:
            return self._book.refresh().requests.get(name)

    def lies_in(self, name: str) -> bool:
        """Was it handed in and not taken up yet?"""
        return any(folder_of(self.settings.data_path).glob(f"*-{name}.ask"))

    async def create(self, request: Request) -> Response:
        scope, name = self.api.scoped(request, *ASKING)
        ask, proof = bodies.ask_of(await body_of(request), name, "strong" if scope != "ask" else "claimed")
        made = await run_in_threadpool(self._taken, ask, proof)
        return JSONResponse(made, 202, {**CALM, "Location": f"/v1/rights/requests/{made['id']}"})

    def _taken(self, ask: Any, proof: bool) -> dict[str, str]:
        name = taken(lambda: hand_in(self.settings, ask))
        if proof and not enough(ask.kind, ask.assurance):
            self.proving.begin(name, ask.identifiers[0].value)
        return {"id": name, "receipt": self.receipts.written(name), "state": "received"}

    async def show(self, request: Request) -> Response:
        scope, _ = self.api.scoped(request, *ASKING)
        name = _named(request)
        found = await run_in_threadpool(self.find, name)
        if found is None:
            if not await run_in_threadpool(self.lies_in, name):
                raise ApiError("unknown_request")
            return JSONResponse({"id": name, "state": "received"}, headers=CALM)
        return JSONResponse(shown(found, scope == DESK), headers=CALM)

    async def cancel(self, request: Request) -> Response:
        _, by = self.api.scoped(request, *ASKING)
        name = _named(request)
        found = await run_in_threadpool(self.find, name)
        if found is None and not await run_in_threadpool(self.lies_in, name):
            raise ApiError("unknown_request")
        if found is not None and found.state not in STILL:
            raise ApiError("too_late")
        await run_in_threadpool(taken, lambda: say(self.settings, Word(name, "cancel", by)))
        return JSONResponse({"id": name, "said": "cancel"}, 202, CALM)

    async def word(self, request: Request) -> Response:
        _, by = self.api.scoped(request, DESK)
        name = await self._open(request)
        word = bodies.word_of(await body_of(request), name, by)
        await run_in_threadpool(taken, lambda: say(self.settings, word))
        return JSONResponse({"id": name, "said": word.action, "by": by}, 202, CALM)

    async def evidence(self, request: Request) -> Response:
        """What was shown is not kept; its digest is. It says that somebody did what a recipient has no machine for."""
        _, by = self.api.scoped(request, DESK)
        name, recipient = _named(request), str(request.path_params["recipient"])
        found = await run_in_threadpool(self.find, name)
        part = found.parts.get(recipient) if found is not None else None
        if part is None or part.way != "task" or part.state != "open":
            raise ApiError("unknown_task")
        body = await body_of(request, EVIDENCE_BYTES)
        if not body:
            raise ApiError("bad_word", problems=[_told("(body)", "nothing", "what shows that it was done")])
        digest = hashlib.sha256(body).hexdigest()
        word = Word(name, "done", by, recipient=recipient, evidence=digest)
        await run_in_threadpool(taken, lambda: say(self.settings, word))
        return JSONResponse({"id": name, "recipient": recipient, "evidence": digest, "by": by}, 202, CALM)

    async def bring(self, request: Request) -> Response:
        scope, _ = self.api.scoped(request, *ASKING)
        raw = await body_of(request, lists.MOST_BYTES)
        good, most = request.query_params.get("good_lines") == "yes", "claimed" if scope == "ask" else "strong"
        told = await run_in_threadpool(
            lambda: lists.take(self.settings, raw, "list", good_lines=good, most=most),
        )
        if told.problems and not told.requests:
            raise ApiError("bad_request", problems=[one.as_dict() for one in told.problems])
        return JSONResponse(told.as_dict(), 202, CALM)

    async def _open(self, request: Request) -> str:
        name = _named(request)
        if await run_in_threadpool(self.find, name) is None and not await run_in_threadpool(self.lies_in, name):
            raise ApiError("unknown_request")
        return name


def taken(does: Any) -> Any:
    """Run what takes something in; a refusal of the desk's inbox is one of ours."""
    try:
        return does()
    except BadAsk as bad:
        raise ApiError("bad_request", problems=[_problem(one) for one in bad.problems]) from None
    except Refused as refused:
        if refused.code == "intake_full":
            raise ApiError("busy", 60) from None
        raise ApiError("bad_word", problems=[_told("action", refused.found, refused.expected)]) from None


def shown(found: Asked, whole: bool) -> dict[str, Any]:
    """How a request stands; the desk sees its steps and recipients too. Who the person is stands nowhere."""
    told: dict[str, Any] = {
        "id": found.id,
        "kind": found.kind,
        "state": found.state,
        "opened": found.opened.isoformat(),
        "due": found.due.isoformat() if found.due else None,
        "jurisdiction": found.jurisdiction,
        "regulation": found.regulation,
        "assurance": found.assurance,
    }
    if whole:
        told["steps"] = [
            {"number": one.number, "what": one.what, "state": one.state, "at": one.at.isoformat(), "by": one.actor}
            | {"reason": one.reason}
            for one in found.steps
        ]
        told["recipients"] = [_part(part) for part in found.parts.values()]
    return told


def _part(part: Any) -> dict[str, Any]:
    deadline = part.deadline.isoformat() if part.deadline else None
    return {"recipient": part.recipient, "way": part.way, "state": part.state, "deadline": deadline}


def _named(request: Request) -> str:
    name = str(request.path_params["request"])
    if not _ID.fullmatch(name):
        raise ApiError("unknown_request")
    return name


def _problem(one: Problem) -> Mapping[str, object]:
    return _told(one.path, one.found, one.expected)


def _told(path: str, found: str, expected: str) -> Mapping[str, object]:
    return {"path": path, "found": found, "expected": expected}


def rights_routes(api: Api) -> Sequence[BaseRoute]:
    """None where rights are not declared."""
    if api.settings.operator.rights is None:
        return []
    rights = Rights(api)
    api.proving = rights.proving
    one = "/v1/rights/requests/{request}"
    routes: list[BaseRoute] = [
        Route("/v1/rights/requests", rights.create, methods=["POST"]),
        Route(one, rights.show, methods=["GET"]),
        Route(one, rights.cancel, methods=["DELETE"]),
        Route(one + "/words", rights.word, methods=["POST"]),
        Route("/v1/rights/tasks/{request}/{recipient}/evidence", rights.evidence, methods=["POST"]),
        Route("/v1/rights/lists", rights.bring, methods=["POST"]),
        *proof_routes(rights.proving),
    ]
    if api.settings.rights.shopify is not None:
        routes.append(Route("/v1/rights/shopify", Shopify(api).take, methods=["POST"]))
    if api.settings.rights.form is not None:
        routes += form_routes(rights)
    return routes
