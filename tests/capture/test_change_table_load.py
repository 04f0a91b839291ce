"""Fifty writers and a reader that forgets, without Spark: every committed row once, in each person's order, at the speed of the server."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict

import psycopg
import pytest
from table_writers import Told, Writer, ended, prepared

from tidings.sources.change_table import ChangeTable
from tidings.sources.outbox import Outbox
from tidings.sources.pgserver import Server
from tidings.sources.tap import Taken
from tidings.sources.triggers import Triggers

pytestmark = pytest.mark.timeout(300)


def writers_of(address: str, source: str, tell: object, count: int) -> list[Writer]:
    writers = [Writer(address, source, number, tell) for number in range(count)]  # type: ignore[arg-type]
    writers.append(Writer(address, source, count, tell, slow=True))  # type: ignore[arg-type]
    for writer in writers:
        writer.pause, writer.dawdle = (0.0, 0.2), (0.0, 1.0) if writer.people.start else (0.0, 0.05)
        writer.start()
    return writers


def read_all(tap: ChangeTable, writers: list[Writer], seed: int) -> tuple[list[Taken], list[Told]]:
    """Read while they write, now and then with a reader that knows nothing of before but its offset, until nothing is left."""
    draw, place, found = random.Random(seed), tap.first(), list[Taken]()
    committed: list[Told] | None = None
    while True:
        if committed is None and not any(writer.is_alive() for writer in writers):
            committed = ended(writers)
        reader = type(tap)(**{**vars(tap), "gaps": type(tap.gaps)()}) if draw.random() < 0.2 else tap
        end = reader.latest(place)
        if end == place and committed is not None:
            return found, committed
        rows = list(reader.read(place, end))
        assert draw.random() < 0.7 or rows == list(tap.read(place, end)), "reading again gave something else"
        found += rows
        if draw.random() < 0.5:
            reader.done(end)
        place = end
        time.sleep(draw.uniform(0, 0.05))


def right(found: list[Taken], committed: list[Told]) -> None:
    mails = [json.loads(taken.body)["after"]["after"]["email"] for taken in found]
    assert len(mails) == len(set(mails)), "twice"
    assert set(mails) == {told.mail for told in committed}
    assert len({taken.place for taken in found}) == len(found)
    known = {told.mail: told for told in committed}
    order: dict[int, list[int]] = defaultdict(list)
    for mail in mails:
        order[known[mail].who].append(known[mail].version)
    assert {who: versions for who, versions in order.items() if versions != sorted(versions)} == {}


def test_an_outbox_under_fifty_writers(postgresql: str) -> None:
    prepared(postgresql, ["load"])
    tap = Outbox(Server("load", postgresql), "public.load_outbox")
    tap.execute([do for do, _ in tap.statements()])
    made: dict[str, object] = {}
    exec(tap.snippet(), made)
    reader = tap.verified()
    found, committed = read_all(reader, writers_of(postgresql, "load", made["tell"], 50), 3)
    right(found, committed)
    tap.execute([undo for _, undo in reversed(tap.statements())])


def test_triggers_under_twenty_writers(postgresql: str) -> None:
    prepared(postgresql, ["load"])
    tap = Triggers(Server("load", postgresql), "public.load_changes", tables=("public.people_load",))
    tap.execute([do for do, _ in tap.statements()])
    found, committed = read_all(tap.verified(), writers_of(postgresql, "load", None, 20), 4)
    right(found, committed)
    tap.execute([undo for _, undo in reversed(tap.statements())])


def test_a_reader_that_passes_over_gaps_is_caught(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same load against a horizon that waits for nobody loses rows: this test can fail."""
    from tidings.sources.gaps import Gaps

    monkeypatch.setattr(Gaps, "horizon", lambda self, begin, numbers: max(numbers, default=begin))
    prepared(postgresql, ["load"])
    tap = Outbox(Server("load", postgresql), "public.load_outbox")
    tap.execute([do for do, _ in tap.statements()])
    made: dict[str, object] = {}
    exec(tap.snippet(), made)
    reader, writers = tap.verified(), writers_of(postgresql, "load", made["tell"], 20)
    with pytest.raises(AssertionError):
        right(*read_all(reader, writers, 5))
    ended(writers)
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute("DROP TABLE load_outbox")
