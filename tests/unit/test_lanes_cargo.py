"""What a task of a stretch reads and writes by itself. No JVM."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import Journal, operator

from tidings.errors import Damaged
from tidings.lanes.attempts import table_of
from tidings.lanes.cargo import Shelf, packed, unpacked
from tidings.lanes.carry import kept
from tidings.lanes.member import Feed
from tidings.lanes.slices import read, tags
from tidings.lanes.stretch import Part, Stretch
from tidings.seal.keyfiles import KeyFiles
from tidings.stages.envelope import timestamp
from tidings.store import Store

FEED = Feed("crm", "g1")
LANE = {"many": "http://127.0.0.1:9/many\nvars: {mode: batched}"}


def stretch_of(folder: Path, events: int, splits: int) -> tuple[Stretch, Store]:
    """Events of three people, the last of whom is not plain."""
    settings = operator(folder, LANE)
    store = Store(settings.data_path / "tables")
    Journal(settings, store).batch([(f"p{n % 3}", {"many": "allow"}) for n in range(events)])
    entries, upto = read(store, FEED, -1)
    known = tags(KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek")), entries)
    split = [known[entry.kid][0][0] % splits for entry in entries]
    kind = [-1 if n % 3 == 2 else 0 for n in range(events)]
    part = Part(None, 4, upto + 2_000, {}, {0: ()}, frozenset(), b"")  # type: ignore[arg-type]
    return Stretch(FEED, entries, split, kind, known, {"many": part}, 1.0, splits), store


def test_every_plain_event_is_in_one_task_in_order_with_its_own_row(tmp_path: Path) -> None:
    stretch, store = stretch_of(tmp_path, 30, 2)
    shelf = Shelf(str(store.root), store.files("journal"), FEED)
    found = []
    for stream in packed(stretch, 2)["events"].to_pylist():
        cargo = unpacked(stream, shelf)
        mine = [cargo[place] for place in range(len(cargo))]
        assert [row["offset"] for row in mine] == sorted(row["offset"] for row in mine)
        found += mine
    sealed = {row["event_id"]: row for row in store.arrow("journal").to_pylist()}
    assert {row["event_id"] for row in found} == {
        entry.event_id for n, entry in enumerate(stretch.entries) if n % 3 != 2
    }
    for row in found:
        real = sealed[row["event_id"]]
        assert (row["payload"], row["offset"], row["hlc"]) == (real["payload"], real["offset"], real["hlc"])
        assert (row["tag"], row["key"]) == stretch.keys[real["kid"]]
        assert (row["time"], row["recorded"]) == (timestamp(real["time"]), timestamp(real["recorded"]))


def test_an_event_that_is_gone_from_the_journal_fails_before_anything_is_sent(tmp_path: Path) -> None:
    stretch, store = stretch_of(tmp_path, 6, 1)
    entries = [entry._replace(offset=1_000) if n == 3 else entry for n, entry in enumerate(stretch.entries)]
    stream = packed(replace(stretch, entries=entries), 1)["events"].to_pylist()[0]
    with pytest.raises(Damaged, match="1 events of a stretch"):
        unpacked(stream, Shelf(str(store.root), store.files("journal"), FEED))


def test_rows_are_written_once_and_whole(tmp_path: Path) -> None:
    place = tmp_path / "part-00000.parquet"
    row = {"lane": "many", "cycle": 1, "call": "many-1", "subscriber": "many", "channel": "webhook"}
    assert kept(table_of([row]), place) == 1
    kept(table_of([row | {"cycle": 2}]), place)  # a try that was given up and comes late
    assert pq.read_table(place)["cycle"].to_pylist() == [1]
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
