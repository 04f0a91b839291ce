"""`make demo` where it is hardest: killed at moments nobody chose, and on two workers of a cluster. It ends with 0 only if its books balance."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from examples.shop.prepare import copy

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def demo(folder: Path, *more: str) -> str:
    """One round in a folder of its own, with vendors of its own."""
    port = free_port()
    copy(folder, f"http://127.0.0.1:{port}")
    declared = (folder / "tidings.yaml").read_text().replace("run: {", "run: {shared: true, ")
    (folder / "tidings.yaml").write_text(declared)
    command = [sys.executable, "-m", "examples.shop.demo", "--folder", str(folder), "--port", str(port), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def test_killed_at_random_moments(tmp_path: Path) -> None:
    assert "killed" in demo(tmp_path / "shop", "--kills", "2")


def test_on_two_workers_of_a_cluster(master: str, tmp_path: Path) -> None:
    demo(tmp_path / "shop", "--master", master)
