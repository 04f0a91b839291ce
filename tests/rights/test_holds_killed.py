"""The desk killed at each step of a hold: never destroyed and not held, nothing held twice, released once. No JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from counsel import erase, held_records, with_counsel
from erased_history import Past, email
from history import LANE
from test_desk import known_by
from test_desk_killed import acknowledge

from tidings.rights import capsule
from tidings.rights.book import Book, Request
from tidings.rights.desk import Desk
from tidings.settings import load
from tidings.store import Store

WHO = 5
SEALING = ("rights.strays_held", "rights.held", "rights.committed", "scrub.journal", "rights.destroyed")
RELEASING = ("rights.hold_released", "rights.telling_again", "rights.told_again")


def at_work(folder: Path, days: int = 0, rounds: int = 4) -> None:
    """The desk, as if it were so many days later when it looks at its holds; who is told acknowledges."""
    settings = load(folder)
    store = Store(settings.data_path / "tables")
    desk = Desk(settings, store, store.version)
    desk.recover()
    for _ in range(rounds):
        desk.step()
        if days:
            desk.rounds.look(datetime.now(UTC) + timedelta(days=days))
        acknowledge(store)


def killed(folder: Path, point: str, days: int = 0) -> None:
    script = f"import sys; sys.path[:0] = {sys.path!r}; import test_holds_killed as t; from pathlib import Path; t.at_work(Path({str(folder)!r}), {days})"
    ended = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"TIDINGS_CRASH_AT": f"{point}:1"}, timeout=120
    )
    assert ended.returncode == -signal.SIGKILL, "it was killed there"


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory, made: Past) -> Past:
    """Somebody under a hold who is to be erased."""
    shop = made.copied(tmp_path_factory.mktemp("held") / "operator")
    with_counsel(shop, f", days: 30, recipients: [{LANE}]")
    shop.history.on_hold(WHO, version="9")
    known_by(shop, email(WHO), WHO)
    erase(shop, WHO)
    return shop


def erasure(shop: Past) -> Request:
    (request,) = [one for one in Book(shop.store).refresh().requests.values() if one.kind == "erasure"]
    return request


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory, held: Past) -> Past:
    """The same after an erasure that nobody killed."""
    shop = held.copied(tmp_path_factory.mktemp("erased") / "operator")
    at_work(shop.history.folder)
    return shop


@pytest.mark.parametrize("point", SEALING)
def test_killed_anywhere_what_is_destroyed_is_held_and_once(
    tmp_path: Path, held: Past, erased: Past, point: str
) -> None:
    shop, wanted = held.copied(tmp_path / "operator"), held_records(erased)
    assert {table for table, _ in wanted} >= {"journal", "last_seen", "quarantine"}
    killed(shop.history.folder, point)
    if not shop.keys.about([shop.tag(WHO)]):
        assert held_records(shop) == wanted, "held before its keys went"
    at_work(shop.history.folder, rounds=2)
    assert held_records(shop) == wanted
    assert shop.keys.about([shop.tag(WHO)]) == []
    request = erasure(shop)
    counted = [len(request.happened(what)) for what in ("hold_sealed", "committed", "recipient_held")]
    assert (counted, request.parts[LANE].state) == ([1, 1, 1], "held")


@pytest.mark.parametrize("point", RELEASING)
def test_killed_anywhere_a_hold_is_released_once_and_its_recipients_are_told_once(
    tmp_path: Path, erased: Past, point: str
) -> None:
    shop = erased.copied(tmp_path / "operator")
    folder = shop.history.folder
    killed(folder, point, days=31)
    at_work(folder, days=31, rounds=3)
    request = erasure(shop)
    assert held_records(shop) == []
    assert list((shop.data / "holds").iterdir()) == []
    holds = [step.details["hold"] for step in request.happened("hold_released")]
    assert len(holds) == len(set(holds)) == int(request.happened("hold_sealed")[0].details["holds"])
    assert (request.parts[LANE].state, len(request.happened("told_again"))) == ("acknowledged", 1)
    rows = shop.store.arrow("journal", ["generation", "recipients"]).to_pylist()
    assert [row["recipients"] for row in rows if row["generation"] == capsule.FEED[1]].count([LANE]) == 1
    assert shop.keys.about([part.tag for part in request.parts.values()]) == []
