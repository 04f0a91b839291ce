"""Thousands of small worlds: every promise of a lane holds whatever the network, the subscriber and our own crashes do.

TIDINGS_SEEDS runs more in place of a thousand, `make soak` fifty thousand; a failing seed prints itself and is added to REGRESSIONS.
"""

from __future__ import annotations

import os
from dataclasses import replace

import lane_world
import pytest
from lane_world import World

from tidings.lanes import machine, semantics
from tidings.lanes.member import Delivery

SEEDS = int(os.environ.get("TIDINGS_SEEDS", "1000"))
REGRESSIONS: tuple[int, ...] = ()


def broken_seeds(seeds: range | tuple[int, ...], stop_at: int = 5) -> list[str]:
    found: list[str] = []
    for seed in seeds:
        try:
            broken = World(seed).run()
        except AssertionError as error:
            broken = [f"assertion: {error}"]
        if broken:
            found.append(f"seed {seed}: {broken[0][:600]}")
        if len(found) >= stop_at:
            break
    return found


def test_every_promise_holds_over_random_worlds() -> None:
    assert broken_seeds(range(SEEDS)) == []


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_promise_holds_over_fifty_thousand_worlds() -> None:
    assert broken_seeds(range(SEEDS, SEEDS + 50_000)) == []


def test_seeds_that_failed_once_hold() -> None:
    assert broken_seeds(REGRESSIONS) == []


def test_the_worlds_are_worth_running() -> None:
    """A simulation in which nothing goes wrong proves nothing: every end and every doubt must occur."""
    ends: set[tuple[str, str]] = set()
    crashes = 0
    for seed in range(300):
        world = World(seed)
        world.run()
        ends |= {(told.final, told.code) for row in world.rows for told in row.members if told.final}
        crashes += sum(1 for row in world.rows for told in row.members if told.code == semantics.CRASHED)
    expected = {"acknowledged", "refused", "superseded", "erased", "expired", "in_doubt", "dead_lettered"}
    assert {final for final, _ in ends} == expected
    assert {code for final, code in ends if final == "dead_lettered"} >= {"exhausted", "in_doubt", "400", "422"}
    assert crashes > 50


def resent_at_most_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real = semantics._one

    def wrong(rules, call, sent, outcome, how):  # type: ignore[no-untyped-def]
        return real(rules, call, replace(sent, semantics="at-least-once"), outcome, how)

    monkeypatch.setattr(semantics, "_one", wrong)


def any_delivery_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def youngest(queue: dict[object, object]) -> Delivery:
        return max((d for feed_queue in queue.values() for d in feed_queue), key=lambda d: d.offset)  # type: ignore[attr-defined]

    monkeypatch.setattr(machine, "_head", youngest)


def intents_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "_record_intents", lambda self, calls: self._crash())


def doubts_are_simply_resent(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(rules, sent, here, outcome, now):  # type: ignore[no-untyped-def]
        return semantics._again(rules, here, outcome, now)

    monkeypatch.setattr(semantics, "_doubted", wrong)
    monkeypatch.setattr(Delivery, "asks", lambda self, rules: False)


def the_cursor_forgets_the_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.LaneState, "oldest", lambda self, feed: self.cursors.get(feed, -1) + 1)


def a_restart_reads_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.LaneState, "since", lambda self: self.seq + 1)


def concurrency_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    real = machine.allowed_calls
    monkeypatch.setattr(machine, "allowed_calls", lambda state, now, room: 9 if real(state, now, 9) > 0 else 0)


def keys_are_trusted_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semantics, "key_forgotten", lambda *_: False)
    monkeypatch.setattr(machine, "overdue", lambda *_: [])


def what_was_accepted_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    real = lane_world.recover

    def wrong(*given, outside=()):  # type: ignore[no-untyped-def]
        return real(*given)

    monkeypatch.setattr(lane_world, "recover", wrong)


def a_prepared_effect_is_committed_unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    real = lane_world.Subscriber._commit

    def wrong(self, member, now):  # type: ignore[no-untyped-def]
        return real(self, replace(member, reference="prepared"), now)

    monkeypatch.setattr(lane_world.Subscriber, "_commit", wrong)


@pytest.mark.parametrize(
    "plant",
    [
        what_was_accepted_is_forgotten,
        a_prepared_effect_is_committed_unrecorded,
        resent_at_most_once,
        any_delivery_may_go,
        intents_are_forgotten,
        doubts_are_simply_resent,
        the_cursor_forgets_the_parked,
        a_restart_reads_too_little,
        concurrency_is_ignored,
        keys_are_trusted_for_ever,
    ],
    ids=lambda plant: plant.__name__,
)
def test_the_checker_finds_a_planted_fault(plant, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    plant(monkeypatch)
    assert broken_seeds(range(600), stop_at=1), f"600 seeds did not notice that {plant.__name__}"


def test_a_world_is_its_seed() -> None:
    first, second = World(7), World(7)
    assert (first.run(), first.rows, first.subscriber.order) == (second.run(), second.rows, second.subscriber.order)
