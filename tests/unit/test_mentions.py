"""Whoever is named in a text is found in every way of writing, nobody else is, and a thousand names cost no more than one."""

from __future__ import annotations

import hashlib
import json
import time
import unicodedata
from urllib.parse import quote

import pytest

from tidings.rights.mentions import Mentions, Record

EMAIL, PHONE, CARD = "Zoë.Quill+news@Planted.Example", "+14155560177", "LC 8400001-3"
TABLES = {"crm": ("customers",), "shop": ()}
NAMED = {
    "as it is": EMAIL,
    "loud": EMAIL.upper(),
    "decomposed": unicodedata.normalize("NFD", EMAIL),
    "in JSON": json.dumps({"email": EMAIL}),
    "in JSON in JSON": json.dumps({"payload": json.dumps({"email": EMAIL})}),
    "after an escape": '{"note": "write to\\nzoë.quill+news@planted.example"}',
    "in an address": f"https://x.example/?e={quote(EMAIL)}",
    "in an address in JSON": json.dumps({"link": f"https://x.example/?e={quote(EMAIL)}"}),
    "between brackets": f"Quill <{EMAIL}>, and others",
    "mailto": f"mailto:{EMAIL}",
    "cut off": '{"after": {"email": "' + EMAIL,
    "at the end of a sentence": f"It is {EMAIL}.",
    "sha256": json.dumps({"em": hashlib.sha256(EMAIL.lower().encode()).hexdigest()}),
    "md5": hashlib.md5(EMAIL.lower().encode()).hexdigest().upper(),
    "E.164": f'{{"phone": "{PHONE}"}}',
    "a number in JSON": '{"phone": 14155560177}',
    "at home": "call (415) 556-0177",
    "with dots": "415.556.0177",
    "abroad": "0014155560177",
    "with spaces": "+1 415 556 0177",
    "after a date": "2026-11-17 14155560177",
    "sha256 of a number": hashlib.sha256(b"14155560177").hexdigest(),
    "a card": "card LC 8400001-3 was lost",
}
OTHERS = {
    "somebody with a longer name": "jo.zoë.quill+news@planted.example",
    "another domain": "zoë.quill+news@planted.example.org",
    "another number": "+1 415 556 01778",
    "digits of something longer": '{"lsn": 914155560177}',
    "another card": "LC 8400001-35",
    "nobody": '{"before": null}',
    "nothing": "",
    "bytes": "\x00\udcff",
}


@pytest.mark.parametrize("how", NAMED)
def test_whoever_is_named_is_found(how: str) -> None:
    assert Mentions([EMAIL, PHONE, CARD]).named_in(NAMED[how])
    assert Mentions([EMAIL, PHONE, CARD]).named_in(NAMED[how].encode())


@pytest.mark.parametrize("how", OTHERS)
def test_nobody_else_is(how: str) -> None:
    assert not Mentions([EMAIL, PHONE, CARD]).named_in(OTHERS[how].encode("utf-8", "surrogateescape"))


def test_a_number_as_it_is_told_at_home_is_found_as_it_is_dialled_from_abroad() -> None:
    assert Mentions(["(415) 556-0177"]).named_in("+1 415 556 0177")
    assert Mentions(["0151 23456789"]).named_in("+49 151 23456789")
    assert Mentions(["+4915123456789"]).named_in("0151/23456789")


def test_a_record_is_found_by_its_key_in_its_own_messages() -> None:
    seven = Mentions([Record("customer", {"id": "7"}, TABLES)])
    assert seven.named_in('{"table": "customers", "after": {"id": 7, "name": "x"}}', "crm")
    assert seven.named_in('{"table": "customers", "after": {"ID": "7"}}', "crm")
    assert seven.named_in('{"id": "7", "name": "cut', "shop"), "a source of one entity need not name it"
    assert seven.named_in('{"table": "orders", "after": {"id": 9, "customer_id": 7}}', "crm")
    for other in ('{"table": "orders", "after": {"id": 7}}', '{"table": "customers", "after": {"id": 77, "n": 7}}'):
        assert not seven.named_in(other, "crm")
    assert not seven.named_in('{"id": 7}', "elsewhere")


def test_a_key_of_several_columns_is_named_by_all_of_them() -> None:
    both = Mentions([Record("customer", {"shop": "3", "id": "7"}, TABLES)])
    assert both.named_in('{"shop": 3, "id": 7}', "shop")
    assert not both.named_in('{"shop": 4, "id": 7}', "shop")


def test_a_key_that_is_more_than_a_number_is_found_anywhere() -> None:
    one = Mentions([Record("contact", {"Id": "003Rj0000070017IAL"}, {"sales": ()})])
    assert one.named_in('{"ChangeEventHeader": {"recordIds": ["003Rj0000070017IAL"]}, "LastName": "x"}', "sales")


def test_nobody_is_in_nothing() -> None:
    assert not Mentions([])
    assert not Mentions([" ", "-", "abc"]).named_in("abc - ")


def people(count: int) -> list[str]:
    return [
        value
        for one in range(count)
        for value in (f"person.{one}@planted.example", f"+1415{one:07d}", f"LC {one:07d}", f"Quill-{one:05d}")
    ]


def test_looking_for_thousands_costs_no_more_than_looking_for_one() -> None:
    """Lines times values would be 40 million looks here."""
    lines = [
        json.dumps({"op": "u", "after": {"id": n, "email": f"other.{n}@planted.example", "phone": f"+1628{n:07d}"}})
        for n in range(10_000)
    ]
    few, many = Mentions(people(1)), Mentions(people(1000))
    assert not any(few.named_in(line) for line in lines)
    began = time.perf_counter()
    assert not any(many.named_in(line) for line in lines)
    took = time.perf_counter() - began
    assert many.looks < 3 * few.looks
    assert many.looks < 100 * len(lines)
    assert took < 30, "a tenth of this on one quiet core"
    assert many.named_in(lines[7].replace("other.7@", "person.7@"))
