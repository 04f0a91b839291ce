"""Incidents on the clock, and the desk's rounds over requests and incidents that are written to the table. No JVM."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from test_rights_clocks import START, laws, request
from test_rights_letters import PERSON, SENDER, Inbox, office

from tidings.cli import main
from tidings.errors import Refused
from tidings.gate.own_clocks import with_own_clocks
from tidings.ledger.attestation import RightsTransition
from tidings.rights import incidents, intake, letters
from tidings.rights.asks import Word
from tidings.rights.book import Book, Request
from tidings.rights.clocks import Laws, clocks_of, shown
from tidings.rights.drafts import Draft
from tidings.rights.post import Office
from tidings.rights.rounds import Rounds
from tidings.rights.sweeper import sweep
from tidings.yaml_lines import parse

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
from history import LANE, NOW, History

FRIDAY = datetime(2026, 11, 20, 12, 17, tzinfo=UTC)
EVIDENCE = "ab" * 32


class Desk:
    """Writes drafts as the desk does, into a book in memory or into a table."""

    def __init__(self, book: Book | None = None) -> None:
        self.book = book or Book(None)  # type: ignore[arg-type]
        self.now = START
        self.written: list[str] = []

    def write(self, drafts: list[Draft], fresh: Request | None = None) -> None:
        for one in drafts:
            self.book.fold([self.made(one, fresh or self.book.requests[one.request])])
            self.written.append(one.what)

    def row(self, request: Request, what: str, state: str = "", **said: Any) -> dict[str, Any]:
        drafted = {name: said[name] for name in ("actor", "reason", "details", "due") if name in said}
        made = self.made(Draft(request.id, what, state=state, **drafted), request)
        self.book.fold([made])
        self.written.append(what)
        return made

    def commit(self, rows: Sequence[dict[str, Any]]) -> None:
        self.written.append(f"commit {len(rows)}")

    def made(self, one: Draft, known: Request) -> dict[str, Any]:
        empty = dict.fromkeys(
            ("assurance", "fingerprint", "kid", "key_file", "sealed", "tags", "hashes", "parts", "regulation")
        )
        number = known.steps[-1].number + 1 if known.steps else 1
        state = one.state or known.state
        entry = RightsTransition(
            attestor="tidings/small", timestamp="2026-11-16T17:00:00.000000Z", request=known.id, right=known.kind,
            state=state, previous_state=known.state, reason=f"{one.what} {one.reason}",
        ).encode()  # fmt: skip
        return empty | {
            "request": known.id, "step": number, "what": one.what, "kind": known.kind, "way": known.way, "opened": known.opened,
            "state": state, "jurisdiction": known.jurisdiction, "due": one.due, "changed": self.now, "actor": one.actor,
            "reason": one.reason, "details": list(one.details.items()), "entry": entry,
        }  # fmt: skip


def opened(places: str, at: datetime = FRIDAY, under: Laws | None = None) -> tuple[Desk, Request]:
    desk = Desk()
    desk.now = at
    word = Word(
        "incident-1", "incident", "ana", "A laptop.", says={"what": "open", "aware": at.isoformat(), "places": places}
    )
    made, draft = incidents.opened(word, under or laws())
    desk.write([draft], made)
    return desk, desk.book.requests["incident-1"]


def said(
    desk: Desk, made: Request, what: str, after: timedelta, reason: str = "Seen.", evidence: str = "", **says: str
) -> str:
    desk.now = made.opened + after
    word = Word(made.id, "incident", "ana", reason, evidence=evidence, says={"what": what, **says})
    draft = incidents.answer(made, word, laws(), desk.now)
    desk.write([draft])
    return draft.what if draft.what != "declined" else draft.reason


def test_seventy_two_hours_run_through_the_weekend() -> None:
    _, made = opened("DE")
    ends = {one.statute: shown(one.due) for one in clocks_of(made, laws(), FRIDAY)}
    assert ends == {"eu-gdpr-breach-sa": "2026-11-23T12:17:00Z", "eu-gdpr-breach-subject": None}
    assert shown(made.due) == "2026-11-23T12:17:00Z"


@pytest.mark.parametrize(
    ("reading", "end"),
    [("skip_hour", "2026-11-23T13:00:00Z"), ("two_working_days", "2026-11-24T12:17:00Z")],
)
def test_the_two_readings_lengthen_it_when_counsel_chose_them(reading: str, end: str) -> None:
    document, _ = parse(f"clocks:\n  eu-gdpr-breach-sa: {{readings: [{reading}]}}\n", "policy/p.yaml")
    assert document is not None
    statutes, problems = with_own_clocks(laws().statutes, [document])
    assert problems == []
    _, made = opened("DE", under=Laws(statutes))
    assert shown(made.due) == end


def test_an_incident_is_assessed_notified_and_closed_in_that_order() -> None:
    desk, made = opened("DE,US-CA")
    hours = timedelta(hours=1)
    assert "Notices are owed" in said(desk, made, "close", hours)
    assert "why" in said(desk, made, "assess", hours, reason="", risk="high")
    assert said(desk, made, "assess", hours, risk="high") == "assessed"
    assert made.state == "working"
    assert "evidence" in said(desk, made, "notify", 2 * hours, clock="eu-gdpr-breach-sa")
    assert "No clock" in said(desk, made, "notify", 2 * hours, evidence=EVIDENCE, clock="eu-gdpr-erase")
    assert said(desk, made, "notify", 2 * hours, evidence=EVIDENCE, clock="eu-gdpr-breach-sa") == "notified"
    owed = {one.statute for one in incidents.owed_notices(made, laws(), desk.now)}
    assert owed == {"eu-gdpr-breach-subject", "us-ca-breach"}
    for clock in sorted(owed):
        assert said(desk, made, "notify", 3 * hours, evidence=EVIDENCE, clock=clock) == "notified"
    assert said(desk, made, "close", 4 * hours) == "closed"
    assert made.state == "fulfilled"
    assert sweep([made], laws(), FRIDAY + timedelta(days=400)) == []
    assert "closed" in said(desk, made, "close", 5 * hours)


def test_people_are_told_under_article_34_only_where_the_risk_is_high() -> None:
    desk, made = opened("DE")
    said(desk, made, "assess", timedelta(hours=1), risk="risk")
    assert [one.statute for one in incidents.owed_notices(made, laws(), desk.now)] == ["eu-gdpr-breach-sa"]


def test_what_need_not_be_notified_is_kept_with_its_reason_and_owes_nothing() -> None:
    desk, made = opened("DE")
    assert said(desk, made, "assess", timedelta(hours=1), reason="It was encrypted.", risk="none") == "not_notifiable"
    assert said(desk, made, "close", timedelta(hours=2)) == "closed"
    assert made.happened("not_notifiable")[0].reason == "It was encrypted."


def test_the_notice_to_people_is_a_frame_that_names_the_laws() -> None:
    _, made = opened("DE,US-CA")
    found = letters.written(made, "breach", SENDER, laws(), FRIDAY)
    assert found.text.count("[to be written]") == 4
    assert "incident-1" in found.text
    assert "Art. 34" in found.text
    with pytest.raises(Refused, match="unknown_letter"):
        letters.written(made, "receipt", SENDER, laws(), FRIDAY)


def test_a_late_notice_needs_its_reason_and_the_breach_stays_on_record() -> None:
    desk, made = opened("DE")
    desk.now = FRIDAY + timedelta(hours=80)
    desk.write([one for one in sweep([made], laws(), desk.now) if one.what == "breached"])
    late = timedelta(hours=81)
    assert "says why" in said(desk, made, "notify", late, reason="", evidence=EVIDENCE, clock="eu-gdpr-breach-sa")
    assert said(desk, made, "notify", late, evidence=EVIDENCE, clock="eu-gdpr-breach-sa") == "notified"
    assert made.happened("notified")[0].details["late"] == "True"
    assert [step.details["clock"] for step in made.happened("breached")] == ["eu-gdpr-breach-sa"]


def test_an_incident_escalates_by_the_hour() -> None:
    desk, made = opened("DE")
    said(desk, made, "assess", timedelta(hours=1), risk="risk")
    for hour in range(1, 100):
        desk.now = FRIDAY + timedelta(hours=hour)
        desk.write(sweep([made], laws(), desk.now))
    levels = [(step.details["level"], (step.at - FRIDAY) // timedelta(hours=1)) for step in made.happened("escalated")]
    assert levels == [("50", 36), ("75", 54), ("90", 65)]
    assert len(made.happened("breached")) == 1


def test_who_is_concerned_is_counted_by_recipient_and_interval(tmp_path: Path) -> None:
    past = History(tmp_path / "shop")
    past.batch(20, people=3)
    past.batch(10, people=4)
    past.batch(5, people=2, settled=False)

    def found(since: int, until: int, *names: str) -> tuple[int, int]:
        days = [NOW - timedelta(days=age) for age in (since, until)]
        one = incidents.concerned(past.settings, past.store, names or (LANE,), *days)
        return one.events, len(one.people)

    assert found(30, 0) == (7, 4)
    assert found(15, 0) == (4, 4)
    assert found(30, 15) == (3, 3)
    assert found(30, 0, "somebody") == (0, 0)


def test_an_incident_is_opened_by_the_verb_and_refused_where_it_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    past = History(tmp_path / "shop")
    past.batch(20, people=3)
    here = ["-C", str(tmp_path / "shop"), "--json"]
    aware = NOW.isoformat()
    with pytest.raises(SystemExit) as ended:
        main(
            ["rights", "incident", "open", "--aware", aware, "--by", "ana", "--place", "DE", "--recipient", LANE, *here]
        )
    assert not ended.value.code
    told = json.loads(capsys.readouterr().out)
    assert told["concerned"] == {"events": 3, "people": 3, "erased_events": 0}
    (slip,) = intake.waiting(past.settings)
    assert isinstance(slip.body, Word)
    assert slip.body.says["people"] == "3"
    for wrong in (["--aware", "2026-11-16", "--place", "DE"], ["--aware", aware, "--place", "XX"]):
        with pytest.raises(SystemExit) as ended:
            main(["rights", "incident", "open", "--by", "ana", *wrong, *here])
        assert ended.value.code == Refused.exit_code


def folder(tmp_path: Path, made: Request) -> History:
    """A folder whose table holds one request."""
    past, desk = History(tmp_path / "shop"), Desk()
    first = Draft(made.id, "received", state=made.state, details={})
    fresh = Request(made.id, made.kind, made.way, made.opened, jurisdiction=made.jurisdiction)
    past._commit("rights_requests", [desk.made(first, fresh)], "desk", 0)
    return past


def test_the_verbs_show_clocks_and_letters_from_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    past = folder(tmp_path, request("erasure", "US-CA"))
    here = ["-C", str(past.folder), "--json"]
    for arguments in (["clocks", "r1"], ["clocks"], ["letter", "r1", "receipt", "--preview"]):
        with pytest.raises(SystemExit) as ended:
            main(["rights", *arguments, *here])
        assert not ended.value.code
        told = json.loads(capsys.readouterr().out)
        if arguments == ["clocks", "r1"]:
            assert [one["statute"] for one in told["clocks"]] == ["us-ca-ccpa-ack", "us-ca-ccpa-delete"]
        elif arguments == ["clocks"]:
            assert told["requests"][0]["due"] == "2026-12-31T17:00:00Z"
        else:
            assert "by 2026-12-31" in told["text"]


def test_a_round_commits_before_a_letter_leaves_and_an_extension_takes_effect_after_it() -> None:
    inbox, desk = Inbox(), Desk()
    with office(inbox) as place:
        rounds = Rounds(desk.book, desk, place, lambda _: PERSON)
        made = request("erasure", "US-CA")
        desk.write(
            [Draft("r1", "received", state="working")], Request("r1", "erasure", "cli", START, jurisdiction="US-CA")
        )
        made = desk.book.requests["r1"]
        for day in range(60):
            desk.now = START + timedelta(days=day)
            if day == 20:
                word = Word("r1", "extend", "ana", "Many systems.")
                assert rounds.mine(word)
                desk.commit(list(rounds.said(word, "slip-1", desk.now)))
                assert list(rounds.said(word, "slip-1", desk.now)) == []
            rounds.tick(desk.now)
    assert [mail["Subject"].split(" [")[0] for mail in inbox.mails] == [
        "We have your request",
        "We need more time for your request",
    ]
    assert "by 2027-02-14" in inbox.mails[1].get_content()
    assert shown(made.due) == "2027-02-14T17:00:00Z"
    order = [what for what in desk.written if "extension" in what or what == "extended"]
    sending = desk.written.index("letter_sending:extension")
    assert desk.written[sending + 1].startswith("commit"), "what is about to leave is committed before it leaves"
    assert order == ["extension_asked", "letter_sending:extension", "letter:extension", "extended"]
    assert "breached" not in desk.written


def test_a_letter_by_hand_ends_the_task() -> None:
    desk = Desk()
    rounds = Rounds(desk.book, desk, Office(laws(), SENDER), lambda _: "")
    desk.write([Draft("r1", "received", state="working")], Request("r1", "erasure", "cli", START, jurisdiction="US-CA"))
    made = desk.book.requests["r1"]
    rounds.look(START)
    assert made.happened("letter_task:receipt")
    word = Word("r1", "done", "ana", recipient="letter:receipt", evidence=EVIDENCE)
    assert rounds.mine(word)
    desk.commit(list(rounds.said(word, "slip-2", START)))
    assert made.happened("letter:receipt")


def test_an_incident_enters_the_book_by_its_word_and_its_clock_runs_from_awareness() -> None:
    desk = Desk()
    rounds = Rounds(desk.book, desk, Office(laws(), SENDER), lambda _: "")
    says = {"what": "open", "aware": FRIDAY.isoformat(), "places": "DE,US-CA"}
    desk.commit(list(rounds.said(Word("incident-9", "incident", "ana", "Lost.", says=says), "slip-1", FRIDAY)))
    made = desk.book.requests["incident-9"]
    assert (made.kind, made.state, shown(made.due)) == ("incident", "received", "2026-11-23T12:17:00Z")
    assert {one.place for one in clocks_of(made, laws(), FRIDAY)} == {"DE", "US-CA"}
