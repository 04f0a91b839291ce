"""The histories of the recovery suite serve here too; one is made for all tests, which work on copies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))

from erased_history import Past, past


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Past:
    return past(tmp_path_factory.mktemp("past") / "operator")
