"""The hand that carries stretches: one Spark job each, and what its rows mean for the lanes and the books."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from tidings.lanes.attempts import made_row, write
from tidings.lanes.books import Books
from tidings.lanes.carry import Load
from tidings.lanes.job import attempted, carrying, outlined, written
from tidings.lanes.lane import Lane
from tidings.lanes.member import Final, PlannedCall
from tidings.lanes.recover import in_doubt
from tidings.lanes.retry import moment
from tidings.lanes.semantics import judge
from tidings.lanes.stretch import Stretch
from tidings.lanes.stretches import Hand, Settlement, Stretches, acknowledged, latest, settle
from tidings.store import Store

Ended = Iterator[tuple[int, Mapping[str, Any], list[Final]]]


class Courier:
    """`begin_s` is the time in which calls may begin, `budget_s` what a single call may take."""

    def __init__(self, spark: SparkSession, store: Store, books: Books, stretches: Stretches) -> None:
        self.spark, self.store, self.books, self.stretches = spark, store, books, stretches
        self._side = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stretch")

    def carry(
        self, stretch: Stretch, folder: str, times: tuple[float, float], meanwhile: Callable[[], None]
    ) -> BaseException | None:
        """Make the calls; `meanwhile` is done while they are under way."""
        begin_s, budget_s = times
        begun = time.monotonic()
        load = Load(stretch.feed, stretch.parts, stretch.at, stretch.splits, budget_s, begin_s, folder=folder)
        slots = max(1, self.spark.sparkContext.defaultParallelism - 1)
        Path(folder).mkdir(parents=True)
        job = self._side.submit(attempted, lambda: carrying(self.spark, self.store, stretch, load, slots).collect())
        meanwhile()
        failure = job.result()
        most = min(part.job.rules.window for part in stretch.parts.values())
        self.stretches.learn(time.monotonic() - begun, begin_s, len(stretch.entries), most)
        return failure

    def settle(self, stretch: Stretch, folder: str, lanes: Mapping[str, Lane], fast_s: float, now: float) -> Ended:
        """Move the lanes and the books as the rows say: how many were acknowledged as wholes; rows that were not, and their ends."""
        rows, told = outlined(folder), dict[str, Settlement]()
        whole = cache(partial(written, folder))
        missing: list[dict[str, Any]] = []
        for name in stretch.parts:
            lane, mine = lanes[name], rows.filter(pc.equal(rows["lane"], name))
            told[name] = settle(stretch, lane, mine, Hand(whole, partial(_lost, missing, lane, now)))
            lane.learn(mine.select(["latency_ms", "entry"]).to_pylist(), fast_s)
        if missing:
            write(missing, folder)
        self.books.later.append(partial(self._note, stretch, told, latest(rows)))
        for one in told.values():
            yield one.sent, {"members": ()}, []
            yield from ((0, row, finals) for row, finals in one.odd)

    def _note(self, stretch: Stretch, told: Mapping[str, Settlement], at: float) -> None:
        for event_id, acks in acknowledged(stretch, told):
            self.books.acknowledged(event_id, acks, at)

    def close(self) -> None:
        self._side.shutdown(wait=True)


def _lost(missing: list[dict[str, Any]], lane: Lane, now: float, call: PlannedCall) -> dict[str, Any]:
    missing.append(lost_row(lane, call, now))
    return missing[-1]


def lost_row(lane: Lane, call: PlannedCall, now: float) -> dict[str, Any]:
    """The row of a call that has none: it may have been made."""
    told = judge(lane.state.rules, call, in_doubt(call), call.at, moment(now))
    return made_row(lane.state.rules, call, told, (call.at, now), lane.job.by)
