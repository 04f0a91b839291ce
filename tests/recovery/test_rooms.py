"""Crash points that need no run: the process dies in the room, the next one enters it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import rooms

from tidings.seal.keyring import associated, kid, open_payload, subject_key
from tidings.store import Store


def enter(point: str, folder: Path, crash_at: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(rooms.__file__)), point, str(folder)]
    return subprocess.run(
        command,
        env=os.environ | {"TIDINGS_CRASH_AT": crash_at},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def every_row_once(folder: Path, table: str, column: str, wanted: list[object]) -> None:
    assert sorted(Store(folder / "tables").arrow(table, [column])[column].to_pylist()) == wanted


def messages_are_there(folder: Path) -> None:
    """The caller got no answer and sent again: both copies can be read, and nothing half-written lies beside them."""
    segments = sorted((folder / "inbox").iterdir())
    assert len(segments) == 2
    key = rooms.KEYRING.derive("inbox")
    for path in segments:
        found = pq.read_table(path).to_pylist()
        bodies = [open_payload(key, associated("inbox", row["place"], "body"), row["sealed"]).decode() for row in found]
        assert bodies == rooms.MESSAGES


def keys_are_there_once(folder: Path) -> None:
    files = rooms.key_files(folder)
    assert list((folder / "keys" / "new").iterdir()) == []
    for number in range(3):
        tag = rooms.person(number)
        name, secret = f"batch-{number}", (kid(rooms.SECRET, tag), subject_key(rooms.SECRET, tag))
        assert files.find(tag) == [(name, *secret)]
        assert files.load([name]) == {secret[0]: (tag, secret[1])}
        assert files.erase(tag) == 1


AFTERWARDS: dict[str, Callable[[Path], None]] = {
    "inbox.synced": messages_are_there,
    "keys.compacting": keys_are_there_once,
    "compact.before_commit": lambda folder: every_row_once(folder, "journal", "event_id", ["e0", "e1", "e2"]),
    "counts.before_commit": lambda folder: every_row_once(folder, "counts", "batch", [0, 1]),
    "counts.after_commit": lambda folder: every_row_once(folder, "counts", "batch", [0, 1]),
    "rights_requests.before_commit": lambda folder: every_row_once(folder, "rights_requests", "request", ["r0", "r1"]),
    "rights_requests.after_commit": lambda folder: every_row_once(folder, "rights_requests", "request", ["r0", "r1"]),
}


@pytest.mark.parametrize("point", rooms.ROOMS)
def test_the_next_process_finds_what_it_needs(point: str, tmp_path: Path) -> None:
    died = enter(point, tmp_path, crash_at=f"{point}:1")
    assert died.returncode == -signal.SIGKILL, f"never came to {point}: {died.stderr[-2000:]}"
    again = enter(point, tmp_path)
    assert again.returncode == 0, again.stderr[-2000:]
    AFTERWARDS[point](tmp_path)
