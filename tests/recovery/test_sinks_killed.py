"""Killed at seeds, with real brokers as subscribers: what they hold afterwards is judged like a subscriber's own book.

The brokers outlive every crash. A seed draws where the process dies: at a point between the intent and the record of a call, or after a
random part of the time a run needs. An exactly-once subscriber must then hold each event once, and not merely recognise it.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from checker import Arrival, History, check, history_of, wrong_so_far
from small import SUBSCRIBERS, Small, small
from warm import WarmJvm

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))

from rigs_brokers import NatsRig, RabbitRig, RedisRig
from rigs_logs import KafkaRig
from rigs_tables import PostgreSqlRig, TwoPhaseRig
from sinks import Rig

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

RIGS: dict[str, type[Rig]] = {
    "kafka": KafkaRig,
    "redis": RedisRig,
    "nats": NatsRig,
    "rabbit": RabbitRig,
    "postgres": PostgreSqlRig,
    "twophase": TwoPhaseRig,
}
# RabbitMQ recognises no repeat, so that it cannot be promised more.
SEMANTICS = {"kafka": "exactly-once", "redis": "exactly-once", "nats": "exactly-once", "rabbit": "at-least-once"}
SEMANTICS |= {"postgres": "exactly-once", "twophase": "exactly-once"}
START_S = 10.0  # of a JVM
POINTS = ("lanes.after_intent", "lanes.after_send", "attempts.before_commit", "lanes.after_attempts_commit")


@dataclass
class Brokered:
    """A small operator whose subscribers are topics, streams and queues."""

    one: Small
    rigs: Mapping[str, Rig]
    places: Mapping[str, dict[str, Any]]

    def history(self) -> History:
        """Each thing a broker holds is an effect of its own, so that it gets a key of its own."""
        arrivals = [
            Arrival(name, f"{name}-{number}", found.event_id, found.subject, _marker(found.body))
            for name, rig in self.rigs.items()
            for number, found in enumerate(rig.arrived(self.places[name]))
        ]
        return replace(history_of(self.one), arrivals=arrivals, semantics=SEMANTICS)


def _marker(body: Mapping[str, Any]) -> str:
    return str((body["data"].get("after") or body["data"].get("before"))["email"])


@pytest.fixture(scope="module")
def rigs() -> Iterator[dict[str, Rig]]:
    with ExitStack() as whole:
        made = {}
        for name, kind in RIGS.items():
            made[name] = kind()
            whole.callback(made[name].end)
            made[name].start()
        yield made


@pytest.fixture
def brokered(tmp_path: Path, jvm: WarmJvm, rigs: dict[str, Rig]) -> Iterator[Brokered]:
    with small(tmp_path, "crm", jvm=jvm) as one:
        for name in SUBSCRIBERS:
            (one.folder / f"subscribers/{name}.yaml").unlink()
        places = {name: rig.place() for name, rig in rigs.items()}
        for name in ("postgres", "twophase"):
            places[name]["erase"] = ""  # a table of events: a delete is a row as well
        for name, rig in rigs.items():
            subscribe(one.folder, name, rig, places[name])
        yield Brokered(one, rigs, places)


def subscribe(folder: Path, name: str, rig: Rig, place: Mapping[str, Any]) -> None:
    secret = folder / f"secrets/{name}.key"
    secret.write_text(rig.connection(rig.password))
    secret.chmod(0o600)
    lines = [f"manifest: {rig.manifest}", f"connection: file:{name}.key", "role: service", "region: US", "dpa: true"]
    lines += [f"vars: {{{', '.join(f'{key}: {json.dumps(value)}' for key, value in place.items())}}}"]
    lines += [f"semantics: {{default: {SEMANTICS[name]}}}"]
    (folder / f"subscribers/{name}.yaml").write_text("\n".join(lines) + "\n")


def killed_by(one: Small, seed: int, needed: float) -> str:
    """Where or when the seed says."""
    draw = random.Random(seed)
    if seed % 2:
        point = POINTS[(seed // 2) % len(POINTS)]
        one.killed_at(point)
        return point
    # Killed in the middle of anything, so the JVM dies with its driver: a warm one may still call back the one that is gone.
    seconds = START_S + needed * draw.uniform(0.4, 1.1)
    process = replace(one, jvm=None).start()
    try:
        process.wait(seconds)
        assert process.returncode == 0, process.communicate()[1][-2000:]
        return f"nothing: it was done before {seconds:.1f} s"
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    one.remember_heads()
    return f"{seconds:.1f} s"


def survives(world: Brokered, seeds: range) -> None:
    one = world.one
    one.world.round()
    begun = time.monotonic()
    one.finish()
    needed = time.monotonic() - begun
    for seed in seeds:
        one.world.round()
        where = killed_by(one, seed, needed)
        print(f"seed {seed}: killed at {where}, {time.monotonic() - begun:.0f} s so far", flush=True)
        assert wrong_so_far(world.history()) == [], f"seed {seed}, killed at {where}"
    one.world.round()
    one.finish()
    assert check(one, world.history()) == [], f"seeds {seeds}"


def test_five_seeds(brokered: Brokered) -> None:
    survives(brokered, range(1, 6))


@pytest.mark.soak
def test_ten_seeds(brokered: Brokered) -> None:
    survives(brokered, range(1, 11))


@pytest.mark.soak
def test_forty_seeds(brokered: Brokered) -> None:
    survives(brokered, range(11, 51))
