"""A person asks to be forgotten: everybody who was told is told, our keys go at once, and nothing brings the person back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import Endpoint, operator, serving

from tidings.report.account import reconcile
from tidings.rights import intake
from tidings.rights.asks import Ask, Identifier, Word
from tidings.rights.book import Book, Request
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings, load
from tidings.store import Store

ENTITY = """\
kind: customer
version: '1'
key: [id]
identifiers: {email: email}
fields:
  email: {type: email, normalise: email, class: personal}
  sms: {type: consent, class: internal, consent: {class: marketing, channel: sms, purpose: marketing}}
"""


def change(number: int, op: str, before: Any, after: Any, millis: int = 0) -> str:
    millis = millis or 1_790_000_000_000 + number
    place = {"schema": "public", "table": "customers", "lsn": number, "txId": number, "ts_ms": millis}
    source = place | {"connector": "postgresql", "db": "shop", "snapshot": "false"}
    return json.dumps({"before": before, "after": after, "op": op, "ts_ms": millis, "source": source})


def person(who: int, **more: Any) -> dict[str, Any]:
    return {"id": str(who), "email": f"person{who}@example.com", "sms": True, **more}


def run(root: Path) -> None:
    words = [sys.executable, "-m", "tidings.cli", "run", "--until-idle", "-C", str(root)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]


def folder(root: Path, urls: dict[str, str]) -> Path:
    operator(root, urls)
    (root / "entities/customer.yaml").write_text(ENTITY)
    path = root / "tidings.yaml"
    path.write_text(path.read_text() + "rights: {by_hand: [{name: cleanroom, about: a clean room}]}\n")
    return root


def ask(kind: str, who: int, assurance: str = "verified", **more: Any) -> Ask:
    identifiers = (Identifier("email", f"Person{who}@example.com "),)
    return Ask(kind, identifiers, "cli", datetime.now(UTC), assurance, **more)


def request_of(settings: Settings, name: str) -> Request:
    return Book(Store(settings.data_path / "tables")).refresh().requests[name]


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_an_erasure_reaches_everybody_and_nothing_brings_the_person_back(tmp_path: Path) -> None:
    ends = {name: Endpoint() for name in ("alpha", "beta")}
    with serving(*ends.values()):
        root = folder(tmp_path, {name: end.url for name, end in ends.items()})
        first = [change(n, "c", None, person(n)) for n in (1, 2, 3)]
        (root / "drop/one.jsonl").write_text("\n".join(first) + "\n")
        run(root)
        settings = load(root)
        erasure = intake.hand_in(settings, ask("erasure", 1))
        again = intake.hand_in(settings, ask("erasure", 1))
        spoofed = intake.hand_in(settings, ask("erasure", 2, "claimed"))
        nobody = intake.hand_in(settings, ask("erasure", 9))
        opt_out = intake.hand_in(settings, ask("opt_out", 3, "none", scope=("sms",)))
        run(root)
        states = {name: request_of(settings, name).state for name in (erasure, again, spoofed, nobody, opt_out)}
        assert states == {
            erasure: "working", again: "cancelled", spoofed: "verifying", nobody: "refused", opt_out: "fulfilled"
        }  # fmt: skip
        assert {n: p.state for n, p in request_of(settings, erasure).parts.items()} == {
            "alpha": "acknowledged", "beta": "acknowledged", "cleanroom": "open"
        }  # fmt: skip
        keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
        tag = settings.keyring.tag(settings.tenant, "customer", "1")
        assert keys.find(tag) == []
        intake.say(settings, Word(erasure, "done", "ann", "deleted", "cleanroom", "ab" * 32))
        # What comes again, what comes late and what a snapshot repeats says nothing new; a new record of today lives.
        now = int(time.time() * 1000)
        late = [
            first[0],
            change(50, "u", person(1), person(1, email="later@example.com")),
            change(60, "u", person(2), person(2, email="new@example.com")),
            change(70, "u", person(1), person(1, email="today@example.com"), millis=now),
            change(80, "c", None, person(1, email="again@example.com"), millis=now + 1),
            change(90, "u", person(1, email="again@example.com"), person(1, email="lives@example.com"), millis=now + 2),
        ]
        (root / "drop/two.jsonl").write_text("\n".join(late) + "\n")
        run(root)
    assert request_of(settings, erasure).state == "fulfilled"
    told = request_of(settings, erasure).steps
    assert [step.what for step in told if step.what in ("committed", "keys_destroyed", "told", "fulfilled")] == [
        "committed", "keys_destroyed", "told", "fulfilled"
    ]  # fmt: skip
    assert len(keys.find(tag)) == 1, "the next generation has a key of its own"
    deletes = {name: [e for e in end.bodies if e["type"].endswith(".delete")] for name, end in ends.items()}
    inserts = {name: [e for e in end.bodies if e["type"].endswith(".insert")] for name, end in ends.items()}
    for name in ends:
        (one,) = deletes[name]
        assert one["subject"] in {e["subject"] for e in inserts[name] if e["data"]["key"] == {"id": "1"}}
        assert not any("later@" in json.dumps(e) for e in ends[name].bodies)
        said = json.dumps(ends[name].bodies)
        assert [word in said for word in ("new@", "today@", "again@", "lives@")] == [True, False, True, True]
    store = Store(settings.data_path / "tables")
    assert reconcile(store, {})["balanced"]
