"""Hundreds of worlds with a replay in them: no promise of the lane is broken by taking up again what had ended."""

from __future__ import annotations

import os
from collections import deque

import pytest
from replay_world import ReplayWorld

from tidings.lanes import machine
from tidings.lanes.machine import LaneState
from tidings.lanes.member import Delivery

SEEDS = int(os.environ.get("TIDINGS_SEEDS", "1000")) // 4


def broken(seeds: range, stop_at: int = 3) -> list[str]:
    found: list[str] = []
    for seed in seeds:
        try:
            wrong = ReplayWorld(seed).run()
        except AssertionError as error:
            wrong = [f"assertion: {error}"]
        if wrong:
            found.append(f"seed {seed}: {wrong[0][:600]}")
        if len(found) >= stop_at:
            break
    return found


def test_every_promise_holds_with_a_replay() -> None:
    assert broken(range(SEEDS)) == []


def test_the_worlds_replay_something() -> None:
    worlds = [ReplayWorld(seed) for seed in range(100)]
    for world in worlds:
        world.run()
    assert sum(world.replayed for world in worlds) > 100
    assert sum(world.superseded for world in worlds) > 20


def test_one_that_jumps_the_queue_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(state: LaneState, delivery: Delivery, seq: int) -> bool:
        delivery.reopened, delivery.begun = True, seq
        state.queues.setdefault(delivery.subject, {}).setdefault(delivery.feed, deque()).appendleft(delivery)
        state.unsettled[delivery.event_id] = delivery
        return True

    monkeypatch.setattr(machine, "reopen", wrong)
    assert broken(range(400), stop_at=1)
