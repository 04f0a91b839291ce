"""Every named crash point, once, in a chain: each process recovers from the crash before it and dies at the next point.

What can never be mended is looked for after each crash, so that a failure names its point; the whole history is judged at the end.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import rooms
from checker import check, history_of, wrong_so_far
from small import Small, small
from warm import WarmJvm

import tidings
from tidings import crash

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

# What is committed and not delivered costs the next victim no batch of its own, so the two kinds take turns.
CHAIN = (
    "files.marked",
    "files.claimed",
    "emit.written",
    "keys.before_adopt",
    "keys.after_adopt",
    "emit.keys",
    "journal.before_commit",
    "journal.after_commit",
    "ledger.intent",
    "emit.journal",
    "ledger.tiles",
    "last_seen.before_commit",
    "ledger.checkpoint_persisted",
    "last_seen.after_commit",
    "ledger.published",
    "subjects.before_commit",
    "lanes.after_intent",
    "subjects.after_commit",
    "lanes.after_send",
    "identities.before_commit",
    "attempts.before_commit",
    "identities.after_commit",
    "attempts.after_commit",
    "quarantine.before_commit",
    "lanes.after_attempts_commit",
    "quarantine.after_commit",
    "settled.before_commit",
    "emit.done",
    "settled.after_commit",
)
ELSEWHERE = ("exports.compared", "exports.told")  # tests/capture/test_exports.py
ELSEWHERE += ("expiry.planned", "expiry.attested", "expiry.removed")  # test_expiry.py
ELSEWHERE += ("scrub.journal", "scrub.state", "scrub.unlinked")  # tests/rights/test_scrub.py
ELSEWHERE += ("restore.scrubbed",)  # tests/rights/test_restore.py
ELSEWHERE += (
    "rights.slip",
    "rights.capsule_keys",
    "rights.committed",
    "rights.destroyed",
)  # tests/rights/test_desk_killed.py
ELSEWHERE += ("rights.told", "rights.answered")
ELSEWHERE += ("rights.strays_held", "rights.held", "rights.hold_released")  # tests/rights/test_holds_killed.py
ELSEWHERE += ("rights.telling_again", "rights.told_again")
ELSEWHERE += ("keys.rotation_begun", "keys.rewrapping", "keys.rewrapped", "keys.rotation_attested")  # test_rotation.py
# A source without an order of its own recognises repeats by the journal alone, also its own half-done batch.
UNORDERED = ("emit.journal", "last_seen.before_commit", "emit.done")


def test_every_declared_point_is_run_somewhere() -> None:
    for module in pkgutil.walk_packages(tidings.__path__, "tidings."):
        importlib.import_module(module.name)
    assert sorted([*CHAIN, *rooms.ROOMS, *ELSEWHERE]) == sorted(crash.POINTS)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory, jvm: WarmJvm) -> Iterator[Small]:
    with small(tmp_path_factory.mktemp("chain"), "crm", jvm=jvm) as one:
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


def test_a_source_without_order_keeps_its_promises_too(tmp_path: Path, jvm: WarmJvm) -> None:
    with small(tmp_path, "shop", jvm=jvm) as one:
        for point in UNORDERED:
            one.world.round()
            one.killed_at(point)
            assert wrong_so_far(history_of(one)) == [], point
        one.world.round()
        one.finish()
        assert check(one) == []
