"""OpenDSR 1, 2 and mParticle's 3 on the wire: what is asked becomes one request, every answer is signed, and bad input has a name."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_stage import Served, serving
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509 import load_pem_x509_certificate
from opendsr_stage import DOMAIN, PASSWORD, RIGHTS, USER, Steps, body, free_port, issued, processor

from tidings.api.callbacks_out import WAITS_S
from tidings.api.rates import Rates
from tidings.errors import Refused
from tidings.rights import intake
from tidings.rights.asks import Ask, Word
from tidings.settings import Settings, load

OTHER = ("key-2", "other secret")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return processor(tmp_path_factory.mktemp("processor"))


@pytest.fixture(scope="module")
def one_server(made: Settings) -> Iterator[Served]:
    with serving(made, failed=Rates(1000, 1000)) as one:
        yield one


@pytest.fixture
def served(made: Settings, one_server: Served) -> Served:
    """The one server, with nothing asked yet."""
    processed = one_server.api.processor
    assert processed is not None
    processed.asked = Rates(1000, 1000)
    for slip in intake.waiting(made):
        slip.path.unlink()
    with processed.register.open() as connection:
        connection.execute("DELETE FROM asked")
        connection.execute("DELETE FROM owed")
    return one_server


def ask(served: Served, method: str, path: str, said: Any = None, auth: Any = (USER, PASSWORD)) -> httpx.Response:
    content = said if isinstance(said, bytes) else None if said is None else json.dumps(said).encode()
    found = served.client.request(method, served.url + path, content=content, auth=auth)
    for name in ("OpenDSR", "OpenGDPR"):
        assert found.headers[f"x-{name}-processor-domain"] == DOMAIN
        leaf = load_pem_x509_certificate((served.api.settings.directory / "dsr.pem").read_bytes())
        signature = base64.b64decode(found.headers[f"x-{name}-signature"])
        leaf.public_key().verify(signature, found.content, PKCS1v15(), SHA256())  # type: ignore[union-attr, call-arg]
    return found


def asks(settings: Settings) -> list[Ask]:
    return [slip.body for slip in intake.waiting(settings) if isinstance(slip.body, Ask)]


@pytest.mark.parametrize(("path", "until"), [("v1", "completed"), ("v2", "completed"), ("v3", "cancelled")])
def test_an_independent_client_creates_asks_and_is_called_back(
    served: Served, made: Settings, tmp_path: Path, path: str, until: str
) -> None:
    port = free_port()
    said = body(status_callback_urls=[f"http://127.0.0.1:{port}/hooks"])
    if path == "v3":
        said["subject_identities"] = {"email": {"value": "ann@example.com", "encoding": "raw"}}
    (tmp_path / "body.json").write_text(json.dumps(said))
    words = {
        "server": served.url,
        "domain": DOMAIN,
        "user": USER,
        "password": PASSWORD,
        "ca": made.directory / "ca.pem",
    }
    words |= {
        "path": path,
        "id": said["subject_request_id"],
        "body": tmp_path / "body.json",
        "port": port,
        "until": until,
    }
    line = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    client = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("opendsr_client.py")), *line], stdout=subprocess.PIPE, text=True
    )
    try:
        assert client.stdout is not None
        first = json.loads(client.stdout.readline())
        assert first["status"]["request_status"] == "pending"
        # One month from 3 November by Regulation 1182/71: 3 December, to its last second in Brussels.
        assert first["created"]["expected_completion_time"] == "2025-12-03T22:59:59Z"
        [slip] = intake.waiting(made)
        steps = Steps(made)
        steps.number = steps.store.version("rights_requests") or 0
        steps.number += 10
        for state in ("received", "working", "fulfilled") if until == "completed" else ("received", "cancelled"):
            steps.step(slip.request, state)
            time.sleep(1.1)
        out, _ = client.communicate(timeout=30)
    finally:
        client.kill()
        client.communicate()
    told = [one["request_status"] for one in json.loads(out)["callbacks"]]
    assert told == (["pending", "in_progress", "completed"] if until == "completed" else ["pending", "cancelled"])


def test_a_request_becomes_one_ask_and_the_same_body_is_the_same_request(served: Served, made: Settings) -> None:
    said = body(regulation="ccpa", submitted_time="2025-11-01T10:00:00Z")
    raw = json.dumps(said).encode()
    first = ask(served, "POST", "/v2/requests", raw)
    again = ask(served, "POST", "/v2/requests/", raw)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert base64.b64decode(first.json()["encoded_request"]) == raw
    [one] = asks(made)
    assert (one.kind, one.way, one.agent, one.assurance, one.jurisdiction) == (
        "erasure", "opendsr", "acme", "verified", "US-CA",
    )  # fmt: skip
    assert one.received.isoformat() == "2025-11-01T10:00:00+00:00"
    other = ask(served, "POST", "/v2/requests", said | {"regulation": "gdpr"})
    assert (other.status_code, other.json()["error"]["message"]) == (400, "Subject request already exists.")
    assert len(asks(made)) == 1


def test_the_routes_and_spellings_of_the_other_versions_are_honoured(served: Served, made: Settings) -> None:
    said = body()
    del said["regulation"]
    where = ["/v1/opengdpr_requests", "/v2/opengdpr_requests", "/v2/opendsr_requests"]
    for path in where:
        said["subject_request_id"] = str(uuid.uuid4())
        assert ask(served, "POST", path, said).status_code == 201
        for each in where:
            assert ask(served, "GET", f"{each}/{said['subject_request_id']}").json()["request_status"] == "pending"
    assert {one.regulation for one in asks(made)} == {"gdpr"}


def test_version_3_groups_and_refuses_a_second_request_of_the_same_person(served: Served) -> None:
    person = {"email": {"value": "Bob@Example.com", "encoding": "raw"}}
    said = body(subject_identities=person, api_version="3.0", group_id="spring")
    assert ask(served, "POST", "/v3/requests/", said).status_code == 201
    second = ask(served, "POST", "/v3/requests/", said | {"subject_request_id": str(uuid.uuid4())})
    assert (second.status_code, second.json()["code"]) == (409, 409)
    found = ask(served, "GET", "/v3/requests?group_id=spring").json()
    assert [(one["subject_request_id"], one["group_id"], one["extensions"]) for one in found] == [
        (said["subject_request_id"], "spring", None)
    ]
    assert ask(served, "GET", "/v3/requests?group_id=spring", auth=OTHER).json() == []


def test_discovery_lists_what_is_taken_and_nothing_more(served: Served) -> None:
    second, third = (ask(served, "GET", f"/{path}/discovery", auth=None).json() for path in ("v2", "v3"))
    assert second["supported_subject_request_types"] == ["access", "erasure", "portability"]
    assert {one["identity_format"] for one in second["supported_identities"]} == {"raw"}
    assert {one["identity_type"] for one in second["supported_identities"]} == {"email", "controller_customer_id"}
    assert "mobile_number" in {one["identity_type"] for one in third["supported_identities"]}
    own = ask(served, "GET", "/v1/tidings/discovery", auth=None).json()
    assert "rectification" in own["supported_subject_request_types"]
    said = body(subject_request_type="rectification", values={"email": "new@example.com"})
    assert ask(served, "POST", "/v2/requests", said).status_code == 400
    assert ask(served, "POST", "/v1/tidings/requests", said | {"api_version": "2.0"}).status_code == 400
    assert ask(served, "POST", "/v1/tidings/requests", said | {"api_version": "tidings-1.0"}).status_code == 201


def test_a_request_is_cancelled_while_it_is_pending_and_not_half_way(served: Served, made: Settings) -> None:
    said = body()
    assert ask(served, "POST", "/v2/requests", said).status_code == 201
    [slip] = intake.waiting(made)
    path = f"/v2/requests/{said['subject_request_id']}"
    assert ask(served, "DELETE", path, auth=OTHER).status_code == 404
    assert ask(served, "DELETE", path).status_code == 202
    words = [one.body for one in intake.waiting(made) if isinstance(one.body, Word)]
    assert [(one.request, one.action, one.by) for one in words] == [(slip.request, "cancel", "controller acme")]
    steps = Steps(made)
    steps.number = (steps.store.version("rights_requests") or 0) + 1000
    steps.step(slip.request, "working")
    found = ask(served, "DELETE", path)
    assert (found.status_code, found.json()["error"]["code"]) == (400, 400)
    assert len([one for one in intake.waiting(made) if isinstance(one.body, Word)]) == 1


def test_a_merged_request_stands_as_the_one_it_was_merged_into(served: Served, made: Settings) -> None:
    said = body()
    assert ask(served, "POST", "/v2/requests", said).status_code == 201
    [slip] = intake.waiting(made)
    steps = Steps(made)
    steps.number = (steps.store.version("rights_requests") or 0) + 2000
    steps.step("first", "working")
    steps.step(slip.request, "cancelled", what="merged", details=[("same_as", "first")])
    path = f"/v2/requests/{said['subject_request_id']}"
    assert ask(served, "GET", path).json()["request_status"] == "in_progress"
    assert ask(served, "DELETE", path).status_code == 409


def hashed(form: str) -> list[dict[str, str]]:
    return [{"identity_type": "email", "identity_value": "0" * 64, "identity_format": form}]


BAD: list[tuple[str, Any, int, str]] = [
    ("not JSON", b"{", 400, "MalformedBody"),
    ("deep JSON", b'{"a":' * 60_000 + b"1" + b"}" * 60_000, 413, "too_large"),
    ("deeper than is read", b"[" * 100_000, 400, "MalformedBody"),
    ("a name twice", b'{"regulation":"gdpr","regulation":"ccpa"}', 400, "MalformedBody"),
    ("too large", b" " * 300_000, 413, "too_large"),
    ("nothing", {}, 400, "IllegalArgumentException"),
    ("another id", body(subject_request_id="A7551968-D5D6-44B2-9831-815AC9017798"), 400, "IllegalArgumentException"),
    ("another type", body(subject_request_type="opt_out"), 400, "UnsupportedRequestType"),
    ("another law", body(regulation="lgpd"), 400, "IllegalArgumentException"),
    ("another version", body(api_version="3.0"), 400, "UnsupportedVersion"),
    ("a time ahead", body(submitted_time="2126-01-01T00:00:00Z"), 400, "IllegalArgumentException"),
    ("nobody", body(subject_identities=[]), 400, "IllegalArgumentException"),
    ("a hash", body(subject_identities=hashed("sha256")), 400, "UnsupportedIdentity"),
    ("a device", body(subject_identities=[{"identity_type": "android_id"}]), 400, "UnsupportedIdentity"),
    (
        "half a character",
        body(subject_identities=[{"identity_type": "email", "identity_value": "\ud800"}]),
        400,
        "MalformedBody",
    ),
    ("another alphabet", json.dumps(body()).encode("utf-16"), 400, "MalformedBody"),
    ("an extension that is none", body(extensions={DOMAIN: 7}), 400, "IllegalArgumentException"),
    (
        "a wait that is none",
        body(extensions={DOMAIN: {"skip_waiting_period": "false"}}),
        400,
        "IllegalArgumentException",
    ),
    ("an id of theirs", body(extensions={"opendsr.mparticle.com": {"mpids": [7]}}), 400, "InvalidOperationException"),
    ("inside", body(status_callback_urls=["https://10.0.0.5/x"]), 400, "ForbiddenCallback"),
    ("not agreed", body(status_callback_urls=["https://evil.example/x"]), 400, "ForbiddenCallback"),
    ("cleartext", body(status_callback_urls=["http://169.254.169.254/"]), 400, "ForbiddenCallback"),
]


@pytest.mark.parametrize(("case", "said", "status", "reason"), BAD, ids=[row[0] for row in BAD])
def test_bad_input_is_named_and_nothing_is_taken_in(
    served: Served, made: Settings, case: str, said: Any, status: int, reason: str
) -> None:
    found = ask(served, "POST", "/v2/requests", said)
    assert (found.status_code, found.json()["error"]["errors"][0]["reason"]) == (status, reason)
    assert "ann@example" not in found.text
    assert asks(made) == []


@pytest.mark.parametrize("path", ["v1", "v2", "v3"])
def test_identities_of_an_extension_count_and_stand_alone(served: Served, made: Settings, path: str) -> None:
    more = {
        "identities": [{"identity_type": "email", "identity_value": "bob@example.com"}],
        "skip_waiting_period": True,
    }
    said = body(extensions={DOMAIN: more, "other.example": {"identities": 7}})
    del said["subject_identities"]
    assert ask(served, "POST", f"/{path}/requests", said).status_code == 201
    assert [(one.identifiers[0].value, one.at_once) for one in asks(made)] == [("bob@example.com", True)]


def test_a_form_of_another_site_cannot_ask(served: Served, made: Settings) -> None:
    def send(media: str) -> int:
        headers = {"Content-Type": media}
        content = json.dumps(body()).encode()
        found = served.client.post(served.url + "/v2/requests", content=content, auth=(USER, PASSWORD), headers=headers)
        return found.status_code

    assert [send(media) for media in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp")] == [
        415
    ] * 3
    assert [send(media) for media in ("application/json", "Application/JSON; charset=utf-8")] == [201, 201]
    assert len(asks(made)) == 2


def test_a_recipient_that_is_not_concerned_has_a_word(served: Served, made: Settings) -> None:
    said = body(subject_identities={"email": {"value": "cy@example.com", "encoding": "raw"}})
    assert ask(served, "POST", "/v3/requests", said).status_code == 201
    [slip] = intake.waiting(made)
    steps = Steps(made)
    steps.number = (steps.store.version("rights_requests") or 0) + 3000
    part = {
        "recipient": "mail",
        "way": "lane",
        "event_id": "e",
        "kid": b"",
        "tag": b"",
        "sealed": None,
        "deadline": None,
    }
    steps.step(slip.request, "working", parts=[part])
    steps.step(slip.request, "working", what="not_concerned", details=[("recipient", "mail")])
    told = ask(served, "GET", f"/v3/requests/{said['subject_request_id']}").json()
    assert [(one["name"], one["status"]) for one in told["extensions"]] == [("mail", "skipped")]


def test_who_is_not_known_gets_nowhere(served: Served, made: Settings) -> None:
    for auth in (None, ("key-1", "wrong"), ("nobody", "x")):
        found = ask(served, "POST", "/v3/requests", body(), auth=auth)
        assert (found.status_code, found.json()["code"]) == (401, 401)
        assert found.headers["www-authenticate"].startswith("Basic")
    assert ask(served, "POST", "/v2/requests", body(subject_request_type="access"), auth=OTHER).status_code == 403
    assert ask(served, "GET", f"/v2/requests/{uuid.uuid4()}").status_code == 404
    assert asks(made) == []


def test_a_flood_is_told_when_to_come_back_and_loses_nothing(served: Served, made: Settings) -> None:
    assert served.api.processor is not None
    served.api.processor.asked = Rates(0.5, 5)
    found = [ask(served, "POST", "/v2/requests", body()) for _ in range(8)]
    codes = [one.status_code for one in found]
    assert codes == [201] * 5 + [429] * 3
    assert int(found[-1].headers["retry-after"]) >= 1
    assert len(asks(made)) == 5


def test_a_callback_that_is_not_taken_is_tried_again_in_order(tmp_path: Path) -> None:
    settings = processor(tmp_path)
    with serving(settings) as served:
        url = f"http://127.0.0.1:{free_port()}/nobody"
        assert ask(served, "POST", "/v2/requests", body(status_callback_urls=[url])).status_code == 201
        out = served.api.processor.out if served.api.processor else None
    assert out is not None
    now = time.time() + 100_000
    out.clock = lambda: now
    [slip] = intake.waiting(settings)
    steps = Steps(settings)
    for state in ("received", "working"):
        steps.step(slip.request, state)
        out.step()
    with out.register.open() as connection:
        owed = connection.execute("SELECT status, tries, over, at FROM owed ORDER BY number").fetchall()
    # The second waits for the first, which waits for its time.
    assert [(one["status"], one["over"]) for one in owed] == [("pending", ""), ("in_progress", "")]
    assert owed[0]["tries"] >= 1
    assert owed[0]["at"] > now
    assert owed[1]["tries"] == 0
    with out.register.open() as connection:
        kept = connection.execute("SELECT salt, digest, likeness FROM asked").fetchone()
    assert tuple(kept) == (None, None, None), "what ties the row to the person is gone once the erasure is worked on"
    for wait in WAITS_S:
        now += wait + 1
        out.step()
    with out.register.open() as connection:
        [first, _] = connection.execute("SELECT over FROM owed ORDER BY number").fetchall()
    assert first["over"] == "given_up"


def test_nothing_on_disk_shows_the_person_or_where_callbacks_go(served: Served, made: Settings) -> None:
    said = body(status_callback_urls=["https://hooks.acme.example/secret-path"])
    assert ask(served, "POST", "/v2/requests", said).status_code == 201
    for file in (made.data_path / "rights").rglob("*"):
        found = file.read_bytes() if file.is_file() else b""
        assert b"ann@example" not in found
        assert b"secret-path" not in found


def test_a_certificate_that_controllers_would_not_believe_is_refused_at_the_start(tmp_path: Path) -> None:
    settings = processor(tmp_path)
    for given in ({"domain": "other.example"}, {"days": -1}, {"itself": True}):
        issued(tmp_path, **given)  # type: ignore[arg-type]
        with pytest.raises(Refused) as caught, serving(settings):
            pass
        assert caught.value.code == "opendsr_certificate"


def test_without_the_declaration_there_are_no_routes(tmp_path: Path) -> None:
    settings = processor(tmp_path, rights="")
    assert RIGHTS not in (tmp_path / "tidings.yaml").read_text()
    with serving(load(settings.directory)) as served:
        assert served.ask("GET", "/v2/discovery").status_code == 404
