"""The front door: every way a verb can end is an exit code and a sentence, never a trace."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tidings.verbs.init import write


def tidings(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidings.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "code", "stream", "says"),
    [
        (["--help"], 0, "stdout", "check"),
        (["--version"], 0, "stdout", "tidings "),
        (["check", "--help"], 0, "stdout", "--connect"),
        (["chek"], 2, "stderr", "Did you mean 'check'?"),
        (["check", "--nope"], 2, "stderr", "No such option"),
        (["check", "--subjects", "0"], 2, "stderr", "--subjects"),
        (["check", "-C", "/nonexistent"], 2, "stderr", "[missing_folder]"),
        (["init"], 2, "stderr", "DIR"),
    ],
)  # fmt: skip
def test_ways_to_end(arguments: list[str], code: int, stream: str, says: str) -> None:
    ended = tidings(*arguments)
    assert ended.returncode == code
    assert says in getattr(ended, stream)
    assert "Traceback" not in ended.stdout + ended.stderr


def test_init_then_check(tmp_path: Path) -> None:
    made = tidings("init", "shop", "-C", str(tmp_path), "--json")
    assert made.returncode == 0
    assert "tidings.yaml" in json.loads(made.stdout)["written"]
    folder = tmp_path / "shop"
    assert stat.S_IMODE((folder / "secrets").stat().st_mode) == 0o700
    for key in (folder / "secrets").iterdir():
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len((folder / "secrets/master.key").read_text().strip()) == 64
    assert {"secrets/", "data/"} <= set((folder / ".gitignore").read_text().split())
    assert tidings("check", "-C", str(folder)).returncode == 0


def test_two_operators_share_no_secret(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "two")
    for key in (tmp_path / "one/secrets").iterdir():
        assert key.read_text() != (tmp_path / "two/secrets" / key.name).read_text()


def test_init_refuses_what_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    ended = tidings("init", str(tmp_path), "--json")
    assert ended.returncode == 3
    assert json.loads(ended.stdout)["error"]["code"] == "not_empty"
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
    assert tidings("init", str(tmp_path / "kept.txt")).returncode == 3


PLANTED = """
import sys, tidings.verbs.check as verb
def check(json: bool = False) -> None: raise RuntimeError("jo@example.com")
verb.check = check
from tidings.cli import main
main(["check"])
"""


def test_a_fault_of_ours_is_a_sentence_without_the_row() -> None:
    command = [sys.executable, "-c", PLANTED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 70
    assert "RuntimeError" in ended.stderr
    assert "TIDINGS_DEBUG=1" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "jo@example.com" not in ended.stderr
    shown = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "TIDINGS_DEBUG": "1"}
    )
    assert "Traceback" in shown.stderr


def test_interrupting_leaves_no_trace(tmp_path: Path) -> None:
    """A subscriber that takes the call and never answers; the person presses Ctrl-C."""
    write(tmp_path / "shop")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for path in (tmp_path / "shop/subscribers").iterdir():
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            path.write_text(path.read_text().replace("127.0.0.1:9001", address).replace("127.0.0.1:9002", address))
        command = [sys.executable, "-m", "tidings.cli", "check", "-C", str(tmp_path / "shop"), "--connect"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        silent.settimeout(30)
        taken, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        taken.close()
    assert process.returncode == 130
    assert "Traceback" not in said
