"""Letters to people: which is owed when, what it says under which law, and that it leaves at most once. The mail server is a real one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from test_rights_clocks import START, laws, request

from tidings.channels.email import Post
from tidings.errors import Refused
from tidings.rights import letters
from tidings.rights.asks import KINDS
from tidings.rights.book import Part, Request, Step
from tidings.rights.drafts import Draft
from tidings.rights.post import Office

SENDER = letters.Sender("Shop", "privacy@shop.example", letters.texts("en"))
PERSON = "person@mail.example"
STATES = {
    "completion": "fulfilled",
    "partly": "fulfilled",
    "unmatched": "refused",
    "hold": "review",
    "refusal": "refused",
}


class Inbox:
    def __init__(self, answer: str = "250 OK", dies: bool = False) -> None:
        self.mails: list[EmailMessage] = []
        self.answer, self.dies = answer, dies

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        envelope.rcpt_tos.append(address)
        return self.answer

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))  # type: ignore[arg-type]
        if self.dies:
            server.transport.abort()
        return "250 taken"


@contextmanager
def office(inbox: Inbox | None) -> Iterator[Office]:
    if inbox is None:
        yield Office(laws(), SENDER)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    controller = Controller(inbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        post = Post("127.0.0.1", port, False, "", "", "rights@shop.example", (), "", False, ("127.0.0.0/8",))
        yield Office(laws(), SENDER, post)
    finally:
        controller.stop()


def committed(made: Request, drafts: list[Draft], at: datetime) -> list[str]:
    for one in drafts:
        number = made.steps[-1].number + 1
        made.steps.append(Step(number, one.what, made.state, at, one.actor, one.reason, dict(one.details)))
    return [one.what for one in drafts]


def round_(place: Office, made: Request, at: datetime, to: str = PERSON) -> list[str]:
    """One round of the desk: commit, hand over, commit."""
    drafts, ready = place.prepare([made], lambda _: to, at)
    return committed(made, drafts, at) + committed(made, place.give(ready), at)


def wanting(kind: str, made: Request) -> Request:
    """The request as it stands when this letter is owed."""
    add = {
        "extension": "extension_asked", "refusal": "refused", "unmatched": "unmatched", "hold": "held", "lifting": "lift_asked"
    }.get(kind)  # fmt: skip
    made.state = STATES.get(kind, "verifying" if kind == "identity" else "working")
    if kind == "partly":
        made.parts["crm"] = Part("crm", "lane", "e", b"", b"", None, "excepted")
        add = "excepted"
    made.steps.append(
        Step(50, add or made.state, made.state, START, "ana", "legal_hold" if kind == "hold" else "BECAUSE", {})
    )
    if kind != "receipt":
        made.steps.append(Step(51, "letter:receipt", made.state, START, "", "", {}))
    return made


@pytest.mark.parametrize("kind", [kind for kind in letters.LETTERS if kind != "breach"])
@pytest.mark.parametrize("place", ["US-CA", "US-CO", "DE", "GB", "JP"])
def test_each_letter_is_owed_in_its_state_and_reads_well_under_each_law(kind: str, place: str) -> None:
    made = wanting(kind, request("erasure", place))
    made.assurance = "verified"
    assert letters.owed(made, laws(), START) == [kind]
    found = letters.written(made, kind, SENDER, laws(), START)
    assert "{" not in found.text
    assert "r1" in found.text
    assert "privacy@shop.example" in found.text
    assert ("BECAUSE" in found.text) == (kind in ("extension", "partly", "refusal", "lifting"))


@pytest.mark.parametrize("kind", ["completion", "partly", "unmatched", "hold", "refusal"])
@pytest.mark.parametrize("right", sorted(kind for kind in KINDS if KINDS[kind][1] != "none"))
def test_who_has_not_proved_who_they_are_does_not_learn_what_we_hold(kind: str, right: str) -> None:
    made = wanting(kind, request(right, "DE"))
    made.assurance = "claimed"
    text = letters.written(made, kind, SENDER, laws(), START).text
    assert "BECAUSE" not in text
    assert not any(word in text for word in ("It is done", "We hold nothing", "must be kept", "locked away"))


@pytest.mark.parametrize("right", ["know", "erasure", "restriction"])
def test_to_somebody_unproved_every_end_reads_the_same(right: str) -> None:
    ends = [(wanting(kind, request(right, "DE")), kind) for kind in STATES]
    found = [letters.written(made, kind, SENDER, laws(), START) for made, kind in ends]
    assert len({(one.subject, one.text) for one in found}) == 1


def test_a_refusal_names_the_way_on_of_each_law() -> None:
    def way_on(place: str, regulation: str = "") -> str:
        made = wanting("refusal", request("erasure", place, regulation=regulation))
        made.assurance = "verified"
        return letters.written(made, "refusal", SENDER, laws(), START).text

    assert "data protection authority" in way_on("DE")
    assert "Information Commissioner" in way_on("GB")
    assert "California Privacy Protection Agency" in way_on("US-CA")
    assert "attorney general of your state" in way_on("US-CO")
    assert "look at it again" in way_on("JP")
    both = way_on("DE", "ccpa")
    assert "data protection authority" in both
    assert "California" in both


def test_the_letter_of_an_extension_says_the_new_end() -> None:
    made = wanting("extension", request("erasure", "US-TX"))
    assert "by 2027-02-14 at the latest" in letters.written(made, "extension", SENDER, laws(), START).text


def test_a_letter_leaves_once_and_is_attested_by_its_digest() -> None:
    inbox, made = Inbox(), request("erasure", "US-CA")
    with office(inbox) as place:
        assert round_(place, made, START) == ["letter_sending:receipt", "letter:receipt"]
        assert round_(place, made, START + timedelta(days=1)) == []
    (mail,) = inbox.mails
    assert mail["To"] == PERSON
    sent = letters.written(made, "receipt", SENDER, laws(), START)
    assert made.happened("letter:receipt")[0].details["digest"] == sent.digest
    assert mail.get_content().split() == sent.text.split()
    assert PERSON not in repr(made.steps)


def test_a_crash_between_the_two_steps_sends_nothing_twice_and_becomes_a_task() -> None:
    made = request("erasure", "US-CA")
    with office(Inbox()) as place:
        drafts, _ = place.prepare([made], lambda _: PERSON, START)
        committed(made, drafts, START)  # and here the process dies
        assert round_(place, made, START + timedelta(minutes=1)) == []
        assert round_(place, made, START + timedelta(hours=1)) == ["letter_task:receipt"]
        assert round_(place, made, START + timedelta(hours=2)) == []


def test_a_server_that_dies_after_the_last_line_leaves_a_task() -> None:
    inbox, made = Inbox(dies=True), request("erasure", "US-CA")
    with office(inbox) as place:
        assert round_(place, made, START) == ["letter_sending:receipt", "letter_task:receipt"]
        assert round_(place, made, START + timedelta(days=1)) == []
    assert len(inbox.mails) == 1


def test_a_no_for_now_is_tried_again_and_a_no_for_good_is_a_task() -> None:
    busy, made = Inbox("451 later"), request("erasure", "US-CA")
    with office(busy) as place:
        assert round_(place, made, START) == ["letter_sending:receipt", "letter_failed:receipt"]
        assert round_(place, made, START + timedelta(minutes=1)) == []
        busy.answer = "250 OK"
        assert round_(place, made, START + timedelta(hours=1)) == ["letter_sending:receipt", "letter:receipt"]
    assert len(busy.mails) == 1
    with office(Inbox("550 nobody")) as place:
        assert round_(place, request("erasure", "US-CA"), START) == ["letter_sending:receipt", "letter_task:receipt"]


def test_without_a_mail_server_a_person_sends_what_a_law_wants_and_says_so() -> None:
    made = request("erasure", "US-CA")
    with office(None) as place:
        assert round_(place, made, START) == ["letter_task:receipt"]
        assert round_(place, request("erasure", "DE"), START) == []
    assert letters.by_hand(made, "receipt", "ana", "").what == "declined"
    committed(made, [letters.by_hand(made, "receipt", "ana", "ab" * 32)], START)
    assert made.happened("letter:receipt")[0].actor == "ana"
    assert letters.by_hand(made, "receipt", "ana", "ab" * 32).what == "declined"


@pytest.mark.parametrize("to", ["", "+49 30 1234567", "a@b.example\nBcc: all@b.example", "a@b.example, c@d.example"])
def test_what_is_no_single_address_gets_no_mail(to: str) -> None:
    with office(Inbox()) as place:
        drafts, ready = place.prepare([request("erasure", "US-CA")], lambda _: to, START)
    assert ready == []
    assert [one.what for one in drafts] == ["letter_task:receipt"]


def test_an_address_that_no_server_can_be_told_is_a_task_and_the_next_letter_leaves() -> None:
    inbox, first, second = Inbox(), request("erasure", "US-CA"), request("erasure", "US-CA")
    with office(inbox) as place:
        to = {id(first): "ü@mail.example", id(second): PERSON}
        _, ready = place.prepare([first, second], lambda one: to[id(one)], START)
        assert [one.what for one in place.give(ready)] == ["letter_task:receipt", "letter:receipt"]
    assert len(inbox.mails) == 1


def test_an_operator_changes_one_text_and_keeps_the_others(tmp_path: Path) -> None:
    own = tmp_path / "policy" / "letters"
    own.mkdir(parents=True)
    (own / "en.yaml").write_text("letters: {receipt: {subject: Got it}}\n")
    found = letters.texts("en", tmp_path)
    assert found["letters"]["receipt"]["subject"] == "Got it"
    assert found["letters"]["receipt"]["body"] == SENDER.texts["letters"]["receipt"]["body"]
    with pytest.raises(Refused, match="unknown_language"):
        letters.texts("xx", tmp_path)
