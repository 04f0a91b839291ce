"""Killed at any instant, with input arriving all the while: SIGKILL after a random part of the time a run needs."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from checker import check, history_of, wrong_so_far
from small import Small, small

pytestmark = [pytest.mark.spark, pytest.mark.timeout(7200)]


def killed_after(one: Small, seconds: float) -> None:
    """Run until then, dropping a round every now and again."""
    process = one.start()
    end = time.monotonic() + seconds
    try:
        while (left := end - time.monotonic()) > 0:
            try:
                process.wait(min(left, 2.0))
                raise AssertionError(f"ended by itself: {process.communicate()[1][-2000:]}")
            except subprocess.TimeoutExpired:
                one.world.round()
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    one.remember_heads()


def survives(one: Small, kills: int, seed: int) -> None:
    draw = random.Random(seed)
    one.world.round()
    begun = time.monotonic()
    one.finish()
    needed = time.monotonic() - begun
    print(f"seed {seed}, a run takes {needed:.1f} s")
    for number in range(kills):
        seconds = needed * draw.uniform(0.3, 1.3)
        print(f"kill {number + 1} after {seconds:.1f} s", flush=True)
        one.world.round()
        killed_after(one, seconds)
        assert wrong_so_far(history_of(one)) == [], f"seed {seed}, kill {number + 1}"
    one.finish()
    assert check(one) == [], f"seed {seed}"


def test_three_kills(tmp_path: Path) -> None:
    with small(tmp_path, "crm") as one:
        survives(one, 3, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3])
def test_many_kills(tmp_path: Path, seed: int) -> None:
    with small(tmp_path, "crm", "shop") as one:
        survives(one, 20, seed)
