"""A stretch with real Spark, real tables and a sink in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lane_stage import Journal, operator
from pyspark.sql import SparkSession

from tidings.benches.sink import become, reported, sink
from tidings.lanes import courier, job
from tidings.lanes.cycle import Cycle
from tidings.store import Store

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
BATCHED = "\nvars: {mode: batched}\nrate: {batch: 50}"


def test_healthy_lanes_take_stretches_and_a_sick_one_goes_on_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, real = [], job.carrying

    def watched(*given: Any) -> Any:
        frame = real(*given)
        plans.append(frame._jdf.queryExecution().executedPlan().toString())
        return frame

    monkeypatch.setattr(courier, "carrying", watched)
    with sink() as url:
        lanes = {name: f"{url}/ok/{name}{BATCHED}" for name in ("ann", "ben", "sick")}
        settings = operator(tmp_path, lanes)
        store = Store(settings.data_path / "tables")
        journal = Journal(settings, store)
        events = [(f"p{n % 40}", dict.fromkeys(lanes, "allow")) for n in range(900)]
        journal.batch(events)
        become(url, "sick", "busy")
        work = Cycle(spark, store, settings, settings.keyring)
        work.step()
        assert {name: len(lane.state.unsettled) > 0 for name, lane in work.lanes.items()} == {
            "ann": False, "ben": False, "sick": True,
        }  # fmt: skip
        journal.batch(events)
        for _ in range(3):
            work.step()
        work.close()
        seen = reported(url)
    assert {name: seen[name]["events"] for name in seen} == {"ann": 1800, "ben": 1800}
    assert all(one["duplicates"] == one["out_of_order"] == 0 for one in seen.values())
    assert seen["ann"]["requests"] < 100
    assert len(store.arrow("settled", ["event_id"])) == 0
    assert work.lanes["ann"].state.cursors == work.lanes["ben"].state.cursors
    first, *rest = plans[0].splitlines()
    assert "MapInArrow" in first
    assert sum("MapInArrow" in line for line in plans[0].splitlines()) == 1
    assert "Exchange" not in plans[0]  # each task has its row from the start
    assert len(rest) == 1
    assert "example.com" not in plans[0]
