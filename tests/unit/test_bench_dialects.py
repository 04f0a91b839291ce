"""The messages a dialect is measured with: changes only, none like another, and the same shape as the sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidings.benches.dialects import sampled, varied
from tidings.stages.dialect import names

SAMPLES = Path(__file__).parents[1] / "conformance" / "samples"


@pytest.mark.parametrize("dialect", names())
def test_every_dialect_can_be_measured(dialect: str) -> None:
    found = sampled(SAMPLES / f"{dialect}.jsonl")
    assert found
    lines = varied(found, 3 * len(found))
    assert [shape(json.loads(line)) for line in lines[: len(found)]] == [shape(message) for message in found]
    assert len(set(lines)) >= 2 * len(found)  # a truncate, say, names nobody


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    return [shape(inner) for inner in value] if isinstance(value, list) else type(value)
