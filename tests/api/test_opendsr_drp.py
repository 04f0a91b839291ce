"""The Data Rights Protocol on the wire: a signed message of a known agent becomes one request, and everything else is refused."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_stage import Served, serving
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from opendsr_stage import Steps, free_port, processor

from tidings.api.rates import Rates
from tidings.rights import intake
from tidings.rights.asks import Ask, Word
from tidings.settings import Settings

KEYS = {name: Ed25519PrivateKey.generate() for name in ("AGENT", "SECOND")}
PATH = "/v1/data-rights-request"


def declared() -> str:
    def key(name: str) -> str:
        return base64.b64encode(KEYS[name].public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()

    agents = (
        f"      AGENT: {{verify_key: {key('AGENT')}, callback_hosts: ['127.0.0.1'], assurance: verified}}\n"
        f"      SECOND: {{verify_key: {key('SECOND')}}}\n"
    )
    return f"rights:\n  drp:\n    business_id: SHOP\n    agents:\n{agents}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Settings, Served]]:
    settings = processor(tmp_path_factory.mktemp("business"), declared())
    with serving(settings, failed=Rates(1000, 1000)) as served:
        assert served.api.business is not None
        served.api.business.asked = Rates(1000, 1000)
        yield settings, served


def signed(said: Any, agent: str = "AGENT") -> bytes:
    raw = said if isinstance(said, bytes) else json.dumps(said).encode()
    return base64.b64encode(KEYS[agent].sign(raw) + raw)


def message(agent: str = "AGENT", *, at: float = 0, **given: Any) -> dict[str, Any]:
    now = datetime.now(UTC) + timedelta(seconds=at)
    head = {"agent-id": agent, "business-id": "SHOP", "issued-at": now.isoformat(), "drp.version": "1.0"}
    return head | {"expires-at": (now + timedelta(minutes=10)).isoformat()} | given


def wanted(**given: Any) -> dict[str, Any]:
    person = {"email": "ann@example.com", "email_verified": True}
    return message(**{"exercise": "deletion", "regime": "ccpa", **person, **given})


def token(served: Served, agent: str = "AGENT") -> str:
    found = served.ask("POST", f"/v1/agent/{agent}", content=signed(message(agent), agent))
    return str(found.json()["token"])


def exercise(served: Served, body: bytes, agent: str = "AGENT") -> httpx.Response:
    return served.ask("POST", PATH, token(served, agent), content=body, headers={"Content-Type": "text/plain"})


def test_a_deletion_is_asked_for_looked_at_and_taken_back(world: tuple[Settings, Served]) -> None:
    settings, served = world
    body = signed(wanted(**{"agent-request-id": "mine-1"}))
    found = exercise(served, body)
    told = found.json()
    assert (found.status_code, told["status"], told["agent_request_id"]) == (200, "open", "mine-1")
    due = datetime.fromisoformat(told["expected_by"]) - datetime.now(UTC)
    assert timedelta(days=44) < due <= timedelta(days=46)  # 45 days of the CCPA, to the end of the last
    asks = [slip.body for slip in intake.waiting(settings) if isinstance(slip.body, Ask)]
    assert [(one.kind, one.way, one.agent, one.assurance, one.jurisdiction) for one in asks] == [
        ("erasure", "drp", "AGENT", "verified", "US-CA")
    ]
    assert exercise(served, body).status_code == 409
    again = exercise(served, signed(wanted(**{"agent-request-id": "mine-1"})))
    assert again.json()["request_id"] == told["request_id"]
    mine, path = token(served), f"{PATH}/{told['request_id']}"
    assert served.ask("GET", path, mine).json()["status"] == "open"
    assert served.ask("GET", path, token(served, "SECOND")).status_code == 403
    assert served.ask("GET", path).status_code == 401
    gone = served.ask("DELETE", path, mine, content=signed({"reason": "ann@example.com changed her mind"}))
    assert (gone.status_code, gone.json()["status"]) == (200, "revoked")
    words = [slip.body for slip in intake.waiting(settings) if isinstance(slip.body, Word)]
    assert [(one.action, one.by, one.reason) for one in words] == [("cancel", "agent AGENT", "revoked_by_agent")]
    steps = Steps(settings)
    steps.step(told["request_id"].replace("-", ""), "refused", reason="no_match")
    found = served.ask("GET", path, mine).json()
    assert (found["status"], found["reason"]) == ("denied", "no_match")


def test_an_unverified_person_is_only_claimed(world: tuple[Settings, Served]) -> None:
    settings, served = world
    before = {slip.request for slip in intake.waiting(settings)}
    for agent, said in (("AGENT", {"phone_number": "+15550100"}), ("SECOND", {})):
        body = signed(wanted(agent=agent, exercise="sale:opt-out", **said), agent)
        assert exercise(served, body, agent).status_code == 200
    new = [slip.body for slip in intake.waiting(settings) if slip.request not in before]
    assert [one.assurance for one in new if isinstance(one, Ask)] == ["claimed", "claimed"]


def broken(body: bytes) -> bytes:
    raw = bytearray(base64.b64decode(body))
    raw[-2] ^= 1
    return base64.b64encode(raw)


def test_a_message_that_was_seen_on_its_way_brings_nothing(world: tuple[Settings, Served]) -> None:
    """Also in another spelling: Base64 has several for the same bytes."""
    _, served = world
    pairing = signed(message())
    assert [served.ask("POST", "/v1/agent/AGENT", content=pairing).status_code for _ in range(2)] == [200, 409]
    asked = next(
        one for pad in range(3) if (one := signed(wanted(note="x" * pad))).endswith(b"=") and one[-2:-1] != b"="
    )
    other = asked[:-2] + bytes([asked[-2] + 1]) + b"="
    assert base64.b64decode(other) == base64.b64decode(asked)
    assert [exercise(served, one).status_code for one in (asked, other)] == [200, 409]


BAD: list[tuple[str, Any, int]] = [
    ("another agent's key", lambda: signed(wanted(), "SECOND"), 403),
    ("a changed byte", lambda: broken(signed(wanted())), 403),
    ("no Base64", lambda: b"{}", 403),
    ("another agent inside", lambda: signed(wanted(agent="SECOND")), 403),
    ("another business", lambda: signed(wanted() | {"business-id": "OTHER"}), 403),
    ("issued ahead", lambda: signed(wanted(at=120)), 400),
    ("expired", lambda: signed(wanted(at=-601)), 400),
    ("an old message that allows itself a year", lambda: signed(wanted(at=-600) | {"expires-at": "2099-01-01"}), 400),
    ("another action", lambda: signed(wanted(exercise="sale:opt_in")), 400),
    ("another regime", lambda: signed(wanted(regime="gdpr")), 400),
    ("nobody", lambda: signed(message(exercise="deletion")), 400),
    ("half a character", lambda: signed(wanted(**{"agent-request-id": "\ud800"})), 400),
    ("deep JSON", lambda: signed(b"[" * 50_000), 400),
    ("too large", lambda: signed(b" " * 300_000), 413),
    ("a callback inside", lambda: signed(wanted(status_callback="https://10.0.0.5/x")), 400),
]


@pytest.mark.parametrize(("case", "body", "status"), BAD, ids=[row[0] for row in BAD])
def test_bad_input_is_refused(world: tuple[Settings, Served], case: str, body: Any, status: int) -> None:
    settings, served = world
    before = len(list(intake.waiting(settings)))
    found = exercise(served, body())
    assert (found.status_code, found.json()["code"]) == (status, str(status))
    assert "ann@example" not in found.text
    assert len(list(intake.waiting(settings))) == before


def test_the_agent_is_called_back_when_the_status_changes(world: tuple[Settings, Served]) -> None:
    settings, served = world
    heard: list[str] = []

    class Callback(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["status"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    port = free_port()
    server = HTTPServer(("127.0.0.1", port), Callback)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = exercise(served, signed(wanted(status_callback=f"http://127.0.0.1:{port}/x"))).json()
    steps = Steps(settings)
    steps.number = 100
    deadline = time.monotonic() + 15
    for count, state in enumerate(("fulfilled", ""), 1):
        while len(heard) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        if state:
            steps.step(found["request_id"].replace("-", ""), state)
    server.shutdown()
    server.server_close()
    assert heard == ["open", "fulfilled"]


def test_a_token_is_no_more_when_the_agents_key_changes(world: tuple[Settings, Served], tmp_path: Path) -> None:
    _, served = world
    old = token(served)
    assert served.ask("GET", "/v1/agent/AGENT", old).json() == {}
    assert served.ask("GET", "/v1/agent/SECOND", old).status_code == 403
    KEYS["AGENT"], kept = Ed25519PrivateKey.generate(), KEYS["AGENT"]
    try:
        settings = processor(tmp_path, declared())
    finally:
        KEYS["AGENT"] = kept
    with serving(settings) as other:
        assert other.ask("GET", "/v1/agent/AGENT", old).status_code == 401
