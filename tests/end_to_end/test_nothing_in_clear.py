"""After a run no planted e-mail, phone or card number stands in clear in anything we wrote."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
sys.path.insert(0, str(Path(__file__).parents[1] / "rights"))

from insider import change_of, event_ids
from scanner import Scanner
from small import Small, small

from tidings.rights.scrub import blank_lines, forget_quarantined, scrub
from tidings.seal.keyfiles import KeyFiles

EMAIL = "very.unusual.person@planted.example"
PHONE = "+14155550177"
CARD = "4111111111111111"
BROKEN = "broken.line.person@planted.example"


PEOPLE = 500  # a thousand identifiers: an address and a number each


def address(person: int) -> str:
    return f"Planted.Person{person}@planted-{person}.example"


def telephone(person: int) -> str:
    return f"+1415556{person:04d}"


IDENTIFIERS = [EMAIL, PHONE, CARD, BROKEN, *map(address, range(PEOPLE)), *map(telephone, range(PEOPLE))]


def planted() -> list[str]:
    """Messages with the planted values in every place a value can be: images, keys, free text, a broken line."""
    source = {"connector": "postgresql", "schema": "public", "table": "customers", "snapshot": "false", "txId": 9}
    lines = []
    for number, note in enumerate(("first", f"card {CARD[:4]} {CARD[4:8]} {CARD[8:12]} {CARD[12:]} on file"), 1):
        row = {"id": 901, "email": EMAIL, "phone": PHONE, "tier": f"t{number}", "note": note, "card": int(CARD)}
        lsn = 90_000_000 + number
        where = source | {
            "ts_us": 1_772_443_000_000_000 + number,
            "lsn": lsn,
            "sequence": json.dumps([str(lsn), str(lsn)]),
        }
        value = {"before": None, "after": row, "source": where, "op": "c" if number == 1 else "u", "ts_ms": 1}
        lines.append(json.dumps({"topic": "crm.public.customers", "key": {"id": 901}, "value": value}))
    for person in range(PEOPLE):
        row = {"id": 70_000 + person, "email": address(person), "phone": telephone(person), "tier": "t"}
        lsn = 91_000_000 + person
        where = source | {"ts_us": 1_772_443_100_000_000 + person, "lsn": lsn, "sequence": json.dumps([str(lsn)] * 2)}
        value = {"before": None, "after": row, "source": where, "op": "c", "ts_ms": 1}
        lines.append(json.dumps({"topic": "crm.public.customers", "key": {"id": row["id"]}, "value": value}))
    return [*lines, '{"topic": "crm.public.customers", "key": {"id": 1}, "value": {"after": {"email": "' + BROKEN]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    with small(tmp_path_factory.mktemp("clear")) as one:
        one.world.round()
        one.world.publish("crm", planted())
        one.finish()
        yield one


def test_nothing_of_the_planted_people_is_on_disk(ran: Small) -> None:
    scanner = Scanner(IDENTIFIERS)
    assert scanner.scan(ran.data) == set()
    assert {find.identifier for find in scanner.scan(ran.folder / "drop" / "crm")} >= {EMAIL, address(7), telephone(7)}


def test_the_person_is_found_all_the_same(ran: Small) -> None:
    from tidings.report.people import events_of, tags_of

    settings, store = ran.settings, ran.store
    rows = events_of(settings, store, tags_of(settings, store, EMAIL.upper()))
    assert {row["change_type"] for row in rows} >= {"insert", "tier"}
    images = [row["data"]["after"] for row in rows]
    assert all(image["email"] == EMAIL for image in images)
    assert not any(CARD in json.dumps(image).replace(" ", "") for image in images)
    assert any("card_masked" in row["flags"] for row in rows)


def test_of_erased_people_nothing_is_left_and_nothing_can_be_worked_out(ran: Small) -> None:
    settings, store = ran.settings, ran.store
    keys = KeyFiles(ran.data / "keys", settings.keyring.derive("kek"))
    hashes = {settings.keyring.identifier_hash("email", address(n).lower()): n for n in range(PEOPLE)}
    tags = {row["tag"]: hashes[row["hash"]] for row in store.lookup("identities", list(hashes)).to_pylist()}
    assert len(tags) == PEOPLE
    k_id = settings.keyring.derive("id")
    rows = {kid: row for row in store.arrow("journal").to_pylist() if (kid := row["kid"])}
    mine = {kid: tag for tag in tags for _, kid, _ in keys.find(tag)}
    # What recognises a change is keyed by the tag, so whoever holds the key and the list can work it out; no event's id is made of it.
    changes = {change_of(k_id, rows[kid], "public.customers", tag): kid for kid, tag in mine.items()}
    assert {rows[kid]["change"] for kid in mine} == set(changes)
    made = {end for change in changes for end in event_ids(k_id, change)}
    assert not made & {row["event_id"].replace("-", "")[-12:] for row in rows.values()}
    gone = scrub(store, keys, list(tags))
    assert gone.keys >= PEOPLE
    assert forget_quarantined(store, settings.keyring, [BROKEN]) == 1
    assert blank_lines(settings, [BROKEN, *map(address, range(PEOPLE))]) == PEOPLE + 1
    for table in ("journal", "quarantine"):
        store.unlink_replaced(table)  # two days later
    keyed = [("tag", tag) for tag in tags] + [("hash", one) for one in hashes] + [("change", one) for one in changes]
    assert Scanner.of_bytes(keyed).scan(ran.data) == set()
    assert {find.identifier for find in Scanner(IDENTIFIERS).scan(ran.folder / "drop" / "crm")} <= {EMAIL, PHONE, CARD}
