"""One lane at work: its state, what its calls need on an executor, and whether it is healthy enough for the fast job."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import pyarrow.dataset as ds

from tidings.channels import DIGEST_KEY
from tidings.channels.manifest import Manifest
from tidings.errors import Refused
from tidings.lanes import awaiting, control, machine
from tidings.lanes.attempts import Stamp, outcomes, recorded
from tidings.lanes.breaker import Breaker
from tidings.lanes.incidents import twice
from tidings.lanes.limits import manifest_of, rules_of
from tidings.lanes.machine import LaneState
from tidings.lanes.member import Delivery, Feed, Final, PlannedCall, Rules, Totals
from tidings.lanes.recover import Committed, Recorded, last_breaker, recover, retrace
from tidings.lanes.send import LaneJob
from tidings.lanes.sla import Prospect, prospect
from tidings.lanes.slices import Entry, at, deliveries, read, tags
from tidings.lanes.wishes import is_wish, late, taken_up
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings
from tidings.shapes import Subscriber
from tidings.store import Store

SMOOTHING = 0.3
MOST_AROUND_S = 60.0
CARRY_EVERY = 5_000  # calls
SECRETS_EVERY_S = 5.0


@dataclass
class Lane:
    job: LaneJob
    state: LaneState
    slow: bool = False
    latency_s: float = 0.1
    around_s: float = 0.0  # how much later than predicted first calls were answered, lately
    requests: int = 0  # operator's requests taken up
    wake: float | None = None  # nothing can be due before; None when not looked at since the last change
    parked: int = 0  # subjects that waited for a later time when last looked at
    _carry_at: int = 0
    _secrets_at: float = 0.0
    _said: dict[str, int] | None = None
    orphans: list[PlannedCall] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.state.rules.name

    def touch(self) -> None:
        """Something changed: what was worked out before no longer holds. A waiting lane then costs nothing per step."""
        self.wake, self._said = None, None

    def due(self, now: float) -> float:
        """When this lane can have something to do; worked out once per change."""
        if self.wake is None:
            self.wake, self.parked = machine.next_due(self.state, now), self.state.parked(now)
        return self.wake

    def patient(self) -> bool:
        """Not for the fast job: it was too slow, or carries what our own time limit must not put in doubt for good."""
        return self.slow or any(d.semantics == "at-most-once" for d in self.state.unsettled.values())

    def room(self, begin_s: float) -> int:
        """Calls that can begin in one cycle at the speed seen so far."""
        rounds = max(1.0, min(200.0, begin_s / max(self.latency_s, 0.005)))
        return max(1, int(self.state.rules.concurrency * rounds))

    def ready(self, settings: Settings, now: float) -> LaneJob:
        """What travels with the next call, with the secrets of now: one that was replaced on disk is used from then on."""
        if now >= self._secrets_at + SECRETS_EVERY_S:
            self._secrets_at = now
            with suppress(Refused):  # a file that is being replaced; the old secret stands until the new one does
                self.job = replace(self.job, secrets=secrets_for(settings, self.job.subscriber))
        return self.job

    def settle(self, call: PlannedCall, row: dict[str, Any]) -> list[Final]:
        """Move the state as the row says. The same retracing serves a restart, so both end in the same place."""
        self.touch()
        told = recorded(row)
        self._compare(call, told)
        twice(
            self.state.totals,
            self.state.unsettled,
            call,
            [m.event_id for m in told.members if m.final == "acknowledged"],
        )
        verdicts = [
            retrace(delivery, told, member)
            for member in told.members
            if (delivery := self.state.unsettled.get(member.event_id)) is not None
        ]
        return machine.settle(self.state, call, verdicts, outcomes(row), told.finished)

    def prospect(self, now: float) -> Prospect:
        return prospect(self.state, self.latency_s, now, self.around_s)

    def _compare(self, call: PlannedCall, told: Recorded) -> None:
        """What was predicted of first calls against when they were answered: the next predictions are better for it."""
        expected = {m.event_id: m.predicted for m in call.members if m.attempt == 1 and m.predicted is not None}
        done = [m.event_id for m in told.members if m.final == "acknowledged" and m.event_id in expected]
        if done:
            error = sum(told.finished - (expected[name] or 0.0) for name in done) / len(done)
            self.around_s = min(MOST_AROUND_S, max(0.0, self.around_s + SMOOTHING * error))

    def learn(self, rows: Iterable[Mapping[str, Any]], fast_s: float) -> None:
        """Move to the slow job after a call that used up the fast one's time, and back when calls are quick again."""
        times = [row["latency_ms"] / 1000 for row in rows if row["entry"] is not None]
        for took in times:
            self.latency_s += SMOOTHING * (took - self.latency_s)
        if times:
            self.slow = max(times) > fast_s * (0.25 if self.slow else 0.45)

    def carried(self) -> list[Delivery]:
        """Accepted deliveries that must be said again now; looked for once per so many calls."""
        if not self.state.awaiting or self.state.seq < self._carry_at:
            return []
        self._carry_at = self.state.seq + CARRY_EVERY // 2
        found = awaiting.carry(self.state, CARRY_EVERY)
        self.touch()
        return found

    def transactions(self) -> dict[str, int]:
        """Cursors and oldest unsettled offsets, as application transactions of the commit."""
        if self._said is not None:
            return self._said
        state, base = self.state, f"lane/{self.name}"
        found = {base: state.seq, f"{base}/since": state.since(), f"control/{self.name}": self.requests}
        for feed, cursor in state.cursors.items():
            if cursor >= 0:
                found |= {f"{base}/{feed}": cursor, f"{base}/{feed}/oldest": state.oldest(feed)}
        self._said = found
        return found


def lane_job(settings: Settings, subscriber: Subscriber) -> LaneJob:
    """What travels to the executors. Secrets are values here, and are part of no plan."""
    manifest = manifest_of(settings, subscriber)
    by = Stamp(f"tidings/{settings.tenant}", manifest.channel, _destination(subscriber, manifest))
    manifests = str(settings.manifests_path) if settings.manifests_path.is_dir() else ""
    mode = manifest.webhook.mode if manifest.webhook else "binary"
    form = "" if mode == "binary" else mode
    secrets, rules = secrets_for(settings, subscriber), rules_of(settings, subscriber)
    return LaneJob(subscriber, secrets, rules, by, settings.network, manifests, form)


def secrets_for(settings: Settings, subscriber: Subscriber) -> dict[str, str]:
    """The values of one subscriber's references, as they are on disk or in the environment now."""
    return {**settings.secrets_of(subscriber.name), DIGEST_KEY: settings.keyring.derive("digest").hex()}


def _destination(subscriber: Subscriber, manifest: Manifest) -> str:
    """Where it goes, as far as that is no secret."""
    place = urlsplit(subscriber.url or manifest.url)
    return f"{place.scheme}://{place.netloc}{place.path}" if place.scheme else f"{manifest.channel}:{subscriber.name}"


@dataclass(frozen=True)
class Tables:
    """Where lanes read: the tables, the key files, the operator's requests."""

    store: Store
    keys: KeyFiles
    settings: Settings

    def restore(self, subscriber: Subscriber, feeds: Iterable[Feed]) -> Lane:
        """The lane as it was when the last process stopped, however it stopped."""
        job = lane_job(self.settings, subscriber)
        state, orphans, taken = self.recovered(job.rules, feeds)
        return Lane(job, state, requests=taken, orphans=orphans)

    def recovered(self, rules: Rules, feeds: Iterable[Feed]) -> tuple[LaneState, list[PlannedCall], int]:
        """State, calls without an outcome, and how many of the operator's requests were taken. Needs no secret."""
        committed = self._committed(rules.name, feeds)
        journal = {
            feed: self.owed(rules.name, feed, committed.oldest.get(feed, 0) - 1, cursor)
            for feed, cursor in committed.cursors.items()
        }
        rows = self.attempts(rules.name, committed.since)
        asked = control.asked(self.settings.data_path, rules.name)
        taken = self.store.transaction_version("attempts", f"control/{rules.name}") or 0
        wishes = {row["cycle"]: row["call"] for row in rows if row["call"].startswith("control-")}
        said = {seq: asked[int(call.removeprefix("control-")) - 1] for seq, call in wishes.items()}
        found = self.wanted(said.values())
        reopened = {seq: [found[request.serial]] for seq, request in said.items() if request.serial in found}
        reopened |= {row["cycle"]: taken_up(self, rules, row) for row in rows if is_wish(row)}
        told = [recorded({**row, "members": ()} if is_wish(row) else row) for row in rows]
        again = {delivery.event_id for mine in reopened.values() for delivery in mine}
        outside = self._accepted(rules, committed, [m for row in rows for m in row["members"] or ()], again)
        state, orphans = recover(rules, committed, journal, told, reopened, outside)
        state.totals = Totals()  # what was retraced has been counted before
        state.paused = control.paused(asked[:taken])
        state.breaker = last_breaker(rules, told) if state.unsettled else Breaker()
        return state, orphans, taken

    def owed(self, lane: str, feed: Feed, above: int, upto: int) -> list[Delivery]:
        """Everything a lane owes of a stretch of the journal."""
        found: list[Entry] = []
        while above < upto:
            entries, reached = read(self.store, feed, above, upto)
            if reached <= above:
                break
            found += [e for e in entries if e.owes(lane)]
            above = reached
        return deliveries(found, lane, feed, tags(self.keys, found))

    def wanted(self, requests: Iterable[control.Request]) -> dict[int, Delivery]:
        """The deliveries of a lane that an operator wants sent again, by the request's serial; a read per feed, not per request."""
        by_feed: dict[Feed, list[control.Request]] = {}
        for request in requests:
            if request.action == "retry":
                by_feed.setdefault(Feed(request.source, request.generation), []).append(request)
        found: dict[int, Delivery] = {}
        for feed, asked in by_feed.items():
            lane = asked[0].lane
            near = [e for e in at(self.store, feed, {r.offset for r in asked}) if e.owes(lane)]
            made = {d.event_id: d for d in deliveries(near, lane, feed, tags(self.keys, near))}
            found |= {r.serial: replace(made[r.event]) for r in asked if r.event in made}
        return found

    def _accepted(
        self, rules: Rules, committed: Committed, members: Iterable[Mapping[str, Any]], known: Collection[str]
    ) -> list[Delivery]:
        """Deliveries below the oldest unsettled that were accepted: each from its own place in the journal."""
        places = {
            m["event_id"]: (Feed(m["source"], m["generation"]), m["offset"])
            for m in members
            if m["result"] == "accepted" and m["event_id"] not in known
        }
        return [
            delivery
            for event_id, (feed, offset) in places.items()
            if offset < committed.oldest.get(feed, 0)
            and (delivery := self.at(rules.name, feed, offset, event_id) or late(self, rules, feed, offset)) is not None
        ]

    def at(self, lane: str, feed: Feed, offset: int, event_id: str) -> Delivery | None:
        """One delivery from its place in the journal."""
        return next((d for d in self.owed(lane, feed, offset - 1, offset) if d.event_id == event_id), None)

    def _committed(self, lane: str, feeds: Iterable[Feed]) -> Committed:
        def said(app: str) -> int | None:
            return self.store.transaction_version("attempts", app)

        base = f"lane/{lane}"
        cursors = {feed: cursor for feed in feeds if (cursor := said(f"{base}/{feed}")) is not None}
        oldest = {feed: said(f"{base}/{feed}/oldest") or 0 for feed in cursors}
        return Committed(said(base) or 0, said(f"{base}/since") or 1, cursors, oldest)

    def attempts(self, lane: str, since: int) -> list[dict[str, Any]]:
        files = self.store.files("attempts", column="cycle", above=since - 1, where={"lane": lane})
        if not files:
            return []
        look = (ds.field("lane") == lane) & (ds.field("cycle") >= since)
        columns = ["cycle", "call", "intent", "started", "finished", "members"]
        found: list[dict[str, Any]] = self.store.arrow("attempts", columns, files=files, filter=look).to_pylist()
        return found
