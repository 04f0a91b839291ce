"""A journal made for a measurement: rows that the real flow wrote, written again under new ids as often as asked.

Emitting takes longer than delivering, so a bench of lanes does not wait for it. Each made row is sealed under a key of its own
batch and subject, and committed through the store, as `emit` does; what it was decided with is the decision of the row it is made of.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from secrets import token_bytes
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidings.benches.operator import drop, messages
from tidings.benches.sink import FIRST
from tidings.decisions import Decisions
from tidings.gate.again import Again
from tidings.gate.decisions import decided_in
from tidings.lanes.cycle import Cycle
from tidings.lanes.policies import in_force_since
from tidings.run import Runner
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import associated, kid, open_payload, seal_payload, subject_key
from tidings.settings import Settings
from tidings.stages.envelope import render, structured
from tidings.store import Store

SEEDS = 1000
PER_FILE = 20_000


class Backlog:
    """`add` appends so many events to the journal. The first thousand went through the real flow and were delivered."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.number = settings, count(1_000_000)
        drop(settings.source_path("crm"), messages(SEEDS, SEEDS), SEEDS)
        Runner(settings).run(until_idle=True)
        self.store = Store(settings.data_path / "tables")
        self.keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
        rows = self.store.arrow("journal")
        self.schema, self.seeds = rows.schema, rows.to_pylist()
        known = self.keys.load({row["key_file"] for row in self.seeds}, {row["kid"] for row in self.seeds})
        self._plain = {}
        for row in self.seeds:
            tag, key = known[row["kid"]]
            aad = associated("journal", row["event_id"], "payload")
            self._plain[row["event_id"]] = (tag, open_payload(key, aad, row["payload"]))
        self.top = FIRST

    def add(self, events: int) -> None:
        """In files of a size that the flow would write."""
        while events > 0:
            self._batch(min(events, PER_FILE))
            events -= PER_FILE

    def _batch(self, size: int) -> None:
        number, secret = next(self.number), token_bytes(32)
        name = f"made-{number}"
        tags = {tag for tag, _ in self._plain.values()}
        keys = [{"tag": tag, "kid": kid(secret, tag), "key": subject_key(secret, tag)} for tag in tags]
        self.keys.write(pa.Table.from_pylist(keys), name)
        held = {row["tag"]: row for row in keys}
        now, k_iv = datetime.now(UTC), self.settings.keyring.derive("iv")
        rows = []
        for place in range(size):
            seed = self.seeds[(self.top + place) % len(self.seeds)]
            event_id = f"{number:08x}-{place:06x}-{seed['event_id'][-20:]}"
            tag, plain = self._plain[seed["event_id"]]
            sealed = seal_payload(plain, held[tag]["key"], k_iv, associated("journal", event_id, "payload"))
            own = {"offset": self.top + place, "batch": number, "event_id": event_id, "recorded": now, "entry": None}
            rows.append({**seed, **own, "kid": held[tag]["kid"], "key_file": name, "payload": sealed})
        self._commit(rows, number)
        self.top += size

    def _commit(self, rows: Sequence[Mapping[str, Any]], number: int) -> None:
        folder = Path(self.store.fresh("journal"))
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=self.schema), folder / "part-0.parquet", compression="zstd")
        self.store.commit("journal", str(folder), app="made", version=number)

    def owed(self, events: int) -> dict[str, int]:
        """How many of the seeds and of so many made events each subscriber is to be told."""
        choices = decided_in(self.store.decisions)
        found: dict[str, int] = {}
        for place, seed in enumerate(self.seeds):
            rounds, rest = divmod(events, len(self.seeds))
            times = 1 + rounds + ((place - FIRST) % len(self.seeds) < rest)
            for name in seed["recipients"]:
                if choices.choices(seed["decision"])[name]["outcome"] == "allow":
                    found[name] = found.get(name, 0) + times
        return found

    def bytes_each(self) -> int:
        """An event in CloudEvents form."""
        seed = self.seeds[0]
        return len(structured(render(seed, "0" * 32, json.loads(self._plain[seed["event_id"]][1])))[1])

    def lanes(self, spark: SparkSession) -> Cycle:
        """The lanes of this operator, behind the gate as `tidings run` has it."""
        table = Decisions.load(self.settings).table
        again = Again(self.store, table, in_force_since=in_force_since(self.store))
        return Cycle(spark, self.store, self.settings, self.settings.keyring, regate=again, redecide=again.deferred)


def drained(cycle: Cycle, within_s: float) -> tuple[int, float]:
    """Step until nothing is due: acknowledgements, and the seconds they took."""
    begin, acknowledged = time.perf_counter(), 0
    while time.perf_counter() - begin < within_s:
        report = cycle.step()
        acknowledged += report.acknowledged
        if report.idle and cycle.idle():
            break
    return acknowledged, time.perf_counter() - begin
