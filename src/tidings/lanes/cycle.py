"""The cycle around the machine: read the journal, gate, plan, record intents, send with one Spark job, record, settle.

    offered ─plan→ calls ─intents→ attempts ─one job→ rows ─settle→ state ─commit(rows, cursors)→ attempts ─books→ settled

The driver holds every lane's state; the tables hold enough to make it again. A lane that used up the fast job's time moves
to one slow job in a thread of its own until it is quick again, so it holds nobody else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

from tidings import crash
from tidings.errors import TidingsError
from tidings.lanes import machine
from tidings.lanes.attempts import carried_row, ended_row, intent_row, made_row, write
from tidings.lanes.books import Books
from tidings.lanes.courier import Courier, lost_row
from tidings.lanes.disputes import Disputes
from tidings.lanes.gate import Gate, Redecide, Regate
from tidings.lanes.intake import Intake
from tidings.lanes.job import attempted, plan_rows, sending, shared, written
from tidings.lanes.lane import Lane, Tables
from tidings.lanes.machine import NEVER
from tidings.lanes.member import Final, PlannedCall
from tidings.lanes.orders import Orders
from tidings.lanes.recover import in_doubt
from tidings.lanes.removed import Removed
from tidings.lanes.replay import Late
from tidings.lanes.replays import Replays
from tidings.lanes.retry import moment
from tidings.lanes.semantics import NOT_STARTED, judge
from tidings.lanes.send import Job
from tidings.lanes.stretches import Slice, Stretches
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import Keyring
from tidings.settings import Settings
from tidings.store import Store

BEGIN_SHARE = 0.5  # of a job's time in which calls may begin; each then has at least the rest of it
CURSORS_EVERY_S = 30.0  # cursors that moved without a call are committed this often

crash.POINTS["lanes.after_intent"] = "intents are committed, nothing is sent"
crash.POINTS["lanes.after_send"] = "calls were made and their rows are written, nothing is committed"
crash.POINTS["lanes.after_attempts_commit"] = "attempts and cursors are committed, the events are not settled"


@dataclass
class CycleReport:
    """What one step did, and when there is something to do again."""

    sent: int = 0
    acknowledged: int = 0
    dead: int = 0
    ended: int = 0
    settled: int = 0
    taken: int = 0
    unsettled: int = 0
    parked: int = 0
    next_due: float = NEVER
    idle: bool = True

    def as_dict(self) -> dict[str, Any]:
        said = asdict(self)
        return said | {"next_due": None if self.next_due == NEVER else self.next_due}


@dataclass(frozen=True)
class Launch:
    """Calls on their way, and the folder their rows will be in."""

    calls: tuple[PlannedCall, ...]
    folder: str
    future: Future[BaseException | None]


class Cycle:
    """All lanes of an operator. `step` does what is due now and returns; nothing runs between steps but the slow job."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        settings: Settings,
        keyring: Keyring,
        clock: Callable[[], float] = time.time,
        regate: Regate | None = None,
        redecide: Redecide | None = None,
        late: Late | None = None,
    ) -> None:
        self.spark, self.store, self.settings, self.clock = spark, store, settings, clock
        tables = Tables(store, KeyFiles(settings.data_path / "keys", keyring.derive("kek")), settings)
        self.books = Books(f"tidings/{settings.tenant}", frozenset(settings.subscribers))
        self.intake = Intake(tables, self.books)
        self.removed = Removed(store, self.books)
        self.replays = Replays(tables, late)
        self.gate = Gate(tables, keyring.derive("wire"), self.replays.gated(regate), redecide)
        self.stretches = Stretches(tables, keyring.derive("wire"), regate)
        self.courier = Courier(spark, store, self.books, self.stretches)
        self.lanes: dict[str, Lane] = {}
        self.orders = Orders(tables, self.books.attestor)
        self.disputes = Disputes(tables, self.books.attestor, keyring.derive("iv"))
        self._lock = threading.Lock()  # another thread may ask whether there is anything left to do
        self._slow: Launch | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slow-lanes")
        self._version = store.transaction_version("attempts", "lanes") or 0
        self._kept: dict[str, int] = {}
        self._kept_at = 0.0
        self._restore(tables)

    def step(self) -> CycleReport:
        """One pass over everything that is due."""
        with self._lock:
            return self._step()

    def _step(self) -> CycleReport:
        now, report = self.clock(), CycleReport()
        rows = self.orders.take(self.lanes.values(), now) + self.disputes.take(now)
        self._answered(report)
        rows += self._carried(now)
        report.taken = self.intake.take(
            self.lanes.values(), now, lambda lane, events: self.stretches.turn(lane, events, now)
        )
        rows += self.removed.step(now)
        taken_up, ends = self.replays.step(self.lanes, self.books.cursors, now)
        rows += taken_up + self._ended(ends, report)
        rows += self._ended(self.gate.redecided(self.lanes, now), report)
        rows += self._ended(self.gate.overdue(self.lanes.values(), now), report)
        if self._slow is not None and self._slow.future.done():
            self._collect(self._slow, report)
            self._slow = None
        if rows and self.intake.slices:  # a commit of a stretch must not be ahead of what already ended
            self._commit(rows)
            rows = []
        carried = [self._stretch(found, report) for found in self.intake.slices]
        fast, slow = self._planned(self.clock(), report, rows)
        if rows:
            self._commit(rows)
        self._intend([*fast, *slow])
        if slow:
            self._slow = self._launch(slow, self.settings.run.slow_budget_s, self._thread)
        if fast:
            self._collect(self._launch(fast, self.settings.run.fast_budget_s, None), report)
        self._keep_cursors(now)
        if not any(carried):  # else the next stretch leaves time for it
            report.settled += self.books.write(self.store, "books")
        return self._look(report, self.clock())

    def idle(self, patience: float = 0.0) -> bool:
        """Nothing is under way, unread, or due within `patience` seconds."""
        with self._lock:
            soon = self.clock() + patience
            busy = self._slow is not None or self.disputes.pending() or self.intake.behind(self.lanes.values())
            busy = busy or self.replays.busy(self.lanes)
            return not busy and self._next_due() > soon

    def close(self) -> None:
        """Wait for the calls under way and record what came back."""
        with self._lock:
            if self._slow is not None:
                self._collect(self._slow, CycleReport())
                self._slow = None
            self.books.write(self.store, "books")
        self._thread.shutdown(wait=True)
        self.courier.close()
        self.replays.close()

    def _restore(self, tables: Tables) -> None:
        now, rows = self.clock(), []
        feeds = self.intake.feeds()
        for name, subscriber in self.settings.subscribers.items():
            self.lanes[name] = lane = tables.restore(subscriber, feeds)
            for call in lane.orphans:
                told = judge(lane.state.rules, call, in_doubt(call), call.at, moment(now))
                rows.append(made_row(lane.state.rules, call, told, (call.at, now), lane.job.by))
                machine.settle(lane.state, call, told[1], told[0], now)
            lane.orphans = []
        if rows:
            self._commit(rows)
        self.intake.restore(self.lanes.values(), now)
        self.replays.restore(self.lanes.values(), feeds)
        self.books.write(self.store, "books")

    # Planning

    def _planned(
        self, now: float, report: CycleReport, rows: list[dict[str, Any]]
    ) -> tuple[list[PlannedCall], list[PlannedCall]]:
        """Calls for the fast and for the slow job; what the gate takes out of them ends as rows."""
        fast: list[PlannedCall] = []
        slow: list[PlannedCall] = []
        for lane in self.lanes.values():
            if lane.due(now) > now or ((patient := lane.patient()) and self._slow is not None):
                continue
            budget = self.settings.run.slow_budget_s if patient else self.settings.run.fast_budget_s
            (slow if patient else fast).extend(machine.plan(lane.state, now, lane.room(budget * BEGIN_SHARE)))
            lane.touch()
        both, ends = self.gate.passed(self.lanes, [*fast, *slow], now)
        rows += self._ended(ends, report)
        patient_ones = {call.lane for call in slow}
        return [c for c in both if c.lane not in patient_ones], [c for c in both if c.lane in patient_ones]

    def _ended(self, ends: Iterable[tuple[Final, int]], report: CycleReport) -> list[dict[str, Any]]:
        rows = []
        for final, seq in ends:
            lane = self.lanes[final.lane]
            rows.append(ended_row(lane.state.rules, final, seq, lane.job.by))
            self.books.note(final, "A0")
            report.ended += 1
            report.dead += final.final == "dead_lettered"
        return rows

    def _answered(self, report: CycleReport) -> None:
        for final, strength in self.orders.ends:
            self.books.note(final, strength if final.final == "acknowledged" else "A0")
            report.acknowledged += final.final == "acknowledged"
            report.dead += final.final == "dead_lettered"
            report.ended += 1
        self.orders.ends = []

    def _carried(self, now: float) -> list[dict[str, Any]]:
        """Accepted deliveries from far back are said again, so that a restart need not read everything since."""
        return [
            carried_row(lane.name, delivery, now, lane.job.by.channel)
            for lane in self.lanes.values()
            for delivery in lane.carried()
        ]

    def _intend(self, calls: Sequence[PlannedCall]) -> None:
        """What must not be sent twice is on the disk before it is sent once."""
        rows = [intent_row(call, self.lanes[call.lane].job.by.channel) for call in calls if call.intent]
        if rows:
            self._commit(rows)
            crash.point("lanes.after_intent")

    # Sending

    def _launch(self, calls: Sequence[PlannedCall], budget_s: float, thread: ThreadPoolExecutor | None) -> Launch:
        folder = self.store.fresh("attempts")
        lanes = {call.lane: self.lanes[call.lane] for call in calls}
        slots = max(1, self.spark.sparkContext.defaultParallelism - 1) if thread is None else 1
        tasks, many = shared(calls, {name: lane.state.rules.concurrency for name, lane in lanes.items()}, slots)
        split = {name: len({tasks[i] for i, call in enumerate(calls) if call.lane == name}) for name in lanes}
        jobs = {name: lane.ready(self.settings, self.clock()) for name, lane in lanes.items()}
        job = Job(jobs, split, budget_s, budget_s * BEGIN_SHARE)
        plan = plan_rows(calls, tasks, self.gate.opened)

        def run() -> BaseException | None:
            return attempted(lambda: sending(self.spark, self.store, (plan, many), job).write.parquet(folder))

        if thread is not None:
            return Launch(tuple(calls), folder, thread.submit(run))
        future: Future[BaseException | None] = Future()
        future.set_result(run())
        return Launch(tuple(calls), folder, future)

    def _collect(self, launch: Launch, report: CycleReport) -> None:
        """Settle what came back and commit it with the cursors; a call without a row is in doubt."""
        failure = launch.future.result()
        crash.point("lanes.after_send")
        rows, now = {row["call"]: row for row in written(launch.folder).to_pylist()}, self.clock()
        missing = []
        for call in launch.calls:
            lane = self.lanes[call.lane]
            if call.id not in rows:
                rows[call.id] = lost_row(lane, call, now)
                missing.append(rows[call.id])
            self._note(lane.settle(call, rows[call.id]), rows[call.id], report)
        if missing:
            write(missing, launch.folder)
        for name in {call.lane for call in launch.calls}:
            mine = [row for row in rows.values() if row["lane"] == name]
            self.lanes[name].learn(mine, self.settings.run.fast_budget_s)
        self._commit_folder(launch.folder)
        crash.point("lanes.after_attempts_commit")
        self.orders.shut_doors(self.lanes.values())
        self._told(failure)

    def _told(self, failure: BaseException | None) -> None:
        if failure is not None:
            expected = "rows for all its calls"
            words = f"the job that sends ended with {type(failure).__name__}"
            now_what = "What it sent is recorded, the rest is in doubt. Run again."
            raise TidingsError("send_failed", words, expected, now_what) from failure

    # Stretches

    def _stretch(self, found: Slice, report: CycleReport) -> bool:
        """What healthy lanes can take as a whole; the others, and what was too little, one by one as ever."""
        budget = self.settings.run.fast_budget_s
        stretch = self.stretches.plan(found, self.clock(), budget * BEGIN_SHARE)
        parts = stretch.parts if stretch else {}
        report.taken += self.intake.enter(
            found._replace(lanes=[one for one in found.lanes if one.name not in parts]), self.clock()
        )
        if stretch is None:
            return False

        def meanwhile() -> None:  # what the last one ended, and what the next one will need
            report.settled += self.books.write(self.store, "books")
            self.intake.ahead(self.lanes.values(), self.clock(), max(part.upto for part in parts.values()))

        folder = self.store.fresh("attempts")
        failure = self.courier.carry(stretch, folder, (budget * BEGIN_SHARE, budget), meanwhile)
        crash.point("lanes.after_send")
        for whole, row, finals in self.courier.settle(stretch, folder, self.lanes, budget, self.clock()):
            report.sent, report.acknowledged = report.sent + whole, report.acknowledged + whole
            report.ended += whole
            self._note(finals, row, report)
        self._commit_folder(folder)
        crash.point("lanes.after_attempts_commit")
        self.orders.shut_doors(self.lanes.values())
        self._told(failure)
        return True

    def _note(self, finals: Iterable[Final], row: Mapping[str, Any], report: CycleReport) -> None:
        report.sent += sum(member["code"] != NOT_STARTED for member in row["members"])
        proved = {member["event_id"]: member["ack"] or "A0" for member in row["members"]}
        for final in finals:
            self.books.note(final, proved[final.event_id] if final.final == "acknowledged" else "A0")
            report.acknowledged += final.final == "acknowledged"
            report.dead += final.final == "dead_lettered"
            report.ended += 1

    # Committing

    def _commit(self, rows: list[dict[str, Any]]) -> None:
        folder = self.store.fresh("attempts")
        write(rows, folder)
        self._commit_folder(folder)

    def _commit_folder(self, folder: str | None) -> None:
        cursors = self._transactions()
        self._version += 1
        self.store.commit("attempts", folder, app="lanes", version=self._version, cursors=cursors)
        self._kept, self._kept_at = cursors, self.clock()
        self.replays.committed()

    def _transactions(self) -> dict[str, int]:
        found = self.disputes.transactions() | self.replays.transactions() | self.removed.transactions()
        for lane in self.lanes.values():
            found |= lane.transactions()
        return found

    def _keep_cursors(self, now: float) -> None:
        if now - self._kept_at < CURSORS_EVERY_S:
            return
        self._kept_at = now
        if self._transactions().items() - self._kept.items():
            self._commit_folder(None)

    # Looking

    def _next_due(self) -> float:
        now = self.clock()
        return min((lane.due(now) for lane in self.lanes.values()), default=NEVER)

    def _look(self, report: CycleReport, now: float) -> CycleReport:
        report.unsettled = sum(len(lane.state.unsettled) for lane in self.lanes.values())
        report.next_due = self._next_due()
        report.parked = sum(lane.parked for lane in self.lanes.values())
        report.idle = not (report.sent or report.taken or report.ended) and report.next_due > now and self._slow is None
        return report
