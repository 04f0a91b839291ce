"""Requests of people over the API: who may, what is taken, what is said of it, and every way in which it is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from api_stage import SECRET
from rights_stage import SHOPIFY, Desk, answering
from typer.testing import CliRunner

from tidings.channels.signing import decode_secrets, sign
from tidings.rights import lists
from tidings.verbs.rights_import import import_list

REQUESTS = "/v1/rights/requests"
ANN = [{"kind": "email", "value": "ann.canary@example.com"}]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with answering(tmp_path_factory.mktemp("shop")) as found:
        yield found


def made(desk: Desk, token: str = "ask", **said: Any) -> str:
    status, told = desk.ask("POST", REQUESTS, token, json={"kind": "erasure", "identifiers": ANN, **said})
    assert status == 202, told
    return str(told["id"])


def test_a_request_is_taken_in_as_it_was_said(desk: Desk) -> None:
    name = made(
        desk, kind="opt_out", scope=["sms"], jurisdiction="US-CA", received="2026-11-01T09:00:00+01:00", reference="r-1"
    )
    ask = desk.asks()[name]
    assert (ask.kind, ask.scope, ask.way, ask.agent, ask.assurance) == ("opt_out", ("sms",), "rest", "ask-1", "none")
    assert ask.received == datetime(2026, 11, 1, 8, tzinfo=UTC)
    assert made(desk, kind="opt_out", scope=["sms"], reference="r-1") == name
    assert desk.ask("GET", f"{REQUESTS}/{name}", "ask") == (200, {"id": name, "state": "received"})


def test_every_problem_comes_at_once_and_no_value_is_repeated(desk: Desk) -> None:
    said = {"kind": "forget", "identifiers": [{"kind": "email"}, 7], "received": "soon", "colour": 1, "scope": "all"}
    status, told = desk.ask("POST", REQUESTS, "ask", json=said | {"jurisdiction": "canary place"})
    paths = {one["path"] for one in told["error"]["problems"]}
    assert (status, told["error"]["code"]) == (400, "bad_request")
    wanted = {
        "kind",
        "identifiers",
        "identifiers[0]",
        "identifiers[1]",
        "received",
        "'colour'",
        "scope",
        "jurisdiction",
    }
    assert wanted <= paths
    assert "soon" not in json.dumps(told)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"[" * 200_000, b'{"kind":\xff}'])
def test_what_is_no_object_is_refused(desk: Desk, body: bytes) -> None:
    status, told = desk.ask("POST", REQUESTS, "ask", content=body)
    assert (status, told["error"]["code"]) in {(400, "not_json"), (400, "bad_request")}


def test_what_breaks_in_us_has_a_code_and_shows_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("ann.canary@example.com")

    monkeypatch.setattr("tidings.api.rights.hand_in", broken)
    status, told = desk.ask("POST", REQUESTS, "ask", json={"kind": "opt_out", "identifiers": ANN})
    assert (status, told) == (500, {"error": {"code": "unexpected", "message": told["error"]["message"]}})
    assert "canary" not in json.dumps(told)


def test_a_token_says_what_it_is_for(desk: Desk) -> None:
    assert desk.ask("POST", REQUESTS, json={})[0] == 401
    from tidings.api.access import Tokens

    desk.tokens["hook"] = Tokens(desk.settings.data_path).make("hook")[0]
    assert desk.ask("POST", REQUESTS, "hook", json={})[1]["error"]["code"] == "no_scope"
    name = made(desk)
    assert (
        desk.ask("POST", f"{REQUESTS}/{name}/words", "ask", json={"action": "approve"})[1]["error"]["code"]
        == "no_scope"
    )


def test_only_who_has_checked_the_person_may_say_so(desk: Desk) -> None:
    said = {"kind": "erasure", "identifiers": ANN, "assurance": "verified"}
    status, told = desk.ask("POST", REQUESTS, "ask", json=said)
    assert (status, [one["path"] for one in told["error"]["problems"]]) == (400, ["assurance"])
    assert desk.of(made(desk, "vouch", assurance="verified")).assurance == "verified"


def test_a_word_is_said_by_whose_token_it_is(desk: Desk) -> None:
    name = made(desk)
    status, told = desk.ask("POST", f"{REQUESTS}/{name}/words", "desk", json={"action": "refuse", "reason": "no_match"})
    assert (status, told["by"]) == (202, "desk-1")
    [word] = [one for one in desk.words() if one.request == name]
    assert (word.action, word.by, word.reason) == ("refuse", "desk-1", "no_match")
    for bad in (
        {"action": "explode"},
        {},
        {"action": "refuse", "reason": "Ann Canary, 12 Hill St"},
        {"action": "verify"},
    ):
        assert desk.ask("POST", f"{REQUESTS}/{name}/words", "desk", json=bad)[1]["error"]["code"] == "bad_word", bad
    assert desk.ask("POST", f"{REQUESTS}/{'0' * 32}/words", "desk", json={"action": "approve"})[0] == 404


def test_a_request_is_taken_back_while_it_can_be(desk: Desk) -> None:
    name = made(desk)
    assert desk.ask("DELETE", f"{REQUESTS}/{name}", "ask") == (202, {"id": name, "said": "cancel"})
    late = "ab" * 16
    desk.happened(late, state="working", step=4)
    assert desk.ask("DELETE", f"{REQUESTS}/{late}", "ask")[1]["error"]["code"] == "too_late"
    assert desk.ask("DELETE", f"{REQUESTS}/{'c' * 32}", "ask")[1]["error"]["code"] == "unknown_request"
    assert not [one for one in desk.words() if one.request == late]


def test_evidence_is_kept_as_its_digest_and_for_a_task_that_is_open(desk: Desk) -> None:
    name = "cd" * 16
    part = dict.fromkeys(("event_id", "kid", "tag", "sealed", "deadline"))
    parts = [{**part, "recipient": "clean-room", "way": "task"}, {**part, "recipient": "crm", "way": "lane"}]
    desk.happened(name, state="working", parts=parts)
    status, whole = desk.ask("GET", f"{REQUESTS}/{name}", "desk")
    assert [one["recipient"] for one in whole["recipients"]] == ["clean-room", "crm"]
    assert "recipients" not in desk.ask("GET", f"{REQUESTS}/{name}", "ask")[1]
    proof = b"a screenshot \x00 of ann.canary@example.com"
    path = f"/v1/rights/tasks/{name}/%s/evidence"
    status, told = desk.ask("POST", path % "clean-room", "desk", content=proof)
    assert (status, told["evidence"]) == (202, hashlib.sha256(proof).hexdigest())
    [word] = [one for one in desk.words() if one.request == name]
    assert (word.action, word.recipient, word.by, word.evidence) == ("done", "clean-room", "desk-1", told["evidence"])
    assert [desk.ask("POST", path % who, "desk", content=proof)[0] for who in ("crm", "nobody")] == [404, 404]
    assert desk.ask("POST", path % "clean-room", "desk", content=b"")[1]["error"]["code"] == "bad_word"
    kept = b"".join(file.read_bytes() for file in desk.settings.data_path.rglob("*") if file.is_file())
    assert proof not in kept


def test_a_list_is_taken_whole_or_its_problems_are_told(desk: Desk) -> None:
    good = "kind,email,id:customer,scope,value:email\nopt_out,bob@example.com,,sms;email,\nrectification,,C7,,new@example.com\n"
    status, told = desk.ask("POST", "/v1/rights/lists", "ask", content=good.encode())
    assert (status, told["taken"], told["problems"]) == (202, 2, [])
    asks = [desk.asks()[one["request"]] for one in told["requests"]]
    assert [(one.kind, one.scope, dict(one.values), one.identifiers[0].kind) for one in asks] == [
        ("opt_out", ("sms", "email"), {}, "email"), ("rectification", (), {"email": "new@example.com"}, "customer"),
    ]  # fmt: skip
    assert desk.ask("POST", "/v1/rights/lists", "ask", content=good.encode())[1]["requests"] == told["requests"]
    before = len(desk.asks())
    bad = "kind,email,received,assurance\nopt_out,a@example.com,,\nopt_out,,yesterday,\n\nfly,b@example.com,,verified\nopt_out\n"
    status, told = desk.ask("POST", "/v1/rights/lists", "ask", content=bad.encode())
    found = {(one["line"], one["path"]) for one in told["error"]["problems"]}
    assert (status, len(desk.asks())) == (400, before)
    assert found == {(3, "received"), (3, "identifiers"), (5, "kind"), (5, "assurance"), (6, "(line)")}
    status, told = desk.ask("POST", "/v1/rights/lists?good_lines=yes", "ask", content=bad.encode())
    assert (status, told["taken"], len(told["problems"]), len(desk.asks())) == (202, 1, 5, before + 1)


def hook(desk: Desk, topic: str, body: bytes, key: str = SHOPIFY, **headers: str) -> tuple[int, Any]:
    mac = base64.b64encode(hmac.new(key.encode(), body, hashlib.sha256).digest()).decode()
    sent = {"X-Shopify-Topic": topic, "X-Shopify-Hmac-Sha256": mac, "X-Shopify-Shop-Domain": "shop.myshopify.com"}
    return desk.ask("POST", "/v1/rights/shopify", content=body, headers={**sent, **headers})


def shop_body(**more: Any) -> bytes:
    return json.dumps({"shop_id": 954889, "shop_domain": "shop.myshopify.com", **more}).encode()


JOHN = {"id": 191167, "email": "john.canary@example.com", "phone": None}


def test_shopify_asks_and_asks_once(desk: Desk) -> None:
    body = shop_body(customer=JOHN, orders_to_redact=[1, 2])
    status, told = hook(desk, "customers/redact", body)
    ask = desk.asks()[told["id"]]
    assert (status, ask.kind, ask.assurance, ask.way) == (200, "erasure", "verified", "shopify")
    assert [(one.kind, one.value) for one in ask.identifiers] == [
        ("customer", "191167"), ("email", "john.canary@example.com"),
    ]  # fmt: skip
    assert hook(desk, "customers/redact", body, **{"X-Shopify-Webhook-Id": "another"}) == (200, told)
    wants = shop_body(customer=JOHN, orders_requested=[1], data_request={"id": 9999})
    assert desk.of(hook(desk, "customers/data_request", wants)[1]["id"]).kind == "access"
    whole = desk.of(hook(desk, "shop/redact", shop_body())[1]["id"])
    assert (whole.kind, whole.assurance, whole.identifiers[0].kind) == ("erasure", "claimed", "shop")


STRANGE = [
    ("shop/redact", b'{"shop_domain": "shop.myshopify.com"}'),
    ("customers/redact", shop_body(customer={"id": 1, "email": "x" * 400}, orders_to_redact=[])),
    ("customers/redact", shop_body(customer={"id": {"a": 1}}, orders_to_redact=[])),
    ("customers/redact", shop_body(customer={"id": True}, orders_to_redact=[])),
    ("customers/redact", shop_body(customer={"id": 1, "email": "\ud800"}, orders_to_redact=[])),
]


@pytest.mark.parametrize(("topic", "body"), STRANGE, ids=range(len(STRANGE)))
def test_a_shopify_message_that_names_nobody_usable_is_refused(desk: Desk, topic: str, body: bytes) -> None:
    status, told = hook(desk, topic, body)
    assert (status, told["error"]["code"]) in {(400, "bad_webhook"), (400, "not_json")}


def test_a_shopify_message_that_was_tampered_with_is_refused(desk: Desk) -> None:
    before = len(desk.asks())
    wants = shop_body(customer=JOHN, orders_requested=[1], data_request={"id": 1})
    assert hook(desk, "customers/redact", wants)[1]["error"]["code"] == "bad_webhook"  # a header the signature misses
    assert hook(desk, "customers/data_request", wants, key="wrong")[0] == 401
    assert hook(desk, "customers/data_request", wants, **{"X-Shopify-Hmac-Sha256": "no base64"})[0] == 401
    other = json.dumps({"shop_id": 1, "shop_domain": "other.myshopify.com"}).encode()
    assert hook(desk, "shop/redact", other)[1]["error"]["code"] == "wrong_shop"
    assert hook(desk, "customers/redact", b"{")[1]["error"]["code"] == "not_json"
    nobody = shop_body(customer={"id": None}, orders_to_redact=[])
    assert hook(desk, "customers/redact", nobody)[1]["error"]["code"] == "bad_webhook"
    assert len(desk.asks()) == before


def proven(desk: Desk, body: bytes, name: str, secret: str = SECRET, at: float | None = None) -> tuple[int, Any]:
    headers = sign(decode_secrets(secret), name, int(at or time.time()), body)
    return desk.ask("POST", "/v1/rights/proofs", content=body, headers=headers)


def test_the_signed_word_of_an_identity_proof_counts_once(desk: Desk) -> None:
    name = made(desk)
    body = json.dumps({"request": name}).encode()
    wrong = "whsec_" + base64.b64encode(b"w" * 32).decode()
    assert proven(desk, body, "p1", wrong)[0] == 401
    assert proven(desk, body, "p1", at=time.time() - 3600)[1]["error"]["code"] == "stale"
    assert proven(desk, body, "p1")[0] == 202
    assert proven(desk, body, "p1")[1]["error"]["code"] == "replayed"
    [word] = [one for one in desk.words() if one.request == name]
    assert (word.action, word.says, word.evidence) == (
        "verify",
        {"assurance": "verified"},
        hashlib.sha256(body).hexdigest(),
    )


def test_a_code_goes_to_the_address_of_the_request_and_works_once(desk: Desk) -> None:
    two = [*ANN, {"kind": "customer", "value": "C9"}]
    _status, told = desk.ask("POST", REQUESTS, "ask", json={"kind": "erasure", "identifiers": two, "proof": True})
    assert [one["path"] for one in told["error"]["problems"]] == ["proof"]  # the e-mail would prove nothing about C9
    name = made(desk, proof=True)
    code = desk.letters.code("ann.canary@example.com")
    path = f"{REQUESTS}/{name}/proof"
    assert desk.ask("POST", path, "ask", json={"code": "AAAAA AAAAA"})[1]["error"]["code"] == "wrong_code"
    assert desk.ask("POST", path, "ask", json={"code": f" {code[:5].lower()}-{code[5:]} "})[0] == 202
    assert desk.ask("POST", path, "ask", json={"code": code})[0] == 403
    assert [one.says for one in desk.words() if one.request == name] == [{"assurance": "verified"}]


def test_nothing_on_disk_tells_who_asked(desk: Desk) -> None:
    made(desk, proof=True)
    kept = b"".join(file.read_bytes() for file in desk.settings.data_path.rglob("*") if file.is_file())
    for canary in (b"ann.canary", b"john.canary", b"191167"):
        assert canary not in kept
    assert not list(Path(desk.settings.data_path).rglob("*canary*"))


def run(desk: Desk, *words: str) -> tuple[int, Any]:
    app = typer.Typer()
    app.command()(import_list)
    found = CliRunner().invoke(app, [*words, "-C", str(desk.settings.directory), "--json"])
    return found.exit_code, json.loads(found.stdout)


def test_the_command_line_takes_a_list_and_reports_what_it_left_out(desk: Desk, tmp_path: Path) -> None:
    file, report = tmp_path / "list.csv", tmp_path / "problems.csv"
    file.write_text('kind,email,contact\nerasure,"zoe.canary@example.com","a\nb"\nfly,yan.canary@example.com,\n')
    before = len(desk.asks())
    status, told = run(desk, str(file))
    assert (status, told["taken"], len(desk.asks())) == (3, 0, before)
    status, told = run(desk, str(file), "--good-lines", "--report", str(report))
    assert (status, told["taken"], [one["line"] for one in told["requests"]]) == (0, 1, [2])
    lines = report.read_text().splitlines()
    assert (len(lines), lines[1].split(",")[:3]) == (2, ["4", "kind", "bad_request"])  # the quoted value has two lines
    assert "canary" not in report.read_text()


HOSTILE = [
    b"",
    b"kind,email",
    b"\xff\xfe",
    b"kind,kind\nopt_out,opt_out\n",
    b"email\na@b.example\n",
    b'kind,email\n"opt_out,a\n',
]
HOSTILE += [
    b"kind,colour\nopt_out,red\n",
    b"kind,id:nobody\nopt_out,1\n",
    b"kind,email\n" + b"opt_out,a@b.example\n" * 10_001,
]


@pytest.mark.parametrize("raw", HOSTILE, ids=range(len(HOSTILE)))
def test_a_list_that_is_none_is_refused_as_a_whole(desk: Desk, raw: bytes) -> None:
    before = len(desk.asks())
    taken = lists.take(desk.settings, raw, good_lines=True)
    assert (len(taken.problems) > 0, taken.requests, len(desk.asks())) == (True, {}, before)


def test_every_problem_of_a_list_comes_at_once_with_its_line_and_no_value(desk: Desk) -> None:
    raw = (
        b'kind,email,Email,colour,email\nfly,a.canary@example.com,,,\nopt_out,"x"y,,,\nopt_out,b.canary@example.com\n'
        b"opt_out," + b"z" * 140_000 + b",,,\nopt_out,c.canary@example.com,,,\n"
    )
    taken = lists.take(desk.settings, raw, good_lines=True)
    found = [(one.line, one.path) for one in taken.problems]
    assert found == [
        (1, "(header) column 3"), (1, "(header) column 4"), (1, "(header) column 5"), (3, "(line)"), (5, "(line)"),
        (2, "kind"), (4, "(line)"),
    ]  # fmt: skip
    assert taken.requests == {}


def test_a_list_without_names_of_columns_shows_nobody(desk: Desk) -> None:
    taken = lists.take(desk.settings, b"erasure,a.canary@example.com\nerasure,b.canary@example.com\n")
    assert "no column kind" in [one.found for one in taken.problems]
    assert "canary" not in lists.report(taken) + str(taken.as_dict())


def test_a_formula_reaches_no_report(desk: Desk) -> None:
    raw = b"kind,email,=cmd()\n=HYPERLINK(1),@SUM(1),+1\n"
    taken = lists.take(desk.settings, raw)
    cells = [cell.strip('"') for line in lists.report(taken).splitlines() for cell in line.split(",")]
    assert [cell for cell in cells if cell[:1] in ("=", "+", "-", "@")] == []
