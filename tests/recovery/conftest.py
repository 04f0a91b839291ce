"""One JVM for all short runs of this folder, started by the first test that wants it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from warm import WarmJvm, warm_jvm


@pytest.fixture(scope="session")
def jvm() -> Iterator[WarmJvm]:
    with warm_jvm() as one:
        yield one
