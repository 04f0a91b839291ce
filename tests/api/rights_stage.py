"""A shop that answers people: the API with form, mail, identity proof and Shopify, and a real mail server on loopback."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from aiosmtpd.controller import Controller
from api_stage import SECRET, Served, serving

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))
from lane_stage import operator

from tidings.api.access import Tokens
from tidings.api.doors import Doors
from tidings.api.rates import Rates
from tidings.rights.asks import Ask, Word
from tidings.rights.intake import waiting
from tidings.settings import Settings, load
from tidings.store import Store

RIGHTS = """\
rights:
  form: {name: The Shop, notice: "https://shop.example/privacy"}
  identity: {signing_secret: file:hook.key}
  shopify: {secret: file:shopify.key, shops: [shop.myshopify.com]}
"""
MAIL = "manifest: email\nrole: service\nregion: US\ndpa: true\nconnection: file:smtp.url\nvars: {from: privacy@shop.example, to: desk@shop.example}\n"
SHOPIFY = "canary-shopify-secret"


class Letters:
    """What the mail server took."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], EmailMessage]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails.append((envelope.rcpt_tos, message_from_bytes(envelope.content, policy=policy.default)))  # type: ignore[arg-type]
        return "250 taken"

    def to(self, receiver: str) -> list[EmailMessage]:
        return [message for receivers, message in self.mails if receivers == [receiver]]

    def code(self, receiver: str) -> str:
        """The code that was sent to somebody last, when it has come."""
        until = time.monotonic() + 10
        while not self.to(receiver) and time.monotonic() < until:
            time.sleep(0.02)
        found = re.search(r"^ {4}(\S{5}) (\S{5})\s*$", self.to(receiver)[-1].get_content(), re.MULTILINE)
        assert found is not None
        return found[1] + found[2]


@dataclass
class Desk:
    settings: Settings
    served: Served
    letters: Letters
    tokens: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, scope: str = "", **given: Any) -> tuple[int, Any]:
        found = self.served.ask(method, path, self.tokens.get(scope, ""), **given)
        return found.status_code, found.json()

    def asks(self) -> dict[str, Ask]:
        return {slip.request: slip.body for slip in waiting(self.settings) if isinstance(slip.body, Ask)}

    def of(self, name: str) -> Ask:
        return self.asks()[name]

    def written(self, name: str) -> str:
        """The receipt of a request."""
        assert self.served.api.proving is not None
        return self.served.api.proving.receipts.written(name)

    def words(self) -> list[Word]:
        return [slip.body for slip in waiting(self.settings) if isinstance(slip.body, Word)]

    def happened(self, request: str, **row: Any) -> None:
        """A step of a request, as the desk of `tidings run` commits it."""
        store, now = Store(self.settings.data_path / "tables"), datetime.now(UTC)
        number = len(list(waiting(self.settings))) + time.time_ns()
        whole = dict.fromkeys(SCHEMA.names) | {"request": request, "step": 1, "what": "received", "kind": "erasure"}
        whole |= {"state": "received", "way": "rest", "opened": now, "changed": now, "assurance": "none"} | row
        folder = Path(store.fresh("rights_requests"))
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([whole], schema=SCHEMA), folder / "part-0.parquet")
        store.commit("rights_requests", str(folder), app="desk", version=number)


_TIME = pa.timestamp("us", "UTC")
_PART = pa.struct(
    [
        ("recipient", pa.string()),
        ("way", pa.string()),
        ("event_id", pa.string()),
        ("kid", pa.binary()),
        ("tag", pa.binary()),
        ("sealed", pa.binary()),
        ("deadline", _TIME),
    ]
)
_OTHERS = {
    "step": pa.int64(), "opened": _TIME, "due": _TIME, "changed": _TIME, "details": pa.map_(pa.string(), pa.string()),
    "fingerprint": pa.binary(), "tags": pa.list_(pa.binary()), "hashes": pa.list_(pa.binary()), "parts": pa.list_(_PART),
    "kid": pa.binary(), "sealed": pa.binary(), "entry": pa.binary(),
}  # fmt: skip
_NAMES = (
    "request step what kind state previous way jurisdiction regulation assurance opened due changed actor reason details"
    " fingerprint tags hashes parts kid key_file sealed entry"
)
SCHEMA = pa.schema([(name, _OTHERS.get(name, pa.string())) for name in _NAMES.split()])


def wide() -> Doors:
    """Doors through which a test gets as often as it likes."""
    return Doors(Rates(1e6, 1e6), Rates(1e6, 1e6), Rates(1e6, 1e6))


@contextmanager
def answering(folder: Path, *, mail: bool = True, make: Callable[[], Doors] = wide, **given: Any) -> Iterator[Desk]:
    letters = Letters()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    controller = Controller(letters, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        operator(folder, {"hook": "http://127.0.0.1:1/hook"})
        (folder / "subscribers/people.yaml").write_text(MAIL)
        more = RIGHTS + ("  letters_by: people\n" if mail else "")
        (folder / "tidings.yaml").write_text((folder / "tidings.yaml").read_text() + more)
        for name, text in {"hook.key": SECRET, "shopify.key": SHOPIFY, "smtp.url": f"smtp://127.0.0.1:{port}"}.items():
            (folder / "secrets" / name).write_text(text)
            (folder / "secrets" / name).chmod(0o600)
        settings = load(folder)
        tokens = {scope: Tokens(settings.data_path).make(f"{scope}:{scope}-1")[0] for scope in ("ask", "vouch", "desk")}
        with serving(settings, doors=make(), failed=Rates(1e6, 1e6), asked=Rates(1e6, 1e6), **given) as served:
            yield Desk(settings, served, letters, tokens)
    finally:
        controller.stop()
