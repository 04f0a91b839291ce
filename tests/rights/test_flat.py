"""What one person costs does not grow with the past: files opened for a look and for an erasure, at one history and at four times that.

The kernel counts the files. Nothing is compacted here but the key files, so a longer history is more files. No JVM.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from tidings.benches.lookup import looked
from tidings.benches.opened import files_in, opened
from tidings.benches.operator import operator
from tidings.benches.past import Past, Shape, make
from tidings.benches.rights import journaled
from tidings.rights.desk import Desk

EVENTS, BATCH, PEOPLE = 3, 50, 3
ONCE, LONGER = 12, 48  # batches


@dataclass(frozen=True)
class Cost:
    """Files opened, and how many there are."""

    report: int
    desk: int
    erasure: int
    files: int


def cost(folder: Path, batches: int) -> Cost:
    rows = batches * BATCH
    shape = Shape(rows, rows // EVENTS, BATCH, PEOPLE, every=timedelta(hours=4), told=True)
    past = make(operator(folder, 2), shape)
    past.keys.compact(minimum=1)
    found = looked(past, shape)
    return Cost(found["recipients_files"], found["desk_files"], _erasure(past, shape), found["files"])


def _erasure(past: Past, shape: Shape) -> int:
    """Of a commit of several people, from the events that ask for it to the events that tell of it."""
    desk = Desk(past.settings, past.store, past.store.version)
    desk.recover()
    desk.step()
    people = list(shape.chosen())[:PEOPLE]
    journaled(past, {f"{person:032x}": person for person in people}, 0)
    with opened(past.store.root, past.keys.root) as files:
        desk.step()
    requests = desk.book.requests.values()
    assert [len(one.happened("told")) for one in requests] == [1] * PEOPLE
    assert not past.keys.held([past.tag(person) for person in people])
    return len(files)


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cost, Cost]:
    once, longer = (cost(tmp_path_factory.mktemp("past") / "operator", batches) for batches in (ONCE, LONGER))
    assert longer.files > 2 * once.files, "a longer past is more files"
    return once, longer


def test_whoever_received_somebodys_data_is_found_in_as_many_files(costs: tuple[Cost, Cost]) -> None:
    once, longer = costs
    assert longer.report <= once.report + 1


def test_the_desk_looks_into_as_many_files(costs: tuple[Cost, Cost]) -> None:
    once, longer = costs
    assert longer.desk <= once.desk


def test_an_erasure_opens_as_many_files(costs: tuple[Cost, Cost]) -> None:
    once, longer = costs
    assert longer.erasure <= once.erasure + PEOPLE, "people may share a bucket of the key files in one of the two"


def test_files_are_counted_by_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("a")
    (tmp_path / "b.parquet").write_text("b")
    with opened(tmp_path) as files:
        (tmp_path / "a.parquet").read_text()
    assert (files, files_in(tmp_path)) == ({str(tmp_path / "a.parquet")}, 2)
