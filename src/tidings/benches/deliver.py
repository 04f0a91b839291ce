"""How fast lanes deliver, and how long one change takes from file to the last acknowledgement."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tidings.benches.operator import drop, messages, operator
from tidings.channels.client import Request, shared_client
from tidings.report.account import ends
from tidings.run import Runner
from tidings.store import Store

ROUNDS, CHANGES = 12, 100  # files after the backlog, and changes in each; the first two only warm up
WARM = 2
Say = Callable[[str], None]


class _Sink(BaseHTTPRequestHandler):
    """Answers 200 at once; keeps nothing but a count."""

    protocol_version = "HTTP/1.1"
    seen = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).seen += 1
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def measure(events: int, subscribers: int, *, say: Say = lambda text: None) -> dict[str, Any]:
    """Deliveries per second of a backlog beside bare calls to the same sink, then a file of a hundred changes at a time."""
    root = Path(tempfile.mkdtemp(prefix="tidings-bench-"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        limit = _bare(url)
        say(f"bare limit {limit:,.0f} calls/s")
        settings = operator(root, subscribers, url=url)
        drop(settings.source_path("crm"), messages(events, max(100, events // 10)), 5000)
        runner = Runner(settings)
        dropped: list[float] = []
        marks: list[tuple[float, int]] = []
        runner.progress = lambda said: _note(said, marks) if not dropped else None
        feeder = threading.Thread(
            target=_rounds, args=(runner, settings.source_path("crm"), events, dropped, say), daemon=True
        )
        feeder.start()
        runner.run()
        feeder.join()
        waits = _waits(Store(settings.data_path / "tables"), dropped)
        rate = _rate(marks)
        return {
            "events": events,
            "subscribers": subscribers,
            "deliveries_per_s": round(rate),
            "limit_per_s": round(limit),
            "ratio": round(rate / limit, 3),
            "change_to_last_ack_p50_s": round(_at(waits, 0.5), 2),
            "change_to_last_ack_p99_s": round(_at(waits, 0.99), 2),
            "changes_timed": len(waits),
        }
    finally:
        server.shutdown()
        shutil.rmtree(root, ignore_errors=True)


def _bare(url: str, count: int = 2000) -> float:
    client = shared_client(("127.0.0.0/8",))
    start = time.perf_counter()
    for _ in range(count):
        client.request(Request("POST", url, {"content-type": "application/json"}, b"{}" * 400), 5.0)
    return count / (time.perf_counter() - start)


def _note(said: Any, marks: list[tuple[float, int]]) -> None:
    if sent := said.get("lanes", {}).get("acknowledged"):
        marks.append((time.perf_counter(), sent))


def _rate(marks: list[tuple[float, int]]) -> float:
    """Acknowledgements per second between the first and the last busy step."""
    if len(marks) < 2:
        return 0.0
    return sum(count for _, count in marks[1:]) / (marks[-1][0] - marks[0][0])


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


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")
