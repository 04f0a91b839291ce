"""The public form: what a person asks for, without an account, a script or a cookie.

The answer is a receipt, and it is the same, as fast, for everybody: nothing here looks anybody up. Until the person has proven who they
are, the page of a request says no more than that it was received, since how a request goes on would tell whether we know somebody.

A form carries a sealed mark of its own: it holds for a day, for its kind, and sending the same answers twice asks once. A browser that
says the page came from elsewhere is refused. `Sec-GPC: 1` beside a request is a request not to sell or share, and is handed in as one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from tidings.api.bodies import body_of
from tidings.api.errors import ApiError
from tidings.api.form_pages import HEADERS, Form, Look
from tidings.errors import Refused
from tidings.rights.asks import KINDS, Ask, Identifier
from tidings.rights.corrections import offered
from tidings.rights.intake import hand_in
from tidings.rights.words import words

if TYPE_CHECKING:
    from tidings.api.rights import Rights

FORM_BYTES = 16_384
GOOD_S = 24 * 3600
CHANNELS = ("email", "sms", "phone", "post", "push")
_EMAIL = re.compile(r"""[^@\s<>()\[\]",;:\\]{1,64}@[^@\s<>()\[\]",;:\\]+\.[^@\s<>()\[\]",;:\\.]{2,63}""")
_PHONE = re.compile(r"\+?[0-9][0-9 ()./-]{5,24}")
Typed = Mapping[str, Sequence[str]]


class PublicForm:
    def __init__(self, rights: Rights) -> None:
        self.rights, self.settings = rights, rights.settings
        form, said = self.settings.rights.form, words(self.settings.rights.language)
        assert form is not None
        self.words, self.look, self.doors = said, Look(said, form.name, form.notice), rights.api.doors
        self._key = self.settings.keyring.derive("form")
        contracts = self.settings.entities.values()
        self.details = {name: name.replace("_", " ") for one in contracts for name in offered(one)}
        consents = [rule.consent for one in contracts for rule in one.fields.values() if rule.consent is not None]
        named = {one.channel: self.words["channels"].get(one.channel, one.channel) for one in consents}
        self.channels = named or {name: self.words["channels"][name] for name in CHANNELS}
        self.purposes = {one.purpose: one.purpose.replace("_", " ") for one in consents}
        self.kinds = {
            kind: said["kinds"][kind] for kind in said["kinds"] if kind != "consent_narrowing" or self.purposes
        }

    async def start(self, request: Request) -> Response:
        said, links = self.words["pages"]["start"], ""
        for kind, text in self.kinds.items():
            links += f'<li><a href="/rights/ask/{kind}">{text["title"]}</a><p>{text["lead"]}</p></li>'
        form = Form(self.words)
        form.text("receipt", "text")
        looks = f"<h2>{said['look']}</h2><p>{said['look_lead']}</p>{form.written('/rights/request', said['look_button'], 'get')}"
        return page_of(self.look.page(said["title"], f'<p>{said["lead"]}</p><ul class="kinds">{links}</ul>{looks}'))

    async def ask(self, request: Request) -> Response:
        return self._asked(self._kind(request), {}, {})

    async def send(self, request: Request) -> Response:
        kind = self._kind(request)
        if not from_here(request, self.rights.api.public_url):
            raise ApiError("not_found")
        if wait := self.doors.send(request.client.host if request.client else ""):
            return self.often(wait)
        typed = typed_of(await body_of(request, FORM_BYTES))
        nonce = self._opened(kind, one_of(typed, "form"))
        wrong = self.wrong(kind, typed) if nonce else {"form": "stale"}
        if wrong:
            return self._asked(kind, typed, wrong)
        asks = self._asks(kind, typed, nonce, request.headers.get("sec-gpc") == "1")
        try:
            receipt = await run_in_threadpool(self._taken, asks)
        except Refused:
            return self.often(60)
        return RedirectResponse(f"/rights/request/{receipt}", 303, HEADERS)

    def _taken(self, asks: Sequence[Ask]) -> str:
        names = [hand_in(self.settings, ask) for ask in asks]
        if KINDS[asks[0].kind][1] == "verified":
            self.rights.proving.begin(names[0], asks[0].identifiers[0].value)
        return self.rights.receipts.written(names[0])

    def _asks(self, kind: str, typed: Typed, nonce: str, signal: bool) -> list[Ask]:
        """The request, and what the browser asks for beside it. What needs proof names the e-mail alone: nothing else is proven."""
        people = [Identifier("email", one_of(typed, "email"))] if one_of(typed, "email") else []
        if KINDS[kind][1] != "verified" and one_of(typed, "phone"):
            people.append(Identifier("phone", one_of(typed, "phone")))
        said = repr(sorted((name, list(values)) for name, values in typed.items() if name != "form"))
        reference = hmac.new(self._key, f"{nonce}\x1f{said}".encode(), hashlib.sha256).hexdigest()
        detail = {one_of(typed, "field"): one_of(typed, "value")} if kind == "rectification" else {}
        ask = Ask(
            kind=kind,
            identifiers=tuple(people),
            way="form",
            received=datetime.now(UTC),
            assurance="claimed",
            jurisdiction=one_of(typed, "place"),
            reference=reference,
            scope=tuple(typed.get("scope") or ()),
            values=detail,
            contact=one_of(typed, "email"),
            about=self.rights.receipts.read(one_of(typed, "about")) or "" if kind == "appeal" else "",
            child="child" in typed,
        )
        if not signal or kind == "opt_out_sale":
            return [ask]
        beside = (ask.identifiers, "signal", ask.received, "none", ask.jurisdiction)
        return [ask, Ask("opt_out_sale", *beside, regulation="", reference=reference, contact=ask.contact)]

    def wrong(self, kind: str, typed: Typed) -> dict[str, str]:
        """Field → error, in the order of the fields."""
        found: dict[str, str] = {}
        email, phone = one_of(typed, "email"), one_of(typed, "phone")
        if (email and not (_EMAIL.fullmatch(email) and len(email) <= 254 and email.isprintable())) or (
            not email and KINDS[kind][1] != "none"
        ):
            found["email"] = "email"
        elif not email and not phone:
            found["email"] = "contact"
        if phone and KINDS[kind][1] == "none" and not _PHONE.fullmatch(phone):
            found["phone"] = "phone"
        if one_of(typed, "place") and not any(
            one_of(typed, "place") in group for group in self.words["places"].values()
        ):
            found["place"] = "place"
        choices = self._choices(kind)
        if choices and (not typed.get("scope") or not set(typed["scope"]) <= set(choices)):
            found["scope"] = "scope"
        if kind == "rectification" and one_of(typed, "field") not in self.details:
            found["field"] = "field"
        if kind == "rectification" and not 0 < len(one_of(typed, "value")) <= 1_000:
            found["value"] = "value"
        if kind == "appeal" and self.rights.receipts.read(one_of(typed, "about")) is None:
            found["about"] = "about"
        return found

    def _choices(self, kind: str) -> Mapping[str, str]:
        return {"opt_out": self.channels, "opt_in": self.channels, "consent_narrowing": self.purposes}.get(kind, {})

    def _asked(self, kind: str, typed: Typed, wrong: Mapping[str, str]) -> Response:
        said, names, form = self.words["pages"]["ask"], self.words["fields"], Form(self.words, typed, wrong)
        free = KINDS[kind][1] == "none"
        form.text("email", "email", names["either_hint" if free else "email_hint"], fill="email", needed=not free)
        if free:
            form.text("phone", "tel", names["phone_hint"], fill="tel", needed=False)
        if choices := self._choices(kind):
            label = names["scope_purposes" if kind == "consent_narrowing" else "scope_channels"]
            form.picks("scope", label, names["scope_hint"], choices)
        if kind == "rectification":
            form.choice("field", names["field_none"], {"": self.details}, needed=True)
            form.text("value", "text")
        if kind == "appeal":
            form.text("about", "text")
        form.choice("place", names["place_none"], self.words["places"], names["place_hint"], needed=False)
        form.tick("child", names["child"])
        form.hidden("form", self._mark(kind))
        mailed = self.rights.proving.by_mail
        proof = {"verified": "proof" if mailed else "proof_by_hand", "none": "no_proof"}.get(KINDS[kind][1])
        lead = f"<p>{self.kinds[kind]['lead']}</p>" + (f"<p>{said[proof]}</p>" if proof else "")
        back = f'<p><a href="/rights">{said["back"]}</a></p>'
        inside = form.summary({"form": "email"}) + lead + form.written(f"/rights/ask/{kind}", said["send"]) + back
        return page_of(self.look.page(self.kinds[kind]["title"], inside, bool(wrong)), 422 if wrong else 200)

    def often(self, wait: float) -> Response:
        said, seconds = self.words["pages"]["often"], max(1, round(wait + 0.5))
        page = self.look.page(said["title"], f"<p>{said['lead'].format(seconds=seconds)}</p>")
        return page_of(page, 429, {"Retry-After": str(seconds)})

    def lost(self, which: str = "lost") -> Response:
        said = self.words["pages"][which]
        back = f'<p><a href="/rights">{self.words["pages"]["receipt"]["start"]}</a></p>'
        return page_of(self.look.page(said["title"], f"<p>{said['lead']}</p>{back}"), 404)

    def _kind(self, request: Request) -> str:
        kind = str(request.path_params["kind"])
        if kind not in self.kinds:
            raise ApiError("not_found")
        return kind

    def _mark(self, kind: str) -> str:
        said = f"{int(self.rights.api.clock())}.{secrets.token_hex(16)}"
        return f"{said}.{self._mac(kind, said)}"

    def _opened(self, kind: str, mark: str) -> str:
        """What a mark of ours for this kind holds, or nothing."""
        said, _, mac = mark.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(kind, said).encode()):
            return ""
        made, _, nonce = said.partition(".")
        return nonce if self.rights.api.clock() - int(made) <= GOOD_S else ""

    def _mac(self, kind: str, said: str) -> str:
        return hmac.new(self._key, f"mark\x1f{kind}\x1f{said}".encode(), hashlib.sha256).hexdigest()


def page_of(html: str, status: int = 200, more: Mapping[str, str] | None = None) -> Response:
    return HTMLResponse(html, status, {**HEADERS, **(more or {})})


def typed_of(body: bytes) -> dict[str, list[str]]:
    try:
        found = parse_qs(body.decode(), max_num_fields=100)
    except ValueError:
        raise ApiError("bad_request") from None
    return {name: [value.strip() for value in values] for name, values in found.items()}


def one_of(typed: Typed, name: str) -> str:
    return (typed.get(name) or [""])[0]


def from_here(request: Request, public_url: str) -> bool:
    """What the browser says of where the form stood. One that says nothing is no browser, and has nobody's cookies to misuse."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    hosts = {request.headers.get("host", ""), urlsplit(public_url).netloc}
    return origin is None or urlsplit(origin).netloc in hosts - {""}


def form_routes(rights: Any) -> Sequence[BaseRoute]:
    from tidings.api.form_status import Status

    form = PublicForm(rights)
    status = Status(form)
    return [
        Route("/rights", form.start, methods=["GET"]),
        Route("/rights/ask/{kind}", form.ask, methods=["GET"]),
        Route("/rights/ask/{kind}", form.send, methods=["POST"]),
        Route("/rights/request", status.typed, methods=["GET"]),
        Route("/rights/request/{receipt}", status.show, methods=["GET"]),
        Route("/rights/proof/{receipt}", status.proof, methods=["GET"]),
        Route("/rights/proof/{receipt}", status.prove, methods=["POST"]),
    ]
