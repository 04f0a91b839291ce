"""What the watch finds in a running process, how often it tells it, and what is left of it on disk."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import typer
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import operator

from tidings.alertbook import QUIET_S, Book, history, listed
from tidings.channels.call import Capabilities, Outcome
from tidings.errors import SourceStopped
from tidings.lanes import attempts
from tidings.lanes.breaker import Breaker
from tidings.lanes.lane import Lane
from tidings.lanes.machine import LaneState, apply, offer, plan, settle
from tidings.lanes.member import Delivery, Feed, PlannedCall, Rules, Verdict
from tidings.lanes.semantics import judge
from tidings.matters import ANSWER_WITHIN, KINDS, MATTERS
from tidings.progress import Generations, Progress
from tidings.seen import Seen
from tidings.settings import load
from tidings.store import Store
from tidings.verbs import report, status
from tidings.watch import FULL_S, LOOK_S, Watch

FEED = Feed("crm", "g1")
PAGES = Path(__file__).parents[2] / "docs" / "runbooks"
BY = attempts.Stamp("tidings/shop", "webhook", "http://127.0.0.1/1")


def lane(*deliveries: Delivery, **rules: Any) -> Lane:
    state = LaneState(Rules("alpha", **rules))
    offer(state, FEED, deliveries, deliveries[-1].offset if deliveries else -1)
    return Lane(None, state, latency_s=0.1)  # type: ignore[arg-type]


def delivery(offset: int, subject: str = "ann", **more: Any) -> Delivery:
    return Delivery(f"e{offset}", subject, FEED, offset, "email", since=1000.0, **more)


class Inbox(BaseHTTPRequestHandler):
    """Where alerts arrive."""

    got: ClassVar[list[tuple[str, str]]]
    status: ClassVar[list[int]]

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.got.append((said["type"].removeprefix("tidings.alert."), said["data"]["state"]))
        self.send_response(self.status[-1])
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class Stage:
    """A watch over one lane, with a clock to turn and a real receiver."""

    def __init__(self, folder: Path, inbox: type[Inbox], one: Lane) -> None:
        self.now, self.folder, self.inbox = 1000.0, folder, inbox
        self.cycle = SimpleNamespace(lanes={"alpha": one})
        self.settings = load(folder)
        self.store = Store(self.settings.data_path / "tables")
        self.begin()

    def begin(self) -> None:
        self.watch = Watch(self.settings, self.store, clock=lambda: self.now)

    def look(self, after: float = LOOK_S) -> list[tuple[str, str]]:
        """What arrives when the watch looks that much later."""
        self.now += after
        self.inbox.got.clear()
        self.watch.look(self.cycle)  # type: ignore[arg-type]
        return list(self.inbox.got)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[[Lane], Stage]]:
    class Here(Inbox):
        got: ClassVar[list[tuple[str, str]]] = []
        status: ClassVar[list[int]] = [204]

    operator(tmp_path, {"alpha": "http://127.0.0.1:1/hook"})
    with ThreadingHTTPServer(("127.0.0.1", 0), Here) as server:
        with (tmp_path / "tidings.yaml").open("a") as file:
            file.write(f"alerts: [{{kind: webhook, url: 'http://127.0.0.1:{server.server_port}/'}}]\n")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield lambda one: Stage(tmp_path, Here, one)
        server.shutdown()


def acknowledged(one: Lane, name: str, seq: int) -> None:
    """An acknowledgement whose turn it may not have been."""
    call = PlannedCall("alpha", seq, FEED, "send", (), 0.0, False)
    settle(one.state, call, [Verdict(name, "acknowledged", "ok")], [Outcome(name, "acknowledged", "ok")], 1.0)


def test_an_order_that_was_broken_is_told_within_a_second_and_once(stage: Callable[[Lane], Stage]) -> None:
    one = lane(delivery(1), delivery(2), delivery(3), sla={"email": 1e9})
    here = stage(one)
    assert here.look() == []
    acknowledged(one, "e2", 1)
    assert here.look(1.0) == []
    acknowledged(one, "e1", 2)
    assert here.look(1.0) == [("order_violation", "raised")]
    assert here.look(1.0) == []
    assert here.look(QUIET_S - 2) == []
    assert here.look(LOOK_S) == [("order_violation", "cleared")]
    (alert,) = [row for row in history(here.watch.book.folder) if row["what"] == "cleared"]
    assert (alert["kind"], alert["severity"]) == ("order_violation", "P0")


def test_a_lane_that_keeps_the_order_is_silent_and_forgets_the_subject() -> None:
    one = lane(delivery(1), delivery(2), delivery(1 + 2**24, "bob"))
    while one.state.unsettled:
        for call in plan(one.state, 2000.0):
            apply(one.state, call, [Outcome(m.event_id, "acknowledged", "ok") for m in call.members], 2000.0)
    assert (one.state.totals.incidents, one.state.acked) == ({}, {})


def test_a_doubt_left_under_exactly_once_and_a_second_acknowledgement_are_breaches(
    stage: Callable[[Lane], Stage],
) -> None:
    can = Capabilities(probe=False)
    one = lane(delivery(1, semantics="exactly-once"), delivery(2, "bob", semantics="exactly-once"), capable=can)
    here = stage(one)
    for call in plan(one.state, 1000.0):
        result = "in_doubt" if call.members[0].event_id == "e1" else "acknowledged"
        told = judge(one.state.rules, call, [Outcome(call.members[0].event_id, result, "x", "A2")], 1.0, 1.0)  # type: ignore[arg-type]
        row = attempts.made_row(one.state.rules, call, told, (1.0, 1.0), BY)
        one.settle(call, row)
        if result == "acknowledged":
            one.settle(call, row)
    assert one.state.totals.incidents == {"exactly_once_breach": 2}
    assert here.look(1.0) == [("exactly_once_breach", "raised"), ("dead_letters", "raised")]


def test_a_condition_is_told_once_kept_over_a_restart_and_its_end_is_told(stage: Callable[[Lane], Stage]) -> None:
    one = lane(delivery(1), sla={"email": 1e9})
    here = stage(one)
    one.state.breaker = Breaker("open", 5, 1, 1e12)
    # With the lane standing still until then, what waits will also be late.
    assert here.look() == [("breaker_open", "raised"), ("deadline_at_risk", "raised")]
    assert here.look() == []
    here.begin()
    assert here.look() == []
    assert [alert["kind"] for alert in listed(here.watch.book.folder, "x") if alert["severity"] != "P4"] == [
        "deadline_at_risk",
        "breaker_open",
    ]
    one.state.breaker = Breaker()
    assert here.look(1.0) == [], "conditions are looked at every half minute"
    assert sorted(here.look()) == [("breaker_open", "cleared"), ("deadline_at_risk", "cleared")]
    assert here.look() == []


def test_an_alert_that_reached_nobody_is_told_again_and_raised_once(stage: Callable[[Lane], Stage]) -> None:
    one = lane(delivery(1), sla={"email": 1e9})
    here = stage(one)
    here.inbox.status.append(500)
    one.state.breaker = Breaker("open", 5, 1, here.now + 600)
    assert here.look() == [("breaker_open", "raised")]
    assert here.look(1.0) == [("breaker_open", "raised")]
    here.inbox.status.append(204)
    assert here.look(1.0) == [("breaker_open", "raised")]
    assert here.look() == []
    assert [row["kind"] for row in history(here.watch.book.folder)].count("breaker_open") == 1


def test_a_deadline_is_said_to_be_at_risk_before_it_is_missed(stage: Callable[[Lane], Stage]) -> None:
    one = lane(*[delivery(n, f"p{n}") for n in range(200)], per_second=1.0, concurrency=1, sla={"email": 100.0})
    here = stage(one)
    assert here.look() == [("deadline_at_risk", "raised")]
    found = {alert["kind"]: alert["detail"] for alert in listed(here.watch.book.folder, "x")}
    assert found["deadline_at_risk"].startswith("130 deliveries")
    assert here.look(80.0) == [("deadline_missed", "raised"), ("deadline_at_risk", "cleared")]


def test_a_lane_that_stays_full_is_backpressure_and_one_that_catches_up_is_not(stage: Callable[[Lane], Stage]) -> None:
    one = lane(*[delivery(n, f"p{n}") for n in range(5)], window=5, sla={"email": 1e9})
    here = stage(one)
    assert here.look() == []
    assert here.look(FULL_S) == [("backpressure", "raised")]
    (call, *_) = plan(one.state, here.now)
    apply(one.state, call, [Outcome(call.members[0].event_id, "acknowledged", "ok")], here.now)
    assert here.look() == [("backpressure", "cleared")]
    offer(one.state, FEED, [delivery(9, "p9")], 9)
    assert here.look() == [], "it has only just become full again"


def test_what_a_contract_does_not_describe_is_an_incident_and_a_card_is_not(stage: Callable[[Lane], Stage]) -> None:
    here = stage(lane())
    counted = Generations(here.settings.data_path, "crm")

    def batch(number: int, **codes: int) -> None:
        counted.save("g1", number, Progress(seen=Seen(codes=codes)))
        here.store.commit("journal", None, app="crm/g1", version=number)

    batch(0, wrong_type=3)
    here.begin()
    assert here.look() == [], "counted before this process began"
    batch(1, wrong_type=3, card_in_key=5)
    assert here.look() == []
    batch(2, wrong_type=4, card_in_key=5)
    assert here.look() == [("schema_incompatible", "raised")]


def test_what_the_desk_sees_is_told_while_it_holds(stage: Callable[[Lane], Stage]) -> None:
    here, late = stage(lane()), [("rights_breach", "erasure", "1 request")]
    here.watch.others.append(lambda: late)  # type: ignore[arg-type,return-value]
    assert here.look() == [("rights_breach", "raised")]
    assert here.look() == []
    late.clear()
    assert here.look() == [("rights_breach", "cleared")]


def test_a_source_that_ended_the_run_is_told_by_its_code_alone(stage: Callable[[Lane], Stage]) -> None:
    here = stage(lane())
    here.watch.look(here.cycle, SourceStopped("slot_lost", "jo@example.com", "x", "y"))  # type: ignore[arg-type]
    assert here.inbox.got == [("source_stopped", "raised")]
    assert "example.com" not in (here.watch.book.folder / "open.json").read_text()


def test_status_and_report_show_what_is_open_by_severity(tmp_path: Path) -> None:
    operator(tmp_path, {"alpha": "http://127.0.0.1:1/hook"})
    book = Book(tmp_path / "data" / "alerts")
    book.note(
        {("documentation", "alpha"): "no owner", ("order_violation", "alpha"): "1 since the start"}, 1_700_000_000.0
    )
    app = typer.Typer(pretty_exceptions_enable=False)
    report.register(app)
    status.register(app)

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, [*arguments, "-C", str(tmp_path), "--json"], catch_exceptions=False)
        return json.loads(result.stdout)

    said = run("report", "alerts", "--all")
    assert [one["severity"] for one in said["open"]] == ["P0", "P4"]
    assert said["open"][0]["answer_by"] == said["open"][0]["raised"] == "2023-11-14T22:13:20.000Z"
    assert said["open"][1]["answer_by"] is None
    assert [one["what"] for one in said["history"]] == ["raised", "raised"]
    assert run("status")["alerts"] == said["open"]
    text = CliRunner().invoke(app, ["status", "-C", str(tmp_path)]).stdout
    assert "docs/runbooks/order-violation.md" in text


def test_every_kind_has_a_severity_and_a_page_that_says_what_to_do() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {kind.replace("_", "-") for kind in KINDS}
    for kind in KINDS:
        page = (PAGES / f"{kind.replace('_', '-')}.md").read_text()
        severity = MATTERS[kind].severity
        assert f"**{severity}**" in page, kind
        for heading in ("## What it means", "## Look", "## Do", "## Over"):
            assert heading in page, f"{kind}: {heading}"
    within = {severity: ANSWER_WITHIN[severity] for severity in ("P0", "P1", "P2", "P3")}
    assert within == {"P0": 0, "P1": 72 * 3600, "P2": 7 * 86400, "P3": 30 * 86400}
