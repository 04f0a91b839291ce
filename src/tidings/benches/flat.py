"""Does an event cost the same when tables are old? The tenth batch beside the last, with many subjects known."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tidings.benches.emit import PER_FILE
from tidings.benches.operator import drop, messages, operator
from tidings.care import tend
from tidings.decisions import Decisions
from tidings.emit import Emitter
from tidings.feed import Feeding, source_rows
from tidings.progress import Generations
from tidings.session import session
from tidings.sources import files
from tidings.store import Store

ROWS = 500  # changes per measured batch
Say = Callable[[str], None]


def measure(batches: int, subjects: int, *, say: Say = lambda text: None) -> dict[str, Any]:
    """Seconds per batch around the 10th and around the last one; images are kept, so every table grows."""
    root = Path(tempfile.mkdtemp(prefix="tidings-bench-"))
    settings = operator(root, 10, images="kept")
    spark = session(settings.data_path)
    try:
        source = settings.sources["crm"]
        store, decisions = Store(settings.data_path / "tables"), Decisions.load(settings)
        emitter = Emitter(spark, settings, source, store, decisions, Generations(settings.data_path, "crm").current())
        feed = Feeding(source, emitter, files.DropFolder(settings.source_path("crm"), source.after))
        assert feed.drop is not None
        rows = source_rows(spark, settings, source, feed.drop)
        checkpoint = str(emitter.generations.checkpoint / "stream")
        query = rows.writeStream.foreachBatch(feed.batch).option("checkpointLocation", checkpoint).start()
        try:
            say(f"making {subjects:,} subjects known")
            drop(feed.drop.path, messages(subjects, subjects), PER_FILE)
            feed.drop.claim()
            query.processAllAvailable()
            took = [_one(feed, query, subjects, number, say) for number in range(batches)]
        finally:
            query.stop()
        commit = _commits(root)
        early, late = median(took[5:15]), median(took[-10:])
        return {
            "subjects": subjects,
            "batches": batches,
            "batch_10_s": round(early, 3),
            f"batch_{batches}_s": round(late, 3),
            "ratio": round(late / early, 3),
            **commit,
        }
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


def _one(feed: Feeding, query: Any, subjects: int, number: int, say: Say) -> float:
    assert feed.drop is not None
    drop(feed.drop.path, messages(ROWS, subjects, start=subjects + number * ROWS), ROWS)
    start = time.perf_counter()
    feed.drop.claim()
    query.processAllAvailable()
    took = time.perf_counter() - start
    tend(feed.emitter.store, feed.emitter.keyfiles)
    if number % 20 == 0:
        say(f"batch {number}: {took:.2f} s")
    return took


def _commits(root: Path, most: int = 2000) -> dict[str, float]:
    """What a commit costs at version 10 and at version 2,000."""
    store = Store(root / "commits")
    took = []
    for number in range(most):
        start = time.perf_counter()
        store.commit("journal", None, app="bench", version=number)
        took.append(time.perf_counter() - start)
    return {"commit_10_ms": round(median(took[5:15]) * 1000, 1), "commit_2000_ms": round(median(took[-50:]) * 1000, 1)}
