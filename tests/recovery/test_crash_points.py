"""Every named crash point, once, in a chain: each process recovers from the crash before it and dies at the next point.

What can never be mended is looked for after each crash, so that a failure names its point; the whole history is judged at the end.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
import rooms
from checker import check, history_of, wrong_so_far
from small import Small, small

import tidings
from tidings import crash

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

# In the order a change passes them.
CHAIN = (
    "files.marked",
    "files.claimed",
    "emit.written",
    "keys.before_adopt",
    "keys.after_adopt",
    "emit.keys",
    "journal.before_commit",
    "journal.after_commit",
    "emit.journal",
    "last_seen.before_commit",
    "last_seen.after_commit",
    "subjects.before_commit",
    "subjects.after_commit",
    "identities.before_commit",
    "identities.after_commit",
    "quarantine.before_commit",
    "quarantine.after_commit",
    "emit.done",
    "ledger.intent",
    "ledger.tiles",
    "ledger.checkpoint_persisted",
    "ledger.published",
    "lanes.after_intent",
    "lanes.after_send",
    "attempts.before_commit",
    "attempts.after_commit",
    "lanes.after_attempts_commit",
    "settled.before_commit",
    "settled.after_commit",
)


def test_every_declared_point_is_run_somewhere() -> None:
    for module in pkgutil.walk_packages(tidings.__path__, "tidings."):
        importlib.import_module(module.name)
    assert sorted([*CHAIN, *rooms.ROOMS]) == sorted(crash.POINTS)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    with small(tmp_path_factory.mktemp("chain")) as one:
        yield one


@pytest.mark.parametrize("point", CHAIN)
def test_dies_at(point: str, chain: Small) -> None:
    chain.world.round()
    chain.killed_at(point)
    assert wrong_so_far(history_of(chain)) == []


def test_and_after_all_of_them_nothing_is_missing_or_twice(chain: Small) -> None:
    chain.world.round()
    chain.finish()
    assert check(chain) == []
    assert chain.store.arrow("quarantine", ["code"]).num_rows == chain.world.broken
