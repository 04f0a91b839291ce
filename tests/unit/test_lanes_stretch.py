"""Stretches against the machine: same rows, same bytes, same state after a restart, whatever the network does. No JVM."""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import Journal, operator

from tidings import crash
from tidings.channels.call import Limits, Outcome
from tidings.channels.client import Answer, Fault, Request
from tidings.channels.manifest import Hook
from tidings.channels.verdict import Judge
from tidings.channels.webhook import WebhookChannel
from tidings.lanes import bodies, carry, courier, cycle, send
from tidings.lanes.attempts import made_row, table_of
from tidings.lanes.bodies import Body, Names, Rendered
from tidings.lanes.cargo import ROW, Cargo, Shelf, packed
from tidings.lanes.carry import carrier, planned
from tidings.lanes.cycle import Cycle
from tidings.lanes.job import wire_subject
from tidings.lanes.lane import lane_job
from tidings.lanes.member import Feed
from tidings.lanes.semantics import judge
from tidings.lanes.stretch import Part
from tidings.lanes.whole import Members, Whole, are_whole, whole_table
from tidings.ledger.attestation import Ack, Settled
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import associated, seal_payload
from tidings.settings import Settings
from tidings.stages import spelling
from tidings.stages.envelope import addressed, batched, render, structured
from tidings.store import Store

FEED = Feed("crm", "g1")
URL = "http://127.0.0.1:9/"
LANES = {
    "many": URL + "many\nvars: {mode: batched}\nrate: {batch: 4, per_second: 10000}",
    "few": URL + "few\nvars: {mode: batched}\nrate: {batch: 7, per_second: 10000}",
    "one": URL + "one\nrate: {per_second: 10000}",
}


@dataclass
class Network:
    """Instead of sockets: answers by chance, and remembers what arrived, in order."""

    chance: random.Random
    trouble: float
    arrived: dict[str, list[tuple[str, str, bool]]] = field(default_factory=lambda: defaultdict(list))

    def request(self, request: Request, timeout_s: float) -> Answer | Fault:
        lane, body = request.url.rsplit("/", 1)[1], json.loads(request.body)
        events = body if isinstance(body, list) else [body]
        trouble = self.chance.random() < self.trouble
        kind = self.chance.choice(["lost", "refused", 503, 429, 400, "not_sent"]) if trouble else 200
        if kind not in ("not_sent", "refused"):
            good = kind == 200
            self.arrived[lane] += [(event["subject"], event["id"], good) for event in events]
        if isinstance(kind, str):
            return Fault("in_doubt" if kind == "lost" else "not_sent", "reset", "the connection broke")
        return Answer(kind, {"retry-after": "2"} if kind == 429 else {}, b"")


@dataclass
class Rows:
    """What a DataFrame is to the cycle: something that writes its rows into a folder."""

    parts: Callable[[], Iterator[list[pa.RecordBatch]]]

    @property
    def write(self) -> Rows:
        return self

    def parquet(self, folder: str) -> None:
        Path(folder).mkdir(parents=True)
        for number, batches in enumerate(self.parts()):
            if batches:
                pq.write_table(pa.Table.from_batches(batches), Path(folder) / f"part-{number}.parquet")


def sealed(store: Store) -> dict[str, dict[str, Any]]:
    return {row["event_id"]: row for row in store.arrow("journal", ROW).to_pylist()}


@dataclass
class Carried:
    """What the DataFrame of a stretch is to the courier: something that runs the tasks."""

    load: carry.Load
    tasks: pa.Table

    def collect(self) -> None:
        list(carrier(self.load)(iter(self.tasks.to_batches())))


def carried_here(spark: Any, store: Store, stretch: Any, load: carry.Load, slots: int) -> Carried:
    """`job.carrying` without Spark: the same function over the same rows."""
    shelf = Shelf(str(store.root), store.files("journal"), stretch.feed)
    return Carried(replace(load, shelf=shelf), packed(stretch, min(2, load.splits)))


def sent_here(spark: Any, store: Store, plan: tuple[pa.Table, int], calls: Any) -> Rows:
    """`job.sending` without Spark."""
    rows = sealed(store)
    members = sorted(plan[0].to_pylist(), key=lambda row: (row["lane"], row["seq"], row["place"]))
    table = pa.Table.from_pylist([{**rows[member["event_id"]], **member} for member in members])

    def parts() -> Iterator[list[pa.RecordBatch]]:
        yield list(send.sender(calls)(iter(table.to_batches())))

    return Rows(parts)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[[Network], None]:
    monkeypatch.setattr(courier, "carrying", carried_here)
    monkeypatch.setattr(cycle, "sending", sent_here)

    def use(network: Network) -> None:
        def channel_of(lane: send.LaneJob) -> WebhookChannel:
            hook = Hook(mode=lane.form or "binary", batch=lane.rules.batches["email"])
            url = str(lane.subscriber.url)
            return WebhookChannel(network, url, hook, Limits(), (), Judge())  # type: ignore[arg-type]

        monkeypatch.setattr(carry, "channel_of", channel_of)
        monkeypatch.setattr(send, "channel_of", channel_of)

    return use


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def opened(settings: Settings, store: Store, clock: Clock) -> Cycle:
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=4))
    made = Cycle(spark, store, settings, settings.keyring, clock=clock)  # type: ignore[arg-type]
    made.stretches.least = 5
    return made


def written(folder: Path, seed: int) -> tuple[Settings, Store, Journal, dict[str, tuple[str, dict[str, str]]]]:
    """A journal of a few people; some pairs denied, some deferred for good, one person erased."""
    chance = random.Random(seed)
    settings = operator(folder, LANES)
    store = Store(settings.data_path / "tables")
    journal, said = Journal(settings, store), {}
    for _ in range(3):
        events = []
        for _ in range(chance.randrange(20, 60)):
            owed = {name: chance.choices(["allow", "deny", "defer"], [20, 3, 1])[0] for name in LANES}
            events.append((f"p{chance.randrange(9)}", owed))
        said |= dict(zip(journal.batch(events), events, strict=True))
    gone = settings.keyring.tag("shop", "customer", json.dumps(["p8"]))
    KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek")).erase(gone)
    return settings, store, journal, said


def ends(store: Store) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in store.arrow("attempts", ["lane", "members"]).to_pylist():
        for member in row["members"]:
            if member["final"]:
                found[row["lane"], member["event_id"]].append(member["final"])
    return found


def inverted(arrived: list[tuple[str, str, bool]]) -> list[str]:
    """Events that were acknowledged although an older one of their subject, that is acknowledged later, was not yet."""
    first: dict[str, int] = {}
    for number, (_, event, good) in enumerate(arrived):
        if good:
            first.setdefault(event, number)
    wrong = []
    for subject in {subject for subject, _, _ in arrived}:
        ids = sorted({event for who, event, good in arrived if who == subject and good})
        wrong += [b for a, b in pairwise(ids) if first[b] < first[a]]
    return wrong


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_nothing_is_lost_nothing_is_inverted_and_a_restart_changes_nothing(
    tmp_path: Path, here: Callable[[Network], None], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    settings, store, _, said = written(tmp_path, seed)
    chance, clock = random.Random(seed), Clock()
    network = Network(chance, chance.choice([0.0, 0.1, 0.5]))
    here(network)

    def point(name: str) -> None:
        if name.startswith("lanes.after") and chance.random() < 0.1:
            raise KeyboardInterrupt(name)

    monkeypatch.setattr(crash, "point", point)
    lanes = opened(settings, store, clock)
    for _ in range(400):
        try:
            lanes.step()
        except KeyboardInterrupt:
            lanes = opened(settings, store, clock)
            continue
        if chance.random() < 0.2:
            same_after_a_restart(lanes, opened(settings, store, clock))
        clock.now += chance.choice([0.1, 5.0, 4000.0, 90_000.0])
        if lanes.idle(10**9):
            break
    same_after_a_restart(lanes, opened(settings, store, clock))
    found = ends(store)
    owed = {(name, event) for event, (_, to) in said.items() for name, outcome in to.items() if outcome != "deny"}
    assert found.keys() | waiting_behind(lanes) == owed
    assert not [pair for pair, told in found.items() if len(told) > 1]
    waiting = [d for lane in lanes.lanes.values() for q in lane.state.queues.values() for d in [q[FEED][0]]]
    assert all(head.deferred for head in waiting)
    for name in LANES:
        assert inverted(network.arrived[name]) == [], (seed, name)
    if network.trouble == 0.0:
        assert {end for told in found.values() for end in told} <= {"acknowledged", "erased"}


def test_the_checker_sees_a_split_that_goes_on_after_a_failure(
    tmp_path: Path, here: Callable[[Network], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = operator(tmp_path, LANES)
    store = Store(settings.data_path / "tables")
    Journal(settings, store).batch([("ann", {"many": "allow"}) for _ in range(40)])
    network = Network(random.Random(3), 0.5)
    here(network)
    monkeypatch.setattr(carry, "stops", lambda made: False)
    lanes = opened(settings, store, clock := Clock())
    for _ in range(20):
        lanes.step()
        clock.now += 4000
    assert inverted(network.arrived["many"]) != []


def same_after_a_restart(lanes: Cycle, again: Cycle) -> None:
    for name, lane in lanes.lanes.items():
        live, found = lane.state, again.lanes[name].state
        assert found.unsettled == live.unsettled, name
        assert (found.cursors, found.seq) == (live.cursors, live.seq)
    lanes.books.catch_up()
    assert again.books.pages == lanes.books.pages


def waiting_behind(lanes: Cycle) -> set[tuple[str, str]]:
    return {(name, event) for name, lane in lanes.lanes.items() for event in lane.state.unsettled}


def test_healthy_lanes_keep_no_delivery_and_their_cursors_reach_the_end(
    tmp_path: Path, here: Callable[[Network], None]
) -> None:
    settings = operator(tmp_path, LANES)
    store = Store(settings.data_path / "tables")
    events = [(f"p{n % 7}", dict.fromkeys(LANES, "allow")) for n in range(60)]
    ids = Journal(settings, store).batch(events)
    network = Network(random.Random(1), 0.0)
    here(network)
    lanes = opened(settings, store, Clock())
    report = lanes.step()
    assert report.unsettled == 0
    assert report.acknowledged > 150  # one request each: the rate of a webhook is 50 a second
    lanes.clock.now += 5  # type: ignore[attr-defined]
    lanes.step()
    assert all(not lane.state.queues and lane.state.cursors[FEED] == 59 for lane in lanes.lanes.values())
    assert sorted(event for _, event, _ in network.arrived["many"]) == ids
    rows = store.arrow("attempts", ["lane", "members"])
    assert max(len(row["members"]) for row in rows.to_pylist() if row["lane"] == "many") == 4


def test_an_event_that_ended_alike_everywhere_is_spelt_as_the_vocabulary_spells_it(tmp_path: Path) -> None:
    settings = operator(tmp_path, LANES)
    made = opened(settings, Store(settings.data_path / "tables"), Clock())
    from tidings.lanes.books import Page

    acks = {"many": ("acknowledged", "A2"), "few": ("refused", "A0")}
    strange = 'an "event"'
    made.books.done = [(e, Page(FEED, 1, set(), dict(acks)), 5.0) for e in ("e1", "e2", strange)]
    listed = [Ack(name, *how) for name, how in acks.items()]
    expected = [
        Settled.of(e, listed, made.books.attestor, "1970-01-01T00:00:05.000000Z").encode()
        for e in ("e1", "e2", strange)
    ]
    assert made.books.rows()["entry"].to_pylist() == expected


def part_of(settings: Settings) -> Part:
    made = lane_job(settings, settings.subscribers["many"])
    return Part(made, 4, 100, {0: 7}, {0: ()}, frozenset(), b"k" * 32)


def test_the_rows_of_whole_calls_are_those_the_machine_makes(tmp_path: Path) -> None:
    part = part_of(operator(tmp_path, LANES))
    rows = [{"event_id": f"e{n}", "offset": n, "change_type": "email"} for n in (3, 1, 2)]
    load = carry.Load(FEED, {"many": part}, 10.0, 1, 3, 1)
    outcome = Outcome("", "acknowledged", "ok", "A2", 200, digest="ab" * 32)
    members = Members.of(["e3", "e1", "e2"], [3, 1, 2], ["email"] * 3)
    whole = [Whole(part.job, 7 + n, members, outcome, 11.25, 11.5) for n in range(2)]
    made = []
    for number in range(2):
        call = planned(part, 0, number, load, rows)
        outcomes = [replace(outcome, event_id=row["event_id"]) for row in rows]
        told = judge(part.job.rules, call, outcomes, 11.25, 11.5)
        made.append(made_row(part.job.rules, call, told, (11.25, 11.5), part.job.by))
    table = whole_table(whole, FEED)
    assert table.equals(table_of(made))
    assert are_whole(table).to_pylist() == [True, True]


def test_a_task_that_is_tried_again_sends_nothing(tmp_path: Path, here: Callable[[Network], None]) -> None:
    part, network = part_of(operator(tmp_path, LANES)), Network(random.Random(1), 0.0)
    here(network)
    rows = [
        {"event_id": f"e{n}", "offset": n, "change_type": "email", "split": 0, "kind": 0, "tag": b"t", "key": b""}
        for n in range(6)
    ]
    made = carry._Task(carry.Load(FEED, {"many": part}, 10.0, 1, 3, 1), Cargo.of(rows)).run(True).to_pylist()
    assert {m["code"] for row in made for m in row["members"]} == {"lane.task_again"}
    assert [len(row["members"]) for row in made] == [4, 2]
    assert not network.arrived


def test_a_row_that_does_not_open_ends_alone(tmp_path: Path, here: Callable[[Network], None]) -> None:
    settings = operator(tmp_path, LANES)
    store = Store(settings.data_path / "tables")
    journal = Journal(settings, store)
    journal.batch([(f"p{n}", {"many": "allow"}) for n in range(8)])
    network = Network(random.Random(1), 0.0)
    here(network)
    real, broken = bodies.open_payload, associated("journal", "g1-0000-000003", "payload")

    def opening(key: bytes, aad: bytes, value: bytes) -> bytes:
        return b"no JSON" if aad == broken else real(key, aad, value)

    bodies.open_payload = opening  # type: ignore[assignment]
    try:
        opened(settings, store, Clock()).step()
    finally:
        bodies.open_payload = real
    found = ends(store)
    assert found.pop(("many", "g1-0000-000003")) == ["dead_lettered"]
    assert {tuple(end) for end in found.values()} == {("acknowledged",)}


ODD = ["plain", 'with "quotes" and \\', "ünï¢ode 🎈", "line\nbreak", "</script>", "\u2028", ""]


def random_event(chance: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    def text() -> str:
        return chance.choice(ODD)

    image = {
        "id": chance.randrange(9),
        "email": text(),
        "address": {"street": text(), "no": 1.5},
        "tags": [text(), None],
    }
    data: dict[str, Any] = {"key": {"id": 1}, "before": chance.choice([None, image]), "after": image}
    data |= {"changed": chance.sample(["email", "address.street", "tags"], 2), "later": "not part of an event"}
    moments = [None, datetime(2026, 11, 16, 9, 30, tzinfo=UTC), datetime(2026, 11, 16, 9, 30, 0, 120, tzinfo=UTC)]
    row = {
        "event_id": f"e-{chance.randrange(10**9)}", "offset": chance.randrange(10**9), "change_type": "email",
        "entity": text() or "customer", "tenant": text(), "source": "crm", "time": chance.choice(moments),
        "recorded": moments[2], "locale": text(), "hlc": chance.choice([None, text()]), "correlation": text(), "vector": chance.choice([None, [("crm", 3), ("b=", 1)]]),
        "subjectseq": 4, "schema_version": chance.choice([None, "2"]), "policy_version": "9",
        "consent": chance.choice([None, {"class": "marketing", "state": "granted", "at": moments[1]}]),
    }  # fmt: skip
    return row, data


@pytest.mark.parametrize("seed", range(3))
def test_bytes_joined_are_the_bytes_rendered(seed: int) -> None:
    chance, key = random.Random(seed), b"k" * 32
    names = Names(key)
    for _ in range(100):
        row, data = random_event(chance)
        redact = tuple(chance.sample(["email", "address.street", "consent", "attribute:locale"], chance.randrange(3)))
        aad = associated("journal", row["event_id"], "payload")
        row |= {"key": key, "payload": seal_payload(json.dumps(data).encode(), key, key, aad)}
        found = Rendered(Cargo.of([row])).pieces(0, redact)
        assert found is not None
        joined = Body.of([("e", tag, found) for tag in (b"one", b"two")], True).to(names)
        expected = [addressed(row, names[tag].decode(), data, redact) for tag in (b"one", b"two")]
        assert joined == batched(expected)[1]
        assert Body.of([("e", b"one", found)], False).to(names) == structured(expected[0])[1]


def test_a_spelling_knows_every_column_that_an_envelope_is_made_of() -> None:
    asked: set[str] = set()

    class Watched(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name)
            return super().get(name, default)

        def __getitem__(self, name: str) -> Any:
            asked.add(name)
            return super().__getitem__(name)

    row, data = random_event(random.Random(1))
    render(Watched(row), "subject", data)
    assert asked - {"consent"} == {*spelling.COMMON, *spelling.STAND_INS, "regulations"}
    assert "regulations" not in ROW  # no row that is read has it


def test_a_wire_name_is_the_wire_subject() -> None:
    import hashlib
    import hmac

    own = hmac.new(b"w" * 32, b"many", hashlib.sha256).digest()
    assert Names(own)[b"tag"].decode() == wire_subject(b"w" * 32, "many", b"tag")
