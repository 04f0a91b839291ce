"""Receipts and whole-ledger verification: all of it fits, and no part can be changed unnoticed."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidings.errors import Damaged, Refused
from tidings.ledger.attestation import Ack, Acknowledged, Settled
from tidings.ledger.classes import Ledger, class_log
from tidings.ledger.note import Signer, Verifier
from tidings.ledger.proof import PROOF, Piece, Proof, read_receipt, receipt, verify_receipt
from tidings.ledger.verification import verify_ledger
from tidings.ledger.vocabulary import encode_entry

SEED, ORIGIN = bytes(range(32)), "tidings/shop/ledger"
LOG, LONG = class_log("standard", 2026), class_log("tax", 2026)
BY = {"attestor": "tidings", "timestamp": "2026-11-15T09:30:00Z"}
CALL = BY | {"subscriber": "hook", "destination": "hook", "ack_strength": "A2", "retry_policy": "standard"}
CALL |= {"idempotency_fingerprint": "ab" * 16}


def decided(number: int) -> bytes:
    said: dict[str, Any] = {"kind": "decided", "event_id": f"event-{number}", "change_type": "email"}
    said |= {"subject_identifier": "ab" * 16, "after_state_hash": "0f" * 32, "schema_version": "1", "registry": "local"}
    said |= {
        "asyncapi_version": "3.0.0",
        "policy_version": "1",
        "timestamp": BY["timestamp"],
        "chain_of_custody": ["crm"],
    }
    return encode_entry(said | {"decision": {"anchors": {"event": "allow"}}})


MEMBERS = [(f"event-{number}", "acknowledged") for number in range(200, 400)]
ACK = Acknowledged.of(MEMBERS, **CALL).encode()
SETTLED = Settled.of("event-300", [Ack("hook", "acknowledged", "A2")], **BY).encode()
PIECES = [Piece("journal", decided(300)), Piece("attempts", ACK, members=MEMBERS), Piece("settled", SETTLED)]


def write(folder: Path) -> str:
    with Ledger(folder, ORIGIN, SEED) as ledger:
        for version in range(10):
            numbers = range(version * 100, version * 100 + 100)
            ledger.append("journal", version, {LOG if version % 3 else LONG: [decided(n) for n in numbers]})
        ledger.append("attempts", 0, {})
        ledger.append("attempts", 1, {LOG: [ACK]})
        ledger.append("settled", 0, {LOG: [SETTLED]})
        return ledger.vkey


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def document(ledger: Path) -> dict[str, Any]:
    return receipt(ledger, "event-300", PIECES)


def key(folder: Path) -> str:
    return (folder / "root" / "vkey").read_text()


def test_the_whole_ledger_verifies(ledger: Path) -> None:
    verdict = verify_ledger(ledger, key(ledger))
    assert (verdict.problems, verdict.entries) == ([], 1000 + 2 + 12)
    assert [log["log"] for log in verdict.logs] == ["root", LOG, LONG]
    assert any(caveat.startswith("tamper-evident, not WORM") for caveat in verdict.caveats)
    assert any(caveat.startswith("unwitnessed") for caveat in verdict.caveats)


def test_a_receipt_verifies_by_itself(ledger: Path, document: dict[str, Any]) -> None:
    read_back = read_receipt(json.dumps(document).encode())
    verdict = verify_receipt(read_back, key(ledger))
    assert (verdict.problems, verdict.entries) == ([], 3)
    assert [part["entry"]["kind"] for part in document["entries"]] == ["decided", "acknowledged", "settled"]
    assert "event-301" not in json.dumps(document), "the other members of the call stay hidden"


def test_the_version_of_an_entry_finds_it_too(ledger: Path, document: dict[str, Any]) -> None:
    versions = [3, 1, 0]
    known = [Piece(p.table, p.entry, v, p.members) for p, v in zip(PIECES, versions, strict=True)]
    assert receipt(ledger, "event-300", known) == document
    by_feed = Piece("journal", decided(300), feed="crm/0", batch=3)
    assert receipt(ledger, "event-300", [by_feed])["entries"] == document["entries"][:1]


def test_every_event_of_the_ledger_can_be_proven(ledger: Path) -> None:
    for number in range(0, 1000, 37):
        made = receipt(ledger, f"event-{number}", [Piece("journal", decided(number))])
        assert verify_receipt(made, key(ledger)).good


def test_an_unknown_entry_is_refused(ledger: Path) -> None:
    for piece in (Piece("journal", decided(5000)), Piece("journal", decided(300), 4), Piece("nothing", decided(300))):
        with pytest.raises(Refused, match="ledger-unknown"):
            receipt(ledger, "event-300", [piece])


def test_a_receipt_under_another_key_is_refused(document: dict[str, Any]) -> None:
    other = Signer(f"{ORIGIN}/root", bytes(32)).verifier.vkey
    assert not verify_receipt(document, other).good
    assert not verify_receipt(document | {"vkey": other}).good


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, name))
    else:
        yield path


def changed(document: Any, path: tuple[Any, ...], dice: random.Random) -> Any:
    bent = copy.deepcopy(document)
    place = bent
    for step in path[:-1]:
        place = place[step]
    value = place[path[-1]]
    if isinstance(value, int):
        place[path[-1]] = value + 1
    else:
        at = dice.randrange(len(value))
        place[path[-1]] = value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
    return bent


def test_no_value_of_a_receipt_can_be_changed(ledger: Path, document: dict[str, Any]) -> None:
    dice = random.Random(7)
    paths = [path for path in leaves(document) if path != ("vkey",)]
    assert len(paths) > 60
    for path in paths:
        for _ in range(5):
            assert not verify_receipt(changed(document, path, dice), key(ledger)).good, path


def test_no_part_of_a_receipt_can_be_dropped_or_swapped(ledger: Path, document: dict[str, Any]) -> None:
    for name in document:
        if name != "vkey":
            assert not verify_receipt({k: v for k, v in document.items() if k != name}, key(ledger)).good, name
    swapped = copy.deepcopy(document)
    first, last = swapped["entries"][0], swapped["entries"][2]
    first["entry"], last["entry"] = last["entry"], first["entry"]
    assert not verify_receipt(swapped, key(ledger)).good
    assert not verify_receipt(document | {"event_id": "event-301"}, key(ledger)).good
    for rubbish in (None, [], {}, 7, "x", {"format": document["format"], "entries": 3}):
        assert not verify_receipt(rubbish).good


def test_each_proof_is_a_standard_proof(ledger: Path, document: dict[str, Any]) -> None:
    root = Verifier.parse(key(ledger))
    for part in document["entries"] + document["heads"]:
        proof = Proof.parse(part["proof"])
        assert part["proof"].startswith(PROOF + "\nindex ")
        assert proof.text == part["proof"]
        origin = proof.checkpoint.decode().split("\n")[0]
        assert proof.verify(encode_entry(part["entry"]), root.named(origin)).origin == origin
        with_extra = part["proof"].replace("\nindex", "\nextra Zm9v\nindex", 1)
        assert Proof.parse(with_extra) == proof
    for bad in (
        "",
        PROOF,
        PROOF + "\n\n",
        PROOF + "\nindex 01\n\nx",
        PROOF + "\nindex -1\n\nx",
        PROOF + "\nindex\n\nx",
    ):
        with pytest.raises(Damaged):
            Proof.parse(bad)


def test_a_ledger_verifies_while_it_is_written(tmp_path: Path) -> None:
    write(tmp_path)
    verdicts: list[list[str]] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set() or not verdicts:
            verdicts.append(verify_ledger(tmp_path, key(tmp_path)).problems)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        with Ledger(tmp_path, ORIGIN, SEED) as writer:
            for version in range(10, 60):
                writer.append("journal", version, {LOG: [decided(version * 100 + n) for n in range(version % 7)]})
    finally:
        done.set()
        reader.join()
    assert verdicts
    assert all(problems == [] for problems in verdicts), verdicts


def damage(path: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    at = dice.randrange(len(data))
    way = dice.randrange(5)
    if way == 0:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :])
    elif way == 1:
        path.write_bytes(data[:at])
    elif way == 2:
        path.unlink()
    elif way == 3 and path.suffix != ".index":  # an unfinished last record is what a crash leaves
        path.write_bytes(data + dice.randbytes(1 + at))
    else:
        path.write_bytes(data[:at] + bytes(8) + data[at + 8 :])


def test_no_file_of_a_ledger_can_be_changed(tmp_path: Path) -> None:
    vkey = write(tmp_path)
    stale = {p for p in tmp_path.rglob("*.p/*") if p != max(p.parent.iterdir(), key=lambda q: int(q.name))}
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock" and p not in stale)
    dice = random.Random(11)
    unnoticed = []
    for round_number in range(5 * len(files)):
        path = files[round_number % len(files)]
        kept = path.read_bytes()
        damage(path, dice)
        if (not path.exists() or path.read_bytes() != kept) and verify_ledger(tmp_path, vkey).good:
            unnoticed.append(str(path.relative_to(tmp_path)))
        path.write_bytes(kept)
    assert unnoticed == []
    assert verify_ledger(tmp_path, vkey).good


def tidings(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    code = "import sys, tidings.verbs.verify as v, typer; a = typer.Typer(); a.callback()(lambda: None); v.register(a); a()"
    guard = "import sys; sys.modules['pyspark'] = None\n"
    command = [sys.executable, "-c", guard + code, "verify", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))


def test_the_verb_answers_for_ledgers_and_receipts(ledger: Path, document: dict[str, Any], tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(document))
    bad.write_text(json.dumps(document | {"event_id": "event-1"}))
    for path, code in ((ledger, 0), (good, 0), (bad, Damaged.exit_code)):
        ran = tidings(path, "--json", "--vkey", key(ledger).strip())
        assert ran.returncode == code, ran.stderr
        assert json.loads(ran.stdout)["verified"] == (code == 0)
    said = tidings(ledger)
    assert "verified: 1014 entries" in said.stdout
    assert "unwitnessed" in said.stderr
    assert "not WORM" in said.stderr
    assert "--vkey" in said.stderr
    assert "NOT verified" in tidings(bad).stdout
