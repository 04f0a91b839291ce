"""Attempts rows of calls whose every member was acknowledged at the first attempt: made as columns, no object per member.

They are the rows that `attempts.made_row` would make of the same calls, byte for byte; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from tidings.channels.call import Outcome
from tidings.lanes.attempts import MEMBER, SCHEMA, stamp, when
from tidings.lanes.member import Feed
from tidings.lanes.send import LaneJob
from tidings.ledger.attestation import Acknowledged, members_root

ACKNOWLEDGED = "acknowledged"
# What no call has: a root, a fingerprint, a time, a name and a digest to be put in their place.
ROOT, FINGERPRINT, DIGEST = "e" * 64, "f" * 32, "d" * 64
TIME, CALL = "0000-00-00T00:00:00.000000Z", "no lane's call"


@dataclass(frozen=True)
class Members:
    """The members of a call. Lanes that are sent the same members share one of these."""

    ids: tuple[str, ...]
    offsets: tuple[int, ...]
    change_types: tuple[str, ...]
    root: str
    fingerprint: str

    @classmethod
    def of(cls, ids: Sequence[str], offsets: Sequence[int], change_types: Sequence[str]) -> Members:
        root = members_root((event_id, ACKNOWLEDGED) for event_id in ids).hex()
        fingerprint = sha256("\x1f".join(sorted(ids)).encode()).hexdigest()[:32]
        return cls(tuple(ids), tuple(offsets), tuple(change_types), root, fingerprint)


@dataclass(frozen=True)
class Whole:
    """One such call; times are rounded to the millisecond."""

    lane: LaneJob
    seq: int
    members: Members
    outcome: Outcome
    started: float
    finished: float

    @property
    def call(self) -> str:
        return f"{self.lane.rules.name}-{self.seq}"

    @property
    def alike(self) -> tuple[object, ...]:
        """Calls of which this is equal are attested in the same words, but for the stand-ins."""
        return self.lane.rules.name, self.outcome.strength, len(self.members.ids), bool(self.outcome.digest)

    def spelt(self) -> bytes:
        """The ledger bytes, with stand-ins for what differs from call to call."""
        return Acknowledged(
            count=len(self.members.ids),
            outcomes={ACKNOWLEDGED: len(self.members.ids)},
            members_root=ROOT,
            attestor=self.lane.by.attestor,
            timestamp=TIME,
            subscriber=self.lane.rules.name,
            destination=self.lane.by.destination,
            ack_strength=self.outcome.strength,
            retry_policy=",".join(f"{wait:g}" for wait in self.lane.rules.schedule),
            idempotency_fingerprint=FINGERPRINT,
            attempt=1,
            call=CALL,
            channel=self.lane.by.channel,
            lane=self.lane.rules.name,
            semantics="at-least-once",
            response_digest=DIGEST if self.outcome.digest else None,
        ).encode()

    def entry(self, spelt: bytes) -> bytes:
        own = (self.members.root, self.members.fingerprint, stamp(self.finished), self.call, self.outcome.digest)
        for stand_in, value in zip((ROOT, FINGERPRINT, TIME, CALL, DIGEST), own, strict=True):
            spelt = spelt.replace(b'"%b"' % stand_in.encode(), b'"%b"' % value.encode(), 1)
        return spelt


def whole_table(calls: Sequence[Whole], feed: Feed) -> pa.Table:
    """Their rows."""
    spelt = {one.alike: one for one in calls}
    words = {alike: one.spelt() for alike, one in spelt.items()}
    columns = {
        "lane": [one.lane.rules.name for one in calls],
        "cycle": [one.seq for one in calls],
        "call": [one.call for one in calls],
        "subscriber": [one.lane.rules.name for one in calls],
        "channel": [one.lane.by.channel for one in calls],
        "intent": [False] * len(calls),
        "started": [when(one.started) for one in calls],
        "finished": [when(one.finished) for one in calls],
        "status": [one.outcome.status for one in calls],
        "latency_ms": [max(0, round((one.finished - one.started) * 1000)) for one in calls],
        "strength": [one.outcome.strength for one in calls],
        "digest": [one.outcome.digest or None for one in calls],
        "members": _members(calls, feed),
        "exchanges": [None] * len(calls),
        "predicted": _predicted(calls),
        "entry": [one.entry(words[one.alike]) for one in calls],
    }
    listed = ((columns[field.name], field.type) for field in SCHEMA)
    return pa.table([v if isinstance(v, pa.Array) else pa.array(v, kind) for v, kind in listed], schema=SCHEMA)


def _members(calls: Sequence[Whole], feed: Feed) -> pa.ListArray:
    """Lanes that were sent the same members, and answered alike, share their part of the column."""
    made: dict[tuple[int, str, str], pa.StructArray] = {}
    for one in calls:
        key = (id(one.members), one.outcome.code, one.outcome.strength)
        if key not in made:
            made[key] = _structs(one.members, one.outcome, feed)
    own = [made[id(one.members), one.outcome.code, one.outcome.strength] for one in calls]
    structs = pa.concat_arrays(own) if own else pa.array([], MEMBER)
    return pa.ListArray.from_arrays(_ends(calls), structs, type=SCHEMA.field("members").type)


def _structs(members: Members, outcome: Outcome, feed: Feed) -> pa.StructArray:
    total = len(members.ids)
    values = {
        "source": pa.repeat(feed.source, total),
        "generation": pa.repeat(feed.generation, total),
        "offset": pa.array(members.offsets, pa.int64()),
        "event_id": pa.array(members.ids, pa.string()),
        "change_type": pa.array(members.change_types, pa.string()),
        "attempt": pa.repeat(pa.scalar(1, pa.int32()), total),
        "result": pa.repeat(ACKNOWLEDGED, total),
        "code": pa.repeat(pa.scalar(outcome.code or None, pa.string()), total),
        "final": pa.repeat(ACKNOWLEDGED, total),
        "ack": pa.repeat(outcome.strength, total),
    }
    listed = [values[field.name] if field.name in values else pa.nulls(total, field.type) for field in MEMBER]
    return pa.StructArray.from_arrays(listed, fields=list(MEMBER))


def _ends(calls: Sequence[Whole]) -> pa.Array:
    return pa.array(accumulate((len(one.members.ids) for one in calls), initial=0), pa.int32())


def _predicted(calls: Sequence[Whole]) -> pa.ListArray:
    """Nothing: a stretch leaves as soon as it is read."""
    ends = _ends(calls)
    kind = SCHEMA.field("predicted").type
    return pa.ListArray.from_arrays(ends, pa.nulls(ends[-1].as_py(), kind.value_type), type=kind)


def are_whole(rows: pa.Table) -> pa.Array:
    """Of each row: was every member acknowledged?"""
    lists = rows["members"].combine_chunks()
    lists = pa.concat_arrays(lists.chunks) if isinstance(lists, pa.ChunkedArray) else lists
    ends = pc.equal(pc.struct_field(pc.list_flatten(lists), "final"), ACKNOWLEDGED)
    bad = pc.unique(pc.filter(pc.list_parent_indices(lists), pc.invert(pc.fill_null(ends, False))))
    places = pa.array(range(rows.num_rows), pc.list_parent_indices(lists).type)
    return pc.and_(pc.invert(pc.is_in(places, bad)), pc.greater(pc.list_value_length(lists), 0))
