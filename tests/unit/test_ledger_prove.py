"""From the tables to a receipt: what `tidings prove` gathers, a stranger can check."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidings.attest import advance
from tidings.errors import Damaged, Refused
from tidings.ledger.attestation import Ack, Acknowledged, Settled
from tidings.ledger.classes import Ledger
from tidings.ledger.proof import receipt, verify_receipt
from tidings.ledger.verification import verify_ledger
from tidings.ledger.vocabulary import encode_entry
from tidings.store import Store
from tidings.verbs.prove import pieces

NOW = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
BY = {"attestor": "tidings", "timestamp": "2026-11-15T09:30:00Z"}
CALL = BY | {"subscriber": "hook", "destination": "hook", "ack_strength": "A2", "retry_policy": "5,300"}
CALL |= {"idempotency_fingerprint": "ab" * 16}


def event_id(number: int) -> str:
    milliseconds = int(NOW.timestamp() * 1000) + number
    return f"{milliseconds >> 16:08x}-{milliseconds & 0xFFFF:04x}-7000-8000-{number:012x}"


def decided(number: int) -> bytes:
    said: dict[str, Any] = {
        "kind": "decided",
        "event_id": event_id(number),
        "change_type": "email",
        "registry": "local",
    }
    said |= {"subject_identifier": "ab" * 16, "after_state_hash": "0f" * 32, "schema_version": "1"}
    said |= {
        "asyncapi_version": "3.0.0",
        "policy_version": "1",
        "timestamp": BY["timestamp"],
        "chain_of_custody": ["crm"],
    }
    return encode_entry(said | {"decision": {"anchors": {"event": "allow"}}})


def commit(store: Store, table: str, version: int, rows: list[dict[str, Any]]) -> None:
    folder = Path(store.fresh(table))
    folder.mkdir(parents=True)
    schema = {name: kind for name, kind in KINDS.items() if name in rows[0]}
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(schema.items())), folder / "part.parquet")
    store.commit(table, str(folder), app="crm/1" if table == "journal" else "test", version=version)


_TIME = pa.timestamp("us", tz="UTC")
_MEMBER = pa.struct([("event_id", pa.string()), ("result", pa.string())])
KINDS = {
    **{name: pa.string() for name in ("source", "generation", "event_id", "change_type", "lane", "call")},
    **{name: pa.int64() for name in ("offset", "batch", "cycle")},
    **dict.fromkeys(("time", "recorded", "started", "finished"), _TIME),
    "members": pa.list_(_MEMBER),
    "entry": pa.binary(),
}


def journal_row(number: int) -> dict[str, Any]:
    place = {"source": "crm", "generation": "1", "batch": number // 10, "offset": number}
    times = {"time": NOW + timedelta(milliseconds=number), "recorded": NOW}
    return place | times | {"event_id": event_id(number), "change_type": "email", "entry": decided(number)}


def call_row(cycle: int, members: list[tuple[str, str]], attested: list[tuple[str, str]]) -> dict[str, Any]:
    times = {"started": NOW, "finished": NOW + timedelta(seconds=cycle)}
    listed = [{"event_id": event, "result": result} for event, result in members]
    named = {"lane": "hook", "cycle": cycle, "call": f"hook-{cycle}", "members": listed}
    return named | times | {"entry": Acknowledged.of(attested, **CALL).encode()}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "tables")
    for batch in range(3):
        commit(store, "journal", batch, [journal_row(n) for n in range(batch * 10, batch * 10 + 10)])
    failed = [(event_id(n), "failed" if n == 7 else "acknowledged") for n in range(10)]
    again = [(event_id(7), "acknowledged")]
    commit(store, "attempts", 0, [call_row(1, failed, failed)])
    commit(store, "attempts", 1, [call_row(2, again, again)])
    settled = Settled.of(event_id(7), [Ack("hook", "acknowledged", "A2")], **BY).encode()
    row = {"event_id": event_id(7), "offset": 7, "source": "crm", "generation": "1", "entry": settled, "time": NOW}
    commit(store, "settled", 0, [row | {"time": NOW + timedelta(seconds=2)}])
    return store


def test_the_record_of_an_event(store: Store, tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger", "tidings.local/shop", bytes(32)) as ledger:
        advance(store, ledger)
        vkey = ledger.vkey
    assert verify_ledger(tmp_path / "ledger", vkey).problems == []
    made = receipt(tmp_path / "ledger", event_id(7), pieces(store, event_id(7)))
    assert verify_receipt(json.loads(json.dumps(made)), vkey).problems == []
    kinds = [(part["entry"]["kind"], part.get("member", {}).get("outcome")) for part in made["entries"]]
    assert kinds == [("decided", None), ("acknowledged", "failed"), ("acknowledged", "acknowledged"), ("settled", None)]
    assert event_id(8) not in json.dumps(made)
    undelivered = receipt(tmp_path / "ledger", event_id(25), pieces(store, event_id(25)))
    assert [part["entry"]["kind"] for part in undelivered["entries"]] == ["decided"]


def test_an_unknown_event_is_refused(store: Store) -> None:
    for unknown in (event_id(99), "nothing"):
        with pytest.raises(Refused, match="unknown-event"):
            pieces(store, unknown)


def test_a_call_whose_members_were_altered_is_damage(store: Store) -> None:
    commit(store, "attempts", 2, [call_row(3, [(event_id(7), "acknowledged")], [(event_id(7), "refused")])])
    with pytest.raises(Damaged, match="ledger-members"):
        pieces(store, event_id(7))
