"""The desk and what stands in the way of a request: holds, children, shared addresses, late words, one person where two are needed. No JVM."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from at_the_desk import asked, at_work, held_for, known_by, said_of, say, stands
from erased_history import Past, email, hashed
from history import LANE, SECRET

from tidings.rights import intake
from tidings.rights.asks import Ask, BadAsk, Identifier, Word
from tidings.rights.book import Request
from tidings.rights.desk import Desk
from tidings.seal.keyring import associated, bucket, kid, seal_payload, subject_key

ERASURE = {"flags": ["erasure"], "change_type": "delete", "operation": "delete", "recipients": []}


@pytest.fixture
def shop(tmp_path: Path, made: Past) -> Past:
    return made.copied(tmp_path / "operator")


def test_an_address_of_two_records_that_nobody_merged_is_for_a_human(shop: Past) -> None:
    known_by(shop, "both@example.com", 1, 2)
    name = asked(shop, "erasure", "both@example.com")
    assert (stands(shop, name).state, held_for(stands(shop, name))) == ("review", "shared_identifier")
    assert say(shop, name, "approve", "ann").state == "working"


def test_records_that_were_merged_are_one_person(shop: Past) -> None:
    known_by(shop, "both@example.com", 1, 2)
    said_of(
        shop,
        1,
        {"key": {"id": 1}, "moved": [{"field": "merged_into", "from": None, "to": "2"}]},
        change_type="identity_merge",
    )
    assert stands(shop, asked(shop, "erasure", "both@example.com")).state == "working"


def test_a_hold_ends_by_two_people(shop: Past) -> None:
    known_by(shop, "held@example.com", 3)
    shop.history.on_hold(3, version="9")
    name = asked(shop, "erasure", "held@example.com")
    assert held_for(stands(shop, name)) == "legal_hold"
    assert say(shop, name, "approve", "ann").state == "review"
    assert say(shop, name, "approve", "ann").state == "review", "the same person twice is one"
    assert say(shop, name, "approve", "bob").state == "working"


def test_a_child_is_for_a_human_and_an_opt_out_is_not(shop: Past) -> None:
    known_by(shop, "young@example.com", 4)
    name = asked(shop, "erasure", "young@example.com", child=True)
    assert held_for(stands(shop, name)) == "child"
    assert say(shop, name, "refuse", "ann").state == "refused"
    assert stands(shop, asked(shop, "opt_out", "young@example.com", "none", child=True)).state == "working"


def test_a_claimed_identity_erases_nobody_until_it_is_proved(shop: Past) -> None:
    known_by(shop, "claimed@example.com", 5)
    name = asked(shop, "erasure", "claimed@example.com", "claimed")
    assert stands(shop, name).state == "verifying"
    assert say(shop, name, "verify", "mail", says={"assurance": "claimed"}).state == "verifying"
    assert say(shop, name, "verify", "mail", says={"assurance": "verified"}).state == "working"


def test_a_request_is_taken_back_before_it_is_carried_out_and_not_after(shop: Past) -> None:
    known_by(shop, "back@example.com", 6)
    name = asked(shop, "erasure", "back@example.com", "claimed")
    assert say(shop, name, "cancel", "person").state == "cancelled"
    shop.history.batch(0, 1, first=7, row=ERASURE, moved=False, settled=False)
    (late,) = [one for one in at_work(shop).book.requests.values() if one.way == "source"]
    assert late.happened("committed")
    after = say(shop, late.id, "cancel", "person")
    assert (after.state, after.steps[-1].what) == ("working", "word_refused")


def test_an_exception_takes_two_people_and_ends_the_part(shop: Past) -> None:
    shop.history.batch(0, 1, first=8, row=ERASURE, moved=False, settled=False)
    (request,) = at_work(shop).book.requests.values()
    tag = request.parts[LANE].tag
    for name in [name for name in request.parts if name != LANE]:
        for who in ("ann", "bob"):
            say(shop, request.id, "except", who, recipient=name)
    assert say(shop, request.id, "done", "ann", recipient=LANE, evidence="ab" * 32).parts[LANE].state == "open"
    assert say(shop, request.id, "except", "ann", recipient=LANE).parts[LANE].state == "open"
    assert say(shop, request.id, "except", "ann", recipient=LANE).parts[LANE].state == "open"
    assert shop.keys.about([tag]), "its key is there while it is open"
    over = say(shop, request.id, "except", "bob", recipient=LANE)
    assert (over.parts[LANE].state, over.state) == ("excepted", "fulfilled")
    assert shop.keys.about([tag]) == []
    assert {step.actor for step in over.steps if step.details.get("recipient") == LANE} >= {"ann", "bob"}


def test_somebody_who_was_erased_is_told_so_and_a_stranger_is_answered(shop: Past) -> None:
    known_by(shop, "gone@example.com", 9)
    shop.history.batch(0, 1, first=9, row=ERASURE, moved=False, settled=False)
    (erasure,) = at_work(shop).book.requests.values()
    assert shop.store.lookup("identities", [hashed(shop, 9)]).num_rows == 0
    again = stands(shop, asked(shop, "access", "gone@example.com"))
    assert (again.state, again.details["same_as"]) == ("fulfilled", erasure.id)
    assert stands(shop, asked(shop, "access", "stranger@example.com")).state == "refused"
    assert email(9) not in json.dumps([step.details for step in again.steps])


def test_what_a_person_gave_is_forgotten_with_the_request(shop: Past) -> None:
    name = asked(shop, "opt_out", "nobody@example.com", "none")
    desk = at_work(shop)
    request = desk.book.requests[name]
    assert desk.asking.ask_of(request) is not None, "the letter to them is still owed"
    intake.say(shop.settings, Word(name, "done", "ann", recipient="letter:unmatched", evidence="ab" * 32))
    desk = at_work(shop, 3)
    assert desk.asking.ask_of(desk.book.requests[name]) is None
    assert desk.book.requests[name].happened("ask_forgotten")


def test_words_that_outlive_the_person_do_not_name_them(shop: Past) -> None:
    known_by(shop, "worded@example.com", 5)
    more: dict[str, Any] = {
        "reference": "crm/Worded@Example.com",
        "scope": ("worded@example.com",),
        "agent": "a friend",
    }
    name = asked(shop, "erasure", "worded@example.com", "claimed", **more)
    assert stands(shop, name).details == {"agent": "a friend"}
    intake.say(
        shop.settings, Word(name, "refuse", "ann", "not <worded@example.com>, call +1 415 555-0100, case 4155550100")
    )
    assert "not <…>, call …, case 4155550100" in [step.reason for step in stands(shop, name).steps]


def test_two_asks_for_the_same_are_one(shop: Past) -> None:
    known_by(shop, "twice@example.com", 10)
    first = asked(shop, "erasure", "twice@example.com", "claimed")
    second = asked(shop, "erasure", "Twice@Example.com ", "claimed")
    assert (stands(shop, first).state, stands(shop, second).state) == ("verifying", "cancelled")
    assert stands(shop, second).details["same_as"] == first


def test_every_record_that_was_asked_about_goes_whichever_event_came_first(shop: Past) -> None:
    known_by(shop, "both@example.com", 1, 2)
    name = asked(shop, "erasure", "both@example.com")
    say(shop, name, "approve", "ann")
    shop.history.batch(0, 1, first=1, row=ERASURE | {"causation": name}, moved=False, settled=False)
    assert stands(shop, name).happened("committed")
    assert shop.keys.about([shop.tag(1), shop.tag(2)]) == []


def seen_once(shop: Past, person: int, address: str, image: dict[str, Any]) -> None:
    """Somebody whom a snapshot told of: an image, an identifier and a key, and no event."""
    ring, tag, secret = shop.settings.keyring, shop.tag(person), SECRET[:-1] + bytes([person])
    own, key = kid(secret, tag), subject_key(secret, tag)
    shop.keys.write(pa.Table.from_pylist([{"tag": tag, "kid": own, "key": key}]), f"crm-g1-{person}-000000aa")
    plain = json.dumps({"fields": {}, "image": json.dumps(image)}).encode()
    sealed = seal_payload(plain, key, ring.derive("iv"), associated("last_seen", tag.hex().upper(), "image"))
    place = {"offset": person, "source": "crm", "generation": "g1", "batch": 90, "tag": tag, "bucket": bucket(tag, 16)}
    shop.history._commit("last_seen", [place | {"version": "1", "kid": own, "image": sealed}], "test", person)
    hash_ = ring.identifier_hash("email", address)
    row = place | {"hash": hash_, "bucket": bucket(hash_, 16), "kind": "email", "entity": "customer"}
    shop.history._commit("identities", [row], "test", person)


def test_somebody_whom_only_a_snapshot_told_of_is_erased_like_anybody(shop: Past) -> None:
    seen_once(shop, 70, "still@example.com", {"id": 70, "email": "still@example.com"})
    request = stands(shop, asked(shop, "erasure", "still@example.com"))
    assert (request.state, request.details["messages"]) == ("working", "1")


def test_a_record_without_its_key_waits_for_a_human_who_knows_it(shop: Past) -> None:
    seen_once(shop, 71, "keyless@example.com", {"email": "keyless@example.com"})
    request = stands(shop, asked(shop, "erasure", "keyless@example.com"))
    assert (request.state, held_for(request)) == ("review", "no_key")
    both = (Identifier("email", "keyless@example.com"), Identifier("customer", "71"))
    named = Ask("erasure", both, "rest", datetime.now(UTC), "verified", scope=("all",))
    assert stands(shop, intake.hand_in(shop.settings, named)).state == "working"


def test_a_desk_in_the_middle_of_an_erasure_is_not_idle(shop: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.history.batch(0, 1, first=8, row=ERASURE, moved=False, settled=False)
    desk = Desk(shop.settings, shop.store, shop.store.version)
    commit, idle = desk.erasing.commit, []

    def watched(ready: list[Any]) -> None:
        idle.append((len(ready), desk.idle()))
        commit(ready)

    monkeypatch.setattr(desk.erasing, "commit", watched)
    desk.step()
    assert idle == [(1, False)], "a run until idle must not end here"


def test_two_events_of_one_request_for_one_subscriber_are_two_answers(shop: Past) -> None:
    desk = at_work(shop)
    request = Request("r", "opt_out", "rest", datetime.now(UTC))
    base = {"way": "lane", "kid": None, "tag": None, "sealed": None, "deadline": None}
    parts = [base | {"recipient": LANE, "event_id": "e1"}, base | {"recipient": f"{LANE}#e2", "event_id": "e2"}]
    desk.steps.commit([desk.steps.row(request, "told", "working", parts=parts)])
    desk.erasing.answered({("e1", LANE): ("acknowledged", ""), ("e2", LANE): ("acknowledged", "")})
    assert desk.book.requests["r"].state == "fulfilled"


def test_a_bad_ask_is_told_everything_at_once_and_nothing_of_the_person(shop: Past) -> None:
    bad = Ask("forget", (Identifier("email", "x" * 400),), "rest", datetime.now(UTC), "sure", "Mars")
    with pytest.raises(BadAsk) as caught:
        intake.hand_in(shop.settings, bad)
    assert [one.path for one in caught.value.problems] == ["kind", "assurance", "jurisdiction", "identifiers[0].value"]
    assert "xxx" not in str(caught.value)


def test_the_same_person_in_another_spelling_ends_no_hold(shop: Past) -> None:
    known_by(shop, "held@example.com", 3)
    shop.history.on_hold(3, version="9")
    name = asked(shop, "erasure", "held@example.com")
    stands(shop, name)
    assert [say(shop, name, "approve", who).state for who in ("ann", " Ann ", "bob")] == ["review", "review", "working"]


def test_a_shop_that_goes_as_a_whole_waits_for_a_human_and_ends_with_evidence(shop: Past) -> None:
    whole = (Identifier("shop", "954889"),)
    name = intake.hand_in(shop.settings, Ask("erasure", whole, "shopify", datetime.now(UTC), "claimed"))
    assert (stands(shop, name).state, held_for(stands(shop, name))) == ("review", "whole_shop")
    assert say(shop, name, "done", "ann").state == "review", "nothing shows it"
    assert say(shop, name, "done", "ann", evidence="ab" * 32).state == "fulfilled"
    with pytest.raises(BadAsk):
        intake.hand_in(shop.settings, Ask("erasure", whole, "rest", datetime.now(UTC), "claimed"))


def test_a_second_ask_brings_its_clocks_and_its_proof_to_the_first(shop: Past) -> None:
    known_by(shop, "twice@example.com", 9)
    first = asked(shop, "erasure", "twice@example.com", "claimed", jurisdiction="US-CA")
    before = stands(shop, first)
    second = asked(shop, "erasure", "twice@example.com", "verified", jurisdiction="DE,BR")
    after = stands(shop, first)
    assert (before.state, after.state, stands(shop, second).state) == ("verifying", "working", "cancelled")
    assert (after.details["jurisdictions"], after.assurance) == ("DE,BR", "verified")
    assert before.due is not None
    assert after.due is not None
    assert after.due < before.due, "a month is shorter than 45 days"


def test_a_correction_that_is_another_request_in_disguise_is_for_a_human(shop: Past) -> None:
    """And two corrections of one person are two: the second waits for the first and is not merged away."""
    wanted: list[tuple[int, dict[str, str]]] = [(1, {"email": "z@x.example"}), (1, {"email": "z@y.example"})]
    wanted += [(2, {"tier": "gold"}), (4, {"id": "11"})]
    for person in (1, 2, 4):
        known_by(shop, f"p{person}@example.com", person)
    names = [asked(shop, "rectification", f"p{person}@example.com", values=values) for person, values in wanted]
    book = at_work(shop).book.requests
    assert [book[name].state for name in names] == ["working", "received", "review", "review"]
    assert [held_for(book[name]) for name in names[2:]] == ["decided_field", "no_field"]
    assert say(shop, names[2], "approve", "ann").state == "working"
    assert say(shop, names[3], "approve", "ann").state == "review"


def test_a_person_is_all_records_of_the_merges_from_either_end_and_however_many(shop: Past) -> None:
    contract = shop.history.folder / "entities" / "customer.yaml"
    contract.write_text(contract.read_text() + "  merged_into: {type: identity_merge}\n")
    filed = []
    for person in range(1, 12):  # each went into the next
        moved = [{"field": "merged_into", "from": None, "to": str(person + 1)}]
        said_of(shop, person, {"key": {"id": person}, "moved": moved}, change_type="identity_merge")
        own = shop.settings.keyring.identifier_hash("merged.customer", str(person + 1))
        place = {"offset": person, "source": "crm", "generation": "g1", "batch": shop.history.batches, "kind": "merged"}
        filed.append(place | {"hash": own, "bucket": bucket(own, 16), "tag": shop.tag(person), "entity": "customer"})
    said_of(shop, 12, {"key": {"id": 12}, "before": None, "after": {"email": "last@example.com"}})
    shop.history._commit("identities", filed, "test", 2)
    sight = at_work(shop, 0).erasing.sight
    everybody = {shop.tag(person) for person in range(1, 13)}
    for end in (1, 6, 12):
        sight.put_away()
        assert set(sight.closure([shop.tag(end)])) == everybody
    back = [{"field": "merged_into", "from": "7", "to": None}]
    later = datetime(2100, 1, 1, tzinfo=UTC)
    said_of(shop, 6, {"key": {"id": 6}, "moved": back}, change_type="identity_merge", time=later)
    for end, rest in ((1, range(1, 7)), (12, range(7, 13))):
        sight.put_away()
        assert set(sight.closure([shop.tag(end)])) == {shop.tag(person) for person in rest}
