"""Data restored from a backup that is older than an erasure: a run refuses it, and restoring forgets the person again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from erased_history import BATCHES, Past, hashed
from scanner import Scanner
from typer.testing import CliRunner

from tidings.cli import application
from tidings.errors import Damaged, Refused
from tidings.rights.restore import NAME, Tombstone, again, carried_out, missing, note, ready
from tidings.rights.scrub import scrub
from tidings.run import Runner

GONE, OTHER = 3, 5


def stone(one: Past, person: int) -> Tombstone:
    return Tombstone(f"request-{person}", 1_772_443_000_000, 1, (one.tag(person).hex(),), (hashed(one, person).hex(),))


def erase(one: Past, person: int) -> None:
    note(one.settings, [stone(one, person)])
    scrub(one.store, one.keys, [one.tag(person)])
    carried_out(one.settings, [stone(one, person)])


@pytest.fixture
def restored(tmp_path: Path, made: Past) -> Past:
    """A backup, an erasure, and the backup again."""
    one = made.copied(tmp_path / "operator")
    shutil.copytree(one.data, tmp_path / "backup")
    erase(one, GONE)
    shutil.rmtree(one.data)
    shutil.copytree(tmp_path / "backup", one.data)
    return one


def scanned(one: Past, person: int) -> set[str]:
    return {
        find.identifier
        for find in Scanner.of_bytes([("tag", one.tag(person)), ("hash", hashed(one, person))]).scan(one.data)
    }


def test_a_run_refuses_restored_data_before_it_starts_anything(restored: Past) -> None:
    with pytest.raises(Refused) as refused:
        Runner(restored.settings).run(until_idle=True)
    assert refused.value.code == "restored_data"
    assert "1 erasures" in str(refused.value)


def test_restoring_forgets_again_and_lets_the_run_start(restored: Past) -> None:
    assert scanned(restored, GONE) == {"tag", "hash"}
    ran = CliRunner().invoke(application("restore"), ["restore", "-C", str(restored.settings.directory), "--json"])
    assert json.loads(ran.stdout) == {"erasures": 1, "keys": BATCHES, "rows": BATCHES}
    ready(restored.settings, restored.store)
    assert restored.keys.find(restored.tag(GONE)) == []
    assert len(restored.keys.find(restored.tag(OTHER))) == BATCHES
    [subject] = restored.store.lookup("subjects", [restored.tag(GONE)]).to_pylist()
    assert subject["flags"] == [stone(restored, GONE).flag]
    [request] = restored.store.arrow("rights_requests").to_pylist()
    assert (request["request"], request["state"], request["what"]) == (f"request-{GONE}", "review", "restored")
    tombstones = {"tables/subjects", "tables/rights_requests", f"rights/{NAME}"}
    finds = Scanner.of_bytes([("tag", restored.tag(GONE)), ("hash", hashed(restored, GONE))]).scan(restored.data)
    assert {"/".join(find.file.split("/")[:2]) for find in finds} == tombstones, "tombstones alone name the person"


def test_a_restore_that_is_killed_is_done_again(restored: Past) -> None:
    command = [sys.executable, "-m", "tidings.cli", "restore", "-C", str(restored.settings.directory)]
    env = os.environ | {"TIDINGS_CRASH_AT": "restore.scrubbed:1"}
    assert subprocess.run(command, env=env, check=False).returncode == -signal.SIGKILL
    assert len(missing(restored.settings)) == 1
    again(restored.settings, restored.store, restored.keys)
    ready(restored.settings, restored.store)
    flags = [row["flags"] for row in restored.store.lookup("subjects", [restored.tag(GONE)]).to_pylist()]
    assert {tuple(found) for found in flags} == {(stone(restored, GONE).flag,)}
    assert {row["state"] for row in restored.store.arrow("rights_requests").to_pylist()} == {"review"}


def test_an_erasure_that_a_kill_cut_short_is_finished_by_the_run_itself(made: Past, tmp_path: Path) -> None:
    one = made.copied(tmp_path / "operator")
    note(one.settings, [stone(one, GONE)])
    with pytest.raises(Refused):
        ready(one.settings, one.store)
    one.history._commit("rights_requests", [{"request": f"request-{GONE}", "step": 1}], "desk", 1)
    ready(one.settings, one.store)
    assert [found.request for found in missing(one.settings)] == [f"request-{GONE}"]


def test_a_lost_file_is_written_again_from_what_the_data_knows(made: Past, tmp_path: Path) -> None:
    one = made.copied(tmp_path / "operator")
    erase(one, GONE)
    (one.settings.directory / NAME).unlink()
    ready(one.settings, one.store)
    assert stone(one, GONE).request in (one.settings.directory / NAME).read_text()


@pytest.mark.parametrize("harm", ["change", "leave_out"])
def test_a_line_that_was_changed_or_left_out_stops_everything(restored: Past, harm: str) -> None:
    note(restored.settings, [stone(restored, OTHER)])
    path = restored.settings.directory / NAME
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[1] if harm == "leave_out" else lines[0].replace("1772443", "1772444") + lines[1])
    with pytest.raises(Damaged) as damaged:
        ready(restored.settings, restored.store)
    assert damaged.value.code == "tombstones"


def test_half_a_line_was_never_confirmed(restored: Past) -> None:
    path = restored.settings.directory / NAME
    path.write_text(path.read_text() + '{"request": "torn')
    assert len(missing(restored.settings)) == 1
    note(restored.settings, [stone(restored, OTHER)])
    assert [one.request for one in missing(restored.settings)] == [f"request-{GONE}", f"request-{OTHER}"]
    again(restored.settings, restored.store, restored.keys)
    assert missing(restored.settings) == []
