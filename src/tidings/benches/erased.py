"""Does emit get slower when many people were erased? The same messages with and without their tombstones, by turns in one session."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from pyspark.sql import SparkSession

from tidings.benches.emit import FILES, PER_FILE, emitted
from tidings.benches.operator import drop, messages, operator
from tidings.benches.past import Past
from tidings.benches.usage import processor_s
from tidings.rights.desk import AT_ONCE
from tidings.seal.keyring import bucket
from tidings.session import BUCKETS, session
from tidings.stages.erased import tombstone

TURNS = (False, True, True, False)  # a JVM gets faster for a while: whoever comes second also comes first
GONE = 10_000_000  # the first number of somebody who was erased; no message is about them
MILLIS = 1_772_443_000_000
Say = Callable[[str], None]


def measure(events: int, erasures: int, subscribers: int, *, say: Say = lambda text: None) -> dict[str, Any]:
    """Events per second and processor time, without erasures and with so many in the past."""
    root = Path(tempfile.mkdtemp(prefix="tidings-bench-"))
    spark = session(root / "session")
    rates: dict[bool, list[float]] = {False: [], True: []}
    spent: dict[bool, list[float]] = {False: [], True: []}
    try:
        for number, erased in enumerate(TURNS):
            say(f"turn {number + 1}: {erasures if erased else 0:,} erasures")
            rate, used = _turn(spark, root / str(number), (events, erasures if erased else 0, subscribers), say)
            rates[erased].append(rate)
            spent[erased].append(used)
        return {
            "events": events,
            "erasures": erasures,
            "without_per_s": round(mean(rates[False])),
            "with_per_s": round(mean(rates[True])),
            "ratio": round(mean(rates[True]) / mean(rates[False]), 3),
            "each_per_s": [round(one) for one in (*rates[False], *rates[True])],
            "processor_ratio": round(mean(spent[True]) / mean(spent[False]), 3),
        }
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


def _turn(spark: SparkSession, root: Path, size: tuple[int, int, int], say: Say) -> tuple[float, float]:
    events, erasures, subscribers = size
    settings = operator(root, subscribers)
    _bury(Past(settings), erasures)
    per_file = min(PER_FILE, max(PER_FILE // 10, events // (2 * FILES)))
    drop(settings.source_path("crm"), messages(events + FILES * per_file, max(1000, events // 10)), per_file)
    before = processor_s()
    rate, _ = emitted(spark, settings, True, say)
    shutil.rmtree(root / "data", ignore_errors=True)
    return rate, processor_s() - before


def _bury(past: Past, erasures: int) -> None:
    """The rows that so many erasures leave, as the desk commits them and housekeeping keeps them."""
    for number, first in enumerate(range(0, erasures, AT_ONCE)):
        tags = [past.tag(GONE + person) for person in range(first, min(erasures, first + AT_ONCE))]
        columns = {"tag": tags, "bucket": [bucket(tag) % BUCKETS for tag in tags], "offset": 0, "source": "desk"}
        columns |= {"generation": "tombstones", "batch": number, "version": f"{MILLIS:013d}-999999"}
        columns |= {"consents": (), "flags": (tombstone(MILLIS, 1),)}
        past.commit("subjects", past.shaped("subjects", columns, len(tags)), "desk", number)
        if number % 64 == 63:
            past.tend()
    past.tend()
