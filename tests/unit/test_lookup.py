"""State in old tables: the newest row of a few subjects among many, however it lies, and how little of it is read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidings.care import newest_only
from tidings.parquet import holding
from tidings.seal.keyring import bucket
from tidings.store import Store

SUBJECTS = 6_000


def tag(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def commit(store: Store, batch: int, numbers: range) -> None:
    tags = [tag(n) for n in numbers]
    rows = {
        "tag": pa.array(tags, pa.binary()),
        "bucket": pa.array([bucket(t, 16) for t in tags], pa.int32()),
        "source": ["crm"] * len(tags),
        "generation": ["g1"] * len(tags),
        "batch": pa.array([batch] * len(tags), pa.int64()),
        "version": [f"{batch:06d}"] * len(tags),
        "jurisdiction": [f"US-{batch}"] * len(tags),
    }
    folder = Path(store.fresh("subjects"))
    folder.mkdir(parents=True)
    pq.write_table(pa.table(rows), folder / "part-0.parquet")
    store.commit("subjects", str(folder), app="crm/g1", version=batch)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Many subjects told once, some of them told again, compacted twice, and one batch that nobody has compacted."""
    made = Store(tmp_path_factory.mktemp("state") / "tables")
    commit(made, 0, range(SUBJECTS))
    for batch in range(1, 6):
        commit(made, batch, range(batch * 100, batch * 100 + 50))
    made.compact("subjects", reduce=newest_only)
    commit(made, 6, range(100, 110))
    return made


def newest(store: Store, *numbers: int) -> dict[bytes, str]:
    rows = store.lookup("subjects", [tag(n) for n in numbers]).sort_by("version").to_pylist()
    return {row["tag"]: row["jurisdiction"] for row in rows}


def test_the_newest_row_is_found_wherever_it_lies(store: Store) -> None:
    assert newest(store, 105, 120, 310, 5_999, 10_000_000) == {
        tag(105): "US-6",
        tag(120): "US-1",
        tag(310): "US-3",
        tag(5_999): "US-0",
    }
    assert newest(store, -1) == {}


def test_older_rows_of_older_batches_are_gone_and_repeatable_ones_are_not(store: Store) -> None:
    compacted = store.arrow("subjects", ["tag", "batch"]).to_pylist()
    batches = sorted(row["batch"] for row in compacted if row["tag"] == tag(120))
    assert batches == [1]
    assert sorted(row["batch"] for row in compacted if row["tag"] == tag(510)) == [0, 5]


def test_a_few_subjects_cost_a_few_row_groups(store: Store) -> None:
    large = max(store.files("subjects"), key=lambda f: f.rows)
    assert pq.read_metadata(large.path).num_row_groups >= 6
    schema = store.arrow("subjects", files=[]).schema
    few = holding([large.path], schema, "tag", [tag(3), tag(4_000)])
    assert sum(len(f.row_groups) for f in few.get_fragments()) <= 2
    assert list(holding([large.path], schema, "tag", [tag(-5)]).get_fragments()) == []


def test_files_of_one_size_become_one_and_a_larger_one_waits_for_its_like(tmp_path: Path) -> None:
    store = Store(tmp_path / "tables")
    commit(store, 0, range(5_000))
    for batch in range(1, 5):
        commit(store, batch, range(batch * 10, batch * 10 + 200))
    assert store.compact("subjects", small=1_000, reduce=newest_only) == 4
    sizes = sorted(f.rows for f in store.files("subjects"))
    assert len(sizes) == 2
    assert sizes[1] == 5_000
    assert newest(store, 10, 45, 900) == {tag(10): "US-1", tag(45): "US-4", tag(900): "US-0"}
