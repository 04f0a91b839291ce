"""One lane at work: its state, what its calls need on an executor, and whether it is healthy enough for the fast job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pyarrow.dataset as ds

from tidings.channels import DIGEST_KEY
from tidings.lanes import control, machine
from tidings.lanes.attempts import Stamp, outcomes, recorded
from tidings.lanes.breaker import Breaker
from tidings.lanes.limits import manifest_of, rules_of
from tidings.lanes.machine import LaneState
from tidings.lanes.member import Delivery, Feed, Final, PlannedCall, Rules
from tidings.lanes.recover import Committed, last_breaker, recover, retrace
from tidings.lanes.send import LaneJob
from tidings.lanes.slices import Entry, deliveries, read, tags
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings
from tidings.shapes import Subscriber
from tidings.store import Store

SMOOTHING = 0.3


@dataclass
class Lane:
    job: LaneJob
    state: LaneState
    slow: bool = False
    latency_s: float = 0.1
    requests: int = 0  # operator's requests taken up
    wake: float | None = None  # nothing can be due before; None when not looked at since the last change
    parked: int = 0  # subjects that waited for a later time when last looked at
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

    def settle(self, call: PlannedCall, row: dict[str, Any]) -> list[Final]:
        """Move the state as the row says. The same retracing serves a restart, so both end in the same place."""
        self.touch()
        told = recorded(row)
        verdicts = [
            retrace(delivery, told, member)
            for member in told.members
            if (delivery := self.state.unsettled.get(member.event_id)) is not None
        ]
        return machine.settle(self.state, call, verdicts, outcomes(row), told.finished)

    def learn(self, rows: Iterable[Mapping[str, Any]], fast_s: float) -> None:
        """Move to the slow job after a call that used up the fast one's time, and back when calls are quick again."""
        times = [row["latency_ms"] / 1000 for row in rows if row["entry"] is not None]
        for took in times:
            self.latency_s += SMOOTHING * (took - self.latency_s)
        if times:
            self.slow = max(times) > fast_s * (0.25 if self.slow else 0.45)

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
    """What travels to the executors. Secrets are read here, once, and are part of no plan."""
    manifest = manifest_of(settings, subscriber)
    references = [subscriber.signing_secret, subscriber.auth.secret if subscriber.auth else None]
    secrets = {ref: settings.secret(ref).reveal() for ref in references if ref}
    secrets[DIGEST_KEY] = settings.keyring.derive("digest").hex()
    place = urlsplit(subscriber.url or manifest.url)
    by = Stamp(f"tidings/{settings.tenant}", manifest.channel, f"{place.scheme}://{place.netloc}{place.path}")
    manifests = str(settings.manifests_path) if settings.manifests_path.is_dir() else ""
    return LaneJob(subscriber, secrets, rules_of(settings, subscriber), by, settings.network, manifests)


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
        rows = self._attempts(rules.name, committed.since)
        asked = control.asked(self.settings.data_path, rules.name)
        taken = self.store.transaction_version("attempts", f"control/{rules.name}") or 0
        wishes = {row["cycle"]: row["call"] for row in rows if row["call"].startswith("control-")}
        reopened = {
            seq: delivery
            for seq, call in wishes.items()
            if (request := asked[int(call.removeprefix("control-")) - 1]).action == "retry"
            and (delivery := self.wanted(request)) is not None
        }
        told = [recorded(row) for row in rows]
        state, orphans = recover(rules, committed, journal, told, reopened)
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

    def wanted(self, request: control.Request) -> Delivery | None:
        """The delivery an operator wants to see again."""
        feed = Feed(request.source, request.generation)
        found = self.owed(request.lane, feed, request.offset - 1, request.offset)
        return next((d for d in found if d.event_id == request.event), None)

    def _committed(self, lane: str, feeds: Iterable[Feed]) -> Committed:
        def said(app: str) -> int | None:
            return self.store.transaction_version("attempts", app)

        base = f"lane/{lane}"
        cursors = {feed: cursor for feed in feeds if (cursor := said(f"{base}/{feed}")) is not None}
        oldest = {feed: said(f"{base}/{feed}/oldest") or 0 for feed in cursors}
        return Committed(said(base) or 0, said(f"{base}/since") or 1, cursors, oldest)

    def _attempts(self, lane: str, since: int) -> list[dict[str, Any]]:
        files = self.store.files("attempts", column="cycle", above=since - 1, where={"lane": lane})
        if not files:
            return []
        look = (ds.field("lane") == lane) & (ds.field("cycle") >= since)
        columns = ["cycle", "call", "intent", "started", "finished", "members"]
        found: list[dict[str, Any]] = self.store.arrow("attempts", columns, files=files, filter=look).to_pylist()
        return found
