"""The receiver kit at work: our own sender over real sockets, both middlewares, both stores, every answer it can give."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import make_server

import pytest
import uvicorn
from tidings_receiver import (
    Answer,
    CallbackFailed,
    Event,
    MemoryStore,
    Receiver,
    Reject,
    Request,
    SqliteStore,
    Taken,
    asgi,
    send_callback,
    wsgi,
)
from tidings_receiver.__main__ import _Quiet, _Server, server
from tidings_receiver.signatures import Key, read_keys, sign, verify

from tidings.channels import open_channel
from tidings.channels.call import Call, Channel, Member
from tidings.channels.signing import new_pair
from tidings.shapes import NetworkRules, Subscriber

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OURS, THEIRS = new_pair()
NETWORK = NetworkRules(allow=("127.0.0.0/8",))


def event(number: int, subject: str = "p1", **more: Any) -> dict[str, Any]:
    said = {"specversion": "1.0", "id": f"e{number}", "source": "/shop/crm", "type": "tidings.email.changed"}
    return {**said, "subject": subject, "subjectseq": f"{number:020d}", "data": {"after": {"n": number}}, **more}


def member(number: int, **more: Any) -> Member:
    body = event(number, **more)
    return Member(body["id"], body["subject"], "email", body["subjectseq"], body, body["id"], 1)


def channel(url: str, secret: str = SECRET, **variables: str) -> Channel:
    given = {"manifest": "webhook", "name": "kit", "url": url, "role": "service", "region": "US", "vars": variables}
    subscriber = Subscriber.model_validate({**given, "signing_secret": "file:hook.key", "rate": {"per_second": 1000}})
    return open_channel(subscriber, {"file:hook.key": secret}, NETWORK)


def posted(
    body: Any, *, message_id: str = "m1", kind: str = "application/cloudevents+json", secret: str = SECRET
) -> Request:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": kind, **sign(Key.read(secret), message_id, int(time.time()), raw)}
    return Request("POST", "/hook", headers, raw)


def told(answer: Answer) -> Any:
    return json.loads(answer.body)


class Log:
    """A handler that remembers."""

    def __init__(self) -> None:
        self.got: list[Event] = []

    def __call__(self, event: Event, connection: Any) -> None:
        self.got.append(event)

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.got]


@contextmanager
def wsgi_server(receiver: Receiver) -> Iterator[str]:
    made = make_server("127.0.0.1", 0, wsgi(receiver, "/hook"), _Server, _Quiet)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}/hook"
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


@contextmanager
def asgi_server(receiver: Receiver) -> Iterator[str]:
    sock = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(asgi(receiver, "/hook"), log_level="critical", lifespan="off"))
    thread = threading.Thread(target=asyncio.run, args=(running.serve([sock]),), daemon=True)
    thread.start()
    try:
        while not running.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/hook"
    finally:
        running.should_exit = True
        thread.join()
        sock.close()


SERVERS = {"wsgi": wsgi_server, "asgi": asgi_server}
WAYS = [
    ("structured", "standard", SECRET, SECRET),
    ("binary", "standard", SECRET, SECRET),
    ("batched", "standard", SECRET, SECRET),
    ("structured", "rfc9421", SECRET, SECRET),
    ("binary", "rfc9421", OURS, THEIRS),
    ("structured", "both", f"{OURS} {SECRET}", THEIRS),
    ("structured", "standard", OURS, THEIRS),
]


@pytest.mark.parametrize("served", SERVERS)
@pytest.mark.parametrize(("mode", "signing", "ours", "theirs"), WAYS, ids=range(len(WAYS)))
def test_our_sender_is_understood(served: str, mode: str, signing: str, ours: str, theirs: str) -> None:
    log = Log()
    with SERVERS[served](Receiver([theirs], log)) as url:
        sender = channel(url, ours, mode=mode, signing=signing)
        found = sender.send(Call("kit", (member(1), member(2, subject="p2")), 5))
        again = sender.send(Call("kit", (member(1), member(2, subject="p2")), 5))
        assert sender.ping().result == "acknowledged"
    assert [(one.result, one.strength) for one in [*found, *again]] == [("acknowledged", "A2")] * 4
    assert log.ids == ["e1", "e2", "ping"]
    assert log.got[0].data == {"after": {"n": 1}}
    assert (log.got[0].subject, log.got[0].sequence) == ("p1", f"{1:020d}")


@pytest.mark.parametrize("served", SERVERS)
def test_a_sender_with_another_secret_is_sent_away(served: str) -> None:
    log = Log()
    with SERVERS[served](Receiver([SECRET], log)) as url:
        [found] = channel(url, new_pair()[0]).send(Call("kit", (member(1),), 5))
    assert (found.result, found.status, log.got) == ("terminal", 401, [])


def test_the_secret_changes_while_events_are_on_their_way() -> None:
    """Sender and receiver change over in any order; as long as one of them holds both, nothing is refused."""
    log, new = Log(), "whsec_" + "A" * 43 + "="
    steps = [
        (SECRET, [SECRET]),
        (f"{new} {SECRET}", [SECRET]),
        (f"{new} {SECRET}", [new]),
        (new, [new, SECRET]),
        (new, [new]),
    ]
    for number, (ours, theirs) in enumerate(steps, 1):
        with wsgi_server(Receiver(theirs, log)) as url:
            [found] = channel(url, ours).send(Call("kit", (member(number),), 5))
        assert found.result == "acknowledged"
    assert log.ids == [f"e{number}" for number in range(1, 6)]


STORES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda path: SqliteStore(path / "s.db"),
}


@pytest.mark.parametrize("kind", STORES)
def test_an_event_is_taken_once_and_an_older_one_is_left_alone(kind: str, tmp_path: Path) -> None:
    log = Log()
    receiver = Receiver([SECRET], log, STORES[kind](tmp_path))
    asked = [event(2), event(2), event(1), event(1), event(3), event(1, subject="p2", id="x"), event(3, id="same")]
    results = [told(receiver.answer(posted(one)))["results"][0]["result"] for one in asked]
    # Events of one change share their place; only an older one is stale.
    assert results == ["ok", "duplicate", "stale", "duplicate", "ok", "ok", "ok"]
    assert log.ids == ["e2", "e3", "x", "same"]


def test_causality_says_more_than_the_sequence() -> None:
    log = Log()
    receiver = Receiver([SECRET], log)
    asked = [
        event(5, causality="crm=2,shop=1"),
        event(9, causality="crm=1,shop=1"),  # a later clock, and yet it is included in the first
        event(4, causality="crm=3,shop=1"),  # an earlier clock, and yet it includes the first
        event(6, causality="crm=2,shop=2"),  # neither: the sequence decides
        event(1, causality="nonsense"),
    ]
    results = [told(receiver.answer(posted(one)))["results"][0]["result"] for one in asked]
    assert results == ["ok", "stale", "ok", "ok", "stale"]


def test_by_type_an_older_event_of_another_type_still_counts() -> None:
    receiver = Receiver([SECRET], Log(), line="type")
    asked = [event(2), event(1, type="tidings.phone.changed"), event(1, id="old")]
    assert [told(receiver.answer(posted(one)))["results"][0]["result"] for one in asked] == ["ok", "ok", "stale"]


def test_the_effect_and_the_memory_of_it_are_one(tmp_path: Path) -> None:
    """A handler that fails after it wrote leaves nothing behind, and the next attempt does it once."""
    store, failing = SqliteStore(tmp_path / "r.db"), [True]

    def handle(event: Event, connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS people (id TEXT, n INTEGER)")
        connection.execute("INSERT INTO people VALUES (?, ?)", (event.subject, event.data["after"]["n"]))
        if failing.pop() if failing else False:
            raise OSError("the disk of somebody")

    receiver = Receiver([SECRET], handle, store)
    first, second, third = (receiver.answer(posted(event(1))) for _ in range(3))
    assert (first.status, told(first)["results"]) == (500, [{"id": "e1", "result": "failed", "reason": "OSError"}])
    assert told(second)["results"][0]["result"] == "ok"
    assert told(third)["results"][0]["result"] == "duplicate"
    assert sqlite3.connect(tmp_path / "r.db").execute("SELECT * FROM people").fetchall() == [("p1", 1)]


def test_the_same_event_from_many_threads_is_done_once(tmp_path: Path) -> None:
    def handle(event: Event, connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE counted SET n = n + 1")

    store = SqliteStore(tmp_path / "r.db")
    with store.turn() as turn:
        turn.connection.execute("CREATE TABLE counted AS SELECT 0 AS n")
    receiver, results = Receiver([SECRET], handle, store), []
    threads = [
        threading.Thread(target=lambda: results.append(told(receiver.answer(posted(event(1))))["results"][0]["result"]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["duplicate"] * 7 + ["ok"]
    assert sqlite3.connect(tmp_path / "r.db").execute("SELECT n FROM counted").fetchall() == [(1,)]


def test_what_is_old_enough_is_forgotten(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "r.db", keep_s=60)
    Receiver([SECRET], Log(), store).answer(posted(event(1)))
    assert store.forget() == 0
    assert store.forget(time.time() + 61) == 1


def test_memory_is_bounded() -> None:
    store = MemoryStore(most=3)
    receiver = Receiver([SECRET], Log(), store)
    for number in range(10):
        receiver.take(Event(f"e{number}", "s", "t", "", {}, None))
    assert receiver.take(Event("e9", "s", "t", "", {}, None)).result == "duplicate"
    assert receiver.take(Event("e0", "s", "t", "", {}, None)).result == "ok"


def test_a_rejected_event_is_refused_for_good_and_takes_nobody_along() -> None:
    log = Log()

    def handle(event: Event, connection: Any) -> None:
        if event.id == "e2":
            raise Reject("unknown_person")
        log(event, connection)

    with wsgi_server(Receiver([SECRET], handle)) as url:
        outcomes = channel(url, mode="batched").send(
            Call("kit", tuple(member(n, subject=f"p{n}") for n in (1, 2, 3)), 5)
        )
        assert {(one.result, one.status) for one in outcomes} == {("terminal", 422)}  # the lane halves such a call
        alone = [channel(url, mode="batched").send(Call("kit", (member(n, subject=f"p{n}"),), 5))[0] for n in (1, 2, 3)]
    assert [one.result for one in alone] == ["acknowledged", "terminal", "acknowledged"]
    assert log.ids == ["e1", "e3"]


BATCHED = "application/cloudevents-batch+json"
ORIGIN = {"WebHook-Request-Origin": "a.example"}
BAD: dict[str, tuple[Callable[[], Request], int, str]] = {  # signed when it is sent: a signature has five minutes
    "not JSON": (lambda: posted(b"{"), 400, "not_json"),
    "too deep": (lambda: posted(b"[" * 200_000, kind="application/json"), 400, "not_json"),
    "no event": (lambda: posted({"id": "x"}), 400, "not_an_event"),
    "no batch": (lambda: posted({"id": "x"}, kind=BATCHED), 400, "not_an_event"),
    "too many": (lambda: posted([event(1)] * 1001, kind=BATCHED), 400, "too_many"),
    "too large": (lambda: posted(b"x" * 1_000_001), 413, "too_large"),
    "unsigned": (lambda: Request("POST", "/hook", {}, b"{}"), 401, "missing_header"),
    "another method": (lambda: Request("GET", "/hook", {}, b""), 405, "method_not_allowed"),
    "an origin nobody allowed": (lambda: Request("OPTIONS", "/hook", ORIGIN, b""), 403, "origin_not_allowed"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_has_a_name(case: str) -> None:
    request, status, code = BAD[case]
    answer = Receiver([SECRET], Log()).answer(request())
    assert (answer.status, told(answer)) == (status, {"error": {"code": code}})


def test_a_stale_request_is_refused_and_a_plain_json_message_is_one_event() -> None:
    log = Log()
    assert told(Receiver([SECRET], log, clock=lambda: time.time() + 400).answer(posted({})))["error"] == {
        "code": "outside_tolerance"
    }
    assert Receiver([SECRET], log).answer(posted({"type": "x"}, kind="application/json")).status == 200
    assert (log.got[0].id, log.got[0].data) == ("m1", {"type": "x"})


@pytest.mark.parametrize("served", SERVERS)
def test_the_handshake_with_our_sender(served: str) -> None:
    log = Log()
    receiver = Receiver([SECRET], log, origins=["events.shop.example"], per_minute=120)
    with SERVERS[served](receiver) as url:
        good, bad = channel(url, handshake="events.shop.example"), channel(url, handshake="other.example")
        [first] = good.send(Call("kit", (member(1),), 5))
        [second] = good.send(Call("kit", (member(2),), 5))
        [denied] = bad.send(Call("kit", (member(3),), 5))
        assert bad.ping().code == "handshake_denied"
    assert first.result == "acknowledged"
    assert (second.result, second.code) == ("throttled", "handshake_rate")  # two a second at most
    assert 0 < (second.retry_after or 0) <= 0.5
    assert (denied.result, denied.code) == ("transient", "handshake_denied")
    assert log.ids == ["e1"]


def test_a_callback_is_signed_and_a_repeat_is_no_failure() -> None:
    got: list[tuple[dict[str, str], bytes]] = []
    statuses = iter(["202 Accepted", "409 Conflict", "401 Unauthorized"])

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        headers = {
            f"webhook-{part}": environ[f"HTTP_WEBHOOK_{part.upper()}"] for part in ("id", "timestamp", "signature")
        }
        got.append((headers, environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
        start_response(next(statuses), [("Content-Length", "0")])
        return []

    made = make_server("127.0.0.1", 0, application, handler_class=_Quiet)
    thread = threading.Thread(target=lambda: [made.handle_request() for _ in range(3)], daemon=True)
    thread.start()
    url, taken = (
        f"http://127.0.0.1:{made.server_port}/v1/callbacks/kit",
        [Taken("e1", "ok"), Taken("e2", "failed", "X")],
    )
    message_id = send_callback(url, SECRET, taken)
    assert send_callback(url, SECRET, taken, message_id=message_id) == message_id
    with pytest.raises(CallbackFailed) as caught:
        send_callback(url, SECRET, taken)
    thread.join()
    made.server_close()
    assert caught.value.status == 401
    headers, body = got[0]
    assert verify(read_keys([SECRET]), headers, body, time.time()) == message_id
    acks = [{"id": "e1", "status": "ok", "reason": ""}, {"id": "e2", "status": "failed", "reason": "X"}]
    assert json.loads(body) == {"acks": acks}
    with pytest.raises(CallbackFailed) as caught:
        send_callback(url, SECRET, taken, timeout_s=2)
    assert caught.value.status == 0


def test_the_endpoint_to_try_things_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hook.key").write_text(SECRET + "\n")
    made = server(["--port", "0", "--secret-file", str(tmp_path / "hook.key"), "--store", str(tmp_path / "s.db")])
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    [found] = channel(f"http://127.0.0.1:{made.server_port}/").send(Call("kit", (member(1),), 5))
    made.shutdown()
    made.server_close()
    thread.join()
    assert found.result == "acknowledged"
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"id": "e1", "type": "tidings.email.changed", "sequence": f"{1:020d}"}
