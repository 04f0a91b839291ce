"""What is taken in from strangers: bounded, of characters that can be written down, and never repeated in an error. No JVM."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tidings.contract import Contract
from tidings.rights.asking import Asking
from tidings.rights.asks import Ask, Identifier, same_name
from tidings.rights.attested import entry_of, stamp
from tidings.rights.book import Request
from tidings.rights.certificate_claims import Shown, _excepted
from tidings.rights.changing import wanted as changed
from tidings.rights.corrections import for_a_human, offered
from tidings.strict import strict_value

ANN = (Identifier("email", "ann@example.com"),)


def ask(**said: Any) -> Ask:
    usual = {"kind": "opt_out", "identifiers": ANN, "way": "rest", "received": datetime.now(UTC), "assurance": "none"}
    return Ask(**{**usual, **said})


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a law of two lines": ({"regulation": "gd\npr"}, "regulation"),
    "a law without end": ({"regulation": "x" * 100_000}, "regulation"),
    "the first year": ({"received": datetime(1, 1, 1, tzinfo=UTC)}, "received"),
    "half a character": ({"identifiers": (Identifier("email", "\ud800@b.example"),)}, "identifiers[0].value"),
    "a zero byte": ({"identifiers": (Identifier("email", "a\0@b.example"),)}, "identifiers[0].value"),
    "a reference of two lines": ({"reference": "a\nb"}, "text"),
    "words without end": ({"scope": ("sms",) * 51}, "text"),
    "a field without end": ({"kind": "rectification", "values": {"x" * 2_001: "y"}}, "text"),
    "half a value": ({"kind": "rectification", "values": {"name": "\udfff"}}, "text"),
    "an address for a kind": ({"kind": "ann@example.com"}, "kind"),
    "an address for a place": ({"jurisdiction": "ann@example.com"}, "jurisdiction"),
    "an address for a word": ({"assurance": "ann@example.com"}, "assurance"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_could_not_be_written_down_is_refused_and_not_shown(name: str) -> None:
    said, path = HOSTILE[name]
    found = list(ask(**said).problems())
    assert [one.path for one in found] == [path]
    assert "ann@" not in str(found[0])


def test_names_of_people_everywhere_are_taken() -> None:
    values = {"name": "Zoë O’Brien-Łukasz\u00a0李", "street": "1 Main St\nUnit 2"}
    assert list(ask(kind="rectification", values=values, contact="Unit 2\n1 Main St").problems()) == []


@pytest.mark.parametrize(("where", "fine"), [("US-CA,DE", True), ("", True), ("DE,", False), ("DE,Mars", False)])
def test_a_person_may_live_in_several_places(where: str, fine: bool) -> None:
    assert (list(ask(jurisdiction=where).problems()) == []) == fine


@pytest.mark.parametrize("other", ["Ann", " ann ", "ANN", "a\u200bnn", "ａｎｎ", "ann\u00a0"])
def test_one_name_in_two_spellings_is_one_person(other: str) -> None:
    assert same_name("ann", other)
    steps = [Shown(n, {"what": what, "actor": who, "timestamp": "t"}) for n, (what, who) in enumerate(APPROVALS, 1)]
    assert _excepted([steps[0], Shown(2, {**steps[1].values, "actor": other})]) == {}
    assert _excepted(steps)["approvers"] == ["ann", "bob"]


APPROVALS = [("exception_asked", "ann"), ("excepted", "bob")]


def test_letters_that_differ_are_two_people() -> None:
    assert not same_name("René", "Rene")
    assert not same_name("ann", "anne")


def test_a_step_of_any_time_and_law_can_be_attested() -> None:
    """What a source reports is not ours to refuse, so the entry takes it as it comes."""
    row = {"request": "r", "kind": "erasure", "state": "working", "step": 1, "what": "received", "way": "source"}
    row |= {"changed": datetime.now(UTC), "opened": datetime(1, 1, 1, tzinfo=UTC), "regulation": "gd\npr"}
    assert b'"regulation":"gd pr"' in entry_of(row, "tidings/test")
    assert stamp(datetime(1, 1, 1, tzinfo=UTC)) == "0001-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    "raw",
    [b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": "\\ud800"}', b'{"\\udc00": 1}', b"[" * 100_000, b"1" * 5_000, b"\xff"],
)
def test_json_that_two_readers_understand_differently_is_not_read(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        strict_value(raw)


def test_who_gives_up_the_time_to_take_an_erasure_back_does_not_wait() -> None:
    asking = Asking.__new__(Asking)
    asking.settings = SimpleNamespace(operator=SimpleNamespace(rights=SimpleNamespace(waiting_days=7)))  # type: ignore[assignment]
    request = Request("r", "erasure", "mparticle", datetime.now(UTC))
    assert asking._must_wait(request)
    request.details["at_once"] = "yes"
    assert not asking._must_wait(request)


FIELDS = {
    "email": {}, "first_name": {}, "id": {}, "tier": {"type": "tier"}, "score": {"class": "internal"},
    "merged_into": {"type": "identity_merge"}, "hold": {"person": "legal_hold"}, "deleted_at": {"lifecycle": "soft_delete"},
    "sms": {"consent": {"class": "marketing", "channel": "sms", "purpose": "marketing"}},
}  # fmt: skip


def test_a_correction_merges_nobody_lifts_no_hold_and_grants_nothing() -> None:
    contract = Contract.model_validate({"kind": "customer", "version": "1", "key": ["id"], "fields": FIELDS})
    wanted = ask(kind="rectification", values=dict.fromkeys(FIELDS, "x"))
    assert list(changed("rectification", wanted, contract)) == ["email", "first_name", "tier", "score"]
    assert [path for path in FIELDS if for_a_human(contract, [path])] == ["tier", "score"]
    assert offered(contract) == ["email", "first_name"]
