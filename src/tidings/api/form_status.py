"""What a person sees of their request: a receipt, the field for the code, and, once they have proven who they are, how it stands.

Whoever has the number sees this page, so it never says who asked, for what, or whether we know them.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidings.api.bodies import body_of
from tidings.api.form import FORM_BYTES, PublicForm, from_here, one_of, page_of, typed_of
from tidings.api.form_pages import HEADERS, Form
from tidings.rights.asks import ASSURANCES
from tidings.rights.book import FINAL

SURE = ASSURANCES.index("verified")


class Status:
    def __init__(self, form: PublicForm) -> None:
        self.form, self.words, self.rights = form, form.words, form.rights

    async def typed(self, request: Request) -> Response:
        """A number from the first page."""
        name = self.rights.receipts.read(request.query_params.get("receipt", ""))
        if name is None:
            return self.form.lost("unknown")
        return RedirectResponse(f"/rights/request/{self.rights.receipts.written(name)}", 303, HEADERS)

    async def show(self, request: Request) -> Response:
        if wait := self._wait(request):
            return self.form.often(wait)
        name = self.rights.receipts.read(str(request.path_params["receipt"]))
        if name is None:
            return self.form.lost("unknown")
        return await run_in_threadpool(self._shown, name)

    def _shown(self, name: str) -> Response:
        said, receipt = self.words["pages"]["receipt"], self.rights.receipts.written(name)
        inside = (
            f'<h2>{said["number"]}</h2><p class="number">{receipt}</p><p>{said["keep"]}</p>'
            f"<h2>{said['next']}</h2>{self._state(name)}"
        )
        if self.rights.proving.proofs.waits(name):
            inside += f"<p>{said['proof']}</p>{self._code({}, {}, receipt)}"
        inside += f'<p><a href="/rights">{said["start"]}</a></p>'
        return page_of(self.form.look.page(said["title"], inside))

    def _state(self, name: str) -> str:
        said, found = self.words["pages"]["receipt"], self.rights.find(name)
        if found is None or ASSURANCES.index(found.assurance) < SURE:
            return f"<p>{said['received']}</p>"
        if found.state in FINAL:
            return f"<p>{said['cancelled' if found.state == 'cancelled' else 'finished']}</p>"
        due = f"<p>{said['due'].format(date=found.due.date().isoformat())}</p>" if found.due else ""
        return f"<p>{said['working']}</p>{due}"

    async def proof(self, request: Request) -> Response:
        """The page of the link. It asks once more, since programs that read mail open links."""
        if wait := self._wait(request):
            return self.form.often(wait)
        name = self.rights.receipts.read(str(request.path_params["receipt"]))
        if name is None:
            return self.form.lost("unknown")
        return self._proving(name, {"code": [request.query_params.get("code", "")[:40]]}, {})

    async def prove(self, request: Request) -> Response:
        name = self.rights.receipts.read(str(request.path_params["receipt"]))
        if name is None or not from_here(request, self.rights.api.public_url):
            return self.form.lost("unknown")
        if wait := self._wait(request):
            return self.form.often(wait)
        typed = typed_of(await body_of(request, FORM_BYTES))
        if not await run_in_threadpool(self.rights.proving.proofs.give, name, one_of(typed, "code")[:100]):
            return self._proving(name, typed, {"code": "code"})
        said, receipt = self.words["pages"]["proof"], self.rights.receipts.written(name)
        link = f'<p><a href="/rights/request/{receipt}">{said["show"]}</a></p>'
        return page_of(self.form.look.page(said["thanks_title"], f"<p>{said['thanks']}</p>{link}"))

    def _proving(self, name: str, typed: dict[str, list[str]], wrong: dict[str, str]) -> Response:
        said, receipt = self.words["pages"]["proof"], self.rights.receipts.written(name)
        summary = Form(self.words, typed, wrong).summary()
        inside = f"{summary}<p>{said['lead']}</p>{self._code(typed, wrong, receipt)}"
        return page_of(self.form.look.page(said["title"], inside, bool(wrong)), 422 if wrong else 200)

    def _code(self, typed: dict[str, list[str]], wrong: dict[str, str], receipt: str) -> str:
        form = Form(self.words, typed, wrong)
        form.text("code", "text", self.words["fields"]["code_hint"], fill="one-time-code")
        return form.written(f"/rights/proof/{receipt}", self.words["pages"]["receipt"]["proof_button"])

    def _wait(self, request: Request) -> float:
        return self.form.doors.look(request.client.host if request.client else "")
