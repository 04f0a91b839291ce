"""A lane in front of a real PostgreSQL: seeded crashes and lost answers, two-phase commit, and what the table says afterwards."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from lane_world import Subscriber, World, draw_rules
from rigs_tables import PostgreSqlRig, TwoPhaseRig
from sinks import member

from tidings.channels.call import Call, Member, Outcome
from tidings.lanes.member import PlannedCall

SEEDS = 8
# Members of one call that were asked about one by one, after its answer was lost.
FOUND = (193, 510, 540, 609)


@pytest.fixture(scope="module")
def rig() -> Iterator[TwoPhaseRig]:
    made = TwoPhaseRig()
    made.start()
    yield made
    made.end()


@dataclass
class Table(Subscriber):
    """The subscriber of a world, with its faults on the line and a real server behind it."""

    rig: Any = None
    place: Any = None
    channel: Any = None
    world: Any = None

    def send(self, call: PlannedCall, now: float) -> list[Outcome]:
        self._undo()
        if self._hit(self.faults.unreachable):
            return [Outcome(one.event_id, "transient", "connect") for one in call.members]
        self.calls[call.seq] = {one.event_id for one in call.members}
        if self._hit(self.faults.lost_request):
            return [Outcome(one.event_id, "in_doubt", "timeout") for one in call.members]
        return self._answered(self.channel.send(self._call(call)))

    def probe(self, call: PlannedCall, now: float) -> list[Outcome]:
        if self._hit(self.faults.unreachable):
            return [Outcome(one.event_id, "in_doubt", "timeout") for one in call.members]
        found = self._answered(self.channel.probe(self._call(call)))
        arrived = [one.event_id for one in self.rig.arrived(self.place)]
        self.effects, self.order = dict(Counter(arrived)), list(dict.fromkeys(arrived))
        return found

    def _call(self, call: PlannedCall) -> Call:
        return Call("someone", tuple(self._member(one) for one in call.members), 10.0, call.seq)

    def _member(self, sent: Any) -> Member:
        made = member(1)
        bad = {"bad": "yes"} if sent.event_id in self.poison else {}
        body = {**made.body, "id": sent.event_id, "data": bad}
        return Member(sent.event_id, "p", "email", made.sequence, body, sent.event_id, 1, sent.reference, sent.sent_in)

    def _answered(self, outcomes: list[Outcome]) -> list[Outcome]:
        if self._hit(self.faults.lost_answer):
            return [Outcome(one.event_id, "in_doubt", "timeout") for one in outcomes]
        return outcomes

    def _undo(self) -> None:
        """What was ended otherwise (erased, superseded) while it was prepared must not be committed, nor keep its locks."""
        open_ones = set(self.world.state.unsettled)
        self.channel.roll_back({number for number, those in self.calls.items() if not those & open_ones})

    def __post_init__(self) -> None:
        self.calls: dict[int, set[str]] = {}


def two_phase_seeds() -> list[int]:
    return [*FOUND, *[seed for seed in range(190) if draw_rules(random.Random(seed)).capable.two_phase][:SEEDS]]


@pytest.mark.parametrize("seed", two_phase_seeds())
def test_every_event_has_its_effect_once(rig: TwoPhaseRig, seed: int) -> None:
    world, place = World(seed), rig.place()
    with psycopg.connect(rig.connection(rig.password), autocommit=True) as db:
        db.execute(f"ALTER TABLE {place['table']} ADD CHECK (body->'data'->>'bad' IS NULL)")
    channel = PostgreSqlRig.open(rig, place)
    old = world.subscriber
    world.subscriber = table = Table(
        old.rng,
        old.rules,
        old.faults,
        old.poison,
        True,
        "two_phase",
        rig=rig,
        place=place,
        channel=channel,
        world=world,
    )
    assert world.run() == [], f"seed {seed}"
    table._undo()
    assert channel.left_prepared() == []  # type: ignore[attr-defined]
    effects = Counter(one.event_id for one in rig.arrived(place))
    assert set(effects.values()) <= {1}
    done = {event for event, final in world.ended.items() if final.final == "acknowledged"}
    assert done <= set(effects)
    channel.close()
