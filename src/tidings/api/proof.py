"""Who a person is, proven: a code by e-mail, or the signed word of somebody who checks identities for the operator.

The code goes to the address that the request names, known or not, at most three times a day; the page looks the same either way. The
mail leaves from a queue on disk, so a mail server that is slow or down tells nobody anything and loses no mail.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tidings.api.bodies import body_of
from tidings.api.errors import ApiError
from tidings.api.nonces import Full, Nonces, Replayed
from tidings.api.rates import Rates
from tidings.api.receipts import Receipts
from tidings.channels.email import Post
from tidings.channels.signing import BadSignature, decode_checks, verify
from tidings.errors import Refused, TidingsError
from tidings.rights.intake import say
from tidings.rights.mail import Letter, mailed, post_of
from tidings.rights.proof import Due, Proofs, verified
from tidings.rights.words import words

if TYPE_CHECKING:
    from tidings.api.app import Api

LOOK_EVERY_S = 0.5
PER_ADDRESS = 3  # mails a day to one address
_ID = re.compile(r"[0-9a-f]{32}")


class Proving:
    def __init__(self, api: Api, receipts: Receipts) -> None:
        self.api, self.settings, self.receipts = api, api.settings, receipts
        self.proofs = Proofs(api.settings, api.clock)
        self.addresses = Rates(PER_ADDRESS / 86_400, PER_ADDRESS)
        self.nonces = Nonces(api.settings.data_path)
        self._key = api.settings.keyring.derive("proof-address")
        if self.by_mail:
            post_of(api.settings)  # refused at the start, not when the first person waits for a code

    @property
    def by_mail(self) -> bool:
        return self.settings.rights.letters_by is not None

    def begin(self, name: str, to: str) -> None:
        """Send a code to the address a request names. Which address was written to how often is known in memory only."""
        if self.by_mail:
            whom = hashlib.blake2b(to.strip().lower().encode(), key=self._key).hexdigest()
            self.proofs.begin(name, to, send=not self.addresses.wait(whom))

    async def mailing(self) -> None:
        """Send what is due until the server stops."""
        while self.by_mail and not self.api.stopping.is_set():
            with suppress(TidingsError):  # a secret that cannot be read now; the mail stays due
                await run_in_threadpool(self.send_due)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.api.stopping.wait(), LOOK_EVERY_S)

    def send_due(self) -> None:
        if not (due := self.proofs.due()):
            return
        post = post_of(self.settings)
        for one in due if post is not None else ():
            assert post is not None
            result = self._mailed(post, one)
            self.proofs.sent(one.request, again=result in ("transient", "refused"))

    def _mailed(self, post: Post, due: Due) -> str:
        said = words(self.settings.rights.language)["mail"]
        form, receipt = self.settings.rights.form, self.receipts.written(due.request)
        who, code = form.name if form else self.settings.tenant, f"{due.code[:5]} {due.code[5:]}"
        lines = said["code"].format(name=who, code=code, receipt=receipt).rstrip().splitlines()
        if form and self.api.public_url:
            lines += ["", said["link"], f"{self.api.public_url.rstrip('/')}/rights/proof/{receipt}?code={due.code}"]
        lines += ["", said["not_you"]]
        subject = said["subject"].format(name=who)
        return mailed(post, Letter(f"{due.request}.proof", due.to, subject, "\n".join(lines)))

    async def give(self, request: Request) -> Response:
        """A code, given through somebody's own pages."""
        self.api.scoped(request, "ask", "vouch", "desk")
        name = str(request.path_params["request"])
        try:
            code = json.loads(await body_of(request))["code"]
        except (ValueError, RecursionError, TypeError, KeyError):
            raise ApiError("not_json") from None
        if not await run_in_threadpool(self.proofs.give, name, str(code)[:100]):
            raise ApiError("wrong_code")
        return JSONResponse({"id": name, "said": "verify"}, 202)

    async def callback(self, request: Request) -> Response:
        """The signed word of whoever checks identities: `{"request": ID}`. Bytes first, reading later."""
        who = request.client.host if request.client else ""
        if wait := self.api.failed.wait(who, 0):
            raise ApiError("too_often", wait)
        body = await body_of(request)
        try:
            name = await run_in_threadpool(self._proven, dict(request.headers), body)
        except ApiError as error:
            if error.status == 401:
                self.api.failed.wait(who)
            raise
        return JSONResponse({"id": name, "said": "verify"}, 202)

    def _proven(self, headers: dict[str, str], body: bytes) -> str:
        identity, now = self.settings.rights.identity, self.api.clock()
        if identity is None:
            raise ApiError("wrong_signature")
        try:
            verify(decode_checks(self.settings.secret(identity.signing_secret).reveal()), headers, body, now)
        except BadSignature as bad:
            raise ApiError("stale" if bad.code == "outside_tolerance" else "wrong_signature") from None
        except Refused:
            raise ApiError("wrong_signature") from None
        try:
            name = json.loads(body)["request"]
        except (ValueError, RecursionError, TypeError, KeyError):
            raise ApiError("not_json") from None
        if not isinstance(name, str) or not _ID.fullmatch(name):
            raise ApiError("unknown_request")
        try:
            with self.nonces.once("identity", headers["webhook-id"], now):
                evidence = hashlib.sha256(body).hexdigest()
                say(self.settings, verified(name, "identity proof", identity.assurance, evidence))
        except Replayed:
            raise ApiError("replayed") from None
        except Full:
            raise ApiError("busy", 30) from None
        return name


def proof_routes(proving: Proving) -> Sequence[BaseRoute]:
    return [
        Route("/v1/rights/requests/{request}/proof", proving.give, methods=["POST"]),
        Route("/v1/rights/proofs", proving.callback, methods=["POST"]),
    ]
