"""Every kind of request does what its name says, whatever fields the contract has; and requests that meet have a named end. No JVM."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from at_the_desk import asked, at_work, handed_over, held_for, journaled, known_by, say, stands, why
from erased_history import Past
from history import LANE

from tidings.contract import Contract
from tidings.gate.loading import load_policy
from tidings.person_fields import PREFIX, spoken
from tidings.rights import intake
from tidings.rights.asks import KINDS, Ask, Identifier, Word
from tidings.rights.book import Book
from tidings.rights.bundle import bundle
from tidings.rights.carrying import REVIEW
from tidings.rights.clocks import clocks_of

NOW = datetime.now(UTC)
WHO = "person@example.com"
SMS = ("marketing", "sms", "marketing")


@pytest.fixture
def shop(tmp_path: Path, made: Past) -> Past:
    one = made.copied(tmp_path / "operator")
    known_by(one, WHO, 1)
    return one


def at(shop: Past, kind: str, minutes: float, **more: Any) -> str:
    """Asked so many minutes ago."""
    ask = Ask(kind, (Identifier("email", WHO),), "rest", NOW - timedelta(minutes=minutes), "verified", **more)
    return intake.hand_in(shop.settings, ask)


def said(shop: Past, name: str) -> dict[str, Any]:
    """What the last message of a request says of the person beside who it is."""
    after = handed_over(shop, name)[-1]["after"]
    return {path: value for path, value in after.items() if path not in ("id", "email")}


# One person for each: what is asked, and what the message says of them.
SAYS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    ("restriction", (), {"tidings_restricted": True}),
    ("objection", (), {"tidings_objected": True}),
    ("objection", ("marketing",), {"tidings_no_marketing": True}),
    ("objection", ("profiling",), {"tidings_profiling": False}),
    ("objection", ("profiling", "something else"), {"tidings_profiling": False, "tidings_objected": True}),
    ("automated_decision", (), {"tidings_no_automated": True}),
    ("limit_sensitive", (), {"tidings_limited": True}),
    ("opt_out", ("sms",), {"tidings_sms": False}),
    ("opt_out_sale", (), {"tidings_ads": False, "tidings_sale": False}),
    ("opt_in", ("sms",), {"tidings_sms": True}),
    ("consent_narrowing", ("analytics", "ai"), {"tidings_analytics": False, "tidings_ai": False}),
    ("rectification", (), {"tier": "gold"}),
)


def test_a_kind_needs_no_field_of_the_contract(shop: Past) -> None:
    names = []
    for person, (kind, scope, _) in enumerate(SAYS):
        known_by(shop, f"own{person}@example.com", person)
        values = {"tier": "gold"} if kind == "rectification" else {}
        names.append(asked(shop, kind, f"own{person}@example.com", scope=scope, values=values))
    assert at_work(shop).book.requests[names[-1]].state == "review", "a tier is the operator's to decide"
    intake.say(shop.settings, Word(names[-1], "approve", "ann"))
    desk = at_work(shop)
    for person, (name, (kind, _, says)) in enumerate(zip(names, SAYS, strict=True)):
        assert (desk.book.requests[name].state, said(shop, name)) == ("working", says), kind
        (message,) = handed_over(shop, name)
        known = f"own{person}@example.com"
        assert message["after"]["email"] == message["before"]["email"] == known, "a recipient can tell who is meant"
    assert {kind for kind, *_ in SAYS} | {"access", "portability", "know", "erasure", "appeal"} == set(KINDS)


def test_an_opt_out_without_a_scope_is_every_channel_and_no_purpose(shop: Past) -> None:
    name = asked(shop, "opt_out", WHO, "none")
    stands(shop, name)
    assert sorted(said(shop, name)) == [f"tidings_{word}" for word in ("ads", "email", "phone", "post", "push", "sms")]


def test_a_field_of_the_contract_says_it_too(shop: Past) -> None:
    path = shop.history.folder / "entities" / "customer.yaml"
    own = "  vip_sms: {type: consent, consent: {channel: sms, granted: ['Y'], withdrawn: ['N']}}\n"
    own += "  frozen: {type: tier, person: restricted}\n"
    path.write_text(path.read_text() + own)
    first, second = asked(shop, "opt_out", WHO, scope=("sms",)), asked(shop, "restriction", WHO)
    stands(shop, first)
    assert said(shop, first) == {"vip_sms": "N"}, "in the words in which the field says it"
    journaled(shop, first, 1, (*SMS, "withdrawn"))
    stands(shop, second)
    assert said(shop, second) == {"frozen": True, "tidings_restricted": True}


def test_a_yes_that_is_older_than_the_last_no_is_refused_and_a_newer_one_counts_once(shop: Past) -> None:
    out = at(shop, "opt_out", 60, scope=("sms",))
    stands(shop, out)
    journaled(shop, out, 1, (*SMS, "withdrawn"))
    late = stands(shop, at(shop, "opt_in", 90, scope=("sms",)))
    assert (late.state, why(late)) == ("refused", "older_than_opt_out")
    assert handed_over(shop, late.id) == []
    same = stands(shop, at(shop, "opt_in", 60, scope=("sms",)))
    assert why(same) == "older_than_opt_out", "a tie suppresses"
    newer = at(shop, "opt_in", 30, scope=("sms",), reference="form-1")
    assert stands(shop, newer).state == "working"
    assert at(shop, "opt_in", 30, scope=("sms",), reference="form-1") == newer
    journaled(shop, newer, 1, (*SMS, "granted"))
    at_work(shop)
    again = stands(shop, at(shop, "opt_in", 10, scope=("sms",)))
    assert (again.state, why(again)) == ("fulfilled", "nothing_to_change")
    assert len(handed_over(shop, newer)) == 1


def test_a_yes_to_several_channels_leaves_out_the_one_that_was_refused_since(shop: Past) -> None:
    out = at(shop, "opt_out", 60, scope=("sms",))
    stands(shop, out)
    journaled(shop, out, 1, (*SMS, "withdrawn"))
    both = stands(shop, at(shop, "opt_in", 90, scope=("sms", "email")))
    assert (both.state, said(shop, both.id)) == ("working", {"tidings_email": True})
    (step,) = both.happened("withheld")
    assert (step.reason, step.details["withheld"]) == ("older_than_opt_out", "tidings_sms")


@pytest.mark.parametrize(("out", "into", "last"), [(60, 30, "opt_in"), (30, 60, "opt_out"), (60, 60, "opt_out")])
def test_of_two_in_one_batch_the_later_in_causal_order_wins(shop: Past, out: int, into: int, last: str) -> None:
    yes, no = at(shop, "opt_in", into, scope=("sms",)), at(shop, "opt_out", out, scope=("sms",))
    at_work(shop)
    first, second = (no, yes) if out >= into else (yes, no)
    state = "withdrawn" if first == no else "granted"
    assert (stands(shop, first).state, stands(shop, second).state) == ("working", "received")
    journaled(shop, first, 1, (*SMS, state))
    ended = stands(shop, second)
    if out == into:
        assert (ended.state, why(ended)) == ("refused", "older_than_opt_out")
    else:
        assert (ended.state, said(shop, second)) == ("working", {"tidings_sms": last == "opt_in"})


def test_a_request_that_nothing_came_of_does_not_hold_the_next_for_ever(
    shop: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = at(shop, "opt_out", 60, scope=("sms",)), at(shop, "restriction", 50)
    assert (stands(shop, first).state, stands(shop, second).state) == ("working", "received")
    monkeypatch.setattr("tidings.rights.order.PATIENCE", timedelta(0))
    assert stands(shop, second).state == "working"


def test_an_erasure_in_the_same_batch_wins(shop: Past) -> None:
    yes, limit = at(shop, "opt_in", 60, scope=("sms",)), at(shop, "restriction", 60)
    erasure = at(shop, "erasure", 30)
    desk = at_work(shop)
    ends = {name: desk.book.requests[name] for name in (yes, limit, erasure)}
    assert {n: one.state for n, one in ends.items()} == {yes: "refused", limit: "cancelled", erasure: "working"}
    assert {why(ends[name]) for name in (yes, limit)} == {"erasure_wins"}
    assert handed_over(shop, yes) == handed_over(shop, limit) == []


def test_an_erasure_that_nobody_proved_stops_nothing(shop: Past) -> None:
    asked(shop, "erasure", WHO, "claimed")
    assert stands(shop, at(shop, "opt_in", 1, scope=("sms",))).state == "working"


def test_a_right_is_lifted_after_the_person_was_told_and_not_before(shop: Past) -> None:
    name = asked(shop, "restriction", WHO)
    assert say(shop, name, "lift", "ann").steps[-1].what == "word_refused", "it is not in force yet"
    journaled(shop, name, 1)
    assert stands(shop, name).state == "fulfilled"
    lifting = say(shop, name, "lift", "ann")
    assert (lifting.state, len(handed_over(shop, name))) == ("working", 1)
    assert lifting.happened("letter_task:lifting"), "nothing sends letters here, so a human does"
    assert stands(shop, name).state == "working"
    assert len(handed_over(shop, name)) == 1, "the person does not know yet"
    told = say(shop, name, "done", "ann", recipient="letter:lifting", evidence="ab" * 32)
    assert (told.state, said(shop, name)) == ("working", {"tidings_restricted": False})
    journaled(shop, name, 1)
    assert stands(shop, name).state == "fulfilled"
    assert say(shop, name, "lift", "ann").steps[-1].what == "word_refused", "once"


def test_a_letter_of_lifting_goes_to_the_address_of_the_record(shop: Past) -> None:
    name = asked(shop, "restriction", WHO, contact="claimed@elsewhere.example")
    at_work(shop)
    journaled(shop, name, 1)
    at_work(shop)
    say(shop, name, "lift", "ann")
    desk = at_work(shop)
    assert desk._contact(desk.book.requests[name]) == WHO


def test_a_human_reviews_what_machines_decided(shop: Past) -> None:
    name = asked(shop, "automated_decision", WHO)
    at_work(shop)
    journaled(shop, name, 1)
    request = stands(shop, name)
    assert (request.state, request.parts[REVIEW].state) == ("working", "open")
    assert say(shop, name, "done", "ann", recipient=REVIEW).parts[REVIEW].state == "open", "without evidence"
    assert say(shop, name, "done", "ann", recipient=REVIEW, evidence="ab" * 32).state == "fulfilled"
    again = stands(shop, asked(shop, "automated_decision", WHO))
    assert (again.state, again.parts[REVIEW].state) == ("working", "open"), "nothing to change, and still a human looks"
    assert say(shop, again.id, "done", "ann", recipient=REVIEW, evidence="ab" * 32).state == "fulfilled"


def test_a_vendor_without_a_verb_for_a_right_is_a_task(shop: Past) -> None:
    name = asked(shop, "restriction", WHO)
    desk = at_work(shop)
    part = {"recipient": LANE, "way": "lane", "event_id": "e1", "kid": None, "tag": None, "sealed": None}
    desk.steps.commit([desk.steps.row(desk.book.requests[name], "told", parts=[part | {"deadline": None}])])
    desk.erasing.answered({("e1", LANE): ("refused", "no_verb")})
    assert (desk.book.requests[name].parts[LANE].way, desk.book.requests[name].state) == ("task", "working")
    assert say(shop, name, "done", "ann", recipient=LANE, evidence="ab" * 32).state == "fulfilled"


def test_what_protects_a_child_waits_for_nobody_and_the_rest_is_for_a_human(shop: Past) -> None:
    kinds = ("opt_out", "opt_out_sale", "restriction", "limit_sensitive", "automated_decision", "objection")
    names = {}
    for person, kind in enumerate((*kinds, "opt_in", "access", "rectification")):
        known_by(shop, f"young{person}@example.com", person)
        values = {"tier": "gold"} if kind == "rectification" else {}
        names[kind] = asked(shop, kind, f"young{person}@example.com", child=True, values=values)
    found = at_work(shop).book.requests
    assert {kind: found[name].state for kind, name in names.items()} == {
        **dict.fromkeys(kinds, "working"), "opt_in": "review", "access": "review", "rectification": "review"
    }  # fmt: skip
    assert held_for(found[names["opt_in"]]) == "child"


def test_a_person_of_two_places_has_both_clocks_and_the_shorter_acts(shop: Past) -> None:
    row = {"tag": shop.tag(1), "bucket": 0, "version": "9", "consents": [], "jurisdiction": "DE"}
    place = {"offset": 99, "source": "crm", "generation": "g1", "batch": 99}
    shop.history._commit("subjects", [row | place], "test-places", 1)
    desk = at_work(shop)
    name = asked(shop, "access", WHO, jurisdiction="US-CA")
    desk = at_work(shop)
    request = desk.book.requests[name]
    answers = [one for one in clocks_of(request, desk.asking.laws, NOW) if one.duty == "answer" and one.due]
    assert {one.place for one in answers} == {"US-CA", "DE"}
    assert request.due == min(one.due for one in answers if one.due)
    assert [one.place for one in answers if one.due == request.due] == ["DE"], "a month is shorter than 45 days"


def test_a_request_is_not_taken_back_half_way_but_lifted(shop: Past) -> None:
    name = asked(shop, "restriction", WHO)
    assert stands(shop, name).state == "working"
    half = say(shop, name, "cancel", "person")
    assert (half.state, half.steps[-1].what, half.details["action"]) == ("working", "word_refused", "cancel")
    waiting = asked(shop, "access", WHO, "claimed")
    assert say(shop, waiting, "cancel", "person").state == "cancelled"


def test_an_appeal_that_is_granted_opens_what_was_refused(shop: Past) -> None:
    name = asked(shop, "access", WHO, child=True)
    at_work(shop)
    assert say(shop, name, "refuse", "ann").state == "refused"
    appeal = asked(shop, "appeal", WHO, about=name)
    assert stands(shop, appeal).state == "review"
    assert say(shop, appeal, "approve", "bob").state == "fulfilled"
    again = stands(shop, name)
    assert (again.state, held_for(again)) == ("review", "child"), "it goes on from where it stood"
    assert say(shop, name, "approve", "bob").state == "working"


def test_an_appeal_that_is_granted_after_the_ask_was_forgotten_goes_on_all_the_same(shop: Past) -> None:
    name = asked(shop, "access", WHO, child=True)
    at_work(shop)
    say(shop, name, "refuse", "ann")
    intake.say(shop.settings, Word(name, "done", "ann", recipient="letter:refusal", evidence="ab" * 32))
    desk = at_work(shop, 3)
    assert desk.asking.ask_of(desk.book.requests[name]) is None
    appeal = asked(shop, "appeal", WHO, about=name)
    at_work(shop)
    say(shop, appeal, "approve", "bob")
    assert say(shop, name, "approve", "bob").state == "working"


def test_an_appeal_about_nothing_or_about_somebody_else_is_refused(shop: Past) -> None:
    known_by(shop, "other@example.com", 2)
    name = asked(shop, "access", "other@example.com", child=True)
    at_work(shop)
    say(shop, name, "refuse", "ann")
    for about in (name, "0" * 32):
        appeal = stands(shop, asked(shop, "appeal", WHO, about=about))
        assert (appeal.state, why(appeal)) == ("refused", "nothing_to_appeal")


def test_what_an_erased_person_still_had_open_ends_with_the_erasure(shop: Past) -> None:
    access = asked(shop, "access", WHO)
    limit = asked(shop, "restriction", WHO)
    assert stands(shop, access).state == "working"
    row = {"flags": ["erasure"], "change_type": "delete", "operation": "delete", "recipients": []}
    shop.history.batch(0, 1, first=1, row=row, moved=False, settled=False)
    desk = at_work(shop, 3)
    told = Book(shop.store).refresh().requests
    (erasure,) = [one for one in told.values() if one.kind == "erasure"]
    for name in (access, limit):
        ended = told[name]
        assert (ended.state, why(ended), ended.details["same_as"]) == ("cancelled", "erasure_wins", erasure.id)
        assert desk.asking.ask_of(ended) is None


def test_somebody_who_was_erased_gets_what_is_left_of_them(shop: Past) -> None:
    known_by(shop, "second@example.com", 1)
    access = asked(shop, "access", WHO)
    desk = at_work(shop)
    policy = load_policy(shop.settings)
    full = bundle(shop.settings, shop.store, policy, desk.book.requests[access])
    assert [one["version"] for one in full["history"]][-2:] == [1, 2], "each change is a version of its record"
    assert "second@example.com" in json.dumps(full["records"])
    row = {"flags": ["erasure"], "change_type": "delete", "operation": "delete", "recipients": []}
    shop.history.batch(0, 1, first=1, row=row, moved=False, settled=False)
    at_work(shop, 3)
    again = stands(shop, asked(shop, "access", WHO))
    told = bundle(shop.settings, shop.store, policy, again)
    assert set(told) == {"request", "kind", "erased"}
    assert told["erased"]["request"] == again.details["same_as"]
    assert told["erased"]["keys_destroyed"]
    assert LANE in {one["recipient"] for one in told["erased"]["recipients"]}
    assert WHO not in json.dumps(told)


def test_a_column_of_our_name_in_somebodys_table_says_nothing() -> None:
    plain = {"kind": "customer", "version": "1", "key": ["id"], "fields": {"email": {"type": "email"}}}
    contract = Contract.model_validate(plain)
    assert not [path for path in contract.compared if path.startswith(PREFIX)]
    assert [path for path in spoken(contract).compared if path.startswith(PREFIX)]


def test_killed_between_the_message_and_its_step_the_message_is_the_same(shop: Past, tmp_path: Path) -> None:
    name = asked(shop, "restriction", WHO)
    slips = shop.data / "rights" / "inbox"
    kept = tmp_path / "slips"
    shutil.copytree(slips, kept)
    at_work(shop)
    shutil.copytree(
        kept, slips, dirs_exist_ok=True
    )  # the slip is there again, as after a crash before it was taken away
    assert stands(shop, name).state == "working"
    assert len(handed_over(shop, name)) == 1


def test_nobody_says_yes_for_somebody_else(shop: Past) -> None:
    """Who knows an address can stop what is sent there, and start nothing."""
    assert stands(shop, asked(shop, "opt_in", WHO, "claimed", scope=("sms",))).state == "verifying"
    assert stands(shop, asked(shop, "opt_out", WHO, "none", scope=("sms",))).state == "working"
