"""What the gate costs: the same messages through the whole chain with one recipient and no rules, and with many of both."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tidings.benches.emit import FILES, PER_FILE, emitted
from tidings.benches.operator import drop, messages, operator
from tidings.session import session

Say = Callable[[str], None]
TURNS = 2  # the first of each compiles the plan


def measure(
    events: int, subscribers: int, rules: int, *, engine: str = "", say: Say = lambda text: None
) -> dict[str, Any]:
    """Events per second without a gate to speak of, with it, and with another engine's policy beside it."""
    root = Path(tempfile.mkdtemp(prefix="tidings-bench-"))
    spark = session(root / "spark")
    try:
        bare = _rate(spark, root / "bare", events, (1, 0, ""), say)
        full = _rate(spark, root / "full", events, (subscribers, rules, ""), say)
        said: dict[str, Any] = {"events": events, "subscribers": subscribers, "rules": rules}
        said |= {"without_per_s": round(bare), "with_per_s": round(full), "gate_share": round(1 - full / bare, 3)}
        if engine:
            other = _rate(spark, root / engine, events, (subscribers, rules, engine), say)
            said |= {"engine": engine, "engine_per_s": round(other), "engine_ratio": round(other / full, 3)}
        return said
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


def _rate(spark: SparkSession, root: Path, events: int, shape: tuple[int, int, str], say: Say) -> float:
    """The warm rate of one operator: its second run over messages of its own."""
    subscribers, rules, engine = shape
    rate = 0.0
    for turn in range(TURNS):
        folder = root / str(turn)
        settings = operator(folder, subscribers, rules=rules, engine=engine)
        per_file = min(PER_FILE, max(PER_FILE // 10, events // (2 * FILES)))
        drop(settings.source_path("crm"), messages(events + FILES * per_file, max(1000, events // 10)), per_file)
        rate, _ = emitted(spark, settings, True, lambda text: None)
        say(f"{root.name}, turn {turn + 1}: {rate:,.0f}/s")
        shutil.rmtree(folder, ignore_errors=True)
    return rate
