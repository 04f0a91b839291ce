"""Consents and erasures keep their payload longer than other events of the same file, when the operator names their class. No JVM."""

from __future__ import annotations

import json
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from history import LANE, History

from tidings.cli import main
from tidings.ledger.verification import verify_ledger
from tidings.store import worn

POLICY = "retention:\n  events: {months: 13}\n  consent_events: {years: 5}\n  erasure_events: {months: 24}\n"
KINDS = ({"change_type": "email"}, {"change_type": "consent"}, {"change_type": "delete"})


def tidings(folder: Path, *more: str) -> Any:
    said = StringIO()
    with redirect_stdout(said), suppress(SystemExit):
        main([*more, "-C", str(folder), "--json"])
    return json.loads(said.getvalue())


@pytest.fixture
def history(tmp_path: Path) -> History:
    """One month of three kinds of event, 450 days ago, in one file."""
    made = History(tmp_path / "operator")
    for kind in KINDS:
        made.batch(450, people=2, row=kind)
    made.attest()
    made.store.compact("journal", keep_above=made.store.version("journal"))
    made.policy(POLICY)
    return made


def sealed(history: History) -> dict[str, int]:
    rows = history.store.arrow("journal", ["change_type", "payload"]).to_pylist()
    found: dict[str, int] = {row["change_type"]: 0 for row in rows}
    for row in rows:
        found[row["change_type"]] += row["payload"] is not None
    return found


def went(history: History) -> list[tuple[str, int]]:
    return [(one["class"], one["rows"]) for one in tidings(history.folder, "gate", "expire")["went"]]


def test_only_what_is_over_loses_its_payload(history: History) -> None:
    assert len(history.store.files("journal")) == 1
    assert went(history) == [("events", 2)]
    assert sealed(history) == {"email": 0, "consent": 2, "delete": 2}
    assert [worn(file) for file in history.store.files("journal")] == ["kept-"]
    assert went(history) == []  # and not again tomorrow
    forecast = tidings(history.folder, "replay", "--subscriber", LANE, "--dry-run", "--again")
    assert (forecast["counts"]["expired"], forecast["counts"]["sent"]) == (2, 2)  # the newer of each person
    history.attest()
    assert not verify_ledger(history.settings.data_path / "ledger").problems


def test_the_rest_goes_with_the_longest_class_and_a_hold_keeps_it(history: History) -> None:
    went(history)
    history.policy(POLICY.replace("years: 5", "months: 14"))
    assert went(history) == []  # deletions are kept for two years
    shorter = POLICY.replace("years: 5", "months: 14").replace("months: 24", "months: 14")
    history.policy(shorter + "holds: [{class: consent_events, reason: case 12, by: counsel, since: '2026-01-01'}]\n")
    assert went(history) == []
    history.policy(shorter)
    assert went(history) == [("consent_events", 4)]
    assert sealed(history) == {"email": 0, "consent": 0, "delete": 0}
    assert [worn(file) for file in history.store.files("journal")] == ["bare-"]


def test_without_a_class_of_their_own_they_go_with_the_events(history: History) -> None:
    history.policy("retention:\n  events: {months: 13}\n")
    assert went(history) == [("events", 6)]
    assert sealed(history) == {"email": 0, "consent": 0, "delete": 0}


def test_rows_stay_while_a_payload_in_them_does(history: History) -> None:
    history.policy(POLICY + "  proof: {months: 14}\n")
    assert ("proof", 6) not in went(history)
    assert history.store.arrow("journal", ["event_id"]).num_rows == 6
    said = tidings(history.folder, "report", "retention")
    assert {one["class"] for one in said["classes"]} >= {"consent_events", "erasure_events"}
