"""Dead letters from the call that was given up to the operator's answer: real calls, real tables, no Spark."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import Journal, operator

from tidings.care import expire
from tidings.channels.call import Call, Member, Outcome
from tidings.errors import Refused
from tidings.lanes import attempts, control
from tidings.lanes.attempts import SCHEMA
from tidings.lanes.job import ROW
from tidings.lanes.lane import Tables, lane_job
from tidings.lanes.letters import ask, dead_letters, sendable
from tidings.lanes.member import Feed, PlannedCall, Rules, Sent
from tidings.lanes.orders import Orders
from tidings.lanes.semantics import judge
from tidings.lanes.send import Job, channel_of, sender
from tidings.ledger.vocabulary import validate_entry
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings
from tidings.store import Store
from tidings.verbs import dead_letters as verb

FEED = Feed("crm", "g1")
BY = attempts.Stamp("tidings/shop", "webhook", "http://127.0.0.1/1")
TOKEN = "a-very-secret-token"
SAID = b'{"error": "no such person: p0@example.com", "echo": "' + b"x" * 20_000 + b'"}'


class Refuses(BaseHTTPRequestHandler):
    """Answers 400 with a body, and keeps what it was sent."""

    got: ClassVar[list[tuple[dict[str, str], bytes]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).got.append((dict(self.headers.items()), body))
        self.send_response(400)
        self.send_header("Content-Length", str(len(SAID)))
        self.end_headers()
        self.wfile.write(SAID)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    class Handler(Refuses):
        got: ClassVar[list[tuple[dict[str, str], bytes]]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hook", Handler.got
        server.shutdown()


def sent(settings: Settings, store: Store, lane: str) -> None:
    """One call with everything in the journal, made by the executor's own function and committed as it came back."""
    tags = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    rows = store.arrow("journal", [*ROW, "kid", "key_file"]).sort_by("offset").to_pylist()
    keys = tags.load({row["key_file"] for row in rows})
    here = {"task": 0, "lane": lane, "seq": 1, "kind": "send", "at": time.time(), "intent": False}
    planned = [
        row
        | asdict(Sent(row["event_id"], row["offset"], "at-least-once", 1, row["change_type"]))
        | here
        | {"place": n, "key": keys[row["kid"]][1], "wire": f"w{n}", "redact": []}
        for n, row in enumerate(rows)
    ]
    job = Job({lane: lane_job(settings, settings.subscribers[lane])}, {lane: 1}, 10.0, 5.0)
    made = pa.Table.from_batches(sender(job)(iter(pa.Table.from_pylist(planned).to_batches())), SCHEMA)
    folder = Path(store.fresh("attempts"))
    folder.mkdir(parents=True)
    pq.write_table(made, folder / "part-0.parquet")
    store.commit("attempts", str(folder), app="lanes", version=1, cursors={f"lane/{lane}": 1})


def invoke(folder: Path, *arguments: str) -> Any:
    app = typer.Typer(pretty_exceptions_enable=False)
    verb.register(app)
    result = CliRunner().invoke(app, ["dead-letters", *arguments, "-C", str(folder), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def given_up(tmp_path: Path, refusing: tuple[str, list[Any]]) -> tuple[Path, Settings, Store, str]:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/hook.key").write_text(TOKEN)
    (tmp_path / "secrets/hook.key").chmod(0o600)
    settings = operator(tmp_path, {"alpha": refusing[0] + "\nauth: {kind: bearer, secret: file:hook.key}"})
    store = Store(settings.data_path / "tables")
    (event,) = Journal(settings, store).batch([("p0", {"alpha": "allow"})])
    sent(settings, store, "alpha")
    return tmp_path, settings, store, event


def test_the_exact_request_and_the_response_are_shown_and_no_credential_is(
    given_up: tuple[Path, Settings, Store, str], refusing: tuple[str, list[tuple[dict[str, str], bytes]]]
) -> None:
    folder, _, store, event = given_up
    ((headers, body),) = refusing[1]
    assert TOKEN in headers["Authorization"]
    (letter,) = invoke(folder, "show", event)["letters"]
    assert (letter["code"], letter["status"], letter["attempts"], letter["state"]) == ("status_400", 400, 1, "open")
    assert letter["first"] <= letter["last"]
    request, response = letter["exchange"]["request"], letter["exchange"]["response"]
    assert (request["method"], request["url"], request["body"].encode()) == ("POST", refusing[0], body)
    assert request["headers"]["webhook-id"] == event
    assert TOKEN not in json.dumps(letter)
    assert "Authorization" not in request["headers"]
    assert (response["status"], response["body"].encode(), letter["exchange"]["cut"]) == (400, SAID[:8192], True)
    # On disk there is nothing to read: neither the person, nor the answer, nor the token.
    for path in (store.root / "attempts").rglob("*.parquet"):
        table = str(pq.read_table(path).to_pylist())
        assert not [word for word in ("p0@example.com", "no such person", TOKEN) if word in table]


def test_an_erasure_destroys_what_was_said_with_everything_else(given_up: tuple[Path, Settings, Store, str]) -> None:
    folder, settings, _, event = given_up
    keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    assert keys.erase(settings.keyring.tag("shop", "customer", json.dumps(["p0"]))) == 1
    (letter,) = invoke(folder, "show", event)["letters"]
    assert letter["exchange"] == {"gone": "erased"}
    assert [one["event"] for one in invoke(folder, "list")] == [event]


def test_what_was_said_goes_with_the_payload_it_was_made_of(given_up: tuple[Path, Settings, Store, str]) -> None:
    folder, _, store, event = given_up
    assert store.bare("journal", {file.path: () for file in store.files("journal")}, "payload") == 1
    (letter,) = invoke(folder, "show", event)["letters"]
    assert letter["exchange"] == {"gone": "expired"}
    with pytest.raises(Refused, match="payload"):
        invoke(folder, "retry", event, "--reason", "again")


def test_a_batch_keeps_each_member_its_own_part_and_nothing_of_the_others(
    tmp_path: Path, refusing: tuple[str, list[Any]]
) -> None:
    settings = operator(tmp_path, {"alpha": refusing[0] + "\nvars: {mode: batched}"})
    lane = lane_job(settings, settings.subscribers["alpha"])
    members = [
        Member(f"e{n}", f"w{n}", "email", str(n), {"id": f"e{n}", "data": {"email": f"p{n}@example.com"}}, f"e{n}", 1)
        for n in range(2)
    ]
    outcomes = channel_of(lane).send(Call("alpha", tuple(members), 5.0))
    assert len(refusing[1]) == 1
    for n, outcome in enumerate(outcomes):
        assert outcome.exchange is not None
        said = outcome.exchange.encode().decode()
        assert f"p{n}@example.com" in said
        assert f"p{1 - n}@example.com" not in said
        assert (outcome.exchange.status, outcome.exchange.answer) == (400, b"")
        assert "example.com" not in repr(outcome)


def row(event: str, offset: int, seq: int, **how: Any) -> dict[str, Any]:
    """A call of one member at a time of the test's choosing."""
    at, code, kind = how.get("at", time.time()), how.get("code", "status_400"), how.get("kind", "email")
    call = PlannedCall("alpha", seq, FEED, "send", (Sent(event, offset, "at-least-once", 1, kind),), at, False)
    rules = Rules("alpha")
    told = judge(rules, call, [Outcome(event, how.get("result", "terminal"), code, status=400)], at, at + 0.25)
    return attempts.made_row(rules, call, told, (at, at + 0.25), BY)


def commit(store: Store, rows: list[dict[str, Any]], version: int = 1) -> None:
    folder = store.fresh("attempts")
    attempts.write(rows, folder)
    store.commit("attempts", folder, app="lanes", version=version)


DAY = 86_400.0


@pytest.fixture
def shelf(tmp_path: Path) -> tuple[Path, Settings, Store, list[str]]:
    """Six letters: two codes, three types, two people, and ages from an hour to a hundred days."""
    settings = operator(tmp_path, {"alpha": "http://127.0.0.1:1/hook", "beta": "http://127.0.0.1:1/hook"})
    store = Store(settings.data_path / "tables")
    ids = Journal(settings, store).batch([(f"p{n % 2}", {"alpha": "allow"}) for n in range(7)])
    now = time.time()
    kinds, codes = ("email", "consent", "erasure"), ("status_400", "exhausted")
    rows = [
        row(ids[n], n, n + 1, at=now - (3600.0 if n < 2 else 100 * DAY), code=codes[n % 2], kind=kinds[n % 3])
        for n in range(6)
    ]
    commit(store, [*rows, row(ids[6], 6, 7, result="acknowledged", code="ok")])
    return tmp_path, settings, store, ids


def test_letters_are_found_by_subscriber_code_type_time_and_person(
    shelf: tuple[Path, Settings, Store, list[str]],
) -> None:
    folder, _, _, ids = shelf

    def found(*arguments: str) -> list[int]:
        return sorted(ids.index(letter["event"]) for letter in invoke(folder, "list", *arguments))

    week = (datetime.now(UTC) - timedelta(days=7)).isoformat()
    assert found() == [0, 1, 2, 3, 4, 5]
    assert found("--subscriber", "beta") == []
    assert found("--code", "exhausted") == [1, 3, 5]
    assert found("--type", "consent") == [1, 4]
    assert found("--since", week) == [0, 1]
    assert found("--until", week, "--code", "status_400") == [2, 4]
    assert found("--subject", 'customer:["p1"]') == [1, 3, 5]


def test_the_exact_number_is_confirmed_before_anything_is_sent_again(
    shelf: tuple[Path, Settings, Store, list[str]],
) -> None:
    folder, settings, _, ids = shelf
    some = ("retry", "--code", "exhausted", "--reason", "mended")
    with pytest.raises(Refused, match="3 dead letters"):
        invoke(folder, *some)
    with pytest.raises(Refused, match="3 dead letters"):
        invoke(folder, *some, "--expect", "4")
    with pytest.raises(Refused):
        invoke(folder, "retry", "--code", "exhausted", "--yes")
    assert control.asked(settings.data_path, "alpha") == []
    assert invoke(folder, *some, "--expect", "3")["count"] == 3
    assert [one.event for one in control.asked(settings.data_path, "alpha")] == [ids[n] for n in (3, 5, 1)]
    assert invoke(folder, *some, "--expect", "0")["count"] == 0, "what is being sent again is not open"
    assert {one["state"] for one in invoke(folder, "list", "--code", "exhausted")} == {"retrying"}


def test_an_exception_is_attested_with_its_approver_and_reason(shelf: tuple[Path, Settings, Store, list[str]]) -> None:
    folder, settings, _, ids = shelf
    with pytest.raises(Refused):
        invoke(folder, "approve", ids[0], "--reason", "x" * 900)
    invoke(folder, "approve", ids[0], "--reason", "told by post", "--by", "the privacy office")
    (request,) = control.asked(settings.data_path, "alpha")
    entry = validate_entry(request.entry("tidings/shop") or b"")
    assert (entry["kind"], entry["event_id"], entry["subscriber"]) == ("exception_approved", ids[0], "alpha")
    assert (entry["approver"], entry["reason"]) == ("the privacy office", "told by post")


def test_open_letters_expire_by_policy_and_erasures_only_when_somebody_says_so(
    shelf: tuple[Path, Settings, Store, list[str]],
) -> None:
    folder, settings, _, ids = shelf
    with pytest.raises(Refused, match="no time for dead letters"):
        invoke(folder, "expire", "--yes")
    (folder / "policy/kept.yaml").write_text("version: '1'\nretention:\n  dead_letters: {days: 90}\n")
    assert invoke(folder, "expire", "--expect", "2")["count"] == 2
    states = {ids.index(one["event"]): one["state"] for one in invoke(folder, "list")}
    assert states == {0: "open", 1: "open", 2: "open", 3: "expired", 4: "expired", 5: "open"}
    entry = validate_entry(control.asked(settings.data_path, "alpha")[0].entry("tidings/shop") or b"")
    assert (entry["kind"], entry["event_id"]) == ("letter_expired", ids[3])
    assert "90 days" in entry["reason"]
    assert invoke(folder, "expire", "--erasures", "--expect", "2")["count"] == 2


def test_the_daily_look_expires_what_the_policy_names_and_nothing_without_one(
    shelf: tuple[Path, Settings, Store, list[str]],
) -> None:
    folder, settings, store, ids = shelf
    expire(folder, store, lambda table: None, time.time())
    assert control.asked(settings.data_path, "alpha") == []
    (folder / "policy/kept.yaml").write_text("version: '1'\nretention:\n  dead_letters: {days: 90}\n")
    expire(folder, store, lambda table: None, time.time())
    expire(folder, store, lambda table: None, time.time())
    assert [one.event for one in control.asked(settings.data_path, "alpha")] == [ids[3], ids[4]]


def test_ten_thousand_letters_are_listed_asked_and_taken_up_in_a_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = operator(tmp_path, {"alpha": "http://127.0.0.1:1/hook"})
    store, many = Store(settings.data_path / "tables"), 10_000
    ids = Journal(settings, store).batch([(f"p{n}", {"alpha": "allow"}) for n in range(many)])
    commit(store, [row(event, n, n + 1) for n, event in enumerate(ids)])
    tables = Tables(store, KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek")), settings)
    lane = tables.restore(settings.subscribers["alpha"], [FEED])
    reads: list[str] = []
    read = Store.arrow

    def counted(self: Store, table: str, *rest: Any, **more: Any) -> pa.Table:
        reads.append(table)
        return read(self, table, *rest, **more)

    monkeypatch.setattr(Store, "arrow", counted)
    begun = time.monotonic()
    letters = dead_letters(store, settings.data_path)
    assert ask(settings.data_path, sendable(store, letters), "retry", "mended") == many
    orders = Orders(tables, "tidings/shop")
    rows = orders.take([lane], time.time())
    assert len(rows) == len(lane.state.unsettled) == many
    assert reads == ["attempts", "attempts", "journal", "journal"]
    assert orders.take([lane], time.time()) == []
    assert time.monotonic() - begun < 30, "a read per letter takes minutes"
