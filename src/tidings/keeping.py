"""Why a file stays although its time is over: nobody has attested it, something in it is open, or somebody holds it. No Spark.

What is read grows with the files that are due, not with the history; people under a legal hold are looked for once, and only when
something is due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings.errors import ConfigurationError
from tidings.gate.decisions import decided_in
from tidings.gate.facts import filed
from tidings.gate.loading import catalogue_statutes, load_policy
from tidings.gate.retention import Retention, classes, duty_of
from tidings.gate.retention_reader import read_retention, with_duties
from tidings.lanes.letters import still_dead
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings
from tidings.store import TABLES, AddFile, Store

ATTESTED = ("journal", "attempts", "settled")
HELD = filed("legal_hold")
LONGER = tuple(name for name, one in classes().items() if one.types)
_FEED = ["source", "generation"]


@dataclass
class Keeping:
    """One look at what may go; `attested` says how far the ledger has read a table."""

    settings: Settings
    store: Store
    retention: Retention
    attested: Callable[[str], int | None]
    today: date
    _new: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.retention = self.retention.on(self.today)

    def why(self, record_class: str, table: str, file: AddFile) -> str:
        """The first reason to keep this file, in words; empty when it may go."""
        if table in ATTESTED and file.path in self._unattested(table):
            return "the ledger has not read it yet"
        if found := self.held(record_class, table, file):
            return found
        if table == "journal" and record_class == "proof" and (spared := self.spares(file)):
            return f"events in it are kept longer: {', '.join(spared)}"
        if table == "journal":
            return self._events(file)
        return self._calls(file) if table == "attempts" else ""

    def held(self, record_class: str, table: str, file: AddFile) -> str:
        """The hold that covers a file, or the person in it who is under one."""
        days, columns = days_of(table, file), TABLES[table].fields
        near = [hold for hold in self.retention.holds if hold.covers(record_class, days)]
        sources = self._values(table, file, "source") if near and "source" in columns else None
        entities = self._values(table, file, "entity") if near and "entity" in columns else None
        for hold in near:
            if hold.covers(record_class, days, sources, entities):
                return f"held: {hold}"
        if table == "journal" and self.people and not self.people.isdisjoint(self._values(table, file, "kid")):
            return "held: a person in it is under a legal hold"
        return ""

    def spares(self, file: AddFile) -> tuple[str, ...]:
        """Change types in this journal file whose own class keeps their payload longer, by its time or by a hold."""
        day = days_of("journal", file)[1]
        kept = [
            one.types
            for name in LONGER
            if (one := classes()[name]) and (self._longer(name, day) or self.held(name, "journal", file))
        ]
        types = {kind for names in kept for kind in names}
        return tuple(sorted(types & self._values("journal", file, "change_type"))) if types else ()

    def _longer(self, name: str, day: date) -> bool:
        schedule = self.retention[name]
        return schedule.named and not schedule.over(day, self.today)

    @cached_property
    def people(self) -> frozenset[bytes]:
        """The row keys of everybody under a legal hold now."""
        tags: set[bytes] = set()
        for file in self.store.files("subjects"):
            rows = self.store.arrow("subjects", ["tag", "consents"], files=[file])
            for batch in rows.to_batches():
                said = batch["consents"]
                spoken = pc.equal(said.keys, HELD)
                if pc.any(spoken).as_py():
                    tags |= {row["tag"] for row in batch.to_pylist() if HELD in dict(row["consents"] or ())}
        if not tags:
            return frozenset()
        newest = {row["tag"]: row for row in self.store.lookup("subjects", tags).sort_by("version").to_pylist()}
        held = [tag for tag, row in newest.items() if dict(row["consents"] or ()).get(HELD) == "granted"]
        keys = KeyFiles(self.settings.data_path / "keys", self.settings.keyring.derive("kek"))
        return frozenset(keys.of(held)) if held else frozenset()

    def _values(self, table: str, file: AddFile, column: str) -> set[Any]:
        return set(pc.unique(self.store.arrow(table, [column], files=[file])[column]).to_pylist())

    def _unattested(self, table: str) -> set[str]:
        """Files that versions beyond the ledger's place have added."""
        if table not in self._new:
            head, position = self.store.version(table), self.attested(table)
            beyond = range(0 if position is None else position + 1, (head or 0) + 1)
            self._new[table] = {file.path for version in beyond for file in self.store.added(table, version)}
        return self._new[table]

    def _events(self, file: AddFile) -> str:
        """An event keeps its row until every pair is final, and its payload until nobody may want to send it again."""
        rows = self.store.arrow("journal", [*_FEED, "offset", "event_id"], files=[file])
        settled = [self._settled(rows.filter(_same(rows, feed)), feed) for feed in _feeds(rows)]
        ended = pa.concat_tables(settled)
        if ended.num_rows < rows.num_rows:
            return f"{rows.num_rows - ended.num_rows:,} events are not settled"
        if self.retention["dead_letters"].over(days_of("journal", file)[1], self.today):
            return ""
        first, last = file.minimum["recorded"], pc.max(ended["time"]).as_py()
        dead = still_dead(self.store, self.settings.data_path, set(rows["event_id"].to_pylist()), (first, last))
        return f"{len(dead):,} events have an open dead letter" if dead else ""

    def _settled(self, rows: pa.Table, feed: dict[str, str]) -> pa.Table:
        """The settled rows of these events, each once."""
        low, high = pc.min(rows["offset"]).as_py(), pc.max(rows["offset"]).as_py()
        files = [
            file
            for file in self.store.files("settled", column="offset", above=low - 1, where=feed)
            if file.minimum.get("offset", low) <= high
        ]
        look = ds.field("offset").isin(rows["offset"].combine_chunks())
        for name, value in feed.items():
            look &= ds.field(name) == value
        found = self.store.arrow("settled", ["offset", "time"], files=files, filter=look)
        return found.group_by("offset").aggregate([("time", "max")]).rename_columns(["offset", "time"])

    def _calls(self, file: AddFile) -> str:
        """A lane that starts again reads its calls from the first one on that speaks of anything open."""
        rows = self.store.arrow("attempts", ["lane", "cycle"], files=[file])
        for row in rows.group_by("lane").aggregate([("cycle", "max")]).to_pylist():
            since = self.store.transaction_version("attempts", f"lane/{row['lane']}/since")
            if row["lane"] in self.settings.subscribers and row["cycle_max"] >= (since or 0):
                return f"lane {row['lane']} may read it again"
        return ""


def retention_of(settings: Settings) -> Retention:
    """How long everything is kept: by the policy in force, and by what was decided under policies before it."""
    statutes, _ = catalogue_statutes(settings)
    retention, problems = read_retention(settings.policies.documents, load_policy(settings).rules, statutes)
    if problems:
        raise ConfigurationError(problems)
    earlier = decided_in(settings.data_path / "decisions").retention()
    duties = [duty for name in earlier if name in statutes and (duty := duty_of(statutes[name]))]
    bound = {name: with_duties(retention[name], duties) for name, one in classes().items() if one.rules}
    return replace(retention, schedules={**retention.schedules, **bound})


def days_of(table: str, file: AddFile) -> tuple[date, date]:
    """The first and the last day of a file's records; a file that does not tell is of every day."""
    moment = TABLES[table].moment
    low, high = file.minimum.get(moment), file.maximum.get(moment)
    return (
        low.date() if isinstance(low, datetime) else date.min,
        high.date() if isinstance(high, datetime) else date.max,
    )


def _feeds(rows: pa.Table) -> list[dict[str, str]]:
    found: list[dict[str, str]] = rows.group_by(_FEED).aggregate([]).to_pylist()
    return found


def _same(rows: pa.Table, feed: dict[str, str]) -> pa.ChunkedArray:
    return pc.and_(pc.equal(rows["source"], feed["source"]), pc.equal(rows["generation"], feed["generation"]))
