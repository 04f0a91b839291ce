"""Rows that were there before, read beside a log that goes on: no gap, nothing twice, nothing older than what was told."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tidings.errors import SourceStopped
from tidings.sources import pgsnapshot
from tidings.sources.pgserver import Server
from tidings.sources.postgresql import Capture
from tidings.sources.tap import Offset

KEYS = (b"k" * 32, b"i" * 32)
PEOPLE = 600


@pytest.fixture
def capture(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Capture, psycopg.Connection[Any]]]:
    monkeypatch.setattr(pgsnapshot, "PIECE", 40)
    monkeypatch.setattr("tidings.sources.postgresql.PIECE", 40)
    made = Capture(Server("seam", postgresql), "seam", "seam", ("public.people", "public.places"), seal=KEYS)
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute("CREATE TABLE people (country text, id int, mail text, PRIMARY KEY (country, id))")
        connection.execute("CREATE TABLE places (name text PRIMARY KEY, open boolean)")
        connection.execute(
            "INSERT INTO people SELECT (ARRAY['DE', 'FR', 'a''b'])[1 + n %% 3], n, 'old' || n FROM generate_series(1, %s) n",
            (PEOPLE,),
        )
        connection.execute("INSERT INTO places VALUES ('Köln \"1\"', true), ('', NULL)")
        made.execute([do for do, _ in made.statements()])
        try:
            yield made.verified(), connection
        finally:
            made.execute([undo for _, undo in reversed(made.statements())])
            connection.execute("DROP TABLE people, places")


class Model:
    """The tables as the messages tell them; a row that stands may never contradict what is known."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.told: list[str] = []
        self.standing = 0

    def hear(self, body: str) -> None:
        message = json.loads(body)
        before, after = message["before"] or {}, message["after"]
        where = (message["table"], json.dumps(message["key"], sort_keys=True))
        if message["op"] == "snapshot":
            self.standing += 1
            assert self.rows.setdefault(where, after) == after, "an older row after a newer one"
            return
        if message["op"] == "truncate":
            self.rows = {place: row for place, row in self.rows.items() if place[0] != message["table"]}
            return
        self.rows.pop((message["table"], json.dumps(before, sort_keys=True)), None)
        if after is None:
            self.rows.pop(where, None)
        else:
            self.rows[where] = after
            self.told.append(after.get("mail", ""))


class Busy(threading.Thread):
    """Changes, inserts, deletes and moves of keys, some taken back, until it is told to stop."""

    def __init__(self, address: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.address, self.draw, self.stop, self.serial = address, random.Random(seed), threading.Event(), seed * 10**6
        self.committed: list[str] = []

    def run(self) -> None:
        with psycopg.connect(self.address) as connection:
            while not self.stop.is_set():
                mails = [self._act(connection) for _ in range(self.draw.randrange(1, 4))]
                if self.draw.random() < 0.2:
                    connection.rollback()
                else:
                    connection.commit()
                    self.committed += [mail for mail in mails if mail]

    def _act(self, connection: psycopg.Connection[Any]) -> str:
        self.serial += 1
        who, mail, kind = self.draw.randrange(1, PEOPLE), f"new{self.serial}", self.draw.random()
        if kind < 0.6:
            return mail * connection.execute("UPDATE people SET mail = %s WHERE id = %s", (mail, who)).rowcount
        if kind < 0.75:
            connection.execute("DELETE FROM people WHERE id = %s", (who,))
            return ""
        if kind < 0.85:
            moved = connection.execute("UPDATE people SET id = %s, mail = %s WHERE id = %s", (self.serial, mail, who))
            return mail * moved.rowcount
        connection.execute("INSERT INTO people VALUES ('FR', %s, %s)", (self.serial, mail))
        return mail


def taken(tap: Capture, model: Model, start: Offset, *, again: bool = False) -> Offset:
    """One batch, read and heard; `again` reads it twice, as after a kill, and hears the second."""
    end = tap.latest(start)
    if again:
        list(tap.read(start, end))
    for message in tap.read(start, end):
        model.hear(message.body)
    tap.done(end)
    return json.loads(json.dumps(end))


def actual(connection: psycopg.Connection[Any]) -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for country, who, mail in connection.execute("SELECT * FROM people"):
        found["people", json.dumps({"country": country, "id": who})] = {"country": country, "id": who, "mail": mail}
    for name, is_open in connection.execute("SELECT * FROM places"):
        found["places", json.dumps({"name": name})] = {"name": name, "open": is_open}
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_snapshot_beside_a_busy_log(capture: tuple[Capture, psycopg.Connection[Any]], seed: int) -> None:
    tap, connection = capture
    model, busy = Model(), [Busy(tap.server.connection, seed * 2 + n) for n in (1, 2)]
    for one in busy:
        one.start()
    start, draw = tap.first(), random.Random(seed)
    for _ in range(40):
        start = taken(tap, model, start, again=draw.random() < 0.3)
    for one in busy:
        one.stop.set()
        one.join(30)
    while (end := tap.latest(start)) != start:
        start = taken(tap, model, start)
    assert end["left"] == {}
    assert model.rows == actual(connection)
    assert sorted(model.told) == sorted(mail for one in busy for mail in one.committed), "each change once"
    assert model.standing >= PEOPLE // 4, "most rows came from the table"


def test_no_key_is_in_clear_in_an_offset(capture: tuple[Capture, psycopg.Connection[Any]]) -> None:
    tap, _ = capture
    end = tap.latest(tap.first())
    assert "FR" not in json.dumps(end["left"])
    assert "DE" not in json.dumps(end["left"])


def test_an_emptied_table_stands_as_the_log_tells_it(capture: tuple[Capture, psycopg.Connection[Any]]) -> None:
    tap, connection = capture
    start = tap.first()
    end = tap.latest(start)
    connection.execute("TRUNCATE people")
    assert [m for m in tap.read(start, end) if '"snapshot"' in m.body] == []


def test_a_new_table_is_read_when_the_source_names_it(capture: tuple[Capture, psycopg.Connection[Any]]) -> None:
    tap, connection = capture
    only = replace(tap, tables=("public.places",))
    model, start = Model(), only.first()
    while only.latest(start) != start:
        start = taken(only, model, start)
    assert {table for table, _ in model.rows} == {"places"}
    while tap.latest(start) != start:
        start = taken(tap, model, start)
    assert model.rows == actual(connection)


def test_a_table_without_a_key_is_refused_with_the_remedy(capture: tuple[Capture, psycopg.Connection[Any]]) -> None:
    tap, connection = capture
    connection.execute("ALTER TABLE places DROP CONSTRAINT places_pkey")
    with pytest.raises(SourceStopped, match="snapshot: none"):
        replace(tap, tables=("public.places",)).latest(tap.first())
