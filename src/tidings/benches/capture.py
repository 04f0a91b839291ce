"""How many row changes a second go from a PostgreSQL log to the journal, beside what the server does alone."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidings.benches.operator import operator
from tidings.decisions import Decisions
from tidings.emit import Emitter
from tidings.errors import SourceStopped
from tidings.feed import Feeding, source_rows
from tidings.progress import Generations
from tidings.session import session
from tidings.settings import Settings, load
from tidings.sources.pgserver import Server
from tidings.sources.tap import tap_of
from tidings.store import Store

ROWS, AT_ONCE = 20_000, 10  # rows of the table, rows of a transaction
SOURCE = """\
kind: postgresql
connection: file:bench.connection
slot: tidings_bench
snapshot: none
entities: {public.tidings_bench: customer}
banner: shop
location: online
"""
MAKE = """
CREATE TABLE tidings_bench (id bigint PRIMARY KEY, email text, phone text, address text, tier text, marketing_consent boolean);
INSERT INTO tidings_bench
SELECT n, 'c' || n || '@example.com', '+1415555' || lpad((n % 10000)::text, 4, '0'), n || ' Alder St', 'basic', true
FROM generate_series(1, 20000) n;
ALTER TABLE tidings_bench REPLICA IDENTITY FULL
"""
UPDATE = "UPDATE tidings_bench SET email = %s || id || '@example.com' WHERE id = ANY(%s)"
DROP = "DROP TABLE IF EXISTS tidings_bench"
Say = Callable[[str], None]


class Writer(threading.Thread):
    """Transactions of a few rows each, at most `rate` rows a second; 0 is as fast as the server lets it."""

    def __init__(self, server: Server, rate: int) -> None:
        super().__init__(daemon=True)
        self.server, self.rate, self.written, self.stop = server, rate, 0, threading.Event()

    def run(self) -> None:
        draw, begun = random.Random(1), time.monotonic()
        with self.server.connected() as connection:
            while not self.stop.is_set():
                connection.execute(UPDATE, (f"u{self.written}-", draw.sample(range(1, ROWS + 1), AT_ONCE)))
                self.written += AT_ONCE
                ahead = self.written / self.rate - (time.monotonic() - begun) if self.rate else 0
                if ahead > 0:
                    time.sleep(ahead)

    def during(self, seconds: float) -> float:
        """Rows a second over so long."""
        begun = time.monotonic()
        self.start()
        time.sleep(seconds)
        self.stop.set()
        self.join(30)
        return self.written / (time.monotonic() - begun)


def measure(connection: str, rate: int, seconds: int, *, say: Say = lambda text: None) -> dict[str, Any]:
    """The table and the slot are made for this and dropped afterwards."""
    root = Path(tempfile.mkdtemp(prefix="tidings-bench-"))
    settings = _operator(root, connection)
    server = Server("crm", connection)
    spark = session(settings.data_path)
    tap = tap_of(settings, settings.sources["crm"])
    assert tap is not None
    try:
        server.execute([DROP, MAKE])
        alone = Writer(server, 0).during(seconds)
        say(f"the server alone: {alone:,.0f} rows/s")
        tap.execute([do for do, _ in tap.statements()])
        return {"server_alone_per_s": round(alone), **_captured(spark, settings, server, rate, seconds, say)}
    finally:
        spark.stop()
        tap.execute([undo for _, undo in reversed(tap.statements())])
        server.execute([DROP])
        shutil.rmtree(root, ignore_errors=True)


def _operator(root: Path, connection: str) -> Settings:
    operator(root, 10)
    (root / "sources" / "crm.yaml").write_text(SOURCE)
    secret = root / "secrets" / "bench.connection"
    secret.write_text(connection)
    secret.chmod(0o600)
    return load(root)


def _captured(spark: Any, settings: Settings, server: Server, rate: int, seconds: int, say: Say) -> dict[str, Any]:
    """Write at a rate while the log is read; when the writer stops, how far behind was the journal?"""
    source, seen = settings.sources["crm"], [0]

    def told(counts: Any) -> None:
        seen[0] += counts["events"]
        say(f"{seen[0]:,} events in the journal")

    emitter = Emitter(
        spark,
        settings,
        source,
        Store(settings.data_path / "tables"),
        Decisions.load(settings),
        Generations(settings.data_path, "crm").current(),
        told=told,
    )
    tap = tap_of(settings, source)
    assert tap is not None
    feed = Feeding(source, emitter, None, tap.verified())
    rows = source_rows(spark, settings, source, None, feed.tap)
    stream = rows.writeStream.foreachBatch(feed.batch).option("checkpointLocation", str(feed.place.checkpoint))
    query = stream.start()
    try:
        warm = Writer(server, rate)
        warm.during(min(10, seconds))  # the first batches compile the plan
        _until(query, lambda: seen[0] >= warm.written)
        before, begun, writer = seen[0], time.monotonic(), Writer(server, rate)
        written = writer.during(seconds)
        kept = (seen[0] - before) / (time.monotonic() - begun)
        _until(query, lambda: seen[0] - before >= writer.written)
        whole = writer.written / (time.monotonic() - begun)
    finally:
        query.stop()
    return {
        "written_per_s": round(written),
        "journalled_meanwhile_per_s": round(kept),
        "journalled_per_s": round(whole),
    }


def _until(query: Any, holds: Callable[[], bool]) -> None:
    """Wait, and do not wait for a stream that has ended."""
    while not holds():
        if not query.isActive:
            raise SourceStopped("source_failed", f"the stream ended: {query.exception()}", "a running stream")
        time.sleep(0.1)
