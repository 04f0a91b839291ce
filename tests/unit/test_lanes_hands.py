"""What surrounds the machine and needs no Spark: rows, slices, books, requests, and the verbs that read them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import Journal, arrow_schema, operator

from tidings.channels.call import Buries, Member, Outcome
from tidings.channels.faulty import FaultyChannel
from tidings.errors import Damaged, Refused
from tidings.lanes import attempts, books, control, send, slices
from tidings.lanes.books import Books
from tidings.lanes.job import shared, wire_subject
from tidings.lanes.limits import rules_of
from tidings.lanes.member import Feed, Final, PlannedCall, Rules, Sent
from tidings.lanes.semantics import NOT_STARTED, judge
from tidings.ledger.vocabulary import validate_entry
from tidings.store import Store
from tidings.verbs import dead_letters, lanes

FEED = Feed("crm", "g1")
BY = attempts.Stamp("tidings/shop", "webhook", "http://127.0.0.1/1")
URL = "http://127.0.0.1:1/hook"


def made(outcome: Outcome, seq: int = 1, offset: int = 0, started: float = 1000.5) -> dict[str, object]:
    sent = Sent(outcome.event_id, offset, "at-least-once", 1, "email")
    call = PlannedCall("alpha", seq, FEED, "send", (sent,), 1000.0, False)
    rules = Rules("alpha")
    told = judge(rules, call, [outcome], started, started + 0.25)
    return attempts.made_row(rules, call, told, (started, started + 0.25), BY)


def commit(store: Store, rows: list[dict[str, object]], version: int, cursors: dict[str, int]) -> None:
    folder = store.fresh("attempts")
    attempts.write(rows, folder)
    store.commit("attempts", folder, app="lanes", version=version, cursors=cursors)


def test_our_rows_are_the_tables_rows() -> None:
    assert arrow_schema("attempts") == attempts.SCHEMA
    assert arrow_schema("settled") == books.SCHEMA


def test_a_row_comes_back_as_a_restart_needs_it() -> None:
    row = made(Outcome("e1", "throttled", "status_429", status=429, retry_after=60.0))
    (back,) = attempts.table_of([row]).to_pylist()
    told = attempts.recorded(back)
    assert (told.seq, told.feed, told.started, told.finished) == (1, FEED, 1000.5, 1000.75)
    assert (told.members[0].attempt, told.members[0].next_due, told.members[0].final) == (1, 1060.75, None)
    assert attempts.outcomes(back)[0].retry_after == pytest.approx(60.0)
    assert back["members"][0]["subject"] is None


def test_a_call_that_was_not_begun_is_recorded_and_not_attested() -> None:
    assert made(Outcome("e1", "transient", NOT_STARTED))["entry"] is None
    entry = validate_entry(made(Outcome("e1", "acknowledged", "ok", "A2", 200))["entry"])  # type: ignore[arg-type]
    assert (entry["outcomes"], entry["ack_strength"], entry["lane"]) == ({"acknowledged": 1}, "A2", "alpha")


def test_a_slice_is_bounded_whole_and_in_order(tmp_path: Path) -> None:
    settings = operator(tmp_path, {"alpha": URL, "beta": URL})
    store = Store(settings.data_path / "tables")
    journal = Journal(settings, store)
    ids = [
        i for n in range(4) for i in journal.batch([(f"p{n}{k}", {"alpha": "allow", "beta": "deny"}) for k in range(3)])
    ]
    feeds = slices.feeds(store)
    assert list(feeds) == [FEED]
    found, upto = slices.read(store, FEED, -1, most=4)
    assert [entry.event_id for entry in found] == ids[:6]  # whole files, at least four rows
    rest, top = slices.read(store, FEED, upto)
    assert [entry.event_id for entry in rest] == ids[6:]
    assert top == feeds[FEED]
    assert slices.read(store, FEED, top) == ([], top)
    assert slices.deliveries(found, "beta", FEED, {}) == []
    assert len(slices.deliveries(found, "alpha", FEED, {})) == 6


def test_the_books_settle_an_event_once_when_its_last_pair_ends() -> None:
    ledger = Books("tidings/shop", frozenset({"alpha", "beta"}))
    said = {"alpha": "allow", "beta": "defer", "left": "allow"}
    owed = {name: slices.Owed(outcome, "at-least-once", 1, None) for name, outcome in said.items()}
    ledger.open(FEED, [slices.Entry("e1", 5, "email", 0.0, b"", "", owed)], 9, 1.0)
    assert ledger.lowest(FEED) == 5
    ledger.note(Final("alpha", "e1", FEED, 5, "acknowledged", "", 2.0), "A2")
    ledger.note(Final("alpha", "e1", FEED, 5, "dead_lettered", "", 2.5), "A0")  # a pair ends once
    assert ledger.strangers == [("e1", "left")]
    ledger.note(Final("left", "e1", FEED, 5, "refused", "", 2.6), "A0")
    assert ledger.done == []
    ledger.note(Final("beta", "e1", FEED, 5, "refused", "", 3.0), "A0")
    ((event_id, page, at),) = ledger.done
    assert (event_id, at) == ("e1", 3.0)
    assert page.acks == {"alpha": ("acknowledged", "A2"), "beta": ("refused", "A0"), "left": ("refused", "A0")}
    assert ledger.lowest(FEED) == 10


def test_books_opened_again_know_what_was_settled_and_what_was_only_acknowledged(tmp_path: Path) -> None:
    settings = operator(tmp_path, {"alpha": URL})
    store = Store(settings.data_path / "tables")
    ids = Journal(settings, store).batch([(f"p{n}", {"alpha": "allow"}) for n in range(3)])
    first = Books("tidings/shop", frozenset({"alpha"}))
    entries, upto = slices.read(store, FEED, -1)
    now = entries[0].since + 1
    first.open(FEED, entries, upto, now)
    first.note(Final("alpha", ids[1], FEED, 1, "acknowledged", "", now), "A2")
    first.write(store, "books")
    # The last process stopped between its attempts and its books.
    commit(store, [made(Outcome(ids[0], "acknowledged", "ok", "A2", 200), started=now)], 1, {})
    again = Books("tidings/shop", frozenset({"alpha"}))
    books.reopen(again, store, FEED, {"alpha": upto}, now)
    assert again.pages.keys() == {ids[2]}
    assert [event_id for event_id, _, _ in again.done] == [ids[0]]


def test_calls_of_a_lane_stay_together_until_there_are_many() -> None:
    def call(lane: str, seq: int) -> PlannedCall:
        return PlannedCall(lane, seq, FEED, "send", (), 0.0, False)

    few = [call("a", 1), call("b", 1), call("a", 2)]
    placed, tasks = shared(few, {"a": 4, "b": 4}, 4)
    assert (set(placed.values()), tasks) == ({0}, 1)
    many = [call("a", n) for n in range(200)] + [call("single", n) for n in range(100)]
    placed, tasks = shared(many, {"a": 8, "single": 1}, 4)
    assert tasks == 4
    assert len({placed[n] for n in range(200)}) == 4
    assert len({placed[n] for n in range(200, 300)}) == 1  # one call at a time cannot be shared


def test_a_wire_subject_is_stable_and_different_for_each_subscriber() -> None:
    one, two = wire_subject(b"k" * 32, "alpha", b"tag"), wire_subject(b"k" * 32, "beta", b"tag")
    assert one != two
    assert one == wire_subject(b"k" * 32, "alpha", b"tag")


def test_rules_are_the_narrower_of_manifest_and_operator(tmp_path: Path) -> None:
    limits = "\nrate: {per_second: 2, concurrency: 3, batch: 7}"
    settings = operator(tmp_path, {"one": URL + limits, "many": URL + "\nvars: {mode: batched}" + limits})
    one, many = (rules_of(settings, settings.subscribers[name]) for name in ("one", "many"))
    assert (one.per_second, one.concurrency, one.largest_call("email")) == (2, 3, 1)
    assert many.largest_call("email") == 7
    assert one.repeatable("email")


def test_requests_are_kept_in_order_and_a_torn_last_line_was_never_made(tmp_path: Path) -> None:
    assert control.asked(tmp_path, "alpha") == []
    control.ask(tmp_path, "alpha", "pause", "a drill")
    assert control.paused(control.asked(tmp_path, "alpha")) == "a drill"
    control.ask(tmp_path, "alpha", "resume", "over")
    assert [request.serial for request in control.asked(tmp_path, "alpha")] == [1, 2]
    path = control.folder_of(tmp_path) / "alpha.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"serial": 3, "la')
    assert len(control.asked(tmp_path, "alpha")) == 2
    path.write_text("nonsense\n" + whole)
    with pytest.raises(Damaged):
        control.asked(tmp_path, "alpha")


@pytest.fixture
def application() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    lanes.register(app)
    dead_letters.register(app)
    return app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two subscribers; of three events one is acknowledged, one is dead, one waits."""
    settings = operator(tmp_path, {"alpha": URL, "beta": URL})
    store = Store(settings.data_path / "tables")
    ids = Journal(settings, store).batch([(f"p{n}", {"alpha": "allow"}) for n in range(3)])
    rows = [
        made(Outcome(ids[0], "acknowledged", "ok", "A2", 200), 1, 0),
        made(Outcome(ids[1], "terminal", "status_400", status=400), 2, 1),
    ]
    commit(
        store,
        rows,
        1,
        {"lane/alpha": 2, "lane/alpha/since": 1, f"lane/alpha/{FEED}": 2, f"lane/alpha/{FEED}/oldest": 2},
    )
    return tmp_path


def run(app: typer.Typer, *arguments: str) -> object:
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_lanes_lists_every_subscriber_without_spark(application: typer.Typer, folder: Path) -> None:
    alpha, beta = run(application, "lanes", "-C", str(folder))  # type: ignore[misc]
    assert (alpha["subscriber"], alpha["lag"], alpha["unsettled"], alpha["breaker"]) == ("alpha", 0, 1, "closed")
    assert (beta["subscriber"], beta["lag"], beta["unsettled"]) == ("beta", 3, 0)
    text = CliRunner().invoke(application, ["lanes", "-C", str(folder)]).stdout.splitlines()
    assert text[0].split() == ["subscriber", "lag", "unsettled", "parked", "breaker", "paused", "cursor"]
    assert len(text) == 3


def test_pause_needs_a_reason_and_a_known_lane(application: typer.Typer, folder: Path) -> None:
    for arguments in (["pause", "alpha"], ["pause", "nobody", "--reason", "x"], ["pause", "--reason", "x"]):
        with pytest.raises(Refused):
            run(application, "lanes", *arguments, "-C", str(folder))
    made_ones = run(application, "lanes", "pause", "--all", "--reason", "a drill", "-C", str(folder))
    assert [request["lane"] for request in made_ones] == ["alpha", "beta"]  # type: ignore[union-attr]
    assert {one["paused"] for one in run(application, "lanes", "-C", str(folder))} == {"a drill"}  # type: ignore[union-attr]
    assert run(application, "lanes", "pause", "--all", "--reason", "again", "-C", str(folder)) == []
    run(application, "lanes", "resume", "alpha", "--reason", "over", "-C", str(folder))
    assert [one["paused"] for one in run(application, "lanes", "-C", str(folder))] == ["", "a drill"]  # type: ignore[union-attr]


def test_dead_letters_are_listed_inspected_approved_and_sent_again(application: typer.Typer, folder: Path) -> None:
    here = ("-C", str(folder))
    (letter,) = run(application, "dead-letters", *here)  # type: ignore[misc]
    assert (letter["lane"], letter["code"], letter["attempts"], letter["state"]) == ("alpha", "status_400", 1, "open")
    (tried,) = run(application, "dead-letters", "show", letter["event"], *here)["tried"]  # type: ignore[call-overload]
    assert (tried["result"], tried["final"], tried["status"]) == ("terminal", "dead_lettered", 400)
    with pytest.raises(Refused):
        run(application, "dead-letters", "retry", "nothing", "--reason", "x", *here)
    with pytest.raises(Refused):
        run(application, "dead-letters", "approve", letter["event"], *here)
    run(application, "dead-letters", "approve", letter["event"], "--reason", "agreed with the customer", *here)
    assert run(application, "dead-letters", *here)[0]["state"] == "approved"  # type: ignore[index]
    asked = run(application, "dead-letters", "retry", letter["event"], "--reason", "mended", *here)
    assert (asked["action"], asked["letters"][0]["offset"]) == ("retry", 1)  # type: ignore[index, call-overload]
    assert run(application, "dead-letters", *here)[0]["state"] == "retrying"  # type: ignore[index]


def test_books_beyond_their_bound_wait_on_the_shelf_and_settle_all_the_same(tmp_path: Path) -> None:
    settings = operator(tmp_path, {"alpha": URL, "stopped": URL})
    store = Store(settings.data_path / "tables")
    pair = {"alpha": "allow", "stopped": "allow"}
    ids = Journal(settings, store).batch([(f"p{n}", pair) for n in range(10)])
    entries, upto = slices.read(store, FEED, -1)
    now = entries[0].since + 1
    ledger = Books("tidings/shop", frozenset(pair), most=4)
    ledger.open(FEED, entries, upto, now)
    assert (len(ledger.pages), ledger.shelf, ledger.lowest(FEED)) == (4, {FEED: 4}, 0)
    for offset, event_id in enumerate(ids):
        ledger.note(Final("alpha", event_id, FEED, offset, "acknowledged", "", now), "A2")
    rows = [made(Outcome(i, "acknowledged", "ok", "A2", 200), n, n, now) for n, i in enumerate(ids)]
    commit(store, rows, 1, {})
    for offset, event_id in enumerate(ids):
        ledger.note(Final("stopped", event_id, FEED, offset, "refused", "", now), "A0")
        late = made(Outcome(event_id, "refused", "guard"), offset, offset, now) | {"lane": "stopped"}
        commit(store, [late], offset + 2, {})
        if not ledger.pages and ledger.shelf:
            books.take_down(ledger, store, FEED, now)
        ledger.write(store, "books")
    books.take_down(ledger, store, FEED, now) if ledger.shelf else None
    ledger.write(store, "books")
    assert (ledger.pages, ledger.shelf) == ({}, {})
    assert sorted(store.arrow("settled", ["event_id"])["event_id"].to_pylist()) == ids


def test_a_request_torn_by_a_crash_is_cut_off_before_the_next_one(tmp_path: Path) -> None:
    first = control.ask(tmp_path, "esp", "pause", "why")
    path = control.folder_of(tmp_path) / "esp.jsonl"
    for torn in (
        b'{"serial": 2, "lane": "es',
        path.read_bytes().splitlines()[0],
    ):  # half a line, and one without its end
        with path.open("ab") as file:
            file.write(torn)
        assert control.asked(tmp_path, "esp")[0] == first
        again = control.ask(tmp_path, "esp", "resume", "why not")
        assert control.asked(tmp_path, "esp")[-1] == again
    assert [one.serial for one in control.asked(tmp_path, "esp")] == [1, 2, 3]


def test_only_dead_letters_are_buried_and_a_grave_that_fails_changes_nothing() -> None:
    buried: list[tuple[str, str]] = []

    class Grave(FaultyChannel):
        def bury(self, member: Member, reason: str) -> Outcome:
            buried.append((member.event_id, reason))
            raise RuntimeError("the broker is gone")

    members = [Member(f"e{n}", "s", "email", "", {}, f"e{n}", 1) for n in range(3)]
    finals = ["dead_lettered", "acknowledged", "dead_lettered"]
    told = [{"event_id": m.event_id, "code": "400", "final": f} for m, f in zip(members, finals, strict=True)]
    grave = Grave()
    assert isinstance(grave, Buries)
    assert not isinstance(FaultyChannel(), Buries)
    send._bury(grave, members, told)
    assert buried == [("e0", "400"), ("e2", "400")]
