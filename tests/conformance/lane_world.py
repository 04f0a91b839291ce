"""A world for one lane: a journal, a disk that forgets what was not committed, a subscriber that misbehaves, a checker.

Everything is drawn from one seed. `World(seed).run()` returns the list of broken promises, empty when all held.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

from tidings.channels.call import Capabilities, Outcome
from tidings.lanes import machine
from tidings.lanes.machine import LaneState
from tidings.lanes.member import Delivery, Feed, Final, PlannedCall, Rules
from tidings.lanes.recover import Committed, Recorded, Told, in_doubt, recorded_verdicts, recover
from tidings.lanes.semantics import NOT_STARTED, judge

HOUR = 3600.0


@dataclass
class Faults:
    """How often each thing goes wrong, drawn per seed."""

    unreachable: float
    server_error: float
    throttle: float
    lost_answer: float
    lost_request: float
    duplicate: float
    not_started: float
    crash: float
    slow: float

    @classmethod
    def draw(cls, rng: random.Random) -> Faults:
        return cls(
            unreachable=rng.uniform(0, 0.3) * rng.randint(0, 1),
            server_error=rng.uniform(0, 0.3) * rng.randint(0, 1),
            throttle=rng.uniform(0, 0.3) * rng.randint(0, 1),
            lost_answer=rng.uniform(0, 0.3) * rng.randint(0, 1),
            lost_request=rng.uniform(0, 0.3) * rng.randint(0, 1),
            duplicate=rng.uniform(0, 0.5) * rng.randint(0, 1),
            not_started=rng.uniform(0, 0.2) * rng.randint(0, 1),
            crash=rng.uniform(0, 0.15) * rng.randint(0, 1),
            slow=rng.uniform(0, 0.4) * rng.randint(0, 1),
        )


@dataclass
class Subscriber:
    """Remembers every request and every effect. Idempotent ones remember keys for a while."""

    rng: random.Random
    rules: Rules
    faults: Faults
    poison: set[str]
    names_poison: bool
    healthy: bool = False
    reached: dict[str, int] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    keys: dict[str, float] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def _hit(self, chance: float) -> bool:
        return not self.healthy and self.rng.random() < chance

    def probe(self, call: PlannedCall) -> list[Outcome]:
        if self._hit(self.faults.unreachable + self.faults.lost_answer):
            return [Outcome(m.event_id, "in_doubt", "probe_timeout") for m in call.members]
        return [
            Outcome(m.event_id, "acknowledged", "found", "A3", 200)
            if m.event_id in self.effects
            else Outcome(m.event_id, "transient", "probed", status=404)
            for m in call.members
        ]

    def send(self, call: PlannedCall, now: float) -> list[Outcome]:
        ids = [m.event_id for m in call.members]
        if self._hit(self.faults.not_started):
            return [Outcome(i, "transient", NOT_STARTED) for i in ids]
        if self._hit(self.faults.unreachable):
            return [Outcome(i, "transient", "connect") for i in ids]
        for event_id in ids:
            self.reached[event_id] = self.reached.get(event_id, 0) + 1
        if self._hit(self.faults.lost_request):
            return [Outcome(i, "in_doubt", "timeout") for i in ids]
        if self._hit(self.faults.throttle):
            wait = self.rng.choice([None, 0.0, 1.0, 60.0, 1e9, -5.0])
            return [Outcome(i, "throttled", "429", status=429, retry_after=wait) for i in ids]
        if self._hit(self.faults.server_error):
            return [Outcome(i, "transient", "503", status=503) for i in ids]
        return self._take(ids, now)

    def _take(self, ids: list[str], now: float) -> list[Outcome]:
        bad = self.poison & set(ids)
        if bad and not self.names_poison:
            return [Outcome(i, "terminal", "400", status=400) for i in ids]
        for _ in range(2 if self.rules.capable.idempotency_key and self._hit(self.faults.duplicate) else 1):
            for event_id in ids:
                if event_id not in bad:
                    self._effect(event_id, now)
        if self._hit(self.faults.lost_answer):
            return [Outcome(i, "in_doubt", "timeout") for i in ids]
        return [
            Outcome(i, "terminal", "422", status=422) if i in bad else Outcome(i, "acknowledged", "200", "A2", 200)
            for i in ids
        ]

    def _effect(self, event_id: str, now: float) -> None:
        if self.rules.capable.idempotency_key:
            window = self.rules.key_window_s
            seen = self.keys.get(event_id)
            if seen is not None and (window is None or now - seen <= window):
                return
            self.keys[event_id] = now
        if event_id not in self.effects:
            self.order.append(event_id)
        self.effects[event_id] = self.effects.get(event_id, 0) + 1


def draw_rules(rng: random.Random) -> Rules:
    helper = rng.choice(["none", "idempotent", "probe", "forgetful"])
    return Rules(
        name="lane",
        batch=rng.choice([1, 1, 3, 8]),
        per_second=rng.choice([0.0, 0.0, 2.0, 20.0]),
        concurrency=rng.randint(1, 4),
        schedule=rng.choice([Rules("x").schedule, (0.0, 1.0, 5.0, 60.0, HOUR, 5 * HOUR)]),
        capable=Capabilities(idempotency_key=helper in ("idempotent", "forgetful"), probe=helper == "probe"),
        key_window_s=rng.choice([600.0, 3 * HOUR]) if helper == "forgetful" else None,
        window=rng.choice([3, 10, 1000]),
        breaker_after=rng.randint(2, 5),
    )


class World:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now = 1_000_000.0
        self.rules = draw_rules(rng)
        self.feeds = [Feed(f"s{i}", "g") for i in range(rng.randint(1, 2))]
        self.journal = self._draw_journal()
        poison = {d.event_id for feed in self.feeds for d in self.journal[feed] if rng.random() < 0.05}
        self.subscriber = Subscriber(rng, self.rules, Faults.draw(rng), poison, rng.random() < 0.5)
        self.visible = dict.fromkeys(self.feeds, 0)
        self.committed = Committed()
        self.rows: list[Recorded] = []
        self.state = LaneState(self.rules)
        self.waiting: list[tuple[float, PlannedCall, list[Outcome]]] = []
        self.ended: dict[str, Final] = {}
        self.broken: list[str] = []
        self.released: set[str] = set()
        self.patience = rng.choice([60, 120, 120, 1500])  # steps until the world heals; 1,500 outlasts every schedule

    def _draw_journal(self) -> dict[Feed, list[Delivery]]:
        rng, journal = self.rng, {}
        semantics = ["at-least-once", "at-most-once"]
        semantics += ["exactly-once"] if "exactly-once" in self.rules.capable.semantics else []
        for feed in self.feeds:
            offset, rows = 0, []
            for number in range(rng.randint(0, 18)):
                offset += rng.choice([1, 1, 2, 2**24])
                rows.append(
                    Delivery(
                        event_id=f"{feed.source}-{number}",
                        subject=f"p{rng.randint(1, 5)}",
                        feed=feed,
                        offset=offset,
                        change_type=rng.choice(["email", "consent"]),
                        semantics=rng.choice(semantics),  # type: ignore[arg-type]
                        priority=rng.randint(0, 2),
                        since=self.now + number,
                        deadline=self.now + rng.uniform(1, 50) * HOUR,
                        deferred=rng.random() < 0.05,
                    )
                )
            journal[feed] = rows
        return journal

    # What reaches the disk

    def commit(self, rows: list[Recorded]) -> None:
        self.rows.extend(rows)
        cursors = dict(self.state.cursors)
        oldest = {feed: self.state.oldest(feed) for feed in cursors}
        self.committed = Committed(self.state.seq, self.state.since(), cursors, oldest)

    def record(self, call: PlannedCall, outcomes: list[Outcome]) -> None:
        """Judge, settle and remember one call's outcomes; the row keeps only what the table keeps."""
        sobered, verdicts = judge(self.rules, call, outcomes, call.at, self.now)
        told = recorded_verdicts(verdicts, [outcome.result for outcome in sobered])
        self._note(machine.settle(self.state, call, verdicts, sobered, self.now))
        self.rows.append(Recorded(call.seq, False, call.feed, told, call.at, self.now))

    def restart(self) -> None:
        """Forget everything that is not on the disk."""
        self.waiting = []
        self.state, orphans = self._recovered()
        self.ended = {
            told.event_id: Final("lane", told.event_id, row.feed, 0, told.final, told.code, row.finished)
            for row in self.rows
            for told in row.members
            if told.final is not None
        }
        for call in orphans:
            self.record(call, in_doubt(call))
        if orphans:
            self.commit([])

    def _recovered(self) -> tuple[LaneState, list[PlannedCall]]:
        reach = [row for row in self.rows if row.seq >= self.committed.since]
        journal = {feed: [copy.copy(d) for d in rows] for feed, rows in self.journal.items()}
        return recover(self.rules, self.committed, journal, reach)

    def check_recovery(self) -> None:
        """A restart now would give the state we have, as if nothing were in flight."""
        rebuilt, orphans = self._recovered()
        spoken = {told.event_id for row in self.rows if not row.intent for told in row.members}
        reach = self.committed.cursors  # what was taken since the last commit is simply read again
        live = {i: copy.copy(d) for i, d in self.state.unsettled.items() if d.offset <= reach.get(d.feed, -1)}
        intended = {call.seq for _, call, _ in self.waiting if call.intent}
        for delivery in live.values():
            if delivery.begun == delivery.call and delivery.call not in intended:
                delivery.begun = None  # planned and not recorded
            delivery.call = None
            if delivery.event_id in self.released - spoken:
                delivery.deferred = True  # the gate will release it again
        if rebuilt.unsettled != live or rebuilt.cursors != dict(self.committed.cursors):
            differ = [(d, rebuilt.unsettled.get(i)) for i, d in live.items() if d != rebuilt.unsettled.get(i)]
            self.broken.append(f"recovery differs: {differ or rebuilt.unsettled.keys() - live.keys()}")
        if {call.seq for call in orphans} != intended:
            self.broken.append("orphan intents are not the calls in flight")

    # One step

    def run(self) -> list[str]:
        for step in range(20_000):
            self.subscriber.healthy = step > self.patience
            self.step(step)
            if self.done():
                break
        else:
            self.broken.append("did not finish")
        self.check_ends()
        return self.broken

    def done(self) -> bool:
        read = all(self.visible[f] == len(self.journal[f]) for f in self.feeds)
        taken = all(
            self.state.cursors.get(f, -1) >= (self.journal[f] or [Delivery("", "", f, -1, "")])[-1].offset
            for f in self.feeds
        )
        return read and taken and not self.state.unsettled and not self.waiting

    def step(self, step: int) -> None:
        rng, state = self.rng, self.state
        for feed in self.feeds:
            self.visible[feed] = min(len(self.journal[feed]), self.visible[feed] + rng.randint(0, 4))
            fresh = [
                copy.copy(d) for d in self.journal[feed][: self.visible[feed]] if d.offset > state.cursors.get(feed, -1)
            ]
            machine.offer(state, feed, fresh, fresh[-1].offset if fresh else state.cursors.get(feed, -1))
        if len(state.unsettled) > self.rules.window:
            self.broken.append("the window overflowed")
        self._interfere(step)
        calls = machine.plan(state, self.now)
        self._check_calls(calls)
        if self._record_intents(calls) or self._send(calls):
            return
        self._collect()
        self.check_recovery()
        self._advance()

    def _interfere(self, step: int) -> None:
        rng, state = self.rng, self.state
        skips = [(d.event_id, final, code) for d, final, code in machine.overdue(state, self.now)]
        for delivery in list(state.unsettled.values()):
            if delivery.deferred and rng.random() < 0.2:
                machine.release(state, delivery.event_id)
                self.released.add(delivery.event_id)
            elif rng.random() < 0.005:
                skips.append((delivery.event_id, rng.choice(["superseded", "erased", "expired"]), "gate"))
        for event_id, final, code in skips:
            self._skip(event_id, final, code)
        state.paused = "operator" if step < 100 and rng.random() < 0.05 else ""

    def _skip(self, event_id: str, final: str, code: str) -> None:
        if event_id not in self.state.unsettled:
            return  # ended by time a moment ago
        feed = self.state.unsettled[event_id].feed
        ended = machine.skip(self.state, event_id, final, code, self.now)  # type: ignore[arg-type]
        if ended is None:
            return
        told = Told(event_id, 0, ended.final, code, None, ended.final)
        self.commit([Recorded(self.state.seq, False, feed, (told,), self.now, self.now)])
        self._note([ended])

    def _record_intents(self, calls: list[PlannedCall]) -> bool:
        intents = [
            Recorded(
                call.seq,
                True,
                call.feed,
                tuple(Told(m.event_id, m.attempt, "", "", None, None) for m in call.members),
                call.at,
            )
            for call in calls
            if call.intent
        ]
        if intents:
            self.commit(intents)
        return self._crash()

    def _send(self, calls: list[PlannedCall]) -> bool:
        for call in calls:
            if self._crash():
                return True
            outcomes = self.subscriber.probe(call) if call.kind == "probe" else self.subscriber.send(call, self.now)
            delay = self.rng.uniform(1, 100) if self.rng.random() < self.subscriber.faults.slow else 0.0
            self.waiting.append((self.now + delay, call, outcomes))
        return self._crash()

    def _collect(self) -> None:
        back = [entry for entry in self.waiting if entry[0] <= self.now]
        self.waiting = [entry for entry in self.waiting if entry[0] > self.now]
        for _, call, outcomes in back:
            self.record(call, outcomes)
        if back or self.rng.random() < 0.3:
            self.commit([])

    def _crash(self) -> bool:
        if self.subscriber.healthy or self.rng.random() >= self.subscriber.faults.crash:
            return False
        self.now += self.rng.uniform(0, 60)
        self.restart()
        return True

    def _advance(self) -> None:
        moments = [at for at, _, _ in self.waiting]
        due = machine.next_due(self.state, self.now)
        if due < machine.NEVER:
            moments.append(due)
        unread = any(self.visible[f] < len(self.journal[f]) for f in self.feeds)
        step = 0.3 if unread or self.rng.random() < 0.2 or not moments else max(0.3, min(moments) - self.now)
        self.now = round(self.now + step, 3)

    # The promises

    def _note(self, finals: list[Final]) -> None:
        for final in finals:
            if final.event_id in self.ended:
                self.broken.append(f"{final.event_id} ended twice")
            self.ended[final.event_id] = final

    def _check_calls(self, calls: list[PlannedCall]) -> None:
        flying = [call for _, call, _ in self.waiting] + calls
        if len(flying) > self.rules.concurrency:
            self.broken.append(f"{len(flying)} calls in flight, {self.rules.concurrency} allowed")
        subjects: list[str] = []
        for call in flying:
            if len(call.members) > self.rules.batch:
                self.broken.append("a call is larger than the batch")
            subjects += [self._delivery(call.feed, m.event_id).subject for m in call.members]
        if len(subjects) != len(set(subjects)):
            self.broken.append("two deliveries of a subject in flight")
        for call in calls:
            for member in call.members:
                mine = self._delivery(call.feed, member.event_id)
                before = [d for d in self.journal[call.feed] if d.subject == mine.subject and d.offset < mine.offset]
                if any(d.event_id not in self.ended for d in before):
                    self.broken.append(f"{member.event_id} overtook its subject")

    def _delivery(self, feed: Feed, event_id: str) -> Delivery:
        return next(d for d in self.journal[feed] if d.event_id == event_id)

    def check_ends(self) -> None:
        ends: dict[str, list[str]] = {}
        for row in self.rows:
            for told in row.members:
                if told.final is not None:
                    ends.setdefault(told.event_id, []).append(told.final)
        for delivery in (d for feed in self.feeds for d in self.journal[feed]):
            found, effects = ends.get(delivery.event_id, []), self.subscriber.effects.get(delivery.event_id, 0)
            name = f"{delivery.event_id} {delivery.semantics}"
            if len(found) != 1:
                self.broken.append(f"{name}: ends {found}")
            if found == ["acknowledged"] and effects == 0:
                self.broken.append(f"{name}: acknowledged and lost")
            if delivery.semantics == "at-most-once" and self.subscriber.reached.get(delivery.event_id, 0) > 1:
                self.broken.append(f"{name}: reached the subscriber twice")
            if delivery.semantics != "at-least-once" and effects > 1:
                self.broken.append(f"{name}: {effects} effects")
            if delivery.event_id in self.subscriber.poison and effects:
                self.broken.append(f"{name}: poison had an effect")
        self._check_order()

    def _check_order(self) -> None:
        places = {d.event_id: d for feed in self.feeds for d in self.journal[feed]}
        last: dict[tuple[str, Feed], int] = {}
        for event_id in self.subscriber.order:
            delivery = places[event_id]
            key = (delivery.subject, delivery.feed)
            if delivery.offset < last.get(key, -1):
                self.broken.append(f"{event_id} arrived after a later one")
            last[key] = delivery.offset
