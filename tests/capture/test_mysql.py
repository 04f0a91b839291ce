"""A real binary log under concurrent transactions, a reader that is killed and a server that restarts: every committed row once, in order."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from mysql_server import MariaDb, mariadb
from small import Small, small
from test_postgresql import judged

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
SOURCE = """\
kind: mysql
connection: file:crm.connection
entities: {crm.customers: customer}
banner: shop
location: online
"""
WRITERS = 4


class Writer(threading.Thread):
    """Transactions of several rows of its own customers, some of them taken back; remembers what was committed."""

    def __init__(self, server: MariaDb, number: int) -> None:
        super().__init__(daemon=True)
        self.server, self.number, self.stop, self.serial = server, number, threading.Event(), 0
        self.committed: list[tuple[int, str, str]] = []
        self.draw, self.writing = random.Random(number), threading.Lock()  # held while nobody may write
        self.asked = threading.Semaphore(0)  # transactions: a slow machine gets no more of them than a fast one

    def run(self) -> None:
        while not self.stop.is_set():
            if self.asked.acquire(timeout=0.2):
                with self.writing:
                    self._transact()
                time.sleep(self.draw.uniform(0.1, 0.5))

    def _transact(self) -> None:
        connection, told = self.server.connect(autocommit=False), []
        with connection.cursor() as cursor:
            for _ in range(self.draw.randrange(1, 6)):
                self.serial += 1
                who, mail = self.number * 1000 + self.draw.randrange(20), f"w{self.number}.{self.serial}@example.com"
                known = any(one == who for one, _, _ in [*self.committed, *told])
                put = (
                    "UPDATE crm.customers SET email = %s WHERE id = %s"
                    if known
                    else "INSERT INTO crm.customers (email, id) VALUES (%s, %s)"
                )
                cursor.execute(put, (mail, who))
                told.append((who, "email" if known else "insert", mail))
        if self.draw.random() < 0.2:
            connection.rollback()
        else:
            connection.commit()
            self.committed += told
        connection.close()


def tidings(one: Small, *verb: str) -> tuple[str, int]:
    command = [sys.executable, "-m", "tidings.cli", *verb, "-C", str(one.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout, done.returncode


def prepared(one: Small, server: MariaDb) -> None:
    (one.folder / "sources" / "crm.yaml").write_text(SOURCE)
    secret = one.folder / "secrets" / "crm.connection"
    secret.write_text(server.url())
    secret.chmod(0o600)
    server.run("CREATE DATABASE crm CHARACTER SET utf8mb4", "SET GLOBAL binlog_row_metadata = MINIMAL")
    server.run("CREATE TABLE crm.customers (id bigint PRIMARY KEY, email varchar(200), tier varchar(20))")
    said, code = tidings(one, "check", "--connect")
    assert code != 0
    assert "SET GLOBAL binlog_row_metadata = 'FULL'" in said
    assert "binlog_row_metadata = 'FULL'" in tidings(one, "source", "install", "crm")[0]
    assert "connect crm: ready" in tidings(one, "check", "--connect")[0]


def busy(one: Small, process: subprocess.Popen[str], writers: list[Writer]) -> None:
    """More to read, until something more has arrived, so that a kill meets a run at work."""
    for writer in writers:
        writer.asked.release(20)
    before, deadline = len(one.arrivals()), time.monotonic() + 600
    while len(one.arrivals()) == before:
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline, "nothing arrives"
        time.sleep(0.2)


def restarted(server: MariaDb, writers: list[Writer]) -> None:
    """The server goes and comes back; nobody writes meanwhile, so every commit has an answer."""
    with ExitStack() as held:
        for writer in writers:
            held.enter_context(writer.writing)
        server.stop()
        time.sleep(2)
        server.start()


def test_every_committed_row_once_and_in_order(tmp_path: Path) -> None:
    with mariadb() as server, small(tmp_path, "crm") as one:
        prepared(one, server)
        writers, draw = [Writer(server, number) for number in range(WRITERS)], random.Random(7)
        process, deadline = one.start(), time.monotonic() + 200
        while not (one.data / "checkpoints" / "crm" / "first.json").exists():  # from here on the source owes every row
            assert process.poll() is None, process.communicate()[1][-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for writer in writers:
            writer.start()
        for turn in range(3):
            busy(one, process, writers)
            if turn == 1:
                restarted(server, writers)
                busy(one, process, writers)
            time.sleep(draw.uniform(0, 5))
            assert process.poll() is None, process.communicate()[1][-3000:]
            process.kill()
            process.communicate()
            if turn < 2:
                process = one.start()
        for writer in writers:
            writer.stop.set()
            writer.join(30)
        one.finish()
        judged(one, [row for writer in writers for row in writer.committed])
