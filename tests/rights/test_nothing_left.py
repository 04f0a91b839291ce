"""The promise as a whole: many people are erased by the desk of a real run, and no byte that we keep tells of any of them.

Nobody calls a part of it by hand: a list is imported, `tidings run` works, one subscriber is down meanwhile, and a human answers for the recipient
that no lane reaches. Then every byte of the operator's folder is looked through, and Go verifies the ledger.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from insider import keyed
from scanner import Find, Scanner
from shop_of_many import Somebody, asked, contacts, everybody, first_day, leaving, put, second_day, shop, staying

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import Endpoint, serving

from tidings.report.people import events_of, tags_of
from tidings.rights import intake
from tidings.rights.asks import Word
from tidings.rights.book import Book
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings, load
from tidings.store import Store

# By keyed values and by name, as docs/erasure.md says: that somebody was erased, not who they were.
TOMBSTONES = (
    "data/tables/rights_requests/",
    "data/tables/subjects/",
    "data/rights/tombstones.jsonl",
    "tombstones.jsonl",
)


def tidings(root: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "tidings.cli", *words, "-C", str(root)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, (words, ended.stdout[-2000:], ended.stderr[-3000:])
    return json.loads(ended.stdout) if "--json" in words else ended.stdout


def values(people: list[Somebody]) -> set[str]:
    return {value for one in people for value in one.known_by()}


def found(finds: set[Find]) -> set[str]:
    return {find.identifier for find in finds}


def tags(settings: Settings, people: list[Somebody]) -> list[bytes]:
    store = Store(settings.data_path / "tables")
    return [tag for one in people for who in one.records() for tag in tags_of(settings, store, who)]


def told(settings: Settings, one: Somebody) -> str:
    """Everything that our journal opens of somebody."""
    store = Store(settings.data_path / "tables")
    return json.dumps([row["data"] for row in events_of(settings, store, tags(settings, [one]))], ensure_ascii=False)


def requests(settings: Settings) -> Book:
    return Book(Store(settings.data_path / "tables")).refresh()


def quarantined(settings: Settings) -> int:
    return int(Store(settings.data_path / "tables").arrow("quarantine", ["place"]).num_rows)


def insiders(settings: Settings, people: list[Somebody]) -> Scanner:
    """Looks for what somebody with the master key and the list of all customers can work out."""
    pairs = []
    for one in people:
        known = {"email": one.email.lower(), "phone": one.phone, "loyalty": one.card}
        pairs += [(f"{one.id} {name}", value) for name, value in keyed(settings, one.id, known)]
        pairs += [(f"{one.id} {name}", value) for name, value in keyed(settings, one.contact, {}, "contact")]
    return Scanner.of_bytes(pairs)


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_of_a_thousand_identifiers_no_byte_is_left(tmp_path: Path, verifier: Path) -> None:
    down = [True]
    ends = {
        "alpha": Endpoint(),
        "beta": Endpoint(answer=lambda event, _: 422 if event.endswith("7") else 204),  # some end as dead letters
        "gamma": Endpoint(answer=lambda event, _: 503 if down[0] and event.endswith("-gamma") else 204),
    }
    scanner = Scanner(values(everybody()))
    assert len(values(leaving())) >= 1000
    with serving(*ends.values()):
        root = shop(tmp_path / "operator", {name: end.url for name, end in ends.items()})
        put(root, "crm", "one", first_day())
        put(root, "crm", "two", second_day())
        put(root, "sales", "one", contacts())
        tidings(root, "run", "--until-idle")
        settings = load(root)
        assert found(scanner.scan(root)) == values(everybody()), "there is something to be found"
        assert scanner.scan(settings.data_path) == set(), "and never in clear"
        assert all(one.married in told(settings, one) for one in (leaving()[0], staying()[0]))
        broken = quarantined(settings)
        erase(root, settings, tmp_path / "list.csv")
        assert found(scanner.scan(root)) == values(staying()), "while gamma is down, everybody else has forgotten"
        answer(settings)
        down[0] = False
        tidings(root, "run", "--until-idle")
    assert {one.state for one in requests(settings).requests.values()} == {"fulfilled"}
    assert_forgotten(root, settings, scanner)
    assert quarantined(settings) == broken * len(staying()) // len(everybody())
    assert all(one.married in told(settings, one) and one.email in told(settings, one) for one in staying())
    assert_proved(root, verifier)


def erase(root: Path, settings: Settings, listed: Path) -> None:
    """The list is taken in and carried out, but for what only others can do."""
    gone = tags(settings, leaving())
    listed.write_text(asked(leaving()))
    tidings(root, "rights", "import", str(listed))
    tidings(root, "run", "--until-idle", "--patience", "1")
    book = requests(settings)
    assert len(book.requests) == len(book.open) == len(leaving()) - 1, "two of the list are one person"
    parts = {(name, part.state) for one in book.open for name, part in one.parts.items()}
    assert parts == {
        ("alpha", "acknowledged"), ("beta", "acknowledged"), ("gamma", "open"), ("cleanroom", "open")
    }  # fmt: skip
    keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    assert keys.places(gone) == set(), "our own keys do not wait for others"


def answer(settings: Settings) -> None:
    """A human did it, and says of whom, which the ledger must not."""
    for name, one in zip(requests(settings).requests, leaving(), strict=False):
        intake.say(settings, Word(name, "done", "ann", f"deleted {one.email}, {one.phone}", "cleanroom", "ab" * 32))


def assert_forgotten(root: Path, settings: Settings, scanner: Scanner) -> None:
    assert found(scanner.scan(root)) == values(staying())
    assert scanner.scan(settings.data_path) == set()
    finds = insiders(settings, leaving()).scan(root)
    assert [find for find in finds if not find.file.startswith(TOMBSTONES)] == []
    assert insiders(settings, staying()).scan(root / "data/tables/identities"), "the living are found by it"
    planted = settings.data_path / "alerts/note.json"
    planted.write_text(json.dumps({"to": leaving()[7].email}))
    assert found(scanner.scan(settings.data_path)) == {leaving()[7].email}, "one that comes back is seen"
    planted.unlink()


def assert_proved(root: Path, verifier: Path) -> None:
    """By Go's own packages, by our own, and by the books."""
    logs = sorted(path.parent for path in root.glob("data/ledger/**/checkpoint"))
    assert len(logs) >= 2
    for log in logs:
        ran = subprocess.run([verifier, log, (log / "vkey").read_text().strip()], capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (0, ""), log
        assert int(ran.stdout.split()[0]) > 0
    assert tidings(root, "verify", "--json")["verified"]
    assert tidings(root, "status", "--reconcile", "--json")["books"]["balanced"]
