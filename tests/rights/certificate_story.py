"""A request of a person as a run would have recorded it: steps, events, calls and their ends, committed and attested. No JVM."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidings.attest import advance, ledger_of
from tidings.ledger.attestation import Ack, Acknowledged, Settled
from tidings.ledger.vocabulary import encode_entry
from tidings.rights.attested import entry_of, stamp
from tidings.rights.certificate import Issued, issue
from tidings.settings import Settings, load
from tidings.store import Store
from tidings.verbs.init import write

ID = "7f3a" * 8
START = datetime(2026, 10, 1, 9, 0, tzinfo=UTC)
BY = "tidings/test"


@dataclass
class Story:
    """Writes steps one after another, an hour apart unless said otherwise."""

    folder: Path
    kind: str = "erasure"
    jurisdiction: str = "US-CA"
    rows: list[dict[str, Any]] = field(default_factory=list)
    now: datetime = START
    commits: int = 0

    def __post_init__(self) -> None:
        write(self.folder)
        self.step("received", "received", due=START + timedelta(days=45))

    @cached_property
    def settings(self) -> Settings:
        return load(self.folder)

    @cached_property
    def store(self) -> Store:
        return Store(self.settings.data_path / "tables")

    def step(self, what: str, state: str = "", *, erased: dict[str, Any] | None = None, **more: Any) -> None:
        previous = self.rows[-1]["state"] if self.rows else None
        row: dict[str, Any] = {
            "request": ID,
            "step": len(self.rows) + 1,
            "what": what,
            "kind": self.kind,
            "way": "form",
        }
        row |= {
            "state": state or previous,
            "previous": previous,
            "jurisdiction": self.jurisdiction,
            "changed": self.now,
        }
        row |= {"opened": START, "assurance": "verified", "actor": "desk", "parts": None} | more
        row["entry"] = entry_of(row, BY, erased)
        self.rows.append(row)
        self.now += timedelta(hours=1)
        self._commit("rights_requests", [row])

    def erase(self, recipients: dict[str, str]) -> None:
        """The one commit: tombstone, capsule, keys."""
        parts = [
            {"recipient": name, "way": way, "event_id": f"event-{name}" if way == "lane" else None, "deadline": None}
            for name, way in recipients.items()
        ]
        gone = {"subject_identifier": "ab" * 16, "basis": "erasure", "generation": 1, "keys_destroyed": 17}
        self.step("committed", "working", parts=parts)
        self.step("keys_destroyed", erased=gone, details={"keys": "17"})
        self.step("told", details={"lanes": str(list(recipients.values()).count("lane"))})

    def told(self, name: str, *results: str, strength: str = "A3") -> None:
        """A lane: the event, its calls with what came back, and its end if the last was a yes."""
        event = f"event-{name}"
        decided = {
            "kind": "decided", "event_id": event, "change_type": "delete", "subject_identifier": "cd" * 16,
            "schema_version": "1", "registry": "contract:1", "asyncapi_version": "3.0.0", "policy_version": "p",
            "decision": {"anchors": {"event": "pass"}}, "timestamp": stamp(self.now), "chain_of_custody": ["rights"],
            "causation": ID,
        }  # fmt: skip
        place = {"source": "rights", "generation": "capsule", "offset": self.commits, "event_id": event}
        row = place | {"batch": self.commits, "change_type": "delete", "time": self.now, "recorded": self.now}
        self._commit("journal", [row | {"causation": ID, "entry": encode_entry(decided)}])
        for number, result in enumerate(results, 1):
            self.now += timedelta(minutes=5)
            self._call(name, place, number, result, strength)
        if results and results[-1] == "acknowledged":
            end = Settled.of(event, [Ack(name, "acknowledged", strength)], BY, stamp(self.now))
            self._commit("settled", [place | {"time": self.now, "entry": end.encode()}])

    def _call(self, name: str, place: dict[str, Any], number: int, result: str, strength: str) -> None:
        said = {"attestor": BY, "timestamp": stamp(self.now), "subscriber": name, "destination": "https://example.com"}
        said |= {"ack_strength": strength if result == "acknowledged" else "A0", "retry_policy": "1", "attempt": number}
        members = [(place["event_id"], result), (f"another-{name}", "acknowledged")]
        entry = Acknowledged.of(members, **said, idempotency_fingerprint="ab" * 16).encode()
        listed = [{"event_id": event, "result": outcome, "attempt": number} for event, outcome in members]
        row = {"lane": name, "cycle": number, "call": f"{name}-{number}", "subscriber": name, "intent": False}
        self._commit("attempts", [row | {"started": self.now, "finished": self.now, "members": listed, "entry": entry}])

    def fulfilled(self) -> None:
        self.step("letter:completion", details={"digest": "ef" * 32})
        self.step("fulfilled", "fulfilled")

    def attest(self) -> None:
        with ledger_of(self.settings) as ledger:
            advance(self.store, ledger)

    def issue(self, person: bytes = b"") -> Issued:
        self.attest()
        return issue(self.settings, ID, person)

    @property
    def key(self) -> str:
        return (self.settings.data_path / "ledger" / "root" / "vkey").read_text()

    def _commit(self, table: str, rows: list[dict[str, Any]]) -> None:
        self.commits += 1
        folder = Path(self.store.fresh(table))
        folder.mkdir(parents=True)
        schema = self.store._log(table).arrow_schema()
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "part-0.parquet")
        assert self.store.commit(table, str(folder), app="story", version=self.commits)


def whole(folder: Path, **more: Any) -> Story:
    """A fulfilled erasure: a lane at the third try, a person with evidence, and one that two people excepted."""
    story = Story(folder, **more)
    story.step("verified", "working")
    story.erase({"mail": "lane", "cleanroom": "task", "oldcrm": "lane"})
    story.told("mail", "transient", "throttled", "acknowledged")
    story.step("acknowledged", details={"recipient": "mail"})
    story.step("acknowledged", actor="ann", details={"recipient": "cleanroom", "evidence": "12" * 32})
    story.told("oldcrm", "terminal")
    story.step("exception_asked", actor="ann", reason="the vendor was wound up", details={"recipient": "oldcrm"})
    story.step("excepted", actor="bob", reason="seen the register", details={"recipient": "oldcrm"})
    story.fulfilled()
    return story


_MADE: list[Story] = []


def whole_once(factory: pytest.TempPathFactory) -> Story:
    """The same for every test that only reads it."""
    if not _MADE:
        _MADE.append(whole(factory.mktemp("certificate") / "op"))
    return _MADE[0]
