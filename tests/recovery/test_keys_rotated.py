"""A new key-encryption key: killed at each step and said again, everything opens, under the new version alone, attested once. No JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from small import operator

from tidings.errors import Damaged, Refused
from tidings.lock import RunLock
from tidings.rotation import LANE, backup_rules
from tidings.seal import kek
from tidings.seal.keyfiles import KeyFiles, unwrap
from tidings.seal.keyring import kid, subject_key
from tidings.settings import Settings, load
from tidings.store import Store

PEOPLE = range(6)
SECRET = bytes(32)
POINTS = ("keys.rotation_begun", "keys.rewrapping", "keys.rewrapped", "keys.rotation_attested")


def tag(settings: Settings, person: int) -> bytes:
    return settings.keyring.tag("small", "customer", str(person))


def files(settings: Settings) -> KeyFiles:
    return KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Keys in a bucket and in batches, and what writers that were killed left beside them."""
    operator(tmp_path, "http://127.0.0.1:9", ("crm",))
    settings = load(tmp_path)
    keys = files(settings)
    for person in PEOPLE:
        own = tag(settings, person)
        row = {"tag": own, "kid": kid(SECRET, own), "key": subject_key(SECRET, own)}
        keys.write(pa.Table.from_pylist([row]), f"crm-g1-{person}-00000000")
        if person == 2:
            keys.compact(minimum=1)
    some = Path(keys.paths()[0]).read_bytes()
    for left in (Path(keys.fresh()), Path(Store(settings.data_path / "tables").fresh("journal")) / "out=keys"):
        left.mkdir(parents=True)
        (left / "part-0.parquet").write_bytes(some)
    (settings.data_path / "keys" / "bucket" / "00").mkdir(exist_ok=True)
    (settings.data_path / "keys" / "bucket" / "00" / "x.draft").write_bytes(some)
    return tmp_path


def rotate(folder: Path, crash_at: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidings.cli", "keys", "rotate", "-C", str(folder), "--json"]
    return subprocess.run(
        command, env=os.environ | {"TIDINGS_CRASH_AT": crash_at}, capture_output=True, text=True, timeout=120
    )


def wrapped(settings: Settings) -> Iterator[dict[str, bytes]]:
    """Every row with a wrapped key, wherever in the data folder a file holds one."""
    for path in settings.data_path.rglob("*"):
        if path.is_file() and path.suffix in (".parquet", ".draft"):
            rows = pq.ParquetFile(path).read().to_pylist()
            yield from (row for row in rows if "key" in row and "tag" in row)


def opens(settings: Settings, version: int) -> list[bool]:
    key, found = settings.keyring.wrapping(version), []
    for row in wrapped(settings):
        try:
            unwrap([key], row["tag"], row["kid"], row["key"])
            found.append(True)
        except Damaged:
            found.append(False)
    return found


def attested(settings: Settings) -> list[dict[str, int]]:
    rows = Store(settings.data_path / "tables").arrow("attempts", ["entry"], filter=ds.field("lane") == LANE)
    return [json.loads(entry) for entry in rows["entry"].to_pylist()]


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_a_rotation_is_said_again_and_ends(folder: Path, point: str) -> None:
    before = files(load(folder)).of([tag(load(folder), person) for person in PEOPLE])
    died = rotate(folder, f"{point}:1")
    assert died.returncode == -signal.SIGKILL, died.stderr
    with pytest.raises(Refused, match="rotation_unfinished"):
        files(load(folder))
    again = rotate(folder)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == {
        "version": 2,
        "previous": 1,
        "keys": len(PEOPLE),
        "files": len(files(load(folder)).paths()),
    }
    settings = load(folder)
    assert files(settings).of([tag(settings, person) for person in PEOPLE]) == before
    assert set(opens(settings, 2)) == {True}
    assert set(opens(settings, 1)) == {False}, "no copy under the older key is left, half-written ones included"
    assert [(one["version"], one["previous"], one["count"]) for one in attested(settings)] == [(2, 1, len(PEOPLE))]


def test_rotated_twice_the_third_key_alone_opens(folder: Path) -> None:
    assert [rotate(folder).returncode for _ in range(2)] == [0, 0]
    settings = load(folder)
    assert [set(opens(settings, version)) for version in (1, 2, 3)] == [{False}, {False}, {True}]
    assert [one["version"] for one in attested(settings)] == [2, 3]
    with pytest.raises(Damaged, match="key_file"):
        KeyFiles(settings.data_path / "keys", settings.keyring.wrapping(2)).of([tag(settings, 0)])


def test_while_a_run_holds_the_folder_nothing_is_rotated(folder: Path) -> None:
    with RunLock(load(folder).data_path):
        refused = rotate(folder)
    assert (refused.returncode, "already_running" in refused.stderr) == (Refused.exit_code, True)
    assert kek.read(load(folder).data_path / "keys") == kek.Kek(1)


def test_a_version_file_that_was_changed_is_not_guessed_at(folder: Path) -> None:
    (load(folder).data_path / "keys" / kek.NAME).write_text('{"version": 2, "next": 7}')
    with pytest.raises(Damaged, match="kek_version"):
        files(load(folder))


def test_the_rules_about_backups_are_looked_at(folder: Path) -> None:
    settings = load(folder)
    assert [one.rule for one in backup_rules(settings) if not one.kept] == []
    copy = folder / "backup" / "keys"
    for name in ("bucket", "new"):
        (copy / name).mkdir(parents=True)
    Path(files(settings).paths()[0]).chmod(0o644)
    (settings.data_path / "rights").mkdir(exist_ok=True)
    (settings.data_path / "rights" / "tombstones.jsonl").write_text("")
    broken = [one.rule for one in backup_rules(settings) if not one.kept]
    assert broken == [
        "the list of erasures outside is there and has every erasure of the data",
        "key files are for their owner alone",
        "no copy of the key files lies in the operator's folder",
    ]
    said = subprocess.run(
        [sys.executable, "-m", "tidings.cli", "keys", "status", "-C", str(folder), "--json"],
        capture_output=True,
        text=True,
    )
    assert said.returncode == Refused.exit_code
    shown = json.loads(said.stdout)
    assert (shown["rows"], shown["kek_version"], shown["left_half_written"]) == (len(PEOPLE), 1, 1)


def test_compacted_by_hand_everybody_is_in_a_bucket(folder: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tidings.cli", "keys", "compact", "-C", str(folder), "--json"],
        capture_output=True,
        text=True,
    )
    assert json.loads(said.stdout) == {"batches": 3}
    assert len(files(load(folder)).of([tag(load(folder), person) for person in PEOPLE])) == len(PEOPLE)
