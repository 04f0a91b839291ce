"""A world for one lane: a journal, a disk that forgets what was not committed, a subscriber that misbehaves, a checker.

Everything is drawn from one seed. `World(seed).run()` returns the list of broken promises, empty when all held.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

from tidings.channels.call import Capabilities, Outcome, Result
from tidings.lanes import awaiting, machine
from tidings.lanes.machine import LaneState
from tidings.lanes.member import Delivery, Feed, Final, PlannedCall, Rules, Sent
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
    mode: str = "sync"  # or job (asked later), told (says so itself later), two_phase (prepares, then commits)
    healthy: bool = False
    failed: set[str] = field(default_factory=set)  # jobs that were accepted and did not happen
    jobs: set[str] = field(default_factory=set)
    prepared: set[str] = field(default_factory=set)
    reached: dict[str, int] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    keys: dict[str, float] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def _hit(self, chance: float) -> bool:
        return not self.healthy and self.rng.random() < chance

    def probe(self, call: PlannedCall, now: float) -> list[Outcome]:
        if self._hit(self.faults.unreachable + self.faults.lost_answer):
            return [Outcome(m.event_id, "in_doubt", "probe_timeout") for m in call.members]
        if self.mode == "two_phase":
            return [self._commit(m, now) for m in call.members]
        if self.mode == "job":
            return [self._told(m.event_id) for m in call.members]
        return [
            Outcome(m.event_id, "acknowledged", "found", "A3", 200)
            if m.event_id in self.effects
            else Outcome(m.event_id, "transient", "probed", status=404)
            for m in call.members
        ]

    def _told(self, event_id: str) -> Outcome:
        if event_id in self.jobs and self._hit(0.4):
            return Outcome(event_id, "in_doubt", "pending")
        if event_id in self.effects:
            return Outcome(event_id, "acknowledged", "found", "A3", 200)
        return Outcome(event_id, "transient", "job_failed" if event_id in self.jobs else "probed", status=404)

    def _commit(self, member: Sent, now: float) -> Outcome:
        """Commits what was recorded as prepared; of what was not it only says whether it is there."""
        if not member.reference:
            if member.event_id in self.prepared:
                return Outcome(member.event_id, "accepted", "prepared", "A1", reference="prepared")
            return Outcome(member.event_id, "transient", "not_prepared")
        if member.event_id in self.prepared:
            self.prepared.discard(member.event_id)
            self._effect(member.event_id, now)
        if self._hit(self.faults.lost_answer):
            return Outcome(member.event_id, "in_doubt", "timeout")
        return Outcome(member.event_id, "acknowledged", "committed", "A3", 200)

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
        if self.mode == "two_phase":
            self.prepared |= set(ids) - bad
            return self._answers(ids, bad, "accepted", "prepared")
        if self.mode == "job":
            fresh = [i for i in ids if i not in bad and i not in self.effects]
            self.failed |= {i for i in fresh if self._hit(0.1)}
            self.jobs |= set(fresh)
            ids = [i for i in ids if i not in self.failed] + [i for i in ids if i in self.failed]
        for _ in range(2 if self.rules.capable.idempotency_key and self._hit(self.faults.duplicate) else 1):
            for event_id in ids:
                if event_id not in bad | self.failed:
                    self._effect(event_id, now)
        return self._answers(ids, bad, "acknowledged" if self.mode == "sync" else "accepted", "")

    def _answers(self, ids: list[str], bad: set[str], good: Result, reference: str) -> list[Outcome]:
        if self._hit(self.faults.lost_answer):
            return [Outcome(i, "in_doubt", "timeout") for i in ids]
        return [
            Outcome(i, "terminal", "422", status=422)
            if i in bad
            else Outcome(i, good, "200", "A2", 200, reference=reference)
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
    helper = rng.choice(["none", "idempotent", "probe", "forgetful", "two_phase"])
    return Rules(
        name="lane",
        batch=rng.choice([1, 1, 3, 8]),
        per_second=rng.choice([0.0, 0.0, 2.0, 20.0]),
        concurrency=rng.randint(1, 4),
        schedule=rng.choice([Rules("x").schedule, (0.0, 1.0, 5.0, 60.0, HOUR, 5 * HOUR)]),
        capable=Capabilities(
            idempotency_key=helper in ("idempotent", "forgetful"),
            probe=helper == "probe",
            two_phase=helper == "two_phase",
        ),
        key_window_s=rng.choice([600.0, 3 * HOUR]) if helper == "forgetful" else None,
        window=rng.choice([3, 10, 1000]),
        poll_s=rng.choice([5.0, 600.0]),
        patience_s=rng.choice([HOUR, 1000 * HOUR]),
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
        mode = {True: "two_phase", False: rng.choice(["sync", "sync", "job" if self.rules.capable.probe else "told"])}
        how = mode[self.rules.capable.two_phase]
        self.subscriber = Subscriber(rng, self.rules, Faults.draw(rng), poison, rng.random() < 0.5, how)
        self.visible = dict.fromkeys(self.feeds, 0)
        self.committed = Committed()
        self.rows: list[Recorded] = []
        self.state = LaneState(self.rules)
        self.waiting: list[tuple[float, PlannedCall, list[Outcome]]] = []
        self.ended: dict[str, Final] = {}
        self.broken: list[str] = []
        self.released: set[str] = set()
        self.passed: set[tuple[str, str]] = set()  # (deferred or behind it, what overtook it)
        self.patience = rng.choice([60, 120, 120, 1500])  # steps until the world heals; 1,500 outlasts every schedule

    def _draw_journal(self) -> dict[Feed, list[Delivery]]:
        rng, journal = self.rng, {}
        semantics = ["at-least-once", "at-most-once"]
        semantics += ["exactly-once"] if "exactly-once" in self.rules.capable.semantics else []
        semantics = ["exactly-once"] if self.rules.capable.two_phase else semantics
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
        accepted = {told.event_id for row in reach for told in row.members if told.result == "accepted"}
        outside = [copy.copy(d) for rows in self.journal.values() for d in rows if d.event_id in accepted]
        return recover(self.rules, self.committed, journal, reach, outside=outside)

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
        if len(state.unsettled) - len(state.awaiting) > self.rules.window:
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
        self._answer()
        if rng.random() < 0.1:
            self._carry()
        state.paused = "operator" if step < 100 and rng.random() < 0.05 else ""

    def _answer(self) -> None:
        """The subscriber says by itself what became of what it accepted."""
        for event_id in list(self.state.awaiting) if self.subscriber.mode == "told" else []:
            if self.subscriber.healthy or self.rng.random() < 0.2:
                final = "acknowledged" if event_id in self.subscriber.effects else "dead_lettered"
                self._spoken(event_id, final, awaiting.answer(self.state, event_id, final, "told", self.now))  # type: ignore[arg-type]

    def _spoken(self, event_id: str, code: str, ended: Final | None) -> None:
        if ended is None:
            return
        self.state.seq += 1
        told = Told(event_id, 0, ended.final, code, None, ended.final)
        self.commit([Recorded(self.state.seq, False, ended.feed, (told,), self.now, self.now)])
        self._note([ended])

    def _carry(self) -> None:
        rows = []
        for d in awaiting.carry(self.state, 6):
            due = None if d.due == machine.NEVER else d.due
            told = Told(d.event_id, d.attempt, "accepted", "", due, None, d.reference)
            rows.append(Recorded(d.begun or 0, False, d.feed, (told,), d.first or 0.0, self.now, True))
        if rows:
            self.commit(rows)

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
            outcomes = (
                self.subscriber.probe(call, self.now) if call.kind == "probe" else self.subscriber.send(call, self.now)
            )
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
            asides = self.state.awaiting
            subjects += [
                self._delivery(call.feed, m.event_id).subject for m in call.members if m.event_id not in asides
            ]
        if len(subjects) != len(set(subjects)):
            self.broken.append("two deliveries of a subject in flight")
        for call in calls:
            for member in call.members:
                mine = self._delivery(call.feed, member.event_id)
                before = [d for d in self.journal[call.feed] if d.subject == mine.subject and d.offset < mine.offset]
                over = {*self.ended, *self.state.awaiting}
                before = [d for d in before if d.event_id not in over and not self._gives_way(d, mine)]
                if member.event_id not in over and before:
                    self.broken.append(f"{member.event_id} overtook its subject")

    def _gives_way(self, waiting: Delivery, urgent: Delivery) -> bool:
        """Something deferred holds its subject, but for the more urgent of another type; so does what stands behind it."""
        first = [
            d for d in self.state.unsettled.values() if d.subject == urgent.subject and d.deferred and d.call is None
        ]
        held = [d for d in first if d.change_type != urgent.change_type and urgent.priority < d.priority]
        if held and waiting.change_type != urgent.change_type:
            self.passed.add((waiting.event_id, urgent.event_id))
        return (waiting.event_id, urgent.event_id) in self.passed

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
        """In order per subject; only what passed something deferred may have come before it, and never within a type."""
        if self.state.totals.incidents.get("order_violation"):
            self.broken.append("the lane itself saw a violation of the order")
        places = {d.event_id: d for feed in self.feeds for d in self.journal[feed]}
        came: dict[tuple[str, Feed], list[Delivery]] = {}
        for event_id in self.subscriber.order:
            delivery = places[event_id]
            before = came.setdefault((delivery.subject, delivery.feed), [])
            late = [d for d in before if d.offset > delivery.offset and (event_id, d.event_id) not in self.passed]
            if late or any(d.offset > delivery.offset and d.change_type == delivery.change_type for d in before):
                self.broken.append(f"{event_id} arrived after a later one")
            before.append(delivery)
