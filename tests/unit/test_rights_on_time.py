"""The desk keeps time: a request that is taken in is due by its laws, swept, and answered for in letters. No JVM."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from test_rights_letters import Inbox, office

from tidings.rights import intake
from tidings.rights.asks import Ask, Identifier, Word
from tidings.rights.book import Book
from tidings.rights.clocks import due_of, shown
from tidings.rights.desk import Desk

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
from history import History

PERSON = "somebody@mail.example"


def test_an_unmatched_request_is_due_and_answered_by_the_neutral_letter_once(tmp_path: Path) -> None:
    past, inbox = History(tmp_path / "shop"), Inbox()
    received = datetime.now(UTC) - timedelta(days=1)
    identifiers = (Identifier("email", PERSON),)
    name = intake.hand_in(
        past.settings, Ask("erasure", identifiers, "cli", received, jurisdiction="US-CA", contact=PERSON)
    )
    with office(inbox) as place:
        desk = Desk(past.settings, past.store, lambda _: None)
        desk.rounds.office = replace(desk.rounds.office, post=place.post)
        for _ in range(3):
            desk.rounds.looked = None
            desk.step()
    request = Book(past.store).refresh().requests[name]
    assert request.state == "refused"
    assert shown(request.due) == shown(due_of(request, desk.asking.laws, received)), "by the law of California"
    assert [mail["To"] for mail in inbox.mails] == [PERSON]
    assert "hold nothing" not in inbox.mails[0].get_content()
    said = [step.what for step in request.steps]
    assert said[-3:] == ["letter_sending:unmatched", "letter:unmatched", "ask_forgotten"]


def test_an_incident_goes_through_the_desk_and_its_breach_is_a_cause_for_alarm(tmp_path: Path) -> None:
    past = History(tmp_path / "shop")
    aware = datetime.now(UTC) - timedelta(hours=73)
    says = {"what": "open", "aware": aware.isoformat(), "places": "DE"}
    intake.say(past.settings, Word("incident-1", "incident", "ana", "Lost.", says=says))
    desk = Desk(past.settings, past.store, lambda _: None)
    desk.step()
    assert [kind for kind, _, _ in desk.rounds.causes(datetime.now(UTC))] == ["rights_breach"]
    intake.say(past.settings, Word("incident-1", "incident", "ana", "Late.", says={"what": "assess", "risk": "risk"}))
    notice = {"what": "notify", "clock": "eu-gdpr-breach-sa"}
    intake.say(past.settings, Word("incident-1", "incident", "ana", "Late.", evidence="ab" * 32, says=notice))
    intake.say(past.settings, Word("incident-1", "incident", "ana", says={"what": "close"}))
    desk.step()
    request = Desk(past.settings, past.store, lambda _: None).book.requests["incident-1"]
    assert request.state == "fulfilled"
    assert desk.rounds.causes(datetime.now(UTC)) == []
