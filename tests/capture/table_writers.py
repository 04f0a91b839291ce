"""People who change in a real database under concurrent transactions, and what must be told of them."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from checker import history_of
from small import Small

MOST = 10  # transactions of a writer; on a slow machine it ends before the reader does
PEOPLE = 8  # of one source; all its writers change the same ones
Connection = psycopg.Connection[Any]


@dataclass(frozen=True)
class Told:
    """One committed change; `version` counts a person's changes under its row lock, so it is the true order."""

    source: str
    who: int
    version: int
    mail: str


class Writer(threading.Thread):
    """Locks a person, changes it, tells it, dawdles, and commits or takes it all back."""

    def __init__(
        self, address: str, source: str, number: int, tell: Callable[..., None] | None, *, slow: bool = False
    ) -> None:
        super().__init__(daemon=True)
        self.address, self.source, self.number, self.tell = address, source, number, tell
        self.stop, self.committed = threading.Event(), list[Told]()
        self.pause, self.dawdle = (1.0, 5.0), (6.0, 8.0) if slow else (0.0, 0.4)
        self.people = range(PEOPLE, PEOPLE + 4) if slow else range(PEOPLE)

    def run(self) -> None:
        draw, serial = random.Random(f"{self.source}/{self.number}"), 0
        with psycopg.connect(self.address) as connection:
            for _ in range(MOST):
                told = []
                if draw.random() < 0.3:  # draws its transaction's number long before it changes anybody
                    connection.execute("INSERT INTO noise VALUES (1)")
                    time.sleep(draw.uniform(*self.dawdle))
                for who in sorted(draw.choices(self.people, k=draw.randrange(1, 3))):  # one order of locks: no deadlock
                    serial += 1
                    told.append(self._change(connection, who, serial))
                    time.sleep(draw.uniform(*self.dawdle))
                if draw.random() < 0.2:
                    connection.rollback()
                else:
                    connection.commit()
                    self.committed += told
                if self.stop.wait(draw.uniform(*self.pause)):
                    return

    def _change(self, connection: Connection, who: int, serial: int) -> Told:
        table = f"people_{self.source}"
        row = connection.execute(f"SELECT version FROM {table} WHERE id = %s FOR UPDATE", (who,)).fetchone()
        assert row is not None
        version = row[0] + 1
        mail = f"{self.source}.{who}.{version}.{self.number}.{serial}@example.com"
        change = f"UPDATE {table} SET email = %s, version = %s, at = now() WHERE id = %s"
        connection.execute(change, (mail, version, who))
        if self.tell is not None:
            self.tell(connection, "customer", "upsert", {"id": who}, {"id": who, "email": mail, "tier": "basic"})
        return Told(self.source, who, version, mail)


def prepared(address: str, sources: list[str]) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS noise")
        connection.execute("CREATE TABLE noise (id int)")
        for source in sources:
            connection.execute(f"DROP TABLE IF EXISTS people_{source}")
            shape = "(id int PRIMARY KEY, email text, tier text, version int, at timestamptz)"
            connection.execute(f"CREATE TABLE people_{source} {shape}")
            connection.execute(f"CREATE INDEX ON people_{source} (at)")
            people = f"INSERT INTO people_{source} SELECT n, NULL, 'basic', 0, NULL FROM generate_series(0, {PEOPLE + 4}) AS n"
            connection.execute(people)


def killed_twice(one: Small, seed: int) -> None:
    """Each time it is at work: subscribers have heard something new since it was started."""
    draw = random.Random(seed)
    for _ in range(2):
        before, process, end = len(one.arrivals()), one.start(), time.monotonic() + 600
        try:
            while len(one.arrivals()) == before:
                assert process.poll() is None, process.communicate()[1][-3000:]
                assert time.monotonic() < end, "nothing is told"
                time.sleep(0.2)
            time.sleep(draw.uniform(1, 8))
            assert process.poll() is None, process.communicate()[1][-3000:]
        finally:
            process.kill()
            process.communicate()


def finished(one: Small) -> None:
    code, said = one.run(timeout=900)
    assert code == 0, said


def ended(writers: list[Writer]) -> list[Told]:
    for writer in writers:
        writer.stop.set()
    for writer in writers:
        writer.join(60)
        assert not writer.is_alive()
    return [told for writer in writers for told in writer.committed]


def judged(one: Small, committed: list[Told]) -> None:
    """Every committed change once, nothing else, and each person's in the order in which they were made."""
    history = history_of(one)
    found = [event.marker for event in history.journal]
    assert len(found) == len(set(found)), "a change came twice"
    wanted = {told.mail: told for told in committed}
    assert sorted(set(wanted) - set(found)) == [], "changes are missing"
    assert sorted(set(found) - set(wanted)) == [], "changes that were never committed"
    known = {event.event_id: event.marker for event in history.journal}
    met: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for arrival in history.arrivals:
        told = wanted[known[arrival.event_id]]
        versions = met[arrival.subscriber, told.source, arrival.subject]
        if told.version not in versions:
            versions.append(told.version)
    assert met
    wrong = {who: versions for who, versions in met.items() if versions != sorted(versions)}
    assert wrong == {}, "out of order"
