"""An operator's past made by hand, in the layout in which a run would have left it: millions of rows without the time it takes to run.

Key rows are real, and so are the payloads of the people who are looked up; other payloads, images and ledger entries are random bytes of
the same size, because nobody opens them. Housekeeping is the run's own, so files are as few and as large as it leaves them. No JVM.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidings.care import tend
from tidings.gate.decisions import DecisionTable
from tidings.gate.loading import load_policy
from tidings.lanes.attempts import MEMBER
from tidings.rights.capsule import FEED as CAPSULE
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import TAG_BYTES, associated, bucket, seal_payload
from tidings.session import BUCKETS
from tidings.settings import Settings
from tidings.stages.event import OFFSETS_PER_BATCH
from tidings.store import Store

FEED = ("crm", "g1")
KEY_BYTES, PAYLOAD_BYTES, ENTRY_BYTES, IMAGE_BYTES = 32, 300, 600, 300
MEMBERS = 200  # of one call
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SITUATION = {"change_type": "email", "operation": "update", "entity": "customer", "jurisdiction": "US-CA"}
ERASURE = {"change_type": "delete", "operation": "delete", "entity": "customer", "jurisdiction": "US-CA"}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Shape:
    """How much there was: journal rows over subjects, `batch` rows a batch; `read` subjects are looked up later."""

    rows: int
    subjects: int
    batch: int = 10_000
    read: int = 1_000
    every: timedelta = timedelta(minutes=1)  # from one batch to the next
    told: bool = False  # with calls and settled rows
    state: bool = True  # with last images, subjects and identities

    def chosen(self) -> range:
        """The subjects who are looked up, spread over all."""
        return range(0, self.subjects, max(1, self.subjects // self.read))


class Past:
    """The tables of one operator, and who is in them."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.ring = settings, settings.keyring
        self.store = Store(settings.data_path / "tables")
        self.keys = KeyFiles(settings.data_path / "keys", self.ring.derive("kek"))
        table = DecisionTable(settings.data_path / "decisions", load_policy(settings))
        for situation in (SITUATION, ERASURE):
            table.extend([situation])
        self.decisions = {row["facts"]["change_type"]: name for name, row in table.rows.items()}
        self.recipients = tuple(sorted(settings.subscribers))

    def tag(self, person: int) -> bytes:
        return self.ring.tag(self.settings.tenant, "customer", str(person))

    def address(self, person: int) -> str:
        return f"c{person}@example.com"

    def commit(self, table: str, rows: pa.Table, app: str, version: int) -> None:
        folder = Path(self.store.fresh(table))
        folder.mkdir(parents=True)
        pq.write_table(rows, folder / "part-0.parquet", compression="zstd")
        assert self.store.commit(table, str(folder), app=app, version=version)

    def shaped(self, table: str, columns: dict[str, Any], count: int) -> pa.Table:
        """All columns of a table; those that are not given are empty; what is no list stands in every row."""
        schema = self.store._log(table).arrow_schema()
        made = []
        for field in schema:
            value = columns.get(field.name)
            if isinstance(value, (pa.Array, list)):
                made.append(pa.array(value, field.type) if isinstance(value, list) else value.cast(field.type))
            else:
                made.append(pa.array([value], field.type).take(pa.repeat(0, count)))
        return pa.table(made, schema=schema)

    def tend(self) -> None:
        tend(self.store, self.keys)


def make(settings: Settings, shape: Shape, say: Say = lambda text: None) -> Past:
    """Write all of it; in a process of its own its memory does not count."""
    past = Past(settings)
    tags = [past.tag(person) for person in range(shape.subjects)]
    chosen = set(shape.chosen())
    for number, first in enumerate(range(0, shape.rows, shape.batch)):
        people = [row % shape.subjects for row in range(first, min(shape.rows, first + shape.batch))]
        _batch(past, shape, number, people, (tags, chosen))
        if number % 64 == 63:
            past.tend()
            say(f"{first + len(people):,} journal rows")
    for number, first in enumerate(range(0, shape.subjects, 100_000) if shape.state else ()):
        _state(past, number, range(first, min(shape.subjects, first + 100_000)), tags)
        say(f"{first + 100_000:,} subjects")
    past.tend()
    for table in ("last_seen", "subjects", "identities") if shape.state else ():
        past.store.compact(table)
    return past


def _batch(past: Past, shape: Shape, number: int, people: Sequence[int], who: tuple[Sequence[bytes], set[int]]) -> None:
    tags, chosen = who
    count, name = len(people), f"{FEED[0]}-{FEED[1]}-{number}-00000000"
    kids, keys = random_bytes(count, TAG_BYTES), random_bytes(count, KEY_BYTES)
    past.keys.write(
        pa.table({"tag": pa.array([tags[one] for one in people], pa.binary()), "kid": kids, "key": keys}), name
    )
    events = [f"{number:08x}-{place:08x}" for place in range(count)]
    payload = random_bytes(count, PAYLOAD_BYTES).to_pylist()
    for place, person in enumerate(people):
        if person in chosen:
            payload[place] = sealed(past, person, events[place], keys[place].as_py())
    moment = BEGIN + number * shape.every
    base = number * OFFSETS_PER_BATCH
    columns = {
        "offset": pa.array(range(base, base + count), pa.int64()), "source": FEED[0], "generation": FEED[1],
        "batch": number, "event_id": events, "change": random_bytes(count, TAG_BYTES), "change_type": "email",
        "operation": "update", "entity": "customer", "tenant": past.settings.tenant, "time": moment, "recorded": moment,
        "position": [f"{base + place:020d}" for place in range(count)], "kid": kids, "key_file": name,
        "payload": payload, "decision": past.decisions["email"], "entry": random_bytes(count, ENTRY_BYTES),
        "recipients": (past.recipients[number % len(past.recipients)],) if shape.told else past.recipients,
    }  # fmt: skip
    past.commit("journal", past.shaped("journal", columns, count), "/".join(FEED), number)
    if shape.told:
        _told(past, number, events, moment)


def sealed(past: Past, person: int, event: str, key: bytes, **more: Any) -> bytes:
    """What an event says of a person."""
    said = {"key": {"id": person}, "before": None, "after": {"email": past.address(person)}, "changed": ["email"]}
    aad = associated("journal", event, "payload")
    return seal_payload(json.dumps(said | more).encode(), key, past.ring.derive("iv"), aad)


def _told(past: Past, number: int, events: list[str], moment: datetime) -> None:
    """One subscriber a batch, each in its turn, was told a minute later; then the events were settled."""
    name, base, then = past.recipients[number % len(past.recipients)], number * OFFSETS_PER_BATCH, timedelta(seconds=30)
    offsets = list(range(base, base + len(events)))
    calls = _calls(name, _members(FEED, offsets, events, "email"), moment + then)
    past.commit("attempts", past.shaped("attempts", *calls), f"lane/{name}", number)
    columns = {"event_id": events, "offset": pa.array(range(base, base + len(events)), pa.int64()), "source": FEED[0]}
    columns |= {"generation": FEED[1], "entry": random_bytes(len(events), 200), "time": moment + 2 * then}
    past.commit("settled", past.shaped("settled", columns, len(events)), "books", number)


def _members(feed: tuple[str, str], offsets: list[int], events: list[str], change_type: str) -> pa.StructArray:
    """Deliveries that were acknowledged at the first attempt."""
    said = {"source": feed[0], "generation": feed[1], "change_type": change_type, "attempt": 1, "ack": "A2"}
    said |= {"result": "acknowledged", "final": "acknowledged"}
    columns: dict[str, Any] = {"offset": pa.array(offsets, pa.int64()), "event_id": pa.array(events, pa.string())}
    count = len(events)
    made = [columns.get(one.name, pa.array([said.get(one.name)], one.type).take(pa.repeat(0, count))) for one in MEMBER]
    return pa.StructArray.from_arrays(made, fields=list(MEMBER))


def _calls(name: str, members: pa.StructArray, moment: datetime) -> tuple[dict[str, Any], int]:
    """The columns of calls with so many members each, and how many calls there are."""
    starts = [*range(0, len(members), MEMBERS), len(members)]
    count = len(starts) - 1
    columns = {"lane": name, "subscriber": name, "intent": False, "started": moment, "finished": moment}
    columns |= {"cycle": pa.array(range(count), pa.int64()), "call": [f"{name}-{one}" for one in range(count)]}
    lists = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), members)
    return columns | {"strength": "A2", "members": lists}, count


def answered(past: Past, events: dict[str, list[str]], version: int) -> None:
    """All of these capsules' events were acknowledged, by every recipient: subscriber → events."""
    now = datetime.now(UTC)
    calls = [_calls(name, _members(CAPSULE, [0] * len(mine), mine, "delete"), now) for name, mine in events.items()]
    past.commit("attempts", pa.concat_tables([past.shaped("attempts", *one) for one in calls]), "lane/bench", version)


def _state(past: Past, number: int, people: range, tags: Sequence[bytes]) -> None:
    count, mine = len(people), [tags[person] for person in people]
    hashes = [past.ring.identifier_hash("email", past.address(person)) for person in people]
    place = {"offset": pa.array(range(count), pa.int64()), "source": FEED[0], "generation": FEED[1], "batch": number}
    place |= {"version": "0000000000001-000000", "tag": mine}
    by_tag, by_hash = ([bucket(one, BUCKETS) for one in many] for many in (mine, hashes))
    rows = {
        "last_seen": place
        | {"bucket": by_tag, "kid": random_bytes(count, TAG_BYTES), "image": random_bytes(count, IMAGE_BYTES)},
        "subjects": place | {"bucket": by_tag, "consents": (("email", "granted"),), "jurisdiction": "US-CA"},
        "identities": place | {"bucket": by_hash, "hash": hashes, "kind": "email", "entity": "customer"},
    }
    for table, columns in rows.items():
        past.commit(table, past.shaped(table, columns, count), "/".join(FEED), number)


def random_bytes(count: int, size: int) -> pa.Array:
    """As many values that do not compress."""
    ends = pc.multiply(pa.array(range(count + 1), pa.int32()), pa.scalar(size, pa.int32()))
    return pa.Array.from_buffers(pa.binary(), count, [None, ends.buffers()[1], pa.py_buffer(os.urandom(count * size))])
