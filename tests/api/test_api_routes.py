"""Reading, streaming and answering over the API: who may, what is there, what is not, and what an answer does."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_stage import BATCH, Served, Shop, serving, shop

from tidings.api import app, bodies, server
from tidings.api.access import Tokens
from tidings.api.errors import REFUSALS
from tidings.api.rates import Rates
from tidings.gate.decide import decide_all
from tidings.gate.decisions import DecisionTable
from tidings.gate.loading import load_policy
from tidings.lanes import control
from tidings.lanes.policies import attest_policy
from tidings.seal.keyfiles import KeyFiles


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shop, Served, dict[str, str]]]:
    """One server for the tests that leave each other alone."""
    place = shop(tmp_path_factory.mktemp("shop"))
    tokens = {name: Tokens(place.settings.data_path).make(name)[0] for name in ("alpha", "beta", "hook")}
    with serving(place.settings, failed=Rates(1000, 1000), asked=Rates(1000, 1000)) as served:
        yield place, served, tokens


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[tuple[Shop, Served, str]]:
    place = shop(tmp_path)
    token, _ = Tokens(place.settings.data_path).make("alpha")
    with serving(place.settings) as served:
        yield place, served, token


ROUTES = [
    ("GET", "/v1/subscribers/alpha/events"),
    ("GET", "/v1/subscribers/alpha/stream"),
    ("GET", "/v1/subscribers/alpha/cursor"),
    ("POST", "/v1/subscribers/alpha/acks"),
    ("POST", "/v1/subscribers/alpha/replays"),
    ("GET", "/v1/subscribers/alpha/replays/alpha-1"),
]
ROLES = [
    ("no token", lambda tokens: {}, 401, "no_token"),
    ("another scheme", lambda tokens: {"Authorization": f"Basic {tokens['alpha']}"}, 401, "wrong_token"),
    ("an unknown token", lambda tokens: {"Authorization": "Bearer tdgs_" + "A" * 43}, 401, "wrong_token"),
    ("an empty token", lambda tokens: {"Authorization": "Bearer"}, 401, "no_token"),
    ("a token cut short", lambda tokens: {"Authorization": f"Bearer {tokens['alpha'][:-1]}"}, 401, "wrong_token"),
    ("another subscriber's token", lambda tokens: {"Authorization": f"Bearer {tokens['beta']}"}, 403, "not_yours"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=[path.rsplit("/", 1)[1] for _, path in ROUTES])
@pytest.mark.parametrize(("role", "headers", "status", "code"), ROLES, ids=[row[0] for row in ROLES])
def test_every_route_for_everybody_who_may_not(
    world: Any, method: str, path: str, role: str, headers: Any, status: int, code: str
) -> None:
    _, served, tokens = world
    found = served.ask(method, path, headers=headers(tokens), json={"acks": []} if method == "POST" else None)
    assert (found.status_code, found.json()["error"]["code"]) == (status, code)
    assert tokens["alpha"] not in found.text


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=[path.rsplit("/", 1)[1] for _, path in ROUTES])
def test_a_subscriber_that_is_not_there_is_not_told_apart(world: Any, method: str, path: str) -> None:
    _, served, tokens = world
    found = served.ask(method, path.replace("alpha", "nobody"), tokens["alpha"], json={} if method == "POST" else None)
    assert (found.status_code, found.json()["error"]["code"]) == (403, "not_yours")


ODD = [
    ("GET", "/", 404, "not_found"),
    ("GET", "/v1/subscribers/alpha", 404, "not_found"),
    ("DELETE", "/v1/subscribers/alpha/events", 405, "method_not_allowed"),
    ("GET", "/v1/callbacks/alpha", 405, "method_not_allowed"),
    ("GET", "/v1/subscribers/alpha/events?after=AAAA", 400, "bad_cursor"),
    ("GET", "/v1/subscribers/alpha/events?limit=0", 400, "bad_parameter"),
    ("GET", "/v1/subscribers/alpha/events?limit=501", 400, "bad_parameter"),
    ("GET", "/v1/subscribers/alpha/events?wait=31", 400, "bad_parameter"),
    ("GET", "/v1/subscribers/alpha/events?wait=-1", 400, "bad_parameter"),
    ("GET", "/v1/subscribers/alpha/stream?after=%00", 400, "bad_cursor"),
]


@pytest.mark.parametrize(("method", "path", "status", "code"), ODD)
def test_an_odd_question_has_a_name(world: Any, method: str, path: str, status: int, code: str) -> None:
    _, served, tokens = world
    found = served.ask(method, path, tokens["alpha"])
    assert (found.status_code, found.json()["error"]["code"]) == (status, code)


ODD_ACKS = [
    (b"{", 400, "not_json"),
    (b"[" * 100_000, 400, "not_json"),
    (b"[]", 400, "no_acks"),
    (b'{"acks": {}}', 400, "no_acks"),
    (json.dumps({"acks": [{"id": "x", "status": "ok"}] * 1001}).encode(), 400, "too_many"),
    (b" " * 300_000, 413, "too_large"),
]


@pytest.mark.parametrize(("body", "status", "code"), ODD_ACKS)
def test_an_odd_answer_has_a_name(world: Any, body: bytes, status: int, code: str) -> None:
    _, served, tokens = world
    found = served.ask("POST", "/v1/subscribers/alpha/acks", tokens["alpha"], content=body)
    assert (found.status_code, found.json()["error"]["code"]) == (status, code)


def events(served: Served, token: str, query: str = "", to: str = "alpha") -> tuple[list[dict[str, Any]], str]:
    found = served.ask("GET", f"/v1/subscribers/{to}/events{query}", token)
    assert found.status_code == 200, found.text
    assert found.headers["content-type"] == "application/cloudevents-batch+json"
    return found.json(), found.headers["tidings-cursor"]


def answer(served: Served, token: str, *acks: Any, to: str = "alpha") -> list[dict[str, str]]:
    found = served.ask("POST", f"/v1/subscribers/{to}/acks", token, json={"acks": list(acks)})
    assert found.status_code == 200, found.text
    return list(found.json()["results"])


def test_what_was_offered_is_read_in_order_by_cursor(fresh: tuple[Shop, Served, str]) -> None:
    place, served, token = fresh
    assert events(served, token)[0] == []
    first, second = place.happens("ann", "bob"), place.happens("cid")
    place.happens("dee", to="beta")
    whole, cursor = events(served, token)
    assert [one["id"] for one in whole] == [*first, *second]
    assert whole[0]["specversion"] == "1.0"
    assert whole[0]["data"]["after"] == {"email": "ann@example.com"}
    assert "ann" not in whole[0]["subject"]
    one, after_one = events(served, token, "?limit=1")
    assert [each["id"] for each in one] == first[:1]
    assert [each["id"] for each in events(served, token, f"?after={after_one}")[0]] == [first[1], *second]
    assert events(served, token, f"?after={cursor}") == ([], cursor)
    told = served.ask("GET", "/v1/subscribers/alpha/cursor", token).json()
    assert (told["open"], told["head"]) == (3, cursor)
    assert len(events(served, token, f"?after={told['start']}")[0]) == 3


def test_only_what_is_open_is_read(fresh: tuple[Shop, Served, str]) -> None:
    place, served, token = fresh
    done, failed, left = place.happens("ann", "bob", "cid")
    place.offered("alpha", [(done, 0)], "acknowledged", "ok")
    place.offered("alpha", [(failed, 1)], "terminal", "said_no")
    assert [one["id"] for one in events(served, token)[0]] == [left]


def test_a_cursor_of_another_subscriber_or_a_made_up_one_is_refused(world: Any) -> None:
    _, served, tokens = world
    theirs = served.ask("GET", "/v1/subscribers/beta/cursor", tokens["beta"]).json()["head"]
    changed = ("B" if theirs[0] != "B" else "C") + theirs[1:]
    for text, who in ((theirs, "alpha"), (changed, "beta")):
        found = served.ask("GET", f"/v1/subscribers/{who}/events?after={text}", tokens[who])
        assert found.json()["error"]["code"] == "bad_cursor"


def test_a_reader_may_wait(fresh: tuple[Shop, Served, str]) -> None:
    place, served, token = fresh
    later = threading.Timer(0.6, lambda: place.happens("ann"))
    later.start()
    begun = time.monotonic()
    found, _ = events(served, token, "?wait=20")
    took = time.monotonic() - begun
    later.join()
    assert (len(found), 0.4 < took < 8) == (1, True)


def test_an_erased_person_is_not_there(fresh: tuple[Shop, Served, str]) -> None:
    place, served, token = fresh
    ids = place.happens("ann", "bob")
    keyring = place.settings.keyring
    files = KeyFiles(place.settings.data_path / "keys", keyring.derive("kek"))
    assert len(events(served, token)[0]) == 2
    files.erase(keyring.tag("shop", "customer", json.dumps(["ann"])))
    assert [one["id"] for one in events(served, token)[0]] == ids[1:]


def test_the_gate_is_asked_again_when_an_event_is_read(tmp_path: Path) -> None:
    """A stricter policy that came into force after the event was offered keeps it back; a redaction takes the field out."""
    place = shop(tmp_path)
    policy = load_policy(place.settings)
    table = DecisionTable(place.store.decisions, policy)
    facts = {"change_type": "email", "operation": "update", "entity": "customer"}
    table.extend([facts])
    decided = next(iter(table.rows))
    assert decide_all(policy, facts)["situation"] == decided
    place.happens("ann", row={"decision": decided})
    token, _ = Tokens(place.settings.data_path).make("alpha")

    def in_force(effect: str, version: str) -> list[dict[str, Any]]:
        email = "{fact: change_type, is: email}"
        gives = "deny" if "deny" in effect else "applies"
        examples = (
            f"[{{given: {{change_type: email}}, gives: {gives}}}, {{given: {{change_type: phone}}, gives: nothing}}]"
        )
        rule = f"- {{id: less, anchor: privacy, scope: {email}, when: {email}, effect: {effect}, examples: {examples}}}"
        (tmp_path / "policy/own.yaml").write_text(f"version: '{version}'\nrules:\n  {rule}\n")
        attest_policy(place.store, load_policy(place.settings_again()), {}, (), "tidings/shop", time.time() + 1)
        with serving(place.settings_again()) as served:
            return events(served, token)[0]

    with serving(place.settings) as served:
        assert len(events(served, token)[0]) == 1
    [less] = in_force("{redact: [email]}", "2")
    assert "ann@example.com" not in json.dumps(less)
    assert in_force('{deny: "not any more"}', "3") == []


def test_an_answer_is_taken_once(fresh: tuple[Shop, Served, str]) -> None:
    place, served, token = fresh
    first, second, third = place.happens("ann", "bob", "cid")
    other = place.happens("dee", to="beta")[0]
    acks = [
        {"id": first, "status": "ok"},
        {"id": second, "status": "failed", "reason": "no_such_person"},
        {"id": first, "status": "failed"},
        {"id": other, "status": "ok"},
        {"id": "never", "status": "ok"},
    ]
    results = answer(served, token, *acks)
    assert [one["result"] for one in results] == ["taken", "taken", "already", "unknown", "unknown"]
    assert results[2]["answer"] == "acknowledge"
    assert [one["result"] for one in answer(served, token, *acks)] == ["already"] * 3 + ["unknown"] * 2
    asked = control.asked(place.settings.data_path, "alpha")
    assert [(one.action, one.events, one.reason, one.by, one.strength) for one in asked] == [
        ("acknowledge", (first,), "acknowledge", "pull of alpha", "A3"),
        ("reject", (second,), "no_such_person", "pull of alpha", "A0"),
    ]
    assert control.asked(place.settings.data_path, "beta") == []
    # What was answered for is gone from the shelf at once, before the lane has taken the answer up.
    assert [one["id"] for one in events(served, token)[0]] == [third]


ODD_ITEMS: list[Any] = [
    7,
    {},
    {"id": 7, "status": "ok"},
    {"id": "", "status": "ok"},
    {"id": "x" * 201, "status": "ok"},
    {"id": "x", "status": "perhaps"},
    {"id": "x", "status": ["ok"]},
    {"id": "x", "status": "failed", "reason": "Ann Smith said no"},
    {"id": "x", "status": "failed", "reason": {"a": 1}},
]


def test_an_odd_item_is_named_and_does_not_take_others_along(fresh: tuple[Shop, Served, str]) -> None:
    place, served, token = fresh
    [event] = place.happens("ann")
    results = answer(served, token, *ODD_ITEMS, {"id": event, "status": "ok"})
    assert [one["result"] for one in results] == ["invalid"] * len(ODD_ITEMS) + ["taken"]


def replay(served: Served, token: str, **said: Any) -> tuple[int, Any]:
    found = served.ask("POST", "/v1/subscribers/alpha/replays", token, json=said)
    told = found.json()
    return found.status_code, told["error"]["code"] if "error" in told else told


def test_a_subscriber_asks_what_a_replay_would_do_and_orders_it(fresh: tuple[Shop, Served, str]) -> None:
    place, served, token = fresh
    done, failed, waiting = place.happens("ann", "bob", "cid")
    place.happens("dee", to="beta")
    place.offered("alpha", [(done, 0)], "acknowledged", "ok")
    place.offered("alpha", [(failed, 1)], "terminal", "said_no")
    status, told = replay(served, token, **{"from": "2026-01-01", "dry_run": True})
    assert status == 200
    assert {word: count for word, count in told["counts"].items() if count} == {"sent": 1, "skipped": 1, "underway": 1}
    assert control.asked(place.settings.data_path, "alpha") == []
    status, told = replay(served, token, **{"from": "2026-01-01", "type": "email", "reason": "restored_backup"})
    assert (status, told["replay"]) == (202, "alpha-1")
    [asked] = control.asked(place.settings.data_path, "alpha")
    assert (asked.action, asked.by, asked.reason) == ("replay", "replay of alpha", "restored_backup")
    shown = served.ask("GET", "/v1/subscribers/alpha/replays/alpha-1", token).json()
    assert (shown["state"], shown["count"], shown["deliveries"]) == ("asked", 1, {})
    assert served.ask("GET", "/v1/subscribers/alpha/replays/alpha-9", token).json()["error"]["code"] == "unknown_replay"
    for _ in range(2):
        assert replay(served, token, **{"from": "2026-01-01"})[0] == 202
    assert replay(served, token, **{"from": "2026-01-01"}) == (429, "too_often")
    assert [one["id"] for one in events(served, token)[0]] == [waiting], "an order changes nothing until it is taken up"


ODD_ORDERS: list[tuple[Any, str]] = [
    (b"{", "not_json"),
    (b"[]", "bad_order"),
    (b"{}", "bad_order"),
    ({"from": "yesterday"}, "bad_order"),
    ({"from": 7}, "bad_order"),
    ({"from": "2026-01-02", "to": "2026-01-01"}, "bad_order"),
    ({"from": "2026-01-01", "subject": "ann@example.com"}, "bad_order"),
    ({"from": "2026-01-01", "type": "'; drop"}, "bad_order"),
    ({"from": "2026-01-01", "again": "yes"}, "bad_order"),
    ({"from": "2026-01-01", "reason": "Ann asked for it"}, "bad_order"),
]


@pytest.mark.parametrize(("said", "code"), ODD_ORDERS, ids=range(len(ODD_ORDERS)))
def test_an_odd_order_has_a_name(world: Any, said: Any, code: str) -> None:
    _, served, tokens = world
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    found = served.ask("POST", "/v1/subscribers/alpha/replays", tokens["alpha"], content=body)
    assert (found.status_code, found.json()["error"]["code"]) == (400, code)


def lines(response: httpx.Response, wanted: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    now: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            now[name] = value
        elif now:
            found += [now] if "data" in now else []
            now = {}
            if len(found) == wanted:
                break
    return found


def test_a_stream_goes_on_where_it_was_left(fresh: tuple[Shop, Served, str]) -> None:
    place, served, token = fresh
    ids = place.happens("ann", "bob")
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{served.url}/v1/subscribers/alpha/stream"
    with httpx.stream("GET", url, headers=headers, timeout=20, trust_env=False) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        got = lines(response, 2)
    assert [json.loads(one["data"])["id"] for one in got] == ids
    assert got[0]["event"] == "tidings.email.changed"
    threading.Timer(0.4, lambda: ids.extend(place.happens("cid"))).start()
    again = headers | {"Last-Event-ID": got[0]["id"]}
    with httpx.stream("GET", url, headers=again, timeout=20, trust_env=False) as response:
        more = lines(response, 2)
    assert [json.loads(one["data"])["id"] for one in more] == ids[1:]


def test_a_stream_speaks_when_there_is_nothing_to_say_and_ends_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "HEARTBEAT_S", 0.1)
    place = shop(tmp_path)
    token, _ = Tokens(place.settings.data_path).make("alpha")
    got: list[str] = []
    with serving(place.settings) as served:

        def read() -> None:
            headers = {"Authorization": f"Bearer {token}"}
            url = f"{served.url}/v1/subscribers/alpha/stream"
            with httpx.stream("GET", url, headers=headers, timeout=20, trust_env=False) as response:
                got.extend(response.iter_lines())

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(1.0)
    reader.join(10)
    assert not reader.is_alive()
    assert ": still here" in got


def test_streams_of_one_subscriber_are_bounded(
    fresh: tuple[Shop, Served, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, served, token = fresh
    monkeypatch.setattr(app, "MOST_STREAMS", 1)
    headers, url = {"Authorization": f"Bearer {token}"}, f"{served.url}/v1/subscribers/alpha/stream"
    with httpx.stream("GET", url, headers=headers, timeout=20, trust_env=False) as response:
        held = response.iter_lines()
        assert next(held) == "retry: 2000"
        assert served.ask("GET", "/v1/subscribers/alpha/stream", token).status_code == 429


def test_who_asks_too_often_is_told_to_wait(tmp_path: Path) -> None:
    place = shop(tmp_path)
    token, _ = Tokens(place.settings.data_path).make("alpha")
    with serving(place.settings, asked=Rates(0.5, 3), failed=Rates(0.5, 2)) as served:
        good = [served.ask("GET", "/v1/subscribers/alpha/cursor", token) for _ in range(4)]
        assert [one.status_code for one in good] == [200, 200, 200, 429]
        assert 1 <= int(good[3].headers["retry-after"]) <= 2
        bad = [served.ask("GET", "/v1/subscribers/alpha/cursor", "tdgs_guess") for _ in range(3)]
        assert [one.status_code for one in bad] == [401, 401, 429]


def test_a_token_holds_from_when_it_is_made_until_it_is_taken_back(fresh: tuple[Shop, Served, str]) -> None:
    place, served, token = fresh
    tokens = Tokens(place.settings.data_path)
    second, made = tokens.make("alpha")
    kept = tokens.path.read_text()
    assert token not in kept
    assert second not in kept
    assert tokens.path.stat().st_mode & 0o077 == 0 or tokens.path.parent.stat().st_mode & 0o077 == 0
    for text in (token, second):
        assert served.ask("GET", "/v1/subscribers/alpha/cursor", text).status_code == 200
    assert tokens.revoke("alpha", made.id) == [made]
    assert served.ask("GET", "/v1/subscribers/alpha/cursor", second).status_code == 401
    assert served.ask("GET", "/v1/subscribers/alpha/cursor", token).status_code == 200


SLOW = [
    ("no byte", b"", b"", b""),
    ("a head at one byte a time", b"GET /v1/subscribers/alpha/cursor HTTP/1.1\r\nX: ", b"x", b""),
    (
        "a body at one byte a time",
        b"POST /v1/callbacks/alpha HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n",
        b"x",
        b"408",
    ),
]


@pytest.mark.parametrize(("case", "head", "drip", "status"), SLOW, ids=[row[0] for row in SLOW])
def test_a_client_that_is_slow_does_not_hold_the_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, head: bytes, drip: bytes, status: bytes
) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.5)
    monkeypatch.setattr(bodies, "BODY_S", 0.5)
    with serving(shop(tmp_path).settings) as served:
        sock = socket.create_connection(("127.0.0.1", int(served.url.rsplit(":", 1)[1])), timeout=5)
        begun, got = time.monotonic(), b""
        with sock:
            sock.sendall(head)
            sock.settimeout(0.1)
            while time.monotonic() - begun < 5:
                try:
                    if drip:
                        sock.sendall(drip)
                    part = sock.recv(1000)
                except TimeoutError:
                    continue
                except OSError:
                    break
                if not part:
                    break
                got += part
        assert time.monotonic() - begun < 3
    assert status in got


def test_a_body_without_end_is_cut(fresh: tuple[Shop, Served, str]) -> None:
    _, served, token = fresh

    def forever() -> Iterator[bytes]:
        while True:
            yield b"x" * 10_000

    try:
        found = served.ask("POST", "/v1/subscribers/alpha/acks", token, content=forever())
        assert found.status_code == 413
    except httpx.WriteError:  # the server had said its word and hung up before we stopped talking
        pass
    assert served.ask("GET", "/v1/subscribers/alpha/cursor", token).status_code == 200


def test_a_head_without_end_is_refused(fresh: tuple[Shop, Served, str]) -> None:
    _, served, token = fresh
    try:
        found = served.ask("GET", "/v1/subscribers/alpha/cursor", token, headers={"X-Long": "a" * 2_000_000})
        assert found.status_code in (400, 431)
    except (httpx.ReadError, httpx.WriteError):  # it hung up while we were talking
        pass
    assert served.ask("GET", "/v1/subscribers/alpha/cursor", token).status_code == 200


def test_the_page_lists_every_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    assert {code for code, (status, _) in REFUSALS.items() if f"| {status} | `{code}` |" not in page} == set()


PLACES = [
    (server.Place("0.0.0.0"), "cleartext_api"),
    (server.Place("shop.example"), "cleartext_api"),
    (server.Place(certificate=Path("a.pem")), "tls_files"),
    (server.Place(certificate=Path("none.pem"), key=Path("none.key")), "tls_files"),
]


@pytest.mark.parametrize(("place", "code"), PLACES)
def test_a_place_that_is_not_safe_is_refused(place: server.Place, code: str) -> None:
    from tidings.errors import Refused

    with pytest.raises(Refused) as caught:
        place.check()
    assert caught.value.code == code
    replace(place, host="127.0.0.1", certificate=None, key=None).check()
    server.Place("0.0.0.0", behind="10.0.0.1").check()


def test_offsets_of_the_stage_are_the_journals(tmp_path: Path) -> None:
    """The stage numbers offsets as the journal does, or the tests above would look at nothing."""
    place = shop(tmp_path)
    place.happens("ann")
    place.happens("bob", "cid")
    rows = place.store.arrow("journal", ["offset"]).to_pylist()
    assert sorted(row["offset"] for row in rows) == [0, BATCH, BATCH + 1]
