"""How long one change takes, from a file in the drop folder to the last acknowledgement of the last subscriber."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidings.benches.operator import drop, messages, operator
from tidings.benches.sink import sink
from tidings.report.account import ends
from tidings.run import Runner
from tidings.store import Store

ROUNDS, CHANGES = 12, 100  # files after the backlog, and changes in each; the first two only warm up
WARM = 2
Say = Callable[[str], None]


def measure(events: int, subscribers: int, *, say: Say = lambda text: None) -> dict[str, Any]:
    """A backlog first, then a file of a hundred changes at a time through the whole of `tidings run`."""
    root = Path(tempfile.mkdtemp(prefix="tidings-bench-"))
    try:
        with sink() as url:
            settings = operator(root, subscribers, url=f"{url}/ok")
            drop(settings.source_path("crm"), messages(events, max(100, events // 10)), 5000)
            runner = Runner(settings)
            dropped: list[float] = []
            feeder = threading.Thread(
                target=_rounds, args=(runner, settings.source_path("crm"), events, dropped, say), daemon=True
            )
            feeder.start()
            runner.run()
            feeder.join()
        waits = _waits(Store(settings.data_path / "tables"), dropped)
        return {
            "change_to_last_ack_p50_s": round(at(waits, 0.5), 2),
            "change_to_last_ack_p99_s": round(at(waits, 0.99), 2),
            "changes_timed": len(waits),
        }
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _rounds(runner: Runner, folder: Path, start: int, dropped: list[float], say: Say) -> None:
    """After the backlog, one file after the other, each when the one before is delivered everywhere."""
    _settle(runner)
    say(f"backlog delivered; {ROUNDS} files of {CHANGES} changes")
    for number in range(ROUNDS):
        lines = list(messages(CHANGES, 1000, start=start + number * CHANGES))
        path = folder / f"round-{number:04d}.jsonl"
        path.with_suffix(".part").write_text("\n".join(lines) + "\n")
        dropped.append(time.time())
        path.with_suffix(".part").rename(path)
        _settle(runner)
    runner.stop.set()


def _settle(runner: Runner) -> None:
    """Until nothing was left to do for a second."""
    since = time.monotonic()
    while not runner.stop.is_set() and time.monotonic() - since < 1.0:
        if not runner.quiet():
            since = time.monotonic()
        time.sleep(0.02)


def _waits(store: Store, dropped: list[float]) -> list[float]:
    """Seconds from each drop to the last acknowledgement of each of its events."""
    rows = store.arrow("journal", ["event_id", "recorded"]).to_pylist()
    begun = {row["event_id"]: row["recorded"].timestamp() for row in rows}
    last: dict[str, float] = {}
    for (event, _), end in ends(store, set(begun)).items():
        if end.at:
            last[event] = max(last.get(event, 0.0), end.at.timestamp())
    measured = dropped[WARM:]
    # A file is claimed, and its messages recorded, after it was dropped and before the next one is.
    return sorted(
        at - measured[bisect_right(measured, begun[e]) - 1] for e, at in last.items() if begun[e] >= measured[0]
    )


def at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")
