"""Years of an operator's data without years of running it: rows as a run would have committed them, sealed, settled and attested. No JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from small import operator

from tidings.attest import advance, ledger_of
from tidings.gate.decisions import DecisionTable
from tidings.gate.loading import load_policy
from tidings.lanes.attempts import stamp, table_of
from tidings.lanes.member import Feed
from tidings.ledger.attestation import Ack, Acknowledged, Settled
from tidings.ledger.vocabulary import encode_entry
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import associated, kid, seal_payload, subject_key
from tidings.settings import Settings, load
from tidings.store import Store

FEED = Feed("crm", "g1")
LANE = "least"
SECRET = bytes(32)
NOW = datetime.now(UTC)
BATCH = 1 << 24


@dataclass
class History:
    """Writes whole batches of the past. `people` are numbers of customers; one event each."""

    folder: Path
    batches: int = 0
    events: dict[str, int] = field(default_factory=dict)  # event → its age in days

    def __post_init__(self) -> None:
        operator(self.folder, "http://127.0.0.1:9", ("crm",))
        self.decide()

    def decide(self) -> None:
        """By the folder as it stands."""
        table = DecisionTable(self.settings.data_path / "decisions", load_policy(self.settings))
        table.extend([{"change_type": "email", "operation": "update", "entity": "customer"}])
        self.decision = next(iter(table.rows))

    @property
    def settings(self) -> Settings:
        return load(self.folder)

    @property
    def store(self) -> Store:
        return Store(self.settings.data_path / "tables")

    def policy(self, text: str) -> None:
        (self.folder / "policy" / "retention.yaml").write_text(text)

    def batch(
        self,
        age: int,
        people: int = 3,
        *,
        settled: bool = True,
        moved: bool = True,
        final: str = "acknowledged",
        first: int = 0,
        row: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Events of so many days ago, told to one subscriber a minute later; a lane that has not `moved` would read its calls again.

        People are numbered from `first` on; `row` is what stands in every row besides.
        """
        number, self.batches = self.batches, self.batches + 1
        moment = NOW - timedelta(days=age)
        rows = [self._row(number, person, moment) | dict(row or {}) for person in range(first, first + people)]
        self._commit("journal", rows, f"{FEED}", number)
        events = [row["event_id"] for row in rows]
        self._calls(number, rows, moment + timedelta(minutes=1), final if settled else "", settled and moved)
        if settled:
            self._settle(number, rows, moment + timedelta(minutes=2), final)
        self.events |= dict.fromkeys(events, age)
        return events

    def quarantined(self, age: int) -> None:
        number, self.batches = self.batches, self.batches + 1
        row = {
            "source": "crm",
            "generation": "g1",
            "batch": number,
            "place": f"place/{number}",
            "code": "not_an_object",
        }
        moment = NOW - timedelta(days=age)
        self._commit("quarantine", [row | {"arrived": moment, "day": moment.date(), "sealed": b"x"}], f"{FEED}", number)

    def archived(self, age: int, name: str = "archive") -> Path:
        micros = int((NOW - timedelta(days=age)).timestamp() * 1_000_000)
        path = self.folder / "drop" / "crm" / name / f"{micros:016d}-{age:064x}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
        return path

    def on_hold(self, person: int, state: str = "granted", version: str = "1") -> None:
        row = {"tag": self.tag(person), "bucket": 0, "version": version, "consents": [("is:legal_hold", state)]}
        number, self.batches = self.batches, self.batches + 1
        place = {"offset": number, "source": "crm", "generation": "g1", "batch": number}
        self._commit("subjects", [row | place], f"{FEED}", number)

    def attest(self) -> None:
        with ledger_of(self.settings) as ledger:
            advance(self.store, ledger)

    def tag(self, person: int) -> bytes:
        return self.settings.keyring.tag("small", "customer", str(person))

    def _row(self, number: int, person: int, moment: datetime) -> dict[str, Any]:
        settings, tag, event = self.settings, self.tag(person), f"event-{number}-{person}"
        secret = SECRET[:-1] + bytes([number])
        name, key, own = f"crm-g1-{number}-00000000", subject_key(secret, tag), kid(secret, tag)
        files = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
        files.write(pa.Table.from_pylist([{"tag": tag, "kid": own, "key": key}]), name)
        plain = json.dumps({"before": {"email": "a"}, "after": {"email": "b"}, "changed": ["email"]}).encode()
        aad = associated("journal", event, "payload")
        entry = {
            "kind": "decided", "event_id": event, "change_type": "email", "subject_identifier": own.hex(),
            "schema_version": "1", "registry": "contract:1", "asyncapi_version": "3.0.0", "policy_version": "p",
            "decision": {"anchors": {"event": "pass"}}, "timestamp": stamp(moment.timestamp()), "chain_of_custody": ["crm"],
        }  # fmt: skip
        return {
            "offset": number * BATCH + person, **FEED._asdict(), "batch": number, "event_id": event, "change_type": "email",
            "operation": "update", "entity": "customer", "time": moment, "recorded": moment, "kid": own, "key_file": name,
            "payload": seal_payload(plain, key, settings.keyring.derive("iv"), aad), "decision": self.decision,
            "recipients": [LANE], "entry": encode_entry(entry),
        }  # fmt: skip

    def _calls(self, number: int, rows: list[dict[str, Any]], moment: datetime, final: str, moved: bool) -> None:
        result = {"acknowledged": "acknowledged", "dead_lettered": "terminal"}.get(final, "transient")
        members = [
            {
                **FEED._asdict(),
                "offset": row["offset"],
                "event_id": row["event_id"],
                "change_type": "email",
                "attempt": 1,
            }
            | {"result": result, "final": final or None}
            for row in rows
        ]
        said = {"attestor": "tidings/small", "timestamp": stamp(moment.timestamp()), "subscriber": LANE}
        said |= {"destination": "http://127.0.0.1:9", "ack_strength": "A2", "retry_policy": "1"}
        entry = Acknowledged.of(
            [(m["event_id"], m["result"]) for m in members], **said, idempotency_fingerprint="ab" * 16
        )
        row = {"lane": LANE, "cycle": number + 1, "call": f"{LANE}-{number + 1}", "subscriber": LANE, "intent": False}
        row |= {"started": moment, "finished": moment, "strength": "A2", "members": members, "entry": entry.encode()}
        place, reached = f"lane/{LANE}", rows[-1]["offset"]
        cursors = {f"{place}/{FEED}": reached, f"{place}/{FEED}/oldest": reached + 1 if final else rows[0]["offset"]}
        cursors |= {f"{place}/since": number + (2 if moved else 1)}
        folder = self._folder("attempts", table_of([row]))
        assert self.store.commit("attempts", folder, app=place, version=number + 1, cursors=cursors)

    def _settle(self, number: int, rows: list[dict[str, Any]], moment: datetime, final: str) -> None:
        made = [
            {name: row[name] for name in ("event_id", "offset", "source", "generation")}
            | {"time": moment, "entry": Settled.of(row["event_id"], [Ack(LANE, final, "A2")], "tidings/small", stamp(moment.timestamp())).encode()}
            for row in rows
        ]  # fmt: skip
        self._commit("settled", made, "books", number + 1)

    def _commit(self, table: str, rows: list[dict[str, Any]], app: str, version: int) -> None:
        store = self.store
        folder = self._folder(table, pa.Table.from_pylist(rows, schema=store._log(table).arrow_schema()))
        assert store.commit(table, folder, app=app, version=version)

    def _folder(self, table: str, rows: pa.Table) -> str:
        folder = Path(self.store.fresh(table))
        folder.mkdir(parents=True)
        pq.write_table(rows, folder / "part-0.parquet", compression="zstd")
        return str(folder)
