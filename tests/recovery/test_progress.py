"""Where a batch starts: behind the last committed one, and a repeat exactly where its first time did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.progress import Generations, Progress
from tidings.stages.event import Marks


def at(lamport: int) -> Progress:
    return Progress(Marks(lamport=lamport))


# generation, batch, what is committed → the marks it starts from
CASES = {
    "the first of all": ("g0001a", 0, {}, 0),
    "the next": ("g0001a", 2, {"g0001a": 1}, 11),
    "one that was saved and not committed": ("g0001a", 1, {"g0001a": 0}, 10),
    "one that was committed and comes again": ("g0001a", 1, {"g0001a": 1}, 10),
    "the first, committed, comes again": ("g0001a", 0, {"g0001a": 0}, 0),
    "the first of a new generation": ("g0002b", 0, {"g0001a": 1}, 11),
    "the same, committed, comes again": ("g0002b", 0, {"g0001a": 1, "g0002b": 0}, 11),
}


@pytest.mark.parametrize("name", CASES)
def test_where_a_batch_starts(name: str, tmp_path: Path) -> None:
    generation, batch, committed, wanted = CASES[name]
    found = Generations(tmp_path, "crm")
    for number, marks in enumerate((10, 11)):
        found.save("g0001a", number, at(marks))
    found.save("g0002b", 0, at(20))
    assert found.before(generation, batch, committed.get).marks.lamport == wanted
