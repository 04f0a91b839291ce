"""CockroachDB's core changefeeds as a source: a feed over an ordinary connection, from one resolved timestamp to the next.

    cluster ─changefeed from a cursor→ rows … resolved ─Spark→ journal

Once the cluster says that a time is resolved every row up to it was sent, so the rows between two resolved times are the same each
time. A feed may send a row twice; a batch holds it once. What breaks the guarantee: the cluster's garbage collection, which forgets
old versions after `gc.ttlseconds`; a place older than that stops the source, with the remedy.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidings.errors import SourceStopped
from tidings.sources.pgserver import Server
from tidings.sources.record import record_body
from tidings.sources.stops import not_ready, purged
from tidings.sources.tap import Offset, Taken, Tap

if TYPE_CHECKING:
    from psycopg import Connection

    from tidings.settings import Settings
    from tidings.shapes import Source

FEED = "EXPERIMENTAL CHANGEFEED FOR {tables} WITH updated, diff, resolved = '500ms', cursor = {cursor}"
RENEW_NS = 600 * 10**9  # how old the place of a quiet table may get: old versions are forgotten within hours
PATIENCE_S = 120.0
DIALECT = "cockroachdb_wrapped"


@dataclass(frozen=True)
class Feed(Tap):
    """Some tables of one cluster."""

    server: Server
    tables: tuple[str, ...]
    origin: str = ""

    @property
    def source(self) -> str:
        return self.server.source

    def verify(self) -> str:
        with self.server.connected() as connection:
            if _one(connection, "SHOW CLUSTER SETTING kv.rangefeed.enabled") not in (True, "true", "t", "on"):
                what_now = "SET CLUSTER SETTING kv.rangefeed.enabled = true"
                raise not_ready(self.source, "rangefeeds are off", "a cluster that feeds its changes", what_now)
            return str(_one(connection, "SELECT crdb_internal.cluster_id()::string"))

    def verified(self) -> Feed:
        return replace(self, origin=self.verify())

    def first(self) -> Offset:
        """Begins now; the first batch is empty and says when that was."""
        return {"origin": "", "resolved": "", "count": 0, "size": 0}

    def latest(self, start: Offset) -> Offset:
        with self.server.connected() as connection:
            now = str(_one(connection, "SELECT cluster_logical_timestamp()::string"))
            if not start["resolved"]:
                return {**start, "origin": self.origin, "resolved": now}
            self._kept(connection, start, now)
        rows, upto = self._between(start["resolved"], "")
        if not rows and nanos(upto) - nanos(start["resolved"]) < RENEW_NS:
            return start
        size = sum(len(one.body) for one in rows)
        return {**start, "resolved": upto, "count": start["count"] + len(rows), "size": start["size"] + size}

    def _kept(self, connection: Connection[Any], start: Offset, now: str) -> None:
        if start["origin"] != self.origin:
            raise SourceStopped(
                "source_went_back",
                f"source {self.source}: the cluster is another one than the one that was read last",
                "the cluster that the place belongs to",
                "Move the source's checkpoint folder away and run: reading begins anew.",
            )
        for table in self.tables:
            told = str(_one(connection, f"SHOW ZONE CONFIGURATION FROM TABLE {named(table)}", 1))
            if (kept := kept_s(told)) and nanos(now) - nanos(start["resolved"]) > kept * 10**9:
                raise purged(
                    self.source, f"old versions of {table} are kept for {kept} s, and the last look was longer ago"
                )

    def read(self, start: Offset, end: Offset) -> Iterator[Taken]:
        if start["count"] == end["count"]:
            return
        rows, _ = self._between(start["resolved"], end["resolved"])
        if len(rows) != end["count"] - start["count"]:
            raise purged(self.source, "rows of a batch that was begun are no longer there")
        yield from rows

    def _between(self, cursor: str, upto: str) -> tuple[list[Taken], str]:
        """The rows after one time, up to another or to the first that is resolved."""
        patience = time.monotonic() + PATIENCE_S
        found: dict[str, Taken] = {}
        with self.server.connected() as connection, connection.cursor() as feed:
            for topic, key, value in feed.stream(feed_sql(self.tables, cursor).encode()):
                told = resolved(value)
                if told and in_order(told) >= in_order(upto or told) and in_order(told) > in_order(cursor):
                    upto = upto or told
                    break
                if not told:
                    one = taken(self.origin, topic, key, value)
                    found.setdefault(one.place, one)
                if time.monotonic() > patience:
                    raise SourceStopped(
                        "source_unreachable", f"source {self.source}: no resolved time", "a feed that goes on"
                    )
        return [one for one in found.values() if one.rank <= in_order(upto)], upto

    def done(self, end: Offset) -> None:
        """The cluster forgets by age; there is nothing to tell it."""

    def size(self, start: Offset, end: Offset) -> int:
        return int(end["size"] - start["size"])


def feed_sql(tables: tuple[str, ...], cursor: str) -> str:
    if not re.fullmatch(r"[0-9]+\.[0-9]+", cursor):
        raise ValueError(cursor)
    return FEED.format(tables=", ".join(map(named, tables)), cursor=f"'{cursor}'")


def named(table: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))


def resolved(value: bytes | None) -> str:
    """The time that a message says is resolved; empty when it is a row."""
    told = json.loads(value) if value else {}
    return str(told["resolved"]) if set(told) == {"resolved"} else ""


def taken(origin: str, topic: str, key: bytes, value: bytes) -> Taken:
    """A row of a feed as a message; the time of its change is its number."""
    stamp = str(json.loads(value)["updated"])
    body = record_body(DIALECT, topic, key, value, timestamp_ms=None, headers={})
    return Taken(f"{origin}/{topic}/{key.decode()}/{stamp}", nanos(stamp) // 1000, in_order(stamp), body)


def nanos(stamp: str) -> int:
    """The wall clock's part of a hybrid time."""
    return int(stamp.partition(".")[0])


def in_order(stamp: str) -> str:
    """A hybrid time as a text that sorts as the times do."""
    wall, _, logical = stamp.partition(".")
    return f"{int(wall):020d}.{logical.ljust(10, '0')}"


def kept_s(zone: str) -> int:
    """How long old versions are kept, from the zone's configuration as SQL; 0 when it does not say."""
    found = re.search(r"gc\.ttlseconds = ([0-9]+)", zone)
    return int(found[1]) if found else 0


def _one(connection: Connection[Any], query: str, column: int = 0) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[column]


def tap(settings: Settings, source: Source) -> Feed:
    """The tables that the source names."""
    assert source.connection is not None, "checked with the folder"
    server = Server(source.name, settings.secret(source.connection).reveal())
    return Feed(server, tuple(sorted(source.entities)))
