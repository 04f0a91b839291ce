"""An erased person leaves every table and the disk; nobody else does; a kill in between changes nothing about the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from erased_history import BATCHES, PEOPLE, Past, email, hashed
from scanner import Scanner

from tidings.rights.scrub import STATE, blank_lines, forget_quarantined, reduce_journal, scrub

GONE, STAYS = 3, 4


def keyed(one: Past, person: int) -> list[tuple[str, bytes]]:
    return [("tag", one.tag(person)), ("hash", hashed(one, person))]


@pytest.fixture
def before(tmp_path: Path, made: Past) -> Past:
    return made.copied(tmp_path / "operator")


def test_nothing_keyed_by_the_person_is_left_on_the_disk(before: Past) -> None:
    scanner = Scanner.of_bytes(keyed(before, GONE))
    assert {find.identifier for find in scanner.scan(before.data)} == {"tag", "hash"}, "they are there to be found"
    gone = scrub(before.store, before.keys, [before.tag(GONE)])
    assert (gone.journal, gone.state, gone.keys) == (BATCHES, len(STATE), BATCHES)
    assert scanner.scan(before.data) == set()


def test_everybody_else_is_as_they_were(before: Past) -> None:
    def rows(table: str) -> list[str]:
        found = before.store.arrow(table).to_pylist()
        return sorted(json.dumps(row, default=repr) for row in found if row.get("tag") != before.tag(GONE))

    theirs = {kid for _, kid, _ in before.keys.find(before.tag(GONE))}
    journal = [row for row in before.store.arrow("journal").to_pylist() if row["kid"] not in theirs]
    others = {table: rows(table) for table in STATE}
    keys = before.keys.of([before.tag(person) for person in range(PEOPLE) if person != GONE])
    scrub(before.store, before.keys, [before.tag(GONE)])
    assert {table: rows(table) for table in STATE} == others
    assert [row for row in before.store.arrow("journal").to_pylist() if row["kid"] not in theirs] == journal
    assert before.keys.of([before.tag(person) for person in range(PEOPLE)]) == keys


def test_their_rows_keep_what_the_ledger_needs_and_nothing_else(before: Past) -> None:
    theirs = {kid for _, kid, _ in before.keys.find(before.tag(GONE))}
    entries = {row["event_id"]: row["entry"] for row in before.store.arrow("journal").to_pylist()}
    scrub(before.store, before.keys, [before.tag(GONE)])
    rows = [row for row in before.store.arrow("journal").to_pylist() if row["kid"] in theirs]
    assert len(rows) == BATCHES
    assert all(row["payload"] is None and row["change"] is None for row in rows)
    assert all(row["entry"] == entries[row["event_id"]] for row in rows)


def test_the_word_that_they_are_erased_stays(before: Past) -> None:
    row = before.store.lookup("subjects", [before.tag(GONE)]).to_pylist()[0]
    stone = row | {"version": "2", "flags": ["erased:1772443000000:1:gone"], "consents": None}
    before.history._commit("subjects", [stone], "desk", 1)
    scrub(before.store, before.keys, [before.tag(GONE)])
    assert [row["flags"] for row in before.store.lookup("subjects", [before.tag(GONE)]).to_pylist()] == [stone["flags"]]


def test_a_second_time_does_nothing(before: Past) -> None:
    scrub(before.store, before.keys, [before.tag(GONE)])
    versions = {table: before.store.version(table) for table in (*STATE, "journal")}
    again = scrub(before.store, before.keys, [before.tag(GONE)])
    assert (again.journal, again.state, again.keys) == (0, 0, 0)
    assert {table: before.store.version(table) for table in (*STATE, "journal")} == versions


VICTIM = """
import sys
sys.path[:0] = [{recovery!r}, {here!r}]
from pathlib import Path
from history import History
from erased_history import Past
from tidings.rights.scrub import scrub
from tidings.settings import load
from tidings.store import Store
from tidings.seal.keyfiles import KeyFiles
settings = load(Path({folder!r}))
keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
scrub(Store(settings.data_path / "tables"), keys, [bytes.fromhex({tag!r})])
"""


@pytest.mark.parametrize("point", ["compact.before_commit", "scrub.journal", "scrub.state", "scrub.unlinked"])
def test_killed_anywhere_it_is_done_again_and_ends_the_same(before: Past, point: str) -> None:
    here = Path(__file__).parent
    code = VICTIM.format(
        recovery=str(here.parent / "recovery"),
        here=str(here),
        folder=str(before.settings.directory),
        tag=before.tag(GONE).hex(),
    )
    env = os.environ | {"TIDINGS_CRASH_AT": f"{point}:1"}
    died = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    scrub(before.store, before.keys, [before.tag(GONE)])
    before.store.sweep(older_than=-1)  # an hour later
    assert Scanner.of_bytes(keyed(before, GONE)).scan(before.data) == set()
    assert len(before.store.lookup("last_seen", [before.tag(STAYS)])) == 1


def test_later_clean_up_does_not_miss_the_unlinked_files(before: Past) -> None:
    scrub(before.store, before.keys, [before.tag(GONE)])
    for table in STATE:
        before.store.checkpoint(table)
        before.store.clean_up(table)
        assert before.store.arrow(table).num_rows == PEOPLE - 1


def test_a_reader_that_listed_a_file_before_reads_what_it_became(before: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = before.store
    listed = iter([reader.files("subjects")])
    real = reader.files
    monkeypatch.setattr(reader, "files", lambda *a, **k: next(listed, None) or real(*a, **k))
    scrub(before.store, before.keys, [before.tag(GONE)])
    assert reader.lookup("subjects", [before.tag(STAYS)]).num_rows == 1


def test_their_broken_messages_leave_the_quarantine(before: Past) -> None:
    assert forget_quarantined(before.store, before.settings.keyring, [email(GONE).upper()]) == 1
    places = before.store.arrow("quarantine", ["place"])["place"].to_pylist()
    assert f"place/{GONE}" not in places
    assert len(places) == PEOPLE - 1
    assert forget_quarantined(before.store, before.settings.keyring, [email(GONE)]) == 0


def test_their_lines_leave_the_archive(before: Past) -> None:
    path = before.history.archived(2)
    path.write_text(
        "\n".join(json.dumps({"email": email(person), "phone": f"+1 415 555-00{person:02d}"}) for person in range(20))
    )
    assert blank_lines(before.settings, [email(GONE)]) == 1
    assert blank_lines(before.settings, ["+14155550005"]) == 1
    lines = path.read_text().split("\n")
    assert [number for number, line in enumerate(lines) if not line] == [GONE, 5]
    assert Scanner([email(GONE)]).scan(path.parent) == set()


def test_a_journal_row_is_reduced_by_its_own_key_alone(before: Past) -> None:
    assert reduce_journal(before.store, {("crm-g1-0-00000000", b"another kid here")}) == 0
