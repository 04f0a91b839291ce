"""An insider with every secret that is left and the list of all customers finds the living and not the erased."""

from __future__ import annotations

import pytest
from erased_history import BATCHES, PEOPLE, Past, email
from insider import keyed
from scanner import Scanner

from tidings.rights.scrub import forget_quarantined, scrub

GONE = (2, 3, 7, 11)


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory, made: Past) -> Past:
    one = made.copied(tmp_path_factory.mktemp("insider") / "operator")
    scrub(one.store, one.keys, [one.tag(person) for person in GONE])
    forget_quarantined(one.store, one.settings.keyring, [email(person) for person in GONE])
    return one


def everybody(one: Past) -> list[tuple[str, bytes]]:
    return [
        (f"{person}: {name}", value)
        for person in range(PEOPLE)
        for name, value in keyed(one.settings, str(person), {"email": email(person).lower()})
    ]


def test_keyed_values_lead_to_the_living_and_to_nobody_else(after: Past) -> None:
    found = {find.identifier.partition(":")[0] for find in Scanner.of_bytes(everybody(after)).scan(after.data)}
    assert found == {str(person) for person in range(PEOPLE) if person not in GONE}


def test_the_name_by_which_a_subscriber_knows_a_person_is_kept_nowhere(after: Past) -> None:
    finds = Scanner.of_bytes(everybody(after)).scan(after.data)
    assert not [find for find in finds if "subject at" in find.identifier]


def test_the_rows_of_the_erased_say_nothing_that_differs_between_them(after: Past) -> None:
    """What is left of them, batch by batch: the same but for ids, places and the entry's own bytes, which no secret leads to."""
    living = {row["kid"] for row in after.keys.people({f"crm-g1-{n}-00000000" for n in range(BATCHES)}).to_pylist()}
    rows = [row for row in after.store.arrow("journal").to_pylist() if row["kid"] not in living]
    assert len(rows) == BATCHES * len(GONE)
    own = ("offset", "event_id", "kid", "entry", "lamport", "hlc", "subjectseq")
    for batch in range(BATCHES):
        left = [{k: v for k, v in row.items() if k not in own} for row in rows if row["batch"] == batch]
        assert all(row == left[0] for row in left)


def test_no_row_opens_with_what_is_left(after: Past) -> None:
    names = {row["key_file"] for row in after.store.arrow("journal").to_pylist()}
    kids = {row["kid"]: row for row in after.store.arrow("journal").to_pylist()}
    opened = after.keys.load(names)
    assert len(opened) == BATCHES * (PEOPLE - len(GONE))
    assert all(row["payload"] is None for kid, row in kids.items() if kid not in opened)
