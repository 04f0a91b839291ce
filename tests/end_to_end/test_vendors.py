"""The example's vendors behave as vendors do: called over a real socket, killed for real, read from their own books."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the example is not installed with the package

from examples.shop import prepare, story  # noqa: E402
from examples.shop.vendors import books, hooks  # noqa: E402
from examples.shop.vendors.api import Request  # noqa: E402
from examples.shop.vendors.faults import Fault  # noqa: E402
from examples.shop.vendors.server import VENDORS  # noqa: E402
from examples.shop.world import Act, World  # noqa: E402
from tidings import settings  # noqa: E402
from tidings.channels import open_channel  # noqa: E402
from tidings.channels.call import Call, Member  # noqa: E402
from tidings.secret import resolve  # noqa: E402

ADA = "c1003@example.com"
HASH = "0" * 64


@dataclass
class Running:
    """One simulator process and a client that knows its secrets."""

    folder: Path
    process: subprocess.Popen[bytes]
    client: httpx.Client

    @property
    def ledger(self) -> Path:
        return self.folder / "vendors.sqlite"

    def secret(self, vendor: str) -> str:
        return (self.folder / "secrets" / f"{vendor}.key").read_text()

    def headers(self, vendor: str) -> dict[str, str]:
        secret = self.secret(vendor)
        coded = {"mailchimp": f"any:{secret}", "segment": f"{secret}:", "twilio": secret}
        if vendor in coded:
            return {"Authorization": "Basic " + base64.b64encode(coded[vendor].encode()).decode()}
        named = {
            "klaviyo": ("Authorization", f"Klaviyo-API-Key {secret}"),
            "tiktok": ("Access-Token", secret),
            "yotpo": ("x-api-key", secret),
        }
        name, value = named.get(vendor, ("Authorization", f"Bearer {secret}"))
        return {name: value}

    def call(self, vendor: str, method: str, path: str, **given: Any) -> httpx.Response:
        return self.client.request(
            method, f"/{vendor}{path}", headers=self.headers(vendor) | given.pop("headers", {}), **given
        )

    def outcomes(self, vendor: str) -> list[str]:
        return [
            row["outcome"]
            for row in books.read(self.ledger, "SELECT outcome FROM effects WHERE vendor=? ORDER BY id", vendor)
        ]

    def reasons(self, vendor: str) -> list[str]:
        return [
            row["reason"]
            for row in books.read(self.ledger, "SELECT reason FROM calls WHERE vendor=? ORDER BY id", vendor)
        ]

    def kill(self, how: signal.Signals) -> None:
        self.client.close()
        self.process.send_signal(how)
        self.process.wait(10)


Start = Callable[..., Running]


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def begin(**script: Any) -> Running:
        where = tmp_path / "vendors.json"
        where.unlink(missing_ok=True)
        (tmp_path / "script.json").write_text(json.dumps(script))
        given = [
            "--books",
            "vendors.sqlite",
            "--secrets",
            "secrets",
            "--announce",
            "vendors.json",
            "--script",
            "script.json",
        ]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.shop.vendors", *given], cwd=tmp_path, env=environment
        )
        until(lambda: where.exists() or process.poll() is not None)
        url = json.loads(where.read_text())["url"]
        started.append(Running(tmp_path, process, httpx.Client(base_url=url, timeout=10)))
        return started[-1]

    yield begin
    for one in started:
        one.client.close()
        one.process.kill()
        one.process.wait(10)


def profile(event: str = "", email: str = ADA) -> dict[str, Any]:
    return {"data": {"type": "profile", "attributes": {"email": email, "properties": {"tidings_event": event}}}}


def contact(event: str, email: str = ADA) -> dict[str, Any]:
    return {"idProperty": "email", "id": email, "objectWriteTraceId": event, "properties": {"email": email}}


# vendor, method, path, body: one good call of each vendor's main verb.
GOOD: list[tuple[str, str, str, Any]] = [
    ("hubspot", "POST", "/crm/v3/objects/contacts/batch/upsert", {"inputs": [contact("e1")]}),
    ("klaviyo", "POST", "/api/profile-import", profile("e1")),
    ("mailchimp", "PUT", "/3.0/lists/a1/members/" + "a" * 32, {"email_address": ADA}),
    ("segment", "POST", "/v1/batch", {"batch": [{"type": "identify", "userId": "1003", "messageId": "m1"}]}),
    ("meta", "POST", "/v25.0/238/users", {"payload": {"schema": ["EXTERN_ID", "EMAIL"], "data": [["1003", HASH]]}}),
    (
        "google",
        "POST",
        "/v1/audienceMembers:ingest",
        {"audienceMembers": [{"userData": {"userIdentifiers": [{"emailAddress": HASH}]}}]},
    ),
    (
        "tiktok",
        "POST",
        "/open_api/v1.3/segment/mapping/",
        {"action": "add", "batch_data": [[{"id": HASH, "audience_ids": ["1"]}]]},
    ),
    ("yotpo", "POST", "/api/v2/customers", {"id": "1003", "email": ADA}),
    ("warehouse", "POST", "/events", {"events": [{"id": "e1", "subject": "s", "sequence": "0001"}]}),
]


def test_every_vendor_asks_who_is_calling(start: Start) -> None:
    running = start()
    for vendor, method, path, body in GOOD:
        assert running.client.request(method, f"/{vendor}{path}", json=body).status_code == 401, vendor
        wrong = {name: value[:-2] + "xx" for name, value in running.headers(vendor).items()}
        assert running.client.request(method, f"/{vendor}{path}", json=body, headers=wrong).status_code == 401, vendor
        assert running.outcomes(vendor) == []
        assert running.call(vendor, method, path, json=body).status_code in (200, 201), vendor
        assert running.outcomes(vendor) == ["applied"], vendor
        assert running.reasons(vendor) == ["unauthorised", "unauthorised", ""], vendor


def test_the_token_in_the_body(start: Start) -> None:
    running = start()
    row = {"$distinct_id": "1003", "$set": {"tidings_event": "e1"}}
    assert running.client.post("/mixpanel/engage", json=[{**row, "$token": "no"}]).status_code == 401
    answer = running.client.post("/mixpanel/engage", json=[{**row, "$token": running.secret("mixpanel")}])
    assert answer.json()["status"] == 1
    assert running.outcomes("mixpanel") == ["applied"]


# vendor, method, path, a body of n items, the limit, what it answers above it
LIMITS: list[tuple[str, str, str, Callable[[int], Any], int, int]] = [
    ("hubspot", "POST", "/crm/v3/objects/contacts/batch/upsert", lambda n: {"inputs": [contact(f"e{i}") for i in range(n)]}, 100, 400),
    ("warehouse", "POST", "/events", lambda n: {"events": [{"id": f"e{i}", "subject": "s"} for i in range(n)]}, 1000, 413),
    ("klaviyo", "POST", "/api/profile-suppression-bulk-create-jobs", lambda n: {"data": {"attributes": {"profiles": {"data": [{"attributes": {"email": ADA}}] * n}}}}, 100, 400),
]  # fmt: skip


def test_a_batch_above_the_limit_has_no_effect(start: Start) -> None:
    running = start()
    for vendor, method, path, of, most, refusal in LIMITS:
        assert running.call(vendor, method, path, json=of(most + 1)).status_code == refusal, vendor
        assert running.outcomes(vendor) == []
        assert running.call(vendor, method, path, json=of(most)).status_code in (200, 202), vendor
        assert len(running.outcomes(vendor)) == most


def test_a_throttled_vendor_says_when(start: Start) -> None:
    running = start(rates={"klaviyo": [2, 2]})
    answers = [running.call("klaviyo", "POST", "/api/profile-import", json=profile(f"e{n}")) for n in range(6)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) >= 3
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    assert running.outcomes("klaviyo") == ["applied"] * (6 - len(refused))
    time.sleep(int(refused[-1].headers["Retry-After"]))
    assert running.call("klaviyo", "POST", "/api/profile-import", json=profile("e9")).status_code == 200
    assert running.reasons("klaviyo").count("throttled") == len(refused)


def test_some_throttle_without_a_word(start: Start) -> None:
    running = start(rates={"twilio": [0.1, 1], "meta": [0.1, 1]})
    item = {"contact_id": "+14155550101", "correlation_id": "1" * 32, "sender_id": "MG1", "status": "opt-out"}
    answers = [running.call("twilio", "POST", "/v1/Consents/Bulk", data={"Items": json.dumps(item)}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 429]
    assert "retry-after" not in answers[1].headers
    _, method, path, body = GOOD[4]
    answers = [running.call("meta", method, path, json=body) for _ in range(2)]
    assert answers[1].json()["error"]["code"] == 17


def test_an_outage_opens_once_and_ends(start: Start) -> None:
    running = start(faults=[{"vendor": "mailchimp", "kind": "down", "at": [2], "seconds": 0.6}])
    _, method, path, body = GOOD[2]
    found = []
    for _ in range(3):
        found.append(running.call("mailchimp", method, path, json=body).status_code)
    assert found == [200, 503, 503]
    time.sleep(0.7)
    assert running.call("mailchimp", method, path, json=body).status_code == 200
    assert running.outcomes("mailchimp") == ["applied", "unchanged"]


def test_reset_hang_and_garbage_have_no_effect_but_a_lost_answer_has(start: Start) -> None:
    kinds = ("reset", "hang", "garbage", "lost_answer")
    running = start(
        faults=[{"vendor": "warehouse", "kind": kind, "at": [n], "seconds": 0.2} for n, kind in enumerate(kinds, 1)]
    )
    _, method, path, body = GOOD[-1]
    for kind in kinds:
        if kind == "garbage":
            assert running.call("warehouse", method, path, json=body).text.startswith("<html>")
        else:
            with pytest.raises(httpx.TransportError):
                running.call("warehouse", method, path, json=body)
    assert running.outcomes("warehouse") == ["applied"]
    assert running.call("warehouse", method, path, json=body).json() == {"loaded": 1, "failed": []}
    assert running.outcomes("warehouse") == ["applied", "duplicate"]
    assert running.call("warehouse", "GET", "/events/e1").status_code == 200
    assert running.call("warehouse", "GET", "/events/e2").status_code == 404
    assert books.twice_applied(running.ledger) == []


def test_chance_is_drawn_from_the_seed() -> None:
    fault = Fault("warehouse", "reset", chance=0.25)
    drawn = [[n for n in range(1, 2001) if fault.due(n, seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(400 < len(each) < 600 for each in drawn)


def test_success_with_an_error_inside(start: Start) -> None:
    running = start(faults=[{"vendor": vendor, "kind": "reject_item", "at": [1]} for vendor in ("hubspot", "tiktok")])
    answer = running.call("hubspot", *GOOD[0][1:3], json={"inputs": [contact("e1"), contact("e2")]})
    assert answer.status_code == 207
    assert [error["context"]["objectWriteTraceId"] for error in answer.json()["errors"]] == [["e1"]]
    assert running.outcomes("hubspot") == ["rejected", "applied"]
    answer = running.call("tiktok", *GOOD[6][1:3], json=GOOD[6][3])
    assert (answer.status_code, answer.json()["code"]) == (200, 50002)
    assert running.outcomes("tiktok") == ["rejected"]
    assert running.call("tiktok", *GOOD[6][1:3], json=GOOD[6][3]).json()["code"] == 0


# vendor, path, body with one good and one bad row, what the answer says, what the books say
BAD_ROWS: list[tuple[str, str, Any, Callable[[Any], bool], list[str]]] = [
    ("meta", "/v25.0/238/users", {"payload": {"schema": ["EMAIL"], "data": [[HASH], [ADA]]}}, lambda a: a["num_invalid_entries"] == 1, ["applied", "rejected"]),
    ("tiktok", "/open_api/v1.3/segment/mapping/", {"action": "add", "batch_data": [[{"id": HASH}], [{"id": ADA}]]}, lambda a: a["code"] == 40002, ["rejected", "rejected"]),
    ("segment", "/v1/batch", {"batch": [{"userId": "1", "messageId": "a"}, {"messageId": "b"}]}, lambda a: a == {"success": True}, ["applied", "rejected"]),
]  # fmt: skip


def test_bad_rows(start: Start) -> None:
    running = start()
    for vendor, path, body, fits, outcomes in BAD_ROWS:
        assert fits(running.call(vendor, "POST", path, json=body).json()), vendor
        assert running.outcomes(vendor) == outcomes, vendor


def test_where_no_answer_can_name_an_item_a_bad_one_is_a_bad_request(start: Start) -> None:
    running = start(faults=[{"vendor": "yotpo", "kind": "reject_item", "every": 1}])
    assert running.call("yotpo", "POST", "/api/v2/customers", json={"id": "1003"}).status_code == 400
    assert running.outcomes("yotpo") == []
    assert running.call("yotpo", "POST", "/api/v2/customers", json={"email": ADA}).status_code == 200
    assert running.outcomes("yotpo") == ["applied"]


def test_consents_answer_one_by_one(start: Start) -> None:
    running = start()
    items = [
        {"contact_id": phone, "correlation_id": str(n) * 32, "sender_id": "MG1", "status": "opt-out"}
        for n, phone in enumerate(("+14155550101", "none"))
    ]
    answer = running.call("twilio", "POST", "/v1/Consents/Bulk", data={"Items": [json.dumps(item) for item in items]})
    assert answer.status_code == 201
    assert [row["error_code"] for row in answer.json()["items"]] == [0, 30646]
    assert running.outcomes("twilio") == ["applied", "rejected"]


def test_a_job_is_done_later(start: Start) -> None:
    running = start()
    _, method, path, body = GOOD[5]
    job = running.call("google", method, path, json=body).json()["requestId"]
    asked = {"requestId": job}
    state = running.call("google", "GET", "/v1/requestStatus:retrieve", params=asked).json()
    assert state["requestStatusPerDestination"][0]["requestStatus"] == "PROCESSING"
    time.sleep(1.1)
    state = running.call("google", "GET", "/v1/requestStatus:retrieve", params=asked).json()
    assert state["requestStatusPerDestination"][0]["requestStatus"] == "SUCCESS"
    assert (
        running.call("google", "GET", "/v1/requestStatus:retrieve", params={"requestId": "nobody"}).status_code == 404
    )


def test_who_is_erased_is_not_found(start: Start) -> None:
    running = start()
    asked = {"filter": f'equals(email,"{ADA}")'}
    assert running.call("klaviyo", "GET", "/api/profiles", params=asked).json()["data"] != []
    body = {"data": {"attributes": {"profile": {"data": {"attributes": {"email": ADA}}}}}}
    assert running.call("klaviyo", "POST", "/api/data-privacy-deletion-jobs", json=body).status_code == 202
    assert running.call("klaviyo", "GET", "/api/profiles", params=asked).json()["data"] == []
    member = "/3.0/lists/a1/members/" + "b" * 32
    assert [running.call("mailchimp", "POST", member + "/actions/delete-permanent").status_code for _ in range(2)] == [
        204,
        404,
    ]
    assert running.call("mailchimp", "PATCH", member, json={"status": "pending"}).status_code == 404


def test_state_survives_a_kill(start: Start) -> None:
    """Effects, keys, jobs and the script's place all outlive SIGKILL."""
    script: dict[str, Any] = {"faults": [{"vendor": "warehouse", "kind": "garbage", "at": [2]}]}
    running = start(**script)
    _, method, path, body = GOOD[-1]
    assert running.call("warehouse", method, path, json=body).json()["loaded"] == 1
    job = running.call("google", *GOOD[5][1:3], json=GOOD[5][3]).json()["requestId"]
    running.kill(signal.SIGKILL)
    running = start(**script)
    assert running.call("warehouse", method, path, json=body).text.startswith("<html>")
    assert running.call("warehouse", method, path, json=body).status_code == 200
    assert running.outcomes("warehouse") == ["applied", "duplicate"]
    assert running.call("google", "GET", "/v1/requestStatus:retrieve", params={"requestId": job}).status_code == 200
    running.kill(signal.SIGTERM)
    assert running.process.returncode == 0


def test_many_callers_one_effect_each(start: Start) -> None:
    """Forty events, each sent by four callers at once: forty effects, every other one a duplicate."""
    running = start()
    _, method, path, _ = GOOD[-1]

    def send(n: int) -> int:
        body = {"events": [{"id": f"e{n % 40}", "subject": f"s{n % 40}", "sequence": "0001"}]}
        return running.call("warehouse", method, path, json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(send, range(160))) == {200}
    found = running.outcomes("warehouse")
    assert (found.count("applied"), found.count("duplicate")) == (40, 120)
    assert books.twice_applied(running.ledger) == []


def test_the_checker_finds_what_it_looks_for(start: Start) -> None:
    """A key applied twice, and an effect behind a later one: the books must tell."""
    running = start()
    for n in ("0001", "0003", "0002"):
        running.call("warehouse", "POST", "/events", json={"events": [{"id": f"e{n}", "subject": "s", "sequence": n}]})
    elsewhere = {"id": "other", "subject": "s", "sequence": "0001", "source": "/shop/loyalty"}
    running.call("warehouse", "POST", "/events", json={"events": [elsewhere]})  # another feed counts for itself
    assert [row["sequence"] for row in books.out_of_order(running.ledger)] == ["0002"]
    held = books.Books(running.ledger)
    for _ in range(2):
        held.record(books.Call("careless", "post", 200, 1), [books.Item("s", "c", "k")], "applied")
    held.close()
    assert [(row["vendor"], row["times"]) for row in books.twice_applied(running.ledger)] == [("careless", 2)]


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NAME, AT, TEXT = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
GIVEN = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

# changes to the published example, and whether it is still good; the last column is the receiver's clock against the sender's
SIGNATURES: list[tuple[dict[str, str], int, bool]] = [
    ({}, 0, True),
    ({}, 299, True),
    ({}, 301, False),
    ({}, -301, False),
    ({"webhook-signature": f"v1,bm9uZQ== {GIVEN}"}, 0, True),
    ({"webhook-signature": "v1,"}, 0, False),
    ({"webhook-signature": GIVEN[3:]}, 0, False),
    ({"webhook-signature": "v0" + GIVEN[2:]}, 0, False),
    ({"webhook-signature": ""}, 0, False),
    ({"webhook-id": ""}, 0, False),
    ({"webhook-id": "msg_other"}, 0, False),
    ({"webhook-timestamp": ""}, 0, False),
    ({"webhook-timestamp": str(AT + 1)}, 0, False),
]


def test_webhook_signatures() -> None:
    """The example of the Standard Webhooks libraries, and what every receiver must turn away."""
    for changed, drift, good in SIGNATURES:
        headers = {"webhook-id": NAME, "webhook-timestamp": str(AT), "webhook-signature": GIVEN} | changed
        request = Request("concierge", "POST", "/", {}, headers, TEXT)
        assert hooks.verified(request, SECRET, AT + drift) is good, (changed, drift)
    assert not hooks.verified(Request("concierge", "POST", "/", {}, headers, TEXT), "whsec_", AT)


def test_a_webhook_is_taken_once(start: Start) -> None:
    running = start()
    body = json.dumps({"id": "e1", "subject": "s1", "sequence": "0001"}).encode()
    at = str(int(time.time()))
    signed = hooks.signature(running.secret("concierge"), "e1", at, body)
    headers = {"webhook-id": "e1", "webhook-timestamp": at, "webhook-signature": signed}
    assert [running.client.post("/concierge", content=body, headers=headers).status_code for _ in range(2)] == [
        202,
        202,
    ]
    assert running.outcomes("concierge") == ["applied", "duplicate"]
    assert running.client.post("/concierge", content=body + b" ", headers=headers).status_code == 401


def test_they_do_not_outlive_who_started_them(tmp_path: Path) -> None:
    """A parent that is killed leaves no vendors behind."""
    given = ["--books", "v.sqlite", "--secrets", "secrets", "--announce", "v.json", "--with-parent"]
    starter = "import subprocess, sys; subprocess.Popen([sys.executable, '-m', 'examples.shop.vendors', *sys.argv[1:]]).wait()"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", starter, *given], cwd=tmp_path, env=environment)
    until(lambda: (tmp_path / "v.json").exists())
    vendors = json.loads((tmp_path / "v.json").read_text())["pid"]
    parent.kill()
    parent.wait(10)
    until(lambda: not Path(f"/proc/{vendors}/cmdline").exists() or not Path(f"/proc/{vendors}/cmdline").read_bytes())


def test_the_books_hold_no_address(start: Start) -> None:
    running = start()
    for vendor, method, path, body in GOOD:
        running.call(vendor, method, path, json=body)
    running.kill(signal.SIGTERM)
    assert all(ADA.encode() not in path.read_bytes() for path in running.folder.glob("vendors.*"))


def member(act: Act, kind: str, number: int) -> Member:
    """An act of the story as a subscriber is told of it."""
    event = f"019a0000-0000-7000-8000-{number:012d}"
    channel = "sms" if act.case == "sms_opt_out" else "email"
    consent = {"class": "marketing", "channel": channel, "state": "granted" if act.case == "opt_in" else "withdrawn"}
    data = {
        "key": act.key,
        "before": act.before,
        "after": act.after,
        **({"consent": consent} if kind == "consent" else {}),
    }
    body = {
        "specversion": "1.0",
        "id": event,
        "source": "/shop/crm",
        "type": f"tidings.{kind}.changed",
        "subject": f"s{act.key}",
    }
    body |= {"time": "2026-11-15T10:00:00Z", "sequence": f"{number:020d}"}
    return Member(event, f"s{act.key}", kind, f"{number:020d}", {**body, "data": data}, event, 1)


def told(running: Running, folder: Path) -> dict[str, list[tuple[str, str, str]]]:
    """Every act of a round to every subscriber that asked for its kind, through the real channels."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    chosen = settings.load(folder)
    acts = [act for act in story.play(World(7), 1) if act.source == "crm" and act.table == "customers"]
    for name, subscriber in chosen.subscribers.items():
        references = [ref for ref in (subscriber.auth and subscriber.auth.secret, subscriber.signing_secret) if ref]
        secrets = {ref: resolve(ref, folder / "secrets").reveal() for ref in references}
        channel = open_channel(subscriber, secrets, chosen.network)
        # One of each kind and case; the manifests' own pace makes more of them slow.
        wanted = {
            (kind, act.case): (act, kind) for act in acts for kind in act.types if subscriber.wants(kind, "customer")
        }
        pairs = list(wanted.values())
        members = tuple(member(act, kind, number) for number, (act, kind) in enumerate(pairs))
        outcomes = channel.send(Call(name, members, 120))
        found[name] = [
            (one.change_type, outcome.result, outcome.code) for one, outcome in zip(members, outcomes, strict=True)
        ]
        assert channel.ping().result == "acknowledged", name
    return found


def test_the_real_channels_and_these_vendors_understand_each_other(start: Start, tmp_path: Path) -> None:
    """Manifests, the shop's subscribers and the vendors were written apart; here they meet."""
    running = start(rates={name: [1000, 1000] for name in VENDORS})
    (tmp_path / "shop").mkdir()
    folder = prepare.copy(tmp_path / "shop", str(running.client.base_url).rstrip("/"))
    for name in VENDORS:  # the running vendors keep their own secrets
        (folder / "secrets" / f"{name}.key").write_text(running.secret(name))
    for name, results in told(running, folder).items():
        assert results, name
        # A consent for one channel is nothing to a vendor of another.
        taken = [one for one in results if one[1] in ("acknowledged", "accepted")]
        assert taken, name
        wrong = [one for one in results if one not in taken and (one[0], one[2]) != ("consent", "no_verb")]
        assert wrong == [], name
        accepted = [outcome for outcome in running.outcomes(name) if outcome != "rejected"]
        assert len(accepted) >= len(taken), name
    assert books.twice_applied(running.ledger) == []
    assert books.out_of_order(running.ledger) == []
