"""On a cluster a folder must be one that every worker sees; `test_demo.py` runs a whole round there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))

from small import small


def test_a_local_folder_must_be_declared_shared(tmp_path: Path) -> None:
    with small(tmp_path / "operator") as one:
        child = one.start("--master", "spark://127.0.0.1:1")
        _, told = child.communicate(timeout=120)
        assert child.returncode == 3
        assert "shared" in told
