"""`make demo` where it is hardest: on two workers of a cluster, killed at moments nobody chose. It ends with 0 only if its books balance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.shop.prepare import copy

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def demo(folder: Path, port: int, *more: str) -> str:
    """One round in a folder of its own, with vendors of its own."""
    copy(folder, f"http://127.0.0.1:{port}")
    declared = (folder / "tidings.yaml").read_text().replace("run: {", "run: {shared: true, ")
    (folder / "tidings.yaml").write_text(declared)
    command = [sys.executable, "-m", "examples.shop.demo", "--folder", str(folder), "--port", str(port), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def test_killed_at_random_moments_on_two_workers_of_a_cluster(master: str, free_port: int, tmp_path: Path) -> None:
    assert "killed" in demo(tmp_path / "shop", free_port, "--master", master, "--kills", "2")
