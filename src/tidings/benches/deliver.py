"""How fast lanes deliver to a sink on loopback: batched, one event per request, with sick subscribers, and behind a backlog.

The journal is made (see `backlog`), the gate at send is the real one, the ledger does not run. What the sink lost, got twice or got
in the wrong order is counted there, in a process of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from pyspark.sql import SparkSession

from tidings.benches.backlog import Backlog, drained
from tidings.benches.operator import operator
from tidings.benches.sink import become, reported, sink
from tidings.benches.trickle import at
from tidings.benches.usage import memory_mb, processor_s
from tidings.channels.client import Request, shared_client
from tidings.lanes.cycle import Cycle
from tidings.session import session
from tidings.settings import load

PER_REQUEST = 200
PATIENCE_S = 900.0
ARRIVALS_PER_S = 1000
AT_ONCE = (4, 8, 16)  # the client is quickest with few
SICK = {"s00": "hang", "s01": "busy", "s02": "drip"}
MANIFEST = """\
title: A subscriber without limits of its own
channel: webhook
kind: generic
docs: none
source: none
checked_on: "2026-11-15"
confidence: high
vars: {mode: %s}
limits: {per_second: 100000, concurrency: 4, max_bytes: 4000000}
webhook: {mode: %s, batch: %d, ack: A2, idempotency: header}
"""
Say = Callable[[str], None]
Mode = str  # structured or batched


@dataclass(frozen=True)
class Stand:
    """Everything a measurement needs; ends with the block that made it."""

    url: str
    made: Backlog
    cycle: Cycle
    spark: SparkSession

    def faults(self, events: int) -> dict[str, int]:
        """What the sink saw of this many made events, beyond what it should have seen."""
        seen = reported(self.url)
        owed = self.made.owed(events)
        return {
            "lost": sum(max(0, count - seen.get(name, {}).get("events", 0)) for name, count in owed.items()),
            "duplicates": sum(one["duplicates"] for one in seen.values()),
            "out_of_order": sum(one["out_of_order"] for one in seen.values()),
        }


@contextmanager
def standing(subscribers: int, mode: Mode, say: Say) -> Iterator[Stand]:
    root = Path(tempfile.mkdtemp(prefix="tidings-bench-"))
    try:
        with sink() as url:
            operator(root, subscribers, url=f"{url}/ok")
            (root / "manifests").mkdir()
            (root / "manifests" / "bench.yaml").write_text(MANIFEST % (mode, mode, PER_REQUEST))
            for path in (root / "subscribers").iterdir():
                path.write_text(path.read_text().replace("manifest: webhook", "manifest: bench"))
            made = Backlog(load(root))
            say(f"{len(made.seeds):,} events went through the whole flow; more are made of them")
            spark = session(root)
            cycle = made.lanes(spark)
            try:
                yield Stand(url, made, cycle, spark)
            finally:
                cycle.close()
                spark.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def batched(events: int, subscribers: int, *, say: Say = lambda text: None) -> dict[str, Any]:
    """Event-deliveries per second, two hundred a request, beside bare posts of as many bytes to the same sink."""
    with standing(subscribers, "batched", say) as stand:
        _warm(stand)
        size = stand.made.bytes_each()
        limit = _posts(f"{stand.url}/bare", b"x" * (size * PER_REQUEST), 400) * PER_REQUEST
        say(f"bare limit {limit:,.0f} event-deliveries/s of {size} bytes")
        stand.made.add(events)
        used = processor_s()
        count, took = drained(stand.cycle, PATIENCE_S)
        used = processor_s() - used
        said: dict[str, Any] = {
            "events": events,
            "subscribers": subscribers,
            "per_request": PER_REQUEST,
            "bytes_per_event": size,
        }
        said["processor_us"] = round(used / max(count, 1) * 1e6, 1)  # of a delivery, the sink's included
        return said | _rated(count / took, limit) | stand.faults(events + WARM_EVENTS)


def single(events: int, subscribers: int, *, say: Say = lambda text: None) -> dict[str, Any]:
    """Requests per second, one event each, beside a bare async client that posts as many bytes to the same sink."""
    with standing(subscribers, "structured", say) as stand:
        _warm(stand)
        size = stand.made.bytes_each()
        url, body = f"{stand.url}/bare", b"x" * size
        limit = max(asyncio.run(_client_posts(url, body, 1000, at_once)) for at_once in AT_ONCE)
        sockets = asyncio.run(_socket_posts(url, body, 4000))
        say(f"httpx.AsyncClient {limit:,.0f} requests/s of {size} bytes; bare sockets {sockets:,.0f}")
        stand.made.add(events)
        used = processor_s()
        count, took = drained(stand.cycle, PATIENCE_S)
        used = processor_s() - used
        said: dict[str, Any] = {"events": events, "subscribers": subscribers, "per_request": 1, "bytes_per_event": size}
        said["bare_sockets_per_s"] = round(sockets)
        said["processor_us"] = round(used / max(count, 1) * 1e6, 1)
        return said | _rated(count / took, limit) | stand.faults(events + WARM_EVENTS)


def backlog(events: int, subscribers: int, *, say: Say = lambda text: None) -> dict[str, Any]:
    """Events per second that leave a backlog for every subscriber, beside an arrival of a thousand a second; and the memory."""
    with standing(subscribers, "batched", say) as stand:
        _warm(stand)
        stand.made.add(events)
        say(f"{events:,} events wait")
        before = memory_mb()
        _, took = drained(stand.cycle, PATIENCE_S)
        rate = events / took
        said = {"events": events, "subscribers": subscribers, "events_per_s": round(rate), "seconds": round(took, 1)}
        said |= {"arrivals_per_s": ARRIVALS_PER_S, "times": round(rate / ARRIVALS_PER_S, 2)}
        return said | {"memory_mb_before": before, "memory_mb_most": memory_mb()} | stand.faults(events + WARM_EVENTS)


def sick(seconds: float, subscribers: int, *, say: Say = lambda text: None) -> dict[str, Any]:
    """p50 and p99 of the healthy subscribers, from journal to acknowledgement, before and after three others fall ill."""
    with standing(subscribers, "batched", say) as stand:
        _warm(stand)
        _steady(stand, seconds / 2)
        well = _latencies(stand, _steady(stand, seconds))
        for name, kind in SICK.items():
            become(stand.url, name, kind)
        say("one hangs, one answers 429, one trickles bytes")
        noticing = _latencies(stand, _steady(stand, seconds / 2))
        ill = _latencies(stand, _steady(stand, seconds))
        for name in SICK:
            become(stand.url, name, "ok")
        before, after = at(well, 0.99), at(ill, 0.99)
        return {
            "seconds": seconds,
            "subscribers": subscribers,
            "healthy": subscribers - len(SICK),
            "timed": len(ill),
            "p50_s": round(at(well, 0.5), 3),
            "p99_s": round(before, 3),
            "p50_beside_the_sick_s": round(at(ill, 0.5), 3),
            "p99_beside_the_sick_s": round(after, 3),
            "p99_until_noticed_s": round(at(noticing, 0.99), 3),
            "rise": round(after / before - 1, 3),
        }


WARM_EVENTS = 4000
PER_TURN, TURN_S = 60, 0.2


def _warm(stand: Stand) -> None:
    """Plans are compiled and workers started before anything is timed."""
    for _ in range(2):
        stand.made.add(WARM_EVENTS // 2)
        drained(stand.cycle, 120)


def _rated(rate: float, limit: float) -> dict[str, Any]:
    return {"per_s": round(rate), "limit_per_s": round(limit), "ratio": round(rate / limit, 3)}


def _posts(url: str, body: bytes, count: int) -> float:
    """Bare posts by two threads of our own client."""
    client = shared_client(("127.0.0.0/8",))
    with ThreadPoolExecutor(2) as pool:
        begin = time.perf_counter()
        list(pool.map(lambda _: client.request(Request("POST", url, {}, body), 5.0), range(count)))
        return count / (time.perf_counter() - begin)


async def _client_posts(url: str, body: bytes, count: int, at_once: int) -> float:
    """The async client of a library that people use."""
    async with httpx.AsyncClient(
        limits=httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
    ) as client:
        left = iter(range(count))

        async def worker() -> None:
            for _ in left:
                await client.post(url, content=body)

        begin = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(at_once)))
        return count / (time.perf_counter() - begin)


async def _socket_posts(url: str, body: bytes, count: int, at_once: int = 32) -> float:
    """Bare asyncio streams without a client: what the sink can take."""
    place = urlsplit(url)
    head = f"POST {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    left = iter(range(count))

    async def worker() -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        for _ in left:
            writer.write(head + body)
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    begin = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return count / (time.perf_counter() - begin)


def _steady(stand: Stand, seconds: float) -> tuple[int, int]:
    """A few hundred events a second while the lanes work; the offsets that arrived meanwhile."""
    first, begin, turn = stand.made.top, time.monotonic(), 0
    while (now := time.monotonic() - begin) < seconds:
        if now >= turn * TURN_S:
            stand.made.add(PER_TURN)
            turn += 1
        stand.cycle.step()
    return first, stand.made.top


def _latencies(stand: Stand, offsets: tuple[int, int]) -> list[float]:
    rows = stand.made.store.arrow("journal", ["event_id", "offset", "recorded"]).to_pylist()
    begun = {row["event_id"]: row["recorded"] for row in rows if offsets[0] <= row["offset"] < offsets[1]}
    found = []
    for row in stand.made.store.arrow("attempts", ["lane", "finished", "members"]).to_pylist():
        if row["lane"] not in SICK:
            ends = (m for m in row["members"] if m["final"] == "acknowledged" and m["event_id"] in begun)
            found += [(row["finished"] - begun[m["event_id"]]).total_seconds() for m in ends]
    return sorted(found)
