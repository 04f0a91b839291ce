"""The only streaming queries, the only foreachBatch, the supervision loop.

    drop folders ─claim→ queries (one per source) ─emit→ journal ─cycle→ attempts ─advance→ ledger

Each of the three hands works on its own; the tables between them are the only thing they share. A hand that fails stops the rest:
what is committed stays, and the next start goes on from there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tidings.attest import advance, behind, ledger_of
from tidings.bundles import taken
from tidings.care import expire, tend
from tidings.decisions import Decisions
from tidings.emit import Emitter
from tidings.errors import Refused, SourceStopped, TidingsError
from tidings.feed import UNREACHABLE, Feeding, source_rows
from tidings.gate.again import Again
from tidings.gate.rollout import read_rollout
from tidings.jars import jars
from tidings.lanes.bootstrap import newly
from tidings.lanes.cycle import Cycle
from tidings.lanes.disputes import resolutions
from tidings.lanes.policies import attest_policy, in_force_since
from tidings.lanes.replay import Late
from tidings.ledger.classes import Ledger
from tidings.lock import RunLock
from tidings.progress import Generations
from tidings.rights import restore
from tidings.rights.desk import Desk
from tidings.sagas import Sagas
from tidings.seal.keyfiles import KeyFiles
from tidings.session import session
from tidings.settings import Settings
from tidings.shapes import Source
from tidings.sources import files
from tidings.sources.pump import pump_of
from tidings.sources.tap import tap_of
from tidings.store import Store
from tidings.watch import Watch

Progress = Callable[[Mapping[str, Any]], None]
MAINTAIN_EVERY_S = 30.0


@dataclass
class Runner:
    """A whole operator at work in one process."""

    settings: Settings
    master: str | None = None
    progress: Progress = field(default=lambda said: None)

    def __post_init__(self) -> None:
        self.stop, self.ready = threading.Event(), threading.Event()
        self.failure: BaseException | None = None
        self.totals: dict[str, int] = {}
        self.expired = 0  # the day, since 1970, on which what is over was last let go

    def run(self, *, until_idle: bool = False, patience: float = 60.0) -> None:
        """Work until stopped, or until nothing is left to do now; raises what stopped it."""
        data = self.settings.data_path
        master = self.master or os.environ.get("TIDINGS_MASTER") or "local"
        if not master.startswith("local") and not self.settings.run.shared:
            raise Refused(
                "not_shared",
                f"the Spark master {master} and a data folder on this machine",
                "a folder that every worker sees",
                "Mount it on the workers under the same path and say `run: {shared: true}`. Nothing was started.",
            )
        with RunLock(data):
            self.store = Store(data / "tables")
            restore.ready(self.settings, self.store)
            self.spark = session(data, master=self.master, slots=self.settings.run.slots, jars=jars(self.settings))
            try:
                with ledger_of(self.settings) as ledger:
                    self._work(ledger, until_idle, patience)
            finally:
                self.spark.stop()
        if self.failure is not None:
            raise self.failure

    def _work(self, ledger: Ledger, until_idle: bool, patience: float) -> None:
        self.ledger = ledger
        self.cycle = self._gated()
        self.feeds = [self._feeding(source) for source in self.settings.sources.values()]
        self.watch = Watch(self.settings, self.store)
        self.sagas = Sagas(self.settings, self.store)
        self.desk = Desk(self.settings, self.store, ledger.position)
        self.desk.recover()
        self.watch.others.append(lambda: self.desk.rounds.causes(datetime.now(UTC)))
        advance(self.store, ledger)
        hands = self._hands()
        try:
            for hand in hands:  # what is owed does not wait for the plans of the sources
                hand.start()
            for feed in self.feeds:
                if feed.drop is not None:
                    feed.drop.claim()
                feed.query = self._start(feed)
            self.ready.set()
            self._supervise(until_idle, patience)
        finally:
            self.stop.set()
            for feed in self.feeds:
                if feed.query is not None:
                    feed.query.stop()
            for hand in hands:
                hand.join(timeout=120)
            self.cycle.close()
            with contextlib.suppress(Exception):  # an alert that fails must not hide why the run ended
                self.watch.look(self.cycle, self.failure)
            if self.failure is None:
                advance(self.store, ledger)

    def _hands(self) -> list[threading.Thread]:
        work: list[tuple[str, Callable[[], object], float]] = [
            ("lanes", self._deliver, 0.05),
            ("ledger", lambda: advance(self.store, self.ledger), 0.1),
            ("care", self._care, MAINTAIN_EVERY_S),
            ("watch", lambda: self.watch.look(self.cycle), 1.0),
            ("desk", self.desk.step, 0.2),
        ]
        work += [("sagas", self.sagas.step, 1.0)] if self.settings.sagas else []
        work += [(feed.source.name, feed.pump.step, 0.05) for feed in self.feeds if feed.pump]
        return [
            threading.Thread(target=self._hand, args=(do, pause), name=name, daemon=True) for name, do, pause in work
        ]

    def _gated(self) -> Cycle:
        """The lanes behind the gate; a policy that is new is on record before anything is decided with it."""
        self.decisions = Decisions.load(self.settings)
        steps, _ = read_rollout(self.settings.policies.documents)
        policy, by = self.decisions.table.policy, f"tidings/{self.settings.tenant}"
        attest_policy(self.store, policy, steps, taken(self.settings.directory / "policy"), by, time.time())
        resolved = partial(resolutions, self.settings.data_path)
        again = Again(self.store, self.decisions.table, resolved, in_force_since(self.store))
        keyring = self.settings.keyring
        late = Late(newly(again), again.newly)
        return Cycle(self.spark, self.store, self.settings, keyring, regate=again, redecide=again.deferred, late=late)

    def _hand(self, work: Callable[[], object], pause: float) -> None:
        while not self.stop.is_set():
            try:
                work()
            except BaseException as error:
                self.failure = self.failure or error
                self.stop.set()
            self.stop.wait(pause)

    def _deliver(self) -> None:
        report = self.cycle.step()
        self.progress({"lanes": report.as_dict()})

    def _care(self) -> None:
        if (day := int(time.time() // 86_400)) != self.expired:
            expire(self.settings.directory, self.store, self.ledger.position, time.time())
            self.expired = day
        tend(
            self.store,
            KeyFiles(self.settings.data_path / "keys", self.settings.keyring.derive("kek")),
            self.ledger.position,
        )
        self.store.sweep()

    def _supervise(self, until_idle: bool, patience: float) -> None:
        quiet_since: float | None = None
        while not self.stop.is_set():
            for feed in self.feeds:
                if feed.drop is not None:
                    feed.drop.claim()
                feed.retire()
                self._check(feed)
            if until_idle and (gone := next(filter(None, (f.lacking(patience) for f in self.feeds)), None)):
                self.failure = self.failure or gone
                return
            if until_idle and self.quiet(patience):
                quiet_since = quiet_since or time.monotonic()
                if time.monotonic() - quiet_since > 0.5:
                    return
            else:
                quiet_since = None
            self.stop.wait(0.1)

    def quiet(self, patience: float = 0.0) -> bool:
        """Is nothing unread, unsent within `patience` seconds, or unattested?"""
        if not self.ready.is_set():
            return False
        if any(feed.waiting() for feed in self.feeds):
            return False
        return (
            self.cycle.idle(patience) and not behind(self.store, self.ledger) and self.sagas.idle() and self.desk.idle()
        )

    def _check(self, feed: Feeding) -> None:
        """A query that ended by itself ended because of an error; say which, without a Java trace."""
        if feed.query is None or feed.query.isActive:
            return
        if feed.news:
            feed.news = False
            feed.query = self._start(feed)
            return
        error = feed.query.exception()
        cause = self.failure or getattr(feed.emitter, "failure", None)
        if cause is None and (then := feed.fallen()) != "stop":
            if then == "start":
                with feed.rest.minded():
                    feed.query = self._start(feed)
            return
        if cause is None:
            told = str(error).splitlines()[0][:300] if error else "the stream ended"
            cause = feed.rest.trouble or SourceStopped(
                "source_failed", f"source {feed.source.name}: {told}", "a running stream", "Run again."
            )
        self.failure = self.failure or cause
        self.stop.set()

    def _feeding(self, source: Source) -> Feeding:
        generation = Generations(self.settings.data_path, source.name).current()
        emitter = Emitter(self.spark, self.settings, source, self.store, self.decisions, generation, told=self._told)
        drop = (
            files.DropFolder(self.settings.source_path(source.name), source.after) if source.kind == "files" else None
        )
        return Feeding(source, emitter, drop, tap_of(self.settings, source), pump_of(self.settings, source))

    def _told(self, counts: Mapping[str, int]) -> None:
        for name, value in counts.items():
            self.totals[name] = self.totals.get(name, 0) + value
        self.progress({"emitted": dict(self.totals)})

    def _start(self, feed: Feeding) -> StreamingQuery:
        feed.tap = feed.tap and feed.tap.verified()
        rows = source_rows(self.spark, self.settings, feed.source, feed.drop, feed.tap)
        writer = rows.writeStream.queryName(feed.source.name).foreachBatch(self._guarded(feed))
        if feed.tap is not None and feed.tap.every:
            writer = writer.trigger(processingTime=feed.tap.every)
        return writer.option("checkpointLocation", str(feed.emitter.generations.checkpoint / "stream")).start()

    def _guarded(self, feed: Feeding) -> Callable[[DataFrame, int], None]:
        def batch(rows: DataFrame, number: int) -> None:
            try:
                feed.batch(rows, number)
            except TidingsError as error:
                if error.code != UNREACHABLE:  # a server that restarts is waited for
                    self.failure = self.failure or error
                raise

        return batch
