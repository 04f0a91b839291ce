"""What a test does when a server cannot be had."""

from __future__ import annotations

import os

import pytest


def unavailable(what: str) -> None:
    """Skip and say why; where everything must be there, that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)
