"""Rows that were there before, read beside a binary log that goes on: no gap, nothing twice, nothing older than what was told."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mysql_server import MariaDb, mariadb
from test_binlog import COLUMNS, VALUES

from tidings.errors import SourceStopped
from tidings.sources import mysnapshot
from tidings.sources.myserver import Server
from tidings.sources.mysql import Capture
from tidings.sources.tap import Offset

KEYS = (b"k" * 32, b"i" * 32)
PEOPLE = 400
SELECTS = {"people": "SELECT country, id, mail FROM crm.people", "places": "SELECT name, open FROM crm.places"}


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    with mariadb() as one:
        yield one


@pytest.fixture
def capture(server: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Capture:
    monkeypatch.setattr(mysnapshot, "PIECE", 40)
    monkeypatch.setattr("tidings.sources.mysql.PIECE", 40)
    server.run("CREATE OR REPLACE DATABASE crm CHARACTER SET utf8mb4")
    server.run("CREATE TABLE crm.people (mail text, country varchar(5), id int, PRIMARY KEY (country, id))")
    server.run("CREATE TABLE crm.places (name varchar(40) PRIMARY KEY, open bool)")
    rows = ", ".join(f"('old{n}', '{('DE', 'FR', 'a%b')[n % 3]}', {n})" for n in range(1, PEOPLE + 1))
    server.run(
        f"INSERT INTO crm.people VALUES {rows}", "INSERT INTO crm.places VALUES ('Köln \"1\"', true), ('', NULL)"
    )
    tables = ("crm.people", "crm.places")
    return Capture(Server("crm", server.url()), tables, tmp_path / "first.json", KEYS).verified()


class Model:
    """The tables as the messages tell them; a row that stands may never contradict what is known."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.told: list[str] = []
        self.standing, self.rank = 0, ""

    def hear(self, rank: str, body: str) -> None:
        assert rank > self.rank, "in order, over batches too"
        self.rank, message = rank, json.loads(body)
        before, after, table = message["before"], message["after"], message["table"]
        if message["op"] == "snapshot":
            self.standing += 1
            assert self.rows.setdefault(self._where(table, after), after) == after, "an older row after a newer one"
            return
        if message["op"] == "truncate":
            self.rows = {place: row for place, row in self.rows.items() if place[0] != table}
            return
        if before is not None:
            self.rows.pop(self._where(table, before), None)
        if after is not None:
            self.rows[self._where(table, after)] = after
            self.told.append(after.get("mail", ""))

    def _where(self, table: str, row: dict[str, Any]) -> tuple[str, str]:
        return table, json.dumps([row[name] for name in {"people": ("country", "id"), "places": ("name",)}[table]])


class Busy(threading.Thread):
    """Changes, inserts, deletes and moves of keys, some taken back, until it is told to stop."""

    def __init__(self, server: MariaDb, seed: int) -> None:
        super().__init__(daemon=True)
        self.server, self.draw, self.stop, self.serial = server, random.Random(seed), threading.Event(), seed * 10**6
        self.committed: list[str] = []

    def run(self) -> None:
        connection = self.server.connect(autocommit=False)
        with connection.cursor() as cursor:
            # Two of these meet in the same gaps; with fewer locks none has to be given up.
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            while not self.stop.is_set():
                mail = self._act(cursor)
                if self.draw.random() < 0.2:
                    connection.rollback()
                else:
                    connection.commit()
                    self.committed += [mail] if mail else []
                time.sleep(0.01)
        connection.close()

    def _act(self, cursor: Any) -> str:
        self.serial += 1
        who, mail, kind = self.draw.randrange(1, PEOPLE), f"new{self.serial}", self.draw.random()
        if kind < 0.6:
            return mail * cursor.execute("UPDATE crm.people SET mail = %s WHERE id = %s", (mail, who))
        if kind < 0.75:
            cursor.execute("DELETE FROM crm.people WHERE id = %s", (who,))
            return ""
        if kind < 0.85:
            return mail * cursor.execute(
                "UPDATE crm.people SET id = %s, mail = %s WHERE id = %s", (self.serial, mail, who)
            )
        cursor.execute("INSERT INTO crm.people VALUES (%s, 'FR', %s)", (mail, self.serial))
        return mail


def taken(tap: Capture, model: Model, start: Offset, *, again: bool = False) -> Offset:
    """One batch, read and heard; `again` reads it twice, as after a kill, and hears the second."""
    end = tap.latest(start)
    if again:
        list(tap.read(start, end))
    for message in tap.read(start, end):
        model.hear(message.rank, message.body)
    return json.loads(json.dumps(end))


def actual(server: MariaDb) -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for country, who, mail in server.run(SELECTS["people"]):
        found["people", json.dumps([country, who])] = {"mail": mail, "country": country, "id": who}
    for name, is_open in server.run(SELECTS["places"]):
        found["places", json.dumps([name])] = {"name": name, "open": is_open}
    return found


@pytest.mark.parametrize("seed", range(2))
def test_a_snapshot_beside_a_busy_log(server: MariaDb, capture: Capture, seed: int) -> None:
    model, busy = Model(), [Busy(server, seed * 2 + n) for n in (1, 2)]
    for one in busy:
        one.start()
    start, draw = capture.first(), random.Random(seed)
    for _ in range(14):
        start = taken(capture, model, start, again=draw.random() < 0.3)
    for one in busy:
        one.stop.set()
        one.join(60)
    while (end := capture.latest(start)) != start:
        start = taken(capture, model, start)
    assert end["left"] == {}
    assert model.rows == actual(server)
    assert sorted(model.told) == sorted(mail for one in busy for mail in one.committed), "each change once"
    assert model.standing >= PEOPLE // 8, "rows came from the table"


def test_no_key_is_in_clear_in_an_offset(capture: Capture) -> None:
    end = capture.latest(capture.first())
    assert "FR" not in json.dumps(end["left"])
    assert "DE" not in json.dumps(end["left"])


def test_an_emptied_table_stands_as_the_log_tells_it(server: MariaDb, capture: Capture) -> None:
    start = capture.first()
    end = capture.latest(start)
    server.run("TRUNCATE crm.people")
    assert [m for m in capture.read(start, end) if '"snapshot"' in m.body] == []


def test_what_a_prepared_transaction_may_take_back_stands(server: MariaDb, capture: Capture) -> None:
    start = capture.first()
    end = capture.latest(start)
    server.run("XA START 'x'", "UPDATE crm.people SET mail = 'never' WHERE id = 2", "XA END 'x'", "XA PREPARE 'x'")
    try:
        standing = [json.loads(m.body)["after"] for m in capture.read(start, end)]
        assert {"mail": "old2", "country": "a%b", "id": 2} in standing
    finally:
        server.run("XA ROLLBACK 'x'")


def test_a_new_table_is_read_when_the_source_names_it(server: MariaDb, capture: Capture) -> None:
    only = replace(capture, tables=("crm.places",), looked={})
    model, start = Model(), only.first()
    while only.latest(start) != start:
        start = taken(only, model, start)
    assert {table for table, _ in model.rows} == {"places"}
    while capture.latest(start) != start:
        start = taken(capture, model, start)
    assert model.rows == actual(server)


def test_a_table_without_a_key_is_refused_with_the_remedy(server: MariaDb, capture: Capture) -> None:
    server.run("ALTER TABLE crm.places DROP PRIMARY KEY")
    with pytest.raises(SourceStopped, match="snapshot: none"):
        replace(capture, tables=("crm.places",), looked={}).latest(capture.first())


def test_a_value_is_the_same_from_the_table_and_from_the_log(server: MariaDb, capture: Capture, tmp_path: Path) -> None:
    more = "u uuid, ip inet6, made int AS (small + 1) VIRTUAL, stored int AS (small + 2) STORED, day0 date"
    server.run(f"CREATE TABLE crm.odd ({COLUMNS}, {more})", "SET sql_mode = ''")
    tap = Capture(capture.server, ("crm.odd",), tmp_path / "odd.json", KEYS).verified()
    start = tap.first()
    names = ", ".join(
        line.split()[0] for line in " ".join(COLUMNS.split("\n")).replace("(20,5)", "").replace("','", "").split(", ")
    )
    server.run("SET sql_mode = ''", f"INSERT INTO crm.odd ({names}, u, ip, day0) VALUES ({VALUES},"
               " '123e4567-e89b-12d3-a456-426655440000', '::1', '0000-00-00')")  # fmt: skip
    server.run("INSERT INTO crm.odd (id, f, d, amount) VALUES (2, 16777216, 1e300, 0.00001), (3, -0.1, -1e-7, 7)")
    logged = {m["key"]["id"]: m["after"] for m in map(json.loads, (m.body for m in tap.read(start, tap.latest(start))))}
    assert len(logged) == 3
    (tmp_path / "odd.json").unlink()
    start = tap.first()
    standing = {
        m["key"]["id"]: m["after"] for m in map(json.loads, (m.body for m in tap.read(start, tap.latest(start))))
    }
    assert standing == logged
