"""The kit needs nothing but Python; and in PostgreSQL its memory is one transaction with the receiver's own writes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tidings_receiver import DatabaseStore, Event, Receiver, Reject

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))
from postgres_server import Database

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ALONE = """
import sys, time
sys.path.insert(0, sys.argv[1])
sys.modules["cryptography"] = None
import tidings_receiver
from tidings_receiver.signatures import Key, sign
others = {name.split(".")[0] for name in sys.modules} & {"tidings", "pyspark", "httpx", "pydantic", "starlette"}
assert not others, others
receiver = tidings_receiver.Receiver([sys.argv[2]], lambda event, connection: None)
headers = sign(Key.read(sys.argv[2]), "m", int(time.time()), b"{}")
assert receiver.answer(tidings_receiver.Request("POST", "/", headers, b"{}")).status == 200
try:
    Key.read("whpk_" + "A" * 43 + "=")
except ValueError as error:
    print(error)
"""


def test_it_needs_nothing_but_python() -> None:
    kit = Path(__file__).parents[2] / "kit" / "src"
    words = [sys.executable, "-I", "-c", ALONE, str(kit), SECRET]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "tidings-receiver[ed25519]" in done.stdout


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        database = Database(Path(folder))
        database.start()
        try:
            yield database.address
        finally:
            database.stop()


def event(number: int, subject: str = "p1") -> Event:
    return Event(f"e{number}", "/shop/crm", "t", subject, {"subjectseq": f"{number:020d}"}, {"n": number})


def test_in_postgresql_an_effect_happens_once_and_a_failed_one_not_at_all(address: str) -> None:
    def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(address)

    def handle(event: Event, connection: psycopg.Connection[Any]) -> None:
        connection.execute("INSERT INTO people VALUES (%s, %s)", (event.subject, event.data["n"]))
        if event.data["n"] == 3:
            raise Reject("not_that_one")

    with connect() as setup:
        setup.execute("CREATE TABLE people (id text, n integer)")
    receiver = Receiver([SECRET], handle, DatabaseStore(connect, "%s"))
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(receiver.take(event(2)).result)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["duplicate"] * 5 + ["ok"]
    assert [receiver.take(event(n)).result for n in (1, 3, 3, 4)] == ["stale", "rejected", "rejected", "ok"]
    with connect() as look:
        assert look.execute("SELECT id, n FROM people ORDER BY n").fetchall() == [("p1", 2), ("p1", 4)]
