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
WRITERS = 4


class Writer(threading.Thread):
    """Transactions of several rows of its own customers, some of them taken back; remembers what was committed."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__(daemon=True)
        self.address, self.number, self.stop = address, number, threading.Event()
        self.committed: list[tuple[int, str, str]] = []

    def run(self) -> None:
        draw, serial = random.Random(self.number), 0
        with psycopg.connect(self.address) as connection:
            while not self.stop.is_set():
                told, rows = [], draw.randrange(1, 6)
                for _ in range(rows):
                    serial += 1
                    who, mail = self.number * 1000 + draw.randrange(20), f"w{self.number}.{serial}@example.com"
                    known = any(one == who for one, _, _ in [*self.committed, *told])
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
    said, code = tidings(one, "check", "--connect")
    assert code != 0
    assert "no slot crm_slot. Run `tidings source install crm`" in said
    assert "CREATE PUBLICATION" in tidings(one, "source", "install", "crm")[0]
    assert "connect crm: ready" in tidings(one, "check", "--connect")[0]


def tidings(one: Small, *verb: str) -> tuple[str, int]:
    command = [sys.executable, "-m", "tidings.cli", *verb, "-C", str(one.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout, done.returncode


def test_every_committed_row_once_and_in_order(postgresql: str, tmp_path: Path) -> None:
    with small(tmp_path, "crm") as one:
        prepared(one, postgresql)
        writers = [Writer(postgresql, number) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        draw = random.Random(5)
        for _ in range(3):
            process = one.start()
            time.sleep(draw.uniform(8, 25))
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
    found = [(event.change_type, event.marker) for event in history.journal]
    assert len(found) == len(set(found)), "a row came twice"
    wanted = {(kind, mail) for _, kind, mail in committed}
    assert wanted - set(found) == set(), "rows are missing"
    assert set(found) - wanted == set(), "rows that were never committed"
    known = {event.event_id: event.marker for event in history.journal}
    met: dict[tuple[str, str], list[str]] = defaultdict(list)
    for arrival in history.arrivals:
        mail = known[arrival.event_id]
        if mail not in met[arrival.subscriber, arrival.subject]:
            met[arrival.subscriber, arrival.subject].append(mail)
    turns = defaultdict(list)
    for who, _, mail in committed:
        turns[who].append(mail)
    orders = {tuple(mails) for mails in turns.values()}
    assert [mails for mails in met.values() if tuple(mails) not in orders] == []
