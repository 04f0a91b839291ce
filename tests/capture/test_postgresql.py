"""A real log under concurrent transactions, and a reader that is killed: every committed row once, in order, transactions whole."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psycopg
import pytest
from checker import history_of
from postgres_server import Database
from small import Small, small

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
SOURCE = """\
kind: postgresql
connection: file:crm.connection
slot: crm_slot
entities: {public.customers: customer}
banner: shop
location: online
"""
WRITERS, THERE_BEFORE = 4, 8  # customers of each writer that are older than the slot


class Writer(threading.Thread):
    """Transactions of several rows of its own customers, some of them taken back; remembers what was committed."""

    def __init__(self, address: str, number: int, older: threading.Event) -> None:
        super().__init__(daemon=True)
        self.address, self.number, self.older, self.stop = address, number, older, threading.Event()
        self.committed: list[tuple[int, str, str]] = []
        self.there = {self.number * 1000 + one for one in range(THERE_BEFORE)}
        self.serial = 0

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with psycopg.connect(self.address) as connection:
                    self._work(connection)
            except psycopg.OperationalError:  # the server restarts; what was not committed never was
                time.sleep(0.2)

    def _work(self, connection: psycopg.Connection[Any]) -> None:
        draw = random.Random(f"{self.number}/{self.serial}")
        while not self.stop.is_set():
            told: list[tuple[int, str, str]] = []
            for _ in range(draw.randrange(1, 6)):
                self.serial += 1
                who = self.number * 1000 + draw.randrange(0 if self.older.is_set() else THERE_BEFORE, 20)
                mail = f"w{self.number}.{self.serial}@example.com"
                known = who in self.there or any(one == who for one, _, _ in [*self.committed, *told])
                self._write(connection, who, mail, known)
                told.append((who, "email" if known else "insert", mail))
            if draw.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
                self.committed += told
            time.sleep(draw.uniform(0.3, 1.0))

    def _write(self, connection: psycopg.Connection[Any], who: int, mail: str, known: bool) -> None:
        if known:
            connection.execute("UPDATE customers SET email = %s WHERE id = %s", (mail, who))
        else:
            connection.execute("INSERT INTO customers VALUES (%s, %s, 'basic')", (who, mail))


def prepared(one: Small, address: str) -> None:
    (one.folder / "sources" / "crm.yaml").write_text(SOURCE)
    secret = one.folder / "secrets" / "crm.connection"
    secret.write_text(address)
    secret.chmod(0o600)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE TABLE customers (id bigint PRIMARY KEY, email text, tier text)")
        before = "INSERT INTO customers SELECT w * 1000 + n, 'before' || w * 1000 + n, 'basic'"
        series = "FROM generate_series(0, %s) w, generate_series(0, %s) n"
        connection.execute(f"{before} {series}", (WRITERS - 1, THERE_BEFORE - 1))
    said, code = tidings(one, "check", "--connect")
    assert code != 0
    assert "no slot crm_slot. Run `tidings source install crm`" in said
    assert "CREATE PUBLICATION" in tidings(one, "source", "install", "crm")[0]
    assert "connect crm: ready" in tidings(one, "check", "--connect")[0]


def tidings(one: Small, *verb: str) -> tuple[str, int]:
    command = [sys.executable, "-m", "tidings.cli", *verb, "-C", str(one.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout, done.returncode


def test_every_committed_row_once_and_in_order(database: Database, tmp_path: Path) -> None:
    postgresql = database.address
    with small(tmp_path, "crm") as one:
        prepared(one, postgresql)
        older = threading.Event()  # customers of before may change
        writers = [Writer(postgresql, number, older) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        draw = random.Random(5)
        for turn in range(3):
            process = one.start()
            while not list(one.data.glob("checkpoints/crm/stream/commits/[0-9]*")):
                time.sleep(0.2)
            older.set()
            time.sleep(draw.uniform(3, 15))
            if turn == 1:  # the source rests and goes on; the run does not end
                database.stop()
                time.sleep(3)
                database.start()
                time.sleep(12)
            assert process.poll() is None, process.communicate()[1][-3000:]
            process.kill()
            process.communicate()
        for writer in writers:
            writer.stop.set()
            writer.join(30)
        one.finish()
        judged(one, [row for writer in writers for row in writer.committed])
        assert "pg_drop_replication_slot" in tidings(one, "source", "remove", "crm")[0]
        with psycopg.connect(postgresql) as connection:
            assert connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)


def judged(one: Small, committed: list[tuple[int, str, str]]) -> None:
    history = history_of(one)
    found = {event.marker: event.change_type for event in history.journal}
    assert len(found) == len(history.journal), "a row came twice, or one of before made an event"
    wanted = {mail: kind for _, kind, mail in committed}
    assert set(wanted) - set(found) == set(), "rows are missing"
    assert set(found) - set(wanted) == set(), "rows that were never committed"
    assert found == wanted, "a row of before was not known"
    known = {event.event_id: event.marker for event in history.journal}
    met: dict[tuple[str, str], list[str]] = defaultdict(list)
    for arrival in history.arrivals:
        mail = known[arrival.event_id]
        if mail not in met[arrival.subscriber, arrival.subject]:
            met[arrival.subscriber, arrival.subject].append(mail)
    turns = defaultdict(list)
    for who, _, mail in committed:
        turns[who].append(mail)
    whole = {mail: mails for mails in turns.values() for mail in mails}
    for (subscriber, subject), mails in met.items():
        due = whole[mails[0]]
        if subscriber == "most":  # a call in doubt is not made again, so one may be missing
            due = [mail for mail in due if mail in mails]
        assert mails == due, (subscriber, subject)
