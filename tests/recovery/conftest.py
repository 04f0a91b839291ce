"""One archive of the JVM's classes for all short runs, made by the first of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from checker import check
from small import small


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by an undisturbed run, whose history must be right before any other is looked at."""
    folder = tmp_path_factory.mktemp("archive")
    with small(folder / "run", "crm", "shop", archive=folder / "classes.jsa") as one:
        one.world.round()
        one.finish()
        assert check(one) == []
    return folder / "classes.jsa"
