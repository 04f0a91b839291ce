"""The desk killed at each of its steps: started again, every erasure ends fulfilled, once, and no key of it is left. No JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from erased_history import Past, hashed
from history import LANE

from tidings.lanes.attempts import table_of
from tidings.rights import capsule, intake
from tidings.rights.asks import Ask, Identifier
from tidings.rights.book import Book
from tidings.rights.desk import Desk
from tidings.settings import load
from tidings.store import Store

WHO = 5
POINTS = (
    "rights.slip",
    "rights.capsule_keys",
    "rights.committed",
    "rights.destroyed",
    "rights.told",
    "rights.answered",
)
POINTS += ("subjects.after_commit", "journal.after_commit", "rights_requests.after_commit")
ERASURE = {"flags": ["erasure"], "change_type": "delete", "operation": "delete", "recipients": []}


def at_work(folder: Path, rounds: int = 6) -> None:
    """What a run does about requests, with a subscriber that acknowledges everything at once."""
    settings = load(folder)
    store = Store(settings.data_path / "tables")
    name = Ask("opt_out", (Identifier("email", "nobody@planted.example"),), "cli", datetime.now(UTC), reference="one")
    intake.hand_in(settings, name)
    desk = Desk(settings, store, store.version)
    desk.recover()
    for _ in range(rounds):
        desk.step()
        acknowledge(store)


def acknowledge(store: Store) -> None:
    """Calls that were acknowledged, of every event of the capsules that has none."""
    rows = [row for row in store.arrow("journal", ["event_id", "source", "generation", "offset", "recipients"]).to_pylist()
            if (row["source"], row["generation"]) == capsule.FEED]  # fmt: skip
    done = {m["event_id"] for call in store.arrow("attempts", ["members"]).to_pylist() for m in call["members"]}
    for row in (row for row in rows if row["event_id"] not in done):
        place = {name: row[name] for name in ("source", "generation", "offset", "event_id")}
        member = place | {"change_type": "delete", "attempt": 1, "result": "acknowledged", "final": "acknowledged"}
        now, (lane,) = datetime.now(UTC), row["recipients"]
        version = (store.transaction_version("attempts", "test") or 0) + 1
        said = {"lane": lane, "cycle": version, "call": f"t-{version}", "subscriber": lane, "intent": False}
        table = table_of([said | {"started": now, "finished": now, "strength": "A2", "members": [member]}])
        folder = Path(store.fresh("attempts"))
        folder.mkdir(parents=True)
        pq.write_table(table, folder / "part-0.parquet")
        store.commit("attempts", str(folder), app="test", version=version)


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_an_erasure_ends_fulfilled_and_once(tmp_path: Path, made: Past, point: str) -> None:
    one = made.copied(tmp_path / "operator")
    one.history.batch(0, 1, first=WHO, row=ERASURE, moved=False, settled=False)
    script = f"import sys; sys.path[:0] = {sys.path!r}; import test_desk_killed as t; from pathlib import Path; t.at_work(Path({str(one.history.folder)!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"TIDINGS_CRASH_AT": f"{point}:1"}, timeout=120
    )
    assert ended.returncode == -signal.SIGKILL, "it was killed there"
    at_work(one.history.folder)
    at_work(one.history.folder, 2)
    book = Book(one.store).refresh()
    (request,) = [one for one in book.requests.values() if one.kind == "erasure"]
    assert request.state == "fulfilled"
    assert LANE in request.parts
    assert {part.state for part in request.parts.values()} == {"acknowledged"}
    told = [
        row
        for row in one.store.arrow("journal", ["event_id", "generation"]).to_pylist()
        if row["generation"] == capsule.FEED[1]
    ]
    assert len(told) == len({row["event_id"] for row in told}) == len(request.parts)
    assert one.keys.about([one.tag(WHO), *(part.tag for part in request.parts.values())]) == []
    assert [r.state for r in book.requests.values() if r.kind == "opt_out"] == ["refused"], "answered, not dropped"
    whats = [step.what for step in request.steps]
    assert [whats.count(what) for what in ("committed", "told", "fulfilled")] == [1, 1, 1]


def test_nobody_else_lost_anything(tmp_path: Path, made: Past) -> None:
    one = made.copied(tmp_path / "operator")
    before = one.keys.about([one.tag(person) for person in range(12) if person != WHO])
    one.history.batch(0, 1, first=WHO, row=ERASURE, moved=False, settled=False)
    at_work(one.history.folder)
    assert one.keys.about([one.tag(person) for person in range(12) if person != WHO]) == before
    assert one.store.lookup("identities", [hashed(one, WHO)]).num_rows == 0
