"""What more than one suite needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tidings.session import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One JVM for all tests that run a plan in this process."""
    found = session(tmp_path_factory.mktemp("spark"), slots=4, memory="1g")
    yield found
    found.stop()
