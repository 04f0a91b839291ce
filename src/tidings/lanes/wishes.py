"""Rows that record what a replay took up: on the disk before any of it is sent, and what a restart takes up again. No Spark.

A wish is a row of the attempts without a call. It names deliveries, says nothing of their end, and is committed together with the
replay's cursor, so a kill leaves either both or neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from tidings.gate.decisions import decided_in
from tidings.lanes.attempts import seconds, when
from tidings.lanes.buffer import Candidate, as_semantics
from tidings.lanes.member import Delivery, Feed, Rules
from tidings.lanes.slices import COLUMNS, Owed, entries
from tidings.lanes.standing import tags_of, who

if TYPE_CHECKING:
    from tidings.lanes.lane import Tables

WISH = "replayed"
BOOTSTRAP = "bootstrap"
_CALL = "replay-"


class Wished(NamedTuple):
    """One delivery as the row that recorded the wish names it."""

    delivery: Delivery
    who: bytes
    recorded: int
    bootstrap: bool


def wish_row(
    lane: str, serial: int, seq: int, taken: tuple[Feed, Sequence[Candidate]], how: tuple[float, bool]
) -> dict[str, Any]:
    """The row of what was taken up from one feed; `how` is when, and whether the pairs are new."""
    (feed, found), (now, bootstrap) = taken, how
    members = [
        {
            **feed._asdict(),
            "offset": one.entry.offset,
            "event_id": one.entry.event_id,
            "change_type": one.entry.change_type,
            "attempt": 0,
            "result": WISH,
            "code": f"{BOOTSTRAP} {one.entry.owed[lane].semantics}" if bootstrap else None,
        }
        for one in found
    ]
    row = {"lane": lane, "cycle": seq, "call": f"{_CALL}{serial}-{seq}", "subscriber": lane, "channel": "replay"}
    return row | {"intent": False, "started": when(now), "finished": when(now), "latency_ms": 0, "members": members}


def is_wish(row: Mapping[str, Any]) -> bool:
    return str(row["call"]).startswith(_CALL)


def serial_of(row: Mapping[str, Any]) -> int:
    """The request that the wish belongs to."""
    return int(row["call"].removeprefix(_CALL).partition("-")[0])


def taken_up(tables: Tables, rules: Rules, row: Mapping[str, Any]) -> list[Delivery]:
    return [one.delivery for one in wished(tables, rules, row)]


def wished(tables: Tables, rules: Rules, row: Mapping[str, Any]) -> list[Wished]:
    """The deliveries of a wish as they were when it was recorded."""
    places: dict[Feed, dict[int, str]] = {}
    for member in row["members"]:
        places.setdefault(Feed(member["source"], member["generation"]), {})[member["offset"]] = member["code"] or ""
    return [
        one for feed, codes in places.items() for one in _found(tables, rules, feed, codes, seconds(row["finished"]))
    ]


def late(tables: Tables, rules: Rules, feed: Feed, offset: int) -> Delivery | None:
    """A pair that a bootstrap made, long after its wish: how it was owed is not known any more, so it is never sent twice."""
    found = _found(tables, rules, feed, {offset: f"{BOOTSTRAP} at-most-once"}, 0.0)
    return next((one.delivery for one in found), None)


def strangers(tables: Tables, lane: str, waiting: Iterable[Delivery]) -> list[Delivery]:
    """Those of these deliveries whose journal row does not name the subscriber: a bootstrap made them."""
    places: dict[Feed, dict[int, Delivery]] = {}
    for delivery in waiting:
        places.setdefault(delivery.feed, {})[delivery.offset] = delivery
    found = []
    for feed, mine in places.items():
        rows = _rows(tables, feed, mine, ["offset", "recipients"]).to_pylist()
        found += [mine[row["offset"]] for row in rows if lane not in (row["recipients"] or ())]
    return found


def _rows(tables: Tables, feed: Feed, offsets: Collection[int], columns: Sequence[str]) -> pa.Table:
    low, high = min(offsets), max(offsets)
    files = [
        file
        for file in tables.store.files("journal", column="offset", above=low - 1, where=dict(feed._asdict()))
        if int(file.minimum.get("offset", low)) <= high
    ]
    look = (ds.field("source") == feed.source) & (ds.field("generation") == feed.generation)
    look &= ds.field("offset").isin(pa.array(sorted(offsets), pa.int64()))
    return tables.store.arrow("journal", columns, files=files, filter=look).sort_by("offset")


def _found(tables: Tables, rules: Rules, feed: Feed, codes: Mapping[int, str], at: float) -> Iterable[Wished]:
    rows = _rows(tables, feed, codes, [*COLUMNS, "consent"])
    consents, tags = rows["consent"].to_pylist(), tags_of(rows, tables.keys)
    recorded = rows["recorded"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    for entry, tag, consent, moment in zip(
        entries(rows, decided_in(tables.store.decisions)), tags, consents, recorded, strict=True
    ):
        code = codes[entry.offset]
        owed = Owed("allow", as_semantics(code.partition(" ")[2]), 1, None) if code else entry.owed[rules.name]
        whose = b"" if tag is None else who(tag, consent)
        one = Candidate("send", entry._replace(owed={rules.name: owed}), whose, tag or b"", moment)
        yield Wished(one.delivery(rules.name, feed, at, rules.aging_s), whose, moment, bool(code))
