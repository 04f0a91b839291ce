"""What a replay would do, without doing it: exact counts and a few event ids, in bounded memory. No Spark, nothing personal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidings.expiry import expired_feeds
from tidings.gate.again import Again
from tidings.lanes.bootstrap import newly
from tidings.lanes.buffer import Buffer, Candidate, Order
from tidings.lanes.lane import Tables
from tidings.lanes.limits import rules_of
from tidings.lanes.machine import LaneState
from tidings.lanes.member import Feed
from tidings.lanes.slices import feeds
from tidings.lanes.standing import Standing

SAMPLES = 3
AT_ONCE = 2_000  # members asked about together


@dataclass
class Forecast:
    """Counts by what would become of each event, and the part of the range that is gone."""

    counts: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[str]] = field(default_factory=dict)
    files_read: int = 0
    files_total: int = 0
    upto: dict[str, int] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)

    def note(self, word: str, event_id: str) -> None:
        self.counts[word] += 1
        shown = self.samples.setdefault(word, [])
        if len(shown) < SAMPLES:
            shown.append(event_id)

    def as_dict(self) -> dict[str, Any]:
        words = ("sent", "skipped", "superseded", "refused", "erased", "expired", "deferred", "in_doubt", "underway")
        counted = {word: self.counts[word] for word in words}
        files = {"read": self.files_read, "total": self.files_total}
        return {"counts": counted, "samples": self.samples, "files": files, "upto": self.upto, "gone": self.gone}


_SHOWN = {"send": "sent", "acknowledged": "skipped"}


def foresee(tables: Tables, lane: str, order: Order, again: Again) -> Forecast:
    """Walk the range as the running process would, and ask the gate what it says by now."""
    found = list(feeds(tables.store))
    rules = rules_of(tables.settings, tables.settings.subscribers[lane])
    state, _, _ = tables.recovered(rules, found)
    upto = _upto(tables, state, order)
    standing = Standing(tables.store, tables.keys, lane, order.start).build()
    buffer = Buffer(tables.store, tables.keys, rules, order, standing, newly(again)(lane) if order.bootstrap else None)
    buffer.tops(upto)
    forecast = Forecast(upto={str(feed): end for feed, end in upto.items()})
    last: dict[Feed, int] = {}
    for feed, candidates in buffer.slices(upto):
        _count(forecast, feed, candidates, (lane, order, again), state)
        gone = [one.entry.offset for one in candidates if one.word == "expired"]
        last |= {feed: max(gone)} if gone else {}
    forecast.gone = _gone(tables, upto, last, forecast.counts["expired"])
    forecast.files_read, forecast.files_total = len(buffer.files), len(tables.store.files("journal"))
    return forecast


def _upto(tables: Tables, state: LaneState, order: Order) -> dict[Feed, int]:
    """The seam as it would be now."""
    ends = feeds(tables.store) if order.bootstrap else state.cursors
    return {feed: end for feed, end in ends.items() if end >= 0}


def _count(
    forecast: Forecast,
    feed: Feed,
    candidates: Iterable[Candidate],
    asking: tuple[str, Order, Again],
    state: LaneState,
) -> None:
    going: list[Candidate] = []
    for one in candidates:
        if one.entry.event_id in state.unsettled:
            forecast.note("underway", one.entry.event_id)
        elif one.word == "send":
            going.append(one)
        else:
            forecast.note(_SHOWN.get(one.word, one.word), one.entry.event_id)
    for begin in range(0, len(going), AT_ONCE):
        part = going[begin : begin + AT_ONCE]
        verdicts = _asked(feed, part, asking)
        for one in part:
            said = verdicts.get((asking[0], one.entry.event_id))
            word = "deferred" if said == "defer" else said[0] if isinstance(said, tuple) else "sent"
            forecast.note(word, one.entry.event_id)


def _asked(feed: Feed, part: list[Candidate], asking: tuple[str, Order, Again]) -> Mapping[tuple[str, str], Any]:
    lane, order, again = asking
    members = [
        {
            "lane": lane,
            "event_id": one.entry.event_id,
            "tag": one.tag,
            **feed._asdict(),
            "offset": one.entry.offset,
            "change_type": one.entry.change_type,
            "since": one.entry.since,
        }
        for one in part
    ]
    return again.newly(members) if order.bootstrap else again(members)


def _gone(tables: Tables, upto: Mapping[Feed, int], last: Mapping[Feed, int], payloads: int) -> list[str]:
    """Exactly what of the range cannot be replayed because its time was over."""
    said = [
        f"{name}: {part['rows']:,} events up to offset {part['upto']} are no longer kept"
        for name, part in sorted(expired_feeds(tables.store).items())
        if name in {str(feed) for feed in upto}
    ]
    reach = ", ".join(f"{feed} up to offset {offset}" for feed, offset in sorted(last.items()))
    return said + ([f"{payloads:,} events of the range are kept without what they said: {reach}"] if payloads else [])
