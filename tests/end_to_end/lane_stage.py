"""A small operator on disk, a journal written by hand, and real endpoints on loopback, for the cycle's tests."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.gate.decisions import decided_in
from tidings.parquet import FLAT
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import associated, kid, seal_payload, subject_key
from tidings.settings import Settings, load
from tidings.store import Store

OPERATOR = """\
tenant: shop
banners: [{id: shop, locations: [{id: online}]}]
jurisdiction: US-CA
master_key: file:master.key
network: {allow: [127.0.0.0/8]}
run: {slots: 4, fast_budget_s: %s, slow_budget_s: 6}
"""
ENTITY = "kind: customer\nversion: '1'\nkey: [id]\nfields: {email: {type: email, normalise: email, class: personal}}\n"
SOURCE = "kind: files\npath: drop\ndialect: debezium_postgresql\nentities: {public.customers: customer}\nbanner: shop\n"
POLICY = "version: '1'\nrules: []\n"
BATCH = 2**24


def operator(folder: Path, subscribers: Mapping[str, str], fast_budget_s: float = 3) -> Settings:
    """An operator's folder; each subscriber is a webhook at the given address, with extra lines after it."""
    files = {
        "tidings.yaml": OPERATOR % fast_budget_s,
        "entities/customer.yaml": ENTITY,
        "sources/crm.yaml": SOURCE,
        "policy/own.yaml": POLICY,
        "secrets/master.key": "11" * 32,
    }
    for name, rest in subscribers.items():
        lines = "manifest: webhook\nrole: service\nregion: US\ndpa: true\n"
        files[f"subscribers/{name}.yaml"] = lines + "url: " + rest + "\n"
    for label, text in files.items():
        path = folder / label
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "secrets/master.key").chmod(0o600)
    (folder / "drop").mkdir(exist_ok=True)
    return load(folder)


@dataclass
class Journal:
    """Writes batches as a source would: key file first, then the rows, in one commit."""

    settings: Settings
    store: Store
    generation: str = "g1"
    number: int = 0

    def batch(
        self,
        events: Sequence[tuple[str, Mapping[str, str]]],
        *,
        data: Mapping[str, Any] | None = None,
        row: Mapping[str, Any] | None = None,
        own: Sequence[tuple[str, Mapping[str, Any]]] = (),
        **pair: Any,
    ) -> list[str]:
        """Events as (subject, {subscriber: outcome}); returns their ids, which sort as they were written.

        `data` is what is sealed, `row` what stands beside it; `own` gives each event its id and its data; the rest is said of
        every pair.
        """
        keyring, secret, name = self.settings.keyring, b"%032d" % self.number, f"crm-{self.generation}-{self.number}-0"
        tags = {who: keyring.tag("shop", "customer", json.dumps([who])) for who, _ in events}
        keys = [{"tag": tag, "kid": kid(secret, tag), "key": subject_key(secret, tag)} for tag in tags.values()]
        KeyFiles(self.settings.data_path / "keys", keyring.derive("kek")).write(pa.Table.from_pylist(keys), name)
        rows = [
            self._row(index, who, tags[who], (secret, name), owed, pair, own[index] if own else ("", data))
            | dict(row or {})
            for index, (who, owed) in enumerate(events)
        ]
        folder = Path(self.store.fresh("journal"))
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "part-0.parquet")
        self.store.commit("journal", str(folder), app=f"crm/{self.generation}", version=self.number)
        self.number += 1
        return [row["event_id"] for row in rows]

    def _row(
        self,
        index: int,
        who: str,
        tag: bytes,
        sealing: tuple[bytes, str],
        owed: Mapping[str, str],
        pair: dict[str, Any],
        said: tuple[str, Mapping[str, Any] | None],
    ) -> dict[str, Any]:
        (secret, name), (own_id, data) = sealing, said
        event_id = own_id or f"{self.generation}-{self.number:04d}-{index:06d}"
        now = datetime.now(UTC)
        usual = {"key": {"id": who}, "before": None, "after": {"email": f"{who}@example.com"}, "changed": ["email"]}
        payload = json.dumps(usual if data is None else data)
        aad = associated("journal", event_id, "payload")
        sealed = seal_payload(payload.encode(), subject_key(secret, tag), self.settings.keyring.derive("iv"), aad)
        return {
            "offset": self.number * BATCH + index, "source": "crm", "generation": self.generation, "batch": self.number,
            "event_id": event_id, "change_type": "email", "operation": "update", "entity": "customer", "tenant": "shop",
            "banner": "shop", "location": "online", "time": now, "recorded": now, "hlc": "1", "subjectseq": index,
            "schema_version": "1", "policy_version": "1", "kid": kid(secret, tag), "key_file": name, "payload": sealed,
            "decision": self._decided(owed, pair), "recipients": list(owed),
            "deadlines": [(to, pair["deadline"]) for to in owed] if pair.get("deadline") else None,
        }  # fmt: skip

    def _decided(self, owed: Mapping[str, str], pair: Mapping[str, Any]) -> str:
        """A decision as the table keeps it, written when it is new."""
        chosen = {"reasons": [], "semantics": "at-least-once", "priority": 1, "redact": [], **pair}
        chosen.pop("deadline", None)
        recipients = [{"subscriber": to, "outcome": outcome, **chosen} for to, outcome in owed.items()]
        name = sha256(json.dumps(recipients).encode()).hexdigest()[:32]
        if decided_in(self.store.decisions).get(name) is None:
            self.store.decisions.mkdir(parents=True, exist_ok=True)
            with (self.store.decisions / "stage.jsonl").open("a") as file:
                file.write(json.dumps({"situation": name, "recipients": recipients}) + "\n")
        return name


def _arrow(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        return FLAT[kind]
    if kind["type"] == "array":
        return pa.list_(_arrow(kind["elementType"]))
    if kind["type"] == "map":
        return pa.map_(_arrow(kind["keyType"]), _arrow(kind["valueType"]))
    return pa.struct([(inner["name"], _arrow(inner["type"])) for inner in kind["fields"]])


def arrow_schema(table: str) -> pa.Schema:
    from tidings.tables import TABLES

    return pa.schema([(name, _arrow(kind)) for name, kind in TABLES[table].fields.items()])


SCHEMA = arrow_schema("journal")


@dataclass
class Endpoint:
    """A real HTTP endpoint. `answer` maps (event id, nth time seen) to a status, or to a function that may wait."""

    answer: Callable[[str, int], int] = lambda event_id, times: 204
    headers: dict[str, str] = field(default_factory=dict)
    got: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    url: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._most = self._now = 0

    @property
    def most_at_once(self) -> int:
        return self._most

    def take(self, event_id: str, body: dict[str, Any]) -> int:
        with self._lock:
            self._now += 1
            self._most = max(self._most, self._now)
            self.seen[event_id] += 1
            times = self.seen[event_id]
            self.got.append(event_id)
            self.bodies.append(body)
        try:
            return self.answer(event_id, times)
        finally:
            with self._lock:
                self._now -= 1


@contextmanager
def serving(*endpoints: Endpoint) -> Iterator[None]:
    """All endpoints on one server; an endpoint's address is its path."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            endpoint = endpoints[int(self.path.strip("/"))]
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = endpoint.take(body["id"], body)
            self.send_response(status)
            for name, value in endpoint.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            """A client that gave up is part of the test."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    for number, endpoint in enumerate(endpoints):
        endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/{number}"
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def until(condition: Callable[[], bool], step: Callable[[], object], seconds: float = 30.0) -> None:
    """Step until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        step()
        time.sleep(0.02)
