"""What a recipient may not have is not in its request: every byte that leaves is searched, in every form that there is.

The policy hides fields by name, class, category and kind; the events hold a marked value wherever a hidden field can lie.
"""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from lane_stage import Journal, operator, until
from pyspark.sql import SparkSession

from tidings.gate.again import Again
from tidings.gate.decisions import DecisionTable, decided_in
from tidings.gate.loading import load_policy
from tidings.lanes import job
from tidings.lanes.cycle import Cycle
from tidings.settings import Settings, load
from tidings.store import Store

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
CONTRACT = """\
kind: customer
version: "1"
key: [id, ssn]
fields:
  email: {type: email, class: personal}
  phone: {type: phone, class: sensitive}
  ssn: {type: account, category: user.government_id}
  lang: {type: preference, class: sensitive}
  store: {type: preference, class: sensitive}
  household: {type: household, class: personal}
  household.head: {type: household, class: sensitive}
  clinic.visit.note: {type: preference, category: user.health_and_medical}
  orders.gift.note: {type: preference, category: user.health_and_medical}
  meta.doctor: {type: preference, category: user.health_and_medical}
  pet: {type: preference}
  city: {type: address, class: personal}
locale: {field: lang}
location: {field: store}
"""
POLICY = """\
version: "1"
rules:
  - id: hide
    anchor: privacy
    when: {recipient: role, is_not: warehouse}
    effect: {redact: [pet, "class:sensitive", "category:user.government_id", "kind:phi"]}
    examples:
      - {given: {change_type: email}, to: {role: marketing}, gives: applies}
      - {given: {change_type: email}, to: {role: warehouse}, gives: nothing}
"""
MANIFEST = """\
title: Everything a manifest can say
channel: http
kind: test
url: https://example.com
docs: none
source: written for this test
checked_on: "2026-11-16"
confidence: high
vars: {field_old: before.phone}
fields: {nickname: [after.pet], clinic: [after.clinic.visit.note]}
headers: {X-Phone: =phone, X-Lang: =locale, X-Key: =key}
limits: {per_second: 50}
ping: {method: GET, path: /, success: {status: [200]}}
verbs:
  upsert:
    path: /put/{member.event_id}
    query: {p: =any_phone, n: =nickname, l: =event.location}
    body: {all: =envelope, after: =after, gift: =after.orders.0.gift.note, c: =clinic, old: =old, k: =key.ssn, ch: =changed, md5: =phone | md5_lower, empty: =phone | or_empty, null: =phone | or_null}
    success: {status: [200]}
    idempotency: natural
    ack: A3
routes: [{types: ["*"], verb: upsert}]
"""
FORMS = {
    "structured": "webhook",
    "binary": "webhook",
    "batched": "webhook",
    "mapped": "everything",
    "whole": "warehouse_http",
}


def secret(name: str) -> str:
    return f"secret-{name}-9f3a"


def image(side: str) -> dict[str, Any]:
    """One marked value for each hidden field; what may be seen says so."""
    return {
        "id": 7,
        "email": f"seen-{side}@example.com",
        "phone": secret(f"phone-{side}"),
        "ssn": secret("ssn"),
        "lang": secret(f"lang-{side}"),
        "store": secret(f"store-{side}"),
        "household": {"name": f"seen-household-{side}", "head": secret(f"head-{side}")},
        "clinic": {"visit": {"note": secret(f"note-{side}"), "room": f"seen-room-{side}"}},
        "orders": [
            {"sku": f"seen-sku-{side}", "gift": {"note": secret(f"gift-{side}")}},
            {"gift": [{"note": {"deep": secret(f"gift-list-{side}")}}]},
        ],
        "meta": json.dumps({"doctor": secret(f"doctor-{side}"), "kept": f"seen-meta-{side}"}),
        "meta.doctor": secret(f"dotted-{side}"),
        "clinic.visit": {"note": secret(f"half-dotted-{side}")},
        "pet": secret(f"pet-{side}"),
        "city": f"seen-city-{side}",
    }


DATA = {
    "key": {"id": 7, "ssn": secret("ssn")},
    "before": image("before"),
    "after": image("after"),
    "changed": [
        "email",
        "phone",
        "household.head",
        "clinic.visit.note",
        "orders.gift.note",
        "pet",
        "city",
        "meta.doctor",
    ],
    "moved": [
        {"field": "household.head", "from": secret("moved-1"), "to": secret("moved-2")},
        {"field": "household", "from": json.dumps({"head": secret("moved-3"), "name": "seen-move"}), "to": None},
    ],
    "conflict": [
        {"field": "pet", "with": "crm", "outcome": "held"},
        {"field": "city", "with": "crm", "outcome": "held"},
    ],
}
ROW = {"locale": secret("locale"), "location": secret("location")}
HIDDEN_NAMES = (
    b'"phone"',
    b"household.head",
    b"clinic.visit.note",
    b"orders.gift.note",
    b'"pet"',
    b"meta.doctor",
    b'"ssn"',
)
SEEN = ("seen-{0}@example.com", "seen-household-{0}", "seen-room-{0}", "seen-sku-{0}", "seen-meta-{0}", "seen-city-{0}")


@dataclass
class Wire:
    """Every request as it came, byte for byte, by the subscriber it was for."""

    status: int = 200
    url: str = ""
    raw: dict[str, list[bytes]] = field(default_factory=dict)


@contextmanager
def listening(wire: Wire) -> Iterator[None]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            head = self.requestline.encode() + b"\n" + bytes(self.headers)
            with lock:
                wire.raw.setdefault(self.path.split("/")[1], []).append(head + b"\n\n" + body)
            self.send_response(wire.status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    wire.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def staged(folder: Path, wire: Wire, **more: str) -> tuple[Settings, Store]:
    """All five forms, and one warehouse that may see everything."""
    lines = {name: f"{wire.url}/{name}\n" for name in FORMS}
    for name in ("structured", "binary", "batched"):
        lines[name] += f"vars: {{mode: {name}}}\n"
    lines["open"] = f"{wire.url}/open\n"
    operator(folder, lines)
    files = {"entities/customer.yaml": CONTRACT, "policy/own.yaml": POLICY, "manifests/everything.yaml": MANIFEST}
    for name, manifest in FORMS.items():
        path = folder / f"subscribers/{name}.yaml"
        text = path.read_text().replace("manifest: webhook", f"manifest: {manifest}")
        files[f"subscribers/{name}.yaml"] = text + (
            "auth: {kind: bearer, secret: file:token}\n" if name == "whole" else ""
        )
    files["subscribers/open.yaml"] = (folder / "subscribers/open.yaml").read_text().replace("service", "warehouse")
    for label, text in (files | more).items():
        path = folder / label
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "secrets/token").write_text("t")
    (folder / "secrets/token").chmod(0o600)
    settings = load(folder)
    return settings, Store(settings.data_path / "tables")


def decided(settings: Settings, store: Store, **facts: Any) -> tuple[DecisionTable, str, dict[str, str]]:
    """A decision that the real gate took: its name and who is owed what."""
    table = DecisionTable(store.decisions, load_policy(settings))
    table.extend([{"change_type": "email", "operation": "update", "entity": "customer", **facts}])
    (name,) = table.rows
    return table, name, {one["subscriber"]: one["outcome"] for one in table.rows[name]["recipients"]}


def leaks(raw: bytes) -> list[str]:
    """Every marked value in it, in plain, encoded for an address or a header, in base64 and in hex."""
    found = []
    for start in (b"secret-", b64encode(b"secret-")[:8], b"secret-".hex().encode(), quote("secret-").encode()):
        at = raw.find(start)
        while at >= 0:
            found.append(raw[at : at + 40].decode(errors="replace"))
            at = raw.find(start, at + 1)
    return found


@pytest.mark.parametrize("small", [500, 0])
def test_no_byte_of_a_hidden_field_is_in_any_request(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], small: int
) -> None:
    monkeypatch.setattr(job, "SMALL", small)
    wire = Wire()
    with listening(wire):
        settings, store = staged(tmp_path, wire)
        _, name, owed = decided(settings, store)
        Journal(settings, store).batch([("ann", owed), ("bob", owed)], data=DATA, row={**ROW, "decision": name})
        decided_in.cache_clear()  # as a process that has just been started: it knows no decision yet
        lanes = Cycle(spark, store, settings, settings.keyring)
        until(lambda: set(wire.raw) == {*FORMS, "open"}, lanes.step, 60)
        until(lambda: lanes.step().idle, lambda: None, 30)
        lanes.close()
    everything = b"".join(wire.raw["open"])
    assert secret("phone-after").encode() in everything
    assert secret("locale").encode() in everything
    for name in FORMS:
        for raw in wire.raw[name]:
            assert leaks(raw) == [], name
            assert [hidden for hidden in HIDDEN_NAMES if hidden in raw] == [], name
            sides = ("after",) if name == "mapped" else ("before", "after")
            assert [side for side in sides for seen in SEEN if seen.format(side).encode() not in raw] == [], name
    # A withheld field is not there, rather than empty: an empty one would clear what the vendor has.
    assert [raw for raw in wire.raw["mapped"] if b'"empty"' in raw or b'"null"' in raw] == []
    said = capfd.readouterr()
    assert leaks((said.out + said.err).encode()) == []
    stored = leaks(b"".join(path.read_bytes() for path in settings.data_path.rglob("*") if path.is_file()))
    assert [
        one for one in stored if not one.startswith("secret-loca")
    ] == []  # the journal holds the two attributes in clear


def test_a_dead_letter_and_what_is_sent_again_hold_no_hidden_field(spark: SparkSession, tmp_path: Path) -> None:
    wire = Wire(status=400)
    with listening(wire):
        settings, store = staged(tmp_path, wire)
        _, name, _ = decided(settings, store)
        Journal(settings, store).batch([("ann", {"structured": "allow"})], data=DATA, row={**ROW, "decision": name})
        lanes = Cycle(spark, store, settings, settings.keyring)
        assert lanes.step().dead == 1
        lanes.close()
    rows = [row for file in store.files("attempts") for row in pq.read_table(file.path).to_pylist()]
    assert rows[-1]["members"][0]["final"] == "dead_lettered"
    assert leaks(repr(rows).encode()) == []
    assert [leaks(raw) for raw in wire.raw["structured"]] == [[]]


def test_what_the_person_said_since_hides_more(spark: SparkSession, tmp_path: Path) -> None:
    """A field that was open when the event was journaled is hidden when it leaves, if the policy says so by then."""
    more = """\
  - id: limit
    anchor: privacy
    when: {fact: limited, is: true}
    effect: {redact: [city]}
    examples:
      - {given: {change_type: email, limited: true}, gives: applies}
      - {given: {change_type: email, limited: false}, gives: nothing}
"""
    wire = Wire()
    with listening(wire):
        settings, store = staged(tmp_path, wire, **{"policy/own.yaml": POLICY + more})
        table, name, owed = decided(settings, store)
        journal = Journal(settings, store)
        journal.batch([("ann", owed), ("bob", owed)], data=DATA, row={**ROW, "decision": name})
        said_since(settings, store, "ann", {"is:limited": "granted"})
        lanes = Cycle(spark, store, settings, settings.keyring, regate=Again(store, table))
        until(lambda: len(wire.raw.get("structured", ())) == 2, lanes.step, 60)
        lanes.close()
    city = [b"seen-city-after" in raw for raw in wire.raw["structured"]]
    assert sorted(city) == [False, True]


def said_since(settings: Settings, store: Store, who: str, consents: dict[str, str]) -> None:
    """A row of `subjects`, as the journal's stage writes it."""
    import pyarrow as pa
    from lane_stage import arrow_schema

    tag = settings.keyring.tag("shop", "customer", json.dumps([who]))
    row = {"tag": tag, "bucket": 0, "offset": 1, "source": "crm", "generation": "g1", "batch": 1, "version": "9"}
    folder = Path(store.fresh("subjects"))
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist([row | {"consents": list(consents.items())}], schema=arrow_schema("subjects"))
    pq.write_table(table, folder / "part-0.parquet")
    store.commit("subjects", str(folder), app="crm/g1", version=1)


def test_an_event_without_its_decision_does_not_leave(spark: SparkSession, tmp_path: Path) -> None:
    wire = Wire()
    with listening(wire):
        settings, store = staged(tmp_path, wire)
        _, name, owed = decided(settings, store)
        Journal(settings, store).batch([("ann", owed)], data=DATA, row={**ROW, "decision": name})
        lanes = Cycle(spark, store, settings, settings.keyring)
        for path in store.decisions.glob("*.jsonl"):
            path.unlink()
        decided_in.cache_clear()
        with pytest.raises(Exception, match="decision"):
            lanes.step()
        lanes.close()
    assert wire.raw == {}
