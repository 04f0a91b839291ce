"""What is over goes, attested first; nothing else goes; whoever dies in between finishes the next time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from history import NOW, History
from small import Small, World
from warm import WarmJvm

from tidings.attest import advance, ledger_of
from tidings.care import expire as let_go
from tidings.cli import main
from tidings.gate.clocks import add_months
from tidings.lanes import control
from tidings.ledger.opening import own_key
from tidings.ledger.verification import verify_ledger
from tidings.report.account import reconcile
from tidings.report.people import events_of
from tidings.store import is_bare

pytestmark = pytest.mark.timeout(300)

POLICY = """\
retention:
  events: {months: 13}
  proof: {years: 2, statutes: [us-hipaa-docs, us-tsr-records]}
  quarantine: {days: 90}
  archive: {days: 30}
"""
AGES = (2600, 2500, 800, 20)  # days: two beyond the proof's six years, one beyond thirteen months, one young


def tidings(folder: Path, *more: str) -> tuple[int, Any]:
    """A verb as a person would call it: its exit code and its answer."""
    said, code = StringIO(), 0
    with redirect_stdout(said):
        try:
            main([*more, "-C", str(folder), "--json"])
        except SystemExit as end:
            code = int(end.code or 0)
    return code, json.loads(said.getvalue())


def killed(history: History, point: str) -> None:
    command = [sys.executable, "-m", "tidings.cli", "gate", "expire", "-C", str(history.folder)]
    env = os.environ | {"TIDINGS_CRASH_AT": point}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def expire(history: History) -> list[dict[str, Any]]:
    code, said = tidings(history.folder, "gate", "expire")
    assert code == 0, said
    went: list[dict[str, Any]] = said["went"]
    return went


def told(history: History) -> list[dict[str, Any]]:
    """The entries that attest what went, in the order of their rows."""
    rows = history.store.arrow("attempts", ["lane", "call", "entry"]).to_pylist()
    mine = sorted((row["call"], row["entry"]) for row in rows if row["lane"] == "_retention")
    return [json.loads(entry) for _, entry in mine]


def left(history: History) -> dict[int, str]:
    """Age → what the journal still holds of its batch: all of it, or the row alone."""
    found: dict[int, set[str]] = {}
    for row in history.store.arrow("journal", ["event_id", "payload"]).to_pylist():
        found.setdefault(history.events[row["event_id"]], set()).add("bare" if row["payload"] is None else "whole")
    return {age: " and ".join(sorted(states)) for age, states in found.items()}


def verified(history: History) -> None:
    verdict = verify_ledger(history.settings.data_path / "ledger", own_key(history.folder))
    assert verdict.problems == []
    assert verdict.entries > 0


@pytest.fixture
def history(tmp_path: Path) -> History:
    made = History(tmp_path / "operator")
    made.policy(POLICY)
    for age in AGES:
        made.batch(age)
    for age in (200, 10):
        made.quarantined(age)
    return made


def test_what_is_over_goes_and_nothing_else(history: History) -> None:
    old, young = history.archived(100), history.archived(3)
    twice = history.archived(50, "duplicates")
    history.attest()
    went = expire(history)

    assert left(history) == {800: "bare", 20: "whole"}
    assert [(one["class"], one["records"], one["rows"]) for one in went] == [
        ("proof", "journal", 6),
        ("events", "journal", 3),
        ("proof", "settled", 6),
        ("proof", "attempts", 2),
        ("quarantine", "quarantine", 1),
        ("archive", "archive/crm", 2),
    ]
    store = history.store
    assert store.arrow("settled", ["offset"]).num_rows == 6
    lanes = store.arrow("attempts", ["lane"])["lane"].to_pylist()
    assert (lanes.count("least"), lanes.count("_retention")) == (2, 6)
    [row] = store.arrow("quarantine", ["arrived"]).to_pylist()
    assert row["arrived"] > NOW - timedelta(days=11)
    assert (old.exists(), twice.exists(), young.exists()) == (False, False, True)

    assert expire(history) == []
    verified(history)
    assert reconcile(store, {"crm": {"events": 12}})["problems"] == []


def test_it_is_attested_with_its_duty_and_what_went(history: History) -> None:
    history.attest()
    expire(history)
    proof = told(history)[0]
    assert (proof["kind"], proof["record_class"], proof["records"], proof["goes"]) == (
        "expired",
        "proof",
        "journal",
        "rows",
    )
    assert (proof["count"], proof["files"]) == (6, 2)
    assert "us-hipaa-docs" in proof["duty"]
    newest = (NOW - timedelta(days=2500)).date()
    assert proof["keep_until"] == str(add_months(newest, 72))
    assert proof["feeds"]["crm/g1"]["rows"] == 6
    assert proof["policy_version"] == history.settings.policy_version


def test_an_event_without_its_payload_is_proven_and_found_all_the_same(history: History, tmp_path: Path) -> None:
    history.attest()
    expire(history)
    code, said = tidings(history.folder, "prove", "event-2-0", "-o", str(tmp_path / "receipt.json"))
    assert (code, said["entries"]) == (0, 3)
    code, said = tidings(history.folder, "verify", str(tmp_path / "receipt.json"))
    assert (code, said["verified"]) == (0, True)
    rows = events_of(history.settings, history.store, [history.tag(1)])
    assert [row["data"].get("expired", False) for row in rows] == [True, False]
    assert rows[1]["data"]["after"] == {"email": "b"}


def test_nothing_goes_when_nobody_named_a_class(history: History) -> None:
    history.policy("version: '1'\nrules: []\n")
    history.attest()
    code, said = tidings(history.folder, "gate", "expire")
    assert (code, said["classes"], said["went"]) == (0, [], [])
    assert left(history) == dict.fromkeys(AGES, "whole")
    assert told(history) == []


def test_what_the_ledger_has_not_read_is_read_before_it_goes(history: History) -> None:
    """Nothing was attested before; the verb attests first, and the entries of what went are in the ledger."""
    expire(history)
    assert left(history) == {800: "bare", 20: "whole"}
    verified(history)
    logs = {path.parent.name for path in (history.settings.data_path / "ledger").glob("standard/*/vkey")}
    assert str((NOW - timedelta(days=2600)).year) in logs


def test_what_the_ledger_has_not_read_stays(history: History) -> None:
    code, said = tidings(history.folder, "gate", "expire", "--dry-run")
    assert (code, {one["records"] for one in said["would_go"]}) == (0, {"quarantine"})
    assert {one["reason"] for one in said["stays"]} == {"the ledger has not read it yet"}


def test_calls_that_a_lane_would_read_again_stay(history: History) -> None:
    history.batch(2400, moved=False)
    history.attest()
    _, said = tidings(history.folder, "gate", "expire", "--dry-run")
    assert [(one["records"], one["reason"]) for one in said["stays"]] == [("attempts", "lane least may read it again")]
    expire(history)
    rows = history.store.arrow("attempts", ["lane", "cycle"]).to_pylist()
    assert sorted(row["cycle"] for row in rows if row["lane"] == "least") == [3, 4, 7]


def test_open_events_stay_and_so_does_what_proves_younger_ones(history: History) -> None:
    history.batch(2400, settled=False)
    history.attest()
    code, said = tidings(history.folder, "gate", "expire", "--dry-run")
    assert code == 0
    assert {(one["record_class"], one["reason"]) for one in said["stays"]} == {
        ("proof", "3 events are not settled"),
        ("events", "3 events are not settled"),
    }
    expire(history)
    assert left(history) == {2400: "whole", 800: "bare", 20: "whole"}
    cycles = history.store.arrow("attempts", ["lane", "cycle"]).to_pylist()
    assert sorted(row["cycle"] for row in cycles if row["lane"] == "least") == [3, 4, 7]


def test_a_dead_letter_keeps_its_event_until_somebody_answers(history: History) -> None:
    events = history.batch(700, people=1, final="dead_lettered")
    history.attest()
    expire(history)
    assert left(history)[700] == "whole"
    place = {"event": events[0], "source": "crm", "generation": "g1", "offset": 0}
    control.ask(history.settings.data_path, "least", "approve", "the shop is closed", "ann", **place)
    assert [(one["class"], one["rows"]) for one in expire(history)] == [("events", 1)]
    assert left(history)[700] == "bare"
    code, said = tidings(history.folder, "dead-letters", "retry", events[0], "--reason", "after all")
    assert (code, said["error"]["code"]) == (3, "payload_expired")


def test_dead_letters_may_have_a_time_of_their_own(history: History) -> None:
    history.batch(700, people=1, final="dead_lettered")
    history.policy(POLICY + "  dead_letters: {months: 18}\n")
    expire(history)
    assert left(history)[700] == "bare"


ALL = dict.fromkeys(AGES[:3], "whole")
HOLDS = [
    ("class: events", {800: "whole"}),
    ("class: proof", {2600: "bare", 2500: "bare", 800: "bare"}),
    ("source: crm", ALL),
    ("source: erp", {800: "bare"}),
    ("entity: customer", ALL),
    ("entity: shopper", {800: "bare"}),
    ("class: quarantine", {800: "bare"}),
    (f"to: '{(NOW - timedelta(days=2550)).date()}'", {2600: "whole", 800: "bare"}),
]


@pytest.mark.parametrize(("hold", "expected"), HOLDS)
def test_a_hold_keeps_what_it_covers(history: History, hold: str, expected: dict[int, str]) -> None:
    history.policy(POLICY + f"holds: [{{{hold}, reason: case 12, by: counsel, since: '2026-01-01'}}]\n")
    went = expire(history)
    assert left(history) == {**expected, 20: "whole"}
    gone = {(one["class"], one["records"]) for one in went}
    assert (("quarantine", "quarantine") in gone) is (hold not in ("source: crm", "class: quarantine"))
    verified(history)


def test_a_person_under_a_legal_hold_keeps_the_files_they_are_in(history: History) -> None:
    history.on_hold(1, version="1")
    expire(history)
    assert left(history) == dict.fromkeys(AGES, "whole")
    history.on_hold(1, "withdrawn", version="2")
    expire(history)
    assert left(history) == {800: "bare", 20: "whole"}


def test_months_stay_apart_when_files_are_merged(history: History) -> None:
    for age in (2500, 2500, 20, 20):
        history.batch(age)
    history.attest()
    history.store.compact("journal")
    history.store.compact("attempts")
    months = {(f.maximum["recorded"].year, f.maximum["recorded"].month) for f in history.store.files("journal")}
    assert len(history.store.files("journal")) == len(months) == len(AGES)
    expire(history)
    assert left(history) == {800: "bare", 20: "whole"}
    history.batch(801)
    history.attest()
    history.store.compact("journal")
    assert left(history) == {800: "bare", 801: "whole", 20: "whole"}
    assert sum(map(is_bare, history.store.files("journal"))) == 1


def test_what_went_leaves_the_disk_when_no_reader_can_want_it(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = [
        Path(file.path) for file in history.store.files("journal") if file.maximum["recorded"] < NOW - timedelta(400)
    ]
    assert len(over) == 3
    with ledger_of(history.settings) as ledger:
        for hours in (48, 0):
            monkeypatch.setattr("tidings.store.VACUUM_HOURS", hours)
            advance(history.store, ledger)
            let_go(history.folder, history.store, ledger.position, NOW.timestamp())
            assert [path.exists() for path in over] == [hours > 0] * 3
    assert left(history) == {800: "bare", 20: "whole"}
    verified(history)


@pytest.mark.spark
def test_a_run_lets_go_by_itself_and_goes_on(history: History, jvm: WarmJvm) -> None:
    history.attest()
    small = Small(history.folder, World(history.folder / "drop", ("crm",)), history.folder / "book", jvm)
    small.finish()
    assert left(history) == {800: "bare", 20: "whole"}
    small.finish()
    assert left(history) == {800: "bare", 20: "whole"}
    verified(history)


@pytest.mark.parametrize("point", ["expiry.planned", "expiry.attested", "expiry.removed:1", "expiry.removed:4"])
def test_who_dies_in_between_finishes_the_next_time(history: History, point: str) -> None:
    archived = history.archived(100)
    history.attest()
    killed(history, point)
    verified(history)
    attested = len(told(history))
    assert attested == (0 if point == "expiry.planned" else 6)
    expire(history)
    assert left(history) == {800: "bare", 20: "whole"}
    assert not archived.exists()
    assert len(told(history)) == 6
    verified(history)
    assert reconcile(history.store, {"crm": {"events": 12}})["problems"] == []
    assert expire(history) == []


def test_a_hold_that_comes_in_between_is_respected_and_said(history: History) -> None:
    history.attest()
    killed(history, "expiry.removed:1")
    assert left(history) == {800: "whole", 20: "whole"}
    history.policy(POLICY + "holds: [{class: events, reason: case 12, by: counsel, since: '2026-01-01'}]\n")
    expire(history)
    assert left(history) == {800: "whole", 20: "whole"}
    again = [entry for entry in told(history) if entry.get("replaces") == 1]
    assert {(entry["record_class"], entry["count"]) for entry in again if entry["records"] == "journal"} == {("proof", 6), ("events", 0)}  # fmt: skip
    assert reconcile(history.store, {"crm": {"events": 12}})["problems"] == []
    verified(history)


def test_the_report_says_what_is_kept_until_when_and_why(history: History) -> None:
    history.attest()
    code, said = tidings(history.folder, "report", "retention")
    assert code == 0
    by_name = {one["class"]: one for one in said["classes"]}
    oldest = (NOW - timedelta(days=2600)).date()
    assert by_name["proof"]["oldest"] == str(oldest)
    assert by_name["proof"]["keep_until"] == str(add_months(oldest, 72))
    assert "45 CFR" in by_name["proof"]["duty"]
    assert (by_name["events"]["records"], by_name["events"]["would_go"]) == (12, 3)
    assert by_name["ledger"]["would_go"] == 0
    assert left(history) == dict.fromkeys(AGES, "whole")


def test_another_day_is_only_for_looking(history: History) -> None:
    code, said = tidings(history.folder, "gate", "expire", "--now", "2040-01-01")
    assert (code, said["error"]["code"]) == (3, "only_dry_run")
    history.attest()
    code, said = tidings(history.folder, "gate", "expire", "--dry-run", "--now", "2040-01-01")
    assert sum(one["rows"] for one in said["would_go"] if one["records"] == "journal") == 12
    assert left(history) == dict.fromkeys(AGES, "whole")
