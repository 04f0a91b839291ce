"""GPP, TCF and US Privacy strings: against what IAB Tech Lab's own encoder wrote, against a second encoder, and hostile.

gpp_vectors.jsonl was written by @iabgpp/cmpapi 3.2.0 (npm) from random values; `write` below is an encoder of this file alone.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.rights import gpp, layouts, tcf
from tidings.rights.bits import LARGEST_ID, MOST_CHARACTERS, REASONS, BadSignal, Bits, Ids

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
VECTORS = [json.loads(line) for line in Path(__file__).with_name("gpp_vectors.jsonl").read_text().splitlines()]
EUROPE = "CPXxRfAPXxRfAAfKABENB-CgAAAAAAAAAAYgAAAAAAAA"  # of the GPP specification


def packed(bits: str) -> str:
    bits += "0" * (-len(bits) % 6)
    return "".join(LETTERS[int(bits[at : at + 6], 2)] for at in range(0, len(bits), 6))


def fibonacci(number: int) -> str:
    terms = [1, 2]
    while terms[-1] <= number:
        terms.append(terms[-1] + terms[-2])
    bits = ""
    for term in reversed([term for term in terms if term <= number]):
        bits = ("1" if number >= term else "0") + bits
        number -= term if number >= term else 0
    return bits + "1"


def header(ids: list[int]) -> str:
    bits, last = "000011" + "000001" + f"{len(ids):012b}", 0
    for number in ids:
        bits, last = bits + "0" + fibonacci(number - last), number
    return packed(bits)


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | Ids) else value


def test_every_section_is_read_as_the_reference_encoder_wrote_it() -> None:
    seen = set()
    for vector in VECTORS:
        found = gpp.decode(vector["string"])
        assert found.unread == {}
        if "sections" in vector:
            assert [one.id for one in found.sections] == vector["sections"]
            continue
        (section,) = found.sections
        seen.add(section.name)
        assert section.name == vector["section"]
        assert {name: plain(section.fields[name]) for name in vector["fields"]} == vector["fields"]
    assert seen == {one.name for one in layouts.us().values()} | {"tcfeuv2", "tcfcav1"}


def test_the_examples_of_the_specification() -> None:
    assert [one.id for one in gpp.decode(f"DBABMA~{EUROPE}").sections] == [2]
    both = gpp.decode(f"DBACNYA~{EUROPE}~1YNN").sections
    assert [one.name for one in both] == ["tcfeuv2", "uspv1"]
    assert both[1].fields == {"Version": 1, "Notice": True, "OptOutSale": False, "LspaCovered": False}
    said = both[0].fields
    assert (said["CmpId"], said["CmpVersion"], said["PublisherCountry"], said["ConsentLanguage"]) == (
        31,
        640,
        "DE",
        "EN",
    )
    assert said["Created"].isoformat() == "2022-04-20T22:00:00+00:00"
    # Its third example puts a European string where Canada's belongs: that section is not read, the other is.
    third = gpp.decode(f"DBABjw~{EUROPE}~1YNN")
    assert third.unread == {5: "unknown_version"}
    assert [one.id for one in third.sections] == [6]


def test_restrictions_of_a_publisher() -> None:
    europe = next(one for one in VECTORS if one.get("section") == "tcfeuv2")
    first, second = gpp.decode(europe["string"]).sections[0].fields["PublisherRestrictions"]
    assert (first.purpose, first.kind, list(first.vendors)) == (2, 1, [10, 11, 12, 30])
    assert (second.purpose, second.kind, list(second.vendors)) == (7, 0, [755])


@pytest.mark.parametrize("number", sorted(layouts.us()))
def test_a_layout_is_whole(number: int) -> None:
    layout = layouts.us()[number]
    for fields in layout.versions.values():
        assert fields[0].how == "6"
        lists = [part.how for part in fields if part.name == "SensitiveDataProcessing"]
        for how in lists:
            assert int(how.partition("x")[2]) <= len(layout.sensitive)


def write(number: int, version: int, draw: random.Random, head: bool = False) -> tuple[str, dict[str, Any]]:
    """A section with random values, and the values."""
    layout, values = layouts.us()[number], {}
    bits = ""
    for at, part in enumerate(layout.versions[version]):
        width, _, many = part.how.partition("x")
        numbers = [version if at == 0 else draw.randrange(3) for _ in range(int(many or 1))]
        bits += "".join(f"{one:0{width}b}" for one in numbers)
        values[part.name] = numbers if many else numbers[0]
    parts = [packed(bits)]
    if layout.subsections and draw.random() < 0.7:
        if layout.subsections[0] == "gpc":
            values["Gpc"] = draw.random() < 0.5
            parts.append(packed("01" + ("1" if values["Gpc"] else "0")))
        else:
            values["SensitiveDataProcessing"] = [draw.randrange(3) for _ in range(8)]
            parts.append(packed("".join(f"{one:02b}" for one in values["SensitiveDataProcessing"])))
    if head:
        parts.insert(0, packed(f"{number:06b}{version:06b}" + f"{1:012b}0" + fibonacci(1)))
    return ".".join(parts), values


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), many=st.integers(1, 6))
def test_what_was_written_is_read(seed: int, many: int) -> None:
    draw = random.Random(seed)
    ids = sorted(draw.sample(sorted(layouts.us()), many))
    written = []
    for number in ids:
        version = draw.choice(sorted(layouts.us()[number].versions))
        written.append(write(number, version, draw, layouts.us()[number].header and draw.random() < 0.5))
    found = gpp.decode("~".join([header(ids), *(text for text, _ in written)]))
    assert found.unread == {}
    assert [one.id for one in found.sections] == ids
    for section, (_, values) in zip(found.sections, written, strict=True):
        assert {name: plain(value) for name, value in section.fields.items()} == values


@settings(max_examples=150, deadline=None)
@given(st.sets(st.integers(1, LARGEST_ID), max_size=40), st.booleans())
def test_vendors_are_read_in_every_way_they_are_written(ids: set[int], group: bool) -> None:
    entries = [(one, one) for one in sorted(ids)]
    if group:
        entries = [(first, last) for first, last in Ids.of(entries).ranges]
    fixed = "".join(f"{int(a < b)}{a:016b}{f'{b:016b}' if a < b else ''}" for a, b in entries)
    ends, last = "", 0
    for first, end in entries:
        ends += f"{int(first < end)}{fibonacci(first - last)}{fibonacci(end - first) if first < end else ''}"
        last = end
    largest = max(ids, default=0)
    many = f"{len(entries):012b}"
    assert set(Bits(packed(f"{largest:016b}1{many}{fixed}")).vendors()) == ids
    assert set(Bits(packed(f"{largest:016b}1{many}{ends}")).fibonacci_vendors()) == ids
    assert set(Bits(packed(f"1{many}{ends}"), plain=True).fibonacci_vendors()) == ids
    bits = "".join("1" if one in ids else "0" for one in range(1, min(largest, 3000) + 1))
    small = {one for one in ids if one <= 3000}
    assert set(Bits(packed(f"{min(largest, 3000):016b}0{bits}")).vendors()) == small


def core(vendors: str) -> str:
    """A European core part up to its vendors, which follow."""
    return packed(f"{2:06b}" + "0" * (36 * 2 + 12 + 12 + 6 + 12 + 12 + 6 + 1 + 1 + 12 + 24 + 24 + 1 + 12) + vendors)


HOSTILE = [
    ("", "empty"),
    ("D" * (MOST_CHARACTERS + 1), "too_long"),
    ("DBAB MA~x", "not_base64url"),
    ("DBAB=", "not_base64url"),
    ("CPXxRfA~1YNN", "not_gpp"),
    ("DCABMA~x", "unknown_version"),
    ("DBAB", "cut_short"),
    ("DB__", "cut_short"),  # 4,095 entries are promised
    ("DBABMA", "sections_differ"),
    ("DBABMA~a~b", "sections_differ"),
    (packed("000011000001" + f"{1:012b}" + "0" + "01" * 40 + "1"), "number_too_large"),
    (packed("000011000001" + f"{1:012b}" + "1" + fibonacci(1) + fibonacci(60_000)), "number_too_large"),
    ("DBABMAAAAAAB~x", "left_over"),
]


@pytest.mark.parametrize(("text", "reason"), HOSTILE, ids=[reason for _, reason in HOSTILE])
def test_a_hostile_string_has_a_reason(text: str, reason: str) -> None:
    with pytest.raises(BadSignal) as caught:
        gpp.decode(text)
    assert caught.value.reason == reason
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "text", "reason"),
    [
        (8, "BVVVV", "cut_short"),
        (8, "CVVVVVVVVWA", "unknown_version"),
        (8, "B" + "_" * 8, "unknown_value"),
        (8, "BAAAAABAAAAAB", "left_over"),
        (8, "BAQAAABA.YA.YA", "unknown_segment"),
        (8, "BAQAAABA.AA", "unknown_segment"),
        (9, "BAgAABA.YA", "unknown_segment"),
        (24, "YC", "unknown_version"),
        (24, "YBABg", "cut_short"),
        (6, "1YN", "bad_word"),
        (6, "2YNN", "bad_word"),
        (2, core("0" * 16 + "1" + f"{1:012b}" + "1" + f"{9:016b}{2:016b}" + "0" * 40), "range_backwards"),
        (2, core("1" * 16 + "0" + "1" * 12), "cut_short"),
        (2, core("1" * 16 + "1" + "1" * 12), "cut_short"),
        (2, EUROPE + "." + EUROPE, "repeated"),
        (2, EUROPE + ".gAAA", "unknown_segment"),
        (2, "BPXxRfA", "not_tcf"),
        (2, "." * 9, "unknown_segment"),
        (28, "BAAA", "unknown_section"),
    ],
)
def test_a_section_that_cannot_be_read_is_named(number: int, text: str, reason: str) -> None:
    found = gpp.decode(f"{header([number, 63])}~{text}~x")
    assert found.unread == {number: reason, 63: "unknown_section"}


def test_huge_ranges_cost_nothing() -> None:
    entries = "".join(f"1{1:016b}{LARGEST_ID:016b}" for _ in range(2_000))
    text = core("1" * 16 + "1" + f"{2_000:012b}" + entries + "0" * 40)
    begun = time.monotonic()
    found = tcf.decode(text)
    assert len(found.core["VendorsConsent"]) == LARGEST_ID
    assert found.core["VendorsConsent"].ranges == ((1, LARGEST_ID),)
    assert time.monotonic() - begun < 2


def outcome(read: Callable[[str], Any], text: str) -> str:
    try:
        read(text)
    except BadSignal as bad:
        return bad.reason
    return "read"


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=LETTERS + "~.", max_size=200))
def test_nothing_but_a_reason_comes_out_of_noise(text: str) -> None:
    assert {outcome(gpp.decode, text), outcome(tcf.decode, text)} <= {*REASONS, "read"}
