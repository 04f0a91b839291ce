"""Real servers, on loopback and free ports, with folders of their own."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import Database

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))


@pytest.fixture(scope="session")
def database() -> Iterator[Database]:
    folder = Path(tempfile.mkdtemp(prefix="tidings-pg-"))
    made = Database(folder)
    made.start()
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgresql(database: Database) -> str:
    """A connection string to a server with a logical log."""
    return database.address
