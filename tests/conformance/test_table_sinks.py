"""What tables promise beyond the one suite: the current state of a subject, bad rows alone, a commit nobody answered for, late calls."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from rigs_tables import DeltaRig, MariaDbRig, PostgreSqlRig
from sinks import LOOPBACK, Rig, call, member, members

from tidings.channels import open_channel
from tidings.channels.call import Channel, Member, Outcome
from tidings.errors import Refused
from tidings.shapes import NetworkRules, Subscriber


@pytest.fixture(scope="module", params=[PostgreSqlRig, MariaDbRig], ids=["postgresql", "mariadb"])
def rig(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = request.param()
    made.start()
    yield made
    made.end()


ODD = 'cus"to`mer %s; DROP TABLE x'  # a table's name is a name, whatever is in it


@pytest.fixture
def table(rig: Any) -> Iterator[Any]:
    """Rows of subjects in a table with an odd name: e-mail and tier, and a tier may not be `bad`."""
    shape = " varchar(64) PRIMARY KEY, email varchar(100), tier varchar(20), age int, CHECK (tier <> 'bad'))"
    postgresql = isinstance(rig, PostgreSqlRig)
    mark = '"' if postgresql else "`"
    name = f"{mark}{ODD.replace(mark, mark * 2)}{mark}"

    def run(statement: str) -> list[Any]:
        if postgresql:
            import psycopg

            with psycopg.connect(rig.connection(rig.password), autocommit=True) as db:
                cursor = db.execute(statement.replace("{}", name).encode())
                return cursor.fetchall() if cursor.description else []
        return list(rig.server.run("USE sink", statement.replace("{}", name)))

    for own in ("tidings_delivered", "tidings_subjects"):
        run(f"DROP TABLE IF EXISTS {own}")
    run("CREATE TABLE {} (id" + shape)
    yield run
    run("DROP TABLE {}")


@pytest.fixture
def channel(rig: Any, table: Any) -> Iterator[Channel]:
    opened = rig.open(PLACE)
    yield opened
    opened.close()


PLACE = {"table": ODD, "key": "id = member.subject", "columns": "email, tier = after.tier, age = after.age"}


def event(number: int, subject: str = "anna", kind: str = "update", **after: Any) -> Member:
    made = member(number, subject)
    body = {**made.body, "subjectseq": f"{number:020d}", "data": {"after": after}}
    return replace(made, body=body, change_type=kind)


def told(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(outcome.result, outcome.code) for outcome in outcomes]


def test_the_newest_event_wins_and_an_older_one_changes_nothing(channel: Channel, table: Any) -> None:
    assert told(channel.send(call(event(2, email="new@example.com", tier="gold")))) == [("acknowledged", "ok")]
    late = channel.send(call(event(1, email="old@example.com"), number=2))
    assert told(late) == [("acknowledged", "superseded_at_sink")]
    assert table("SELECT id, email, tier FROM {}") == [("anna", "new@example.com", "gold")]


def test_what_is_absent_stays_and_null_is_null(channel: Channel, table: Any) -> None:
    channel.send(call(event(1, email="a@example.com", tier="gold", age=30), event(2, email=None)))
    assert table("SELECT email, tier, age FROM {}") == [(None, "gold", 30)]


def test_an_erased_row_does_not_come_back(channel: Channel, table: Any) -> None:
    channel.send(call(event(1, email="a@example.com"), event(2, "ben", email="b@example.com")))
    assert told(channel.send(call(event(5, kind="erasure"), number=2))) == [("acknowledged", "ok")]
    assert table("SELECT id FROM {}") == [("ben",)]
    channel.send(call(event(4, email="late@example.com"), number=3))
    channel.send(call(event(1, email="a@example.com"), number=4))
    assert table("SELECT id FROM {}") == [("ben",)]


def test_a_bad_row_falls_alone_and_holds_its_subject(channel: Channel, table: Any) -> None:
    those = [
        event(1, "anna", tier="gold"),
        event(2, "ben", tier="bad"),
        event(3, "ben", tier="gold"),
        event(4, "cleo", age="x"),
    ]
    outcomes = channel.send(call(*those, event(5, "dora", tier="gold")))
    assert [outcome.result for outcome in outcomes] == [
        "acknowledged",
        "terminal",
        "transient",
        "terminal",
        "acknowledged",
    ]
    assert outcomes[2].code == "held_behind"
    assert table("SELECT id FROM {} ORDER BY id") == [("anna",), ("dora",)]
    # The bad one left nothing behind, so that its correction is not taken for a repeat.
    assert told(channel.send(call(event(2, "ben", tier="silver"), number=2))) == [("acknowledged", "ok")]


def test_values_are_values(channel: Channel, table: Any) -> None:
    hostile = "'); DROP TABLE tidings_delivered; -- %s {} \\ \" `"
    channel.send(call(event(1, email=hostile)))
    assert table("SELECT email FROM {}")[0][0] == hostile
    assert table("SELECT count(*) FROM tidings_delivered")[0][0] == 1


def _shut(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting(port: int, forwards: bool) -> Iterator[int]:
    """A line that breaks at the first COMMIT: before the server has it, or after, with the answer lost."""
    listener = socket.create_server(("127.0.0.1", 0))
    broken = threading.Event()

    def near_to_far(near: socket.socket, far: socket.socket, cut: threading.Event) -> None:
        with suppress(OSError):
            while data := near.recv(65536):
                if b"COMMIT" in data and not broken.is_set():
                    broken.set()
                    cut.set()
                    if forwards:
                        far.sendall(data)
                        time.sleep(0.3)  # the server commits, and its answer goes nowhere
                    break
                far.sendall(data)
        _shut(near, far)

    def far_to_near(near: socket.socket, far: socket.socket, cut: threading.Event) -> None:
        with suppress(OSError):
            while data := far.recv(65536):
                if not cut.is_set():
                    near.sendall(data)
        _shut(near, far)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                line = (near, socket.create_connection(("127.0.0.1", port)), threading.Event())
                for pump in (near_to_far, far_to_near):
                    threading.Thread(target=pump, args=line, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


@pytest.mark.parametrize("forwards", [False, True], ids=["not committed", "committed"])
def test_a_commit_nobody_answered_for_is_a_doubt_and_its_repeat_is_harmless(rig: Any, forwards: bool) -> None:
    place = rig.place()
    own = rig.database.port if isinstance(rig, PostgreSqlRig) else rig.server.port
    warm = rig.open(place)
    assert warm.ping().result == "acknowledged"  # our tables are there, so that the first COMMIT is the one that counts
    warm.close()
    with cutting(own, forwards) as port:
        said = {"manifest": rig.manifest, "name": "someone", "role": "service", "region": "US", "vars": place}
        subscriber = Subscriber.model_validate({**said, "connection": "file:server.key"})
        connection = rig.connection(rig.password).replace(f":{own}/", f":{port}/")
        opened = open_channel(subscriber, {"file:server.key": connection}, NetworkRules(allow=LOOPBACK))
        outcomes = opened.send(call(*members(1, 5)))
        assert {outcome.result for outcome in outcomes} == {"in_doubt"}
        assert len(rig.arrived(place)) == (5 if forwards else 0)
        assert {outcome.result for outcome in opened.send(call(*members(1, 5), number=2))} == {"acknowledged"}
        opened.close()
    assert set(Counter(rig.arrived(place)).values()) == {1}
    assert len(rig.arrived(place)) == 5


@pytest.mark.parametrize(
    ("connection", "vars"),
    [
        ("oracle://u:canary@host/db", {}),
        ("postgresql:///db", {}),
        ("host=a,b dbname=x password=canary", {}),
        ("postgresql://u:canary@127.0.0.1:1/db", {"columns": "email = no such"}),
        ("postgresql://u:canary@127.0.0.1:1/db", {"columns": "email, email"}),
        ("postgresql://u:canary@127.0.0.1:1/db", {"table": "a.b.c"}),
    ],
)
def test_what_cannot_be_read_is_refused_without_being_shown(connection: str, vars: dict[str, str]) -> None:
    said = {
        "manifest": "postgresql",
        "name": "someone",
        "role": "service",
        "region": "US",
        "vars": {"table": "t", **vars},
    }
    subscriber = Subscriber.model_validate({**said, "connection": "file:server.key"})
    try:
        opened = open_channel(subscriber, {"file:server.key": connection}, NetworkRules(allow=LOOPBACK))
        shown = f"{opened!r} {opened.send(call(member(1), timeout=1))!r}"
        assert "transient" in shown
    except Refused as refused:
        shown = str(refused)
    assert "canary" not in shown


def test_outside_a_database_is_reached_with_tls_only() -> None:
    said = {"manifest": "postgresql", "name": "someone", "role": "service", "region": "US", "vars": {"table": "t"}}
    subscriber = Subscriber.model_validate({**said, "connection": "file:server.key"})
    connection = "postgresql://u:canary@8.8.8.8/db?sslmode=prefer"
    opened = open_channel(subscriber, {"file:server.key": connection}, NetworkRules(allow=LOOPBACK))
    assert told(opened.send(call(member(1)))) == [("refused", "cleartext")]


@pytest.fixture
def delta() -> Iterator[Rig]:
    made = DeltaRig()
    made.start()
    yield made
    made.end()


def test_a_call_is_committed_once_under_its_number(delta: DeltaRig) -> None:
    place = delta.place()
    for opened, code in ((delta.open(place), "ok"), (delta.open(place), "already_delivered")):
        assert told(opened.send(call(*members(1, 3), number=7))) == [("acknowledged", code)] * 3
    assert len(delta.arrived(place)) == 3
    rows = DeltaTable(place["path"]).to_pyarrow_table(columns=["call", "place", "event_id"]).to_pylist()
    assert [(row["call"], row["place"]) for row in rows] == [(7, 0), (7, 1), (7, 2)]


def test_a_call_that_was_asked_about_cannot_come_later(delta: DeltaRig) -> None:
    place = delta.place()
    late, now = delta.open(place), delta.open(place)
    doubtful = [replace(one, sent_in=7) for one in members(1, 3)]
    assert {one.result for one in now.probe(call(*doubtful, number=8))} == {"transient"}
    assert {one.result for one in now.send(call(*members(1, 3), number=9))} == {"acknowledged"}
    assert told(late.send(call(*members(1, 3), number=7))) == [("transient", "overtaken")] * 3
    assert len(delta.arrived(place)) == 3
    assert len(list(Path(place["path"]).glob("*.parquet"))) == 1  # what was not committed is not left behind


WRITER = """
import sys
sys.path.insert(0, {here!r})
from rigs_tables import DeltaRig
from sinks import call, members
opened = DeltaRig().open({place!r})
for number in range(1, 10_000):
    outcomes = opened.send(call(*members(10 * number, 10), number=number))
    print(number, outcomes[0].result, flush=True)
"""


def test_a_killed_writer_leaves_whole_calls(delta: DeltaRig) -> None:
    place, here = delta.place(), str(Path(__file__).parent)
    script = WRITER.format(here=here, place=place)
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    said = [writer.stdout.readline() for _ in range(5)]
    writer.kill()
    said += writer.stdout.read().splitlines()
    writer.wait(30)
    writer.stdout.close()
    last = int(said[-1].split()[0])
    arrived = Counter(one.event_id for one in delta.arrived(place))
    done = {one.event_id for number in range(1, last + 1) for one in members(10 * number, 10)}
    assert done <= set(arrived)
    assert set(arrived.values()) == {1}
    doubtful = [replace(one, sent_in=last + 1) for one in members(10 * (last + 1), 10)]
    (answer,) = {one.result for one in delta.open(place).probe(call(*doubtful, number=last + 2))}
    assert (answer == "acknowledged") == (doubtful[0].event_id in arrived)
