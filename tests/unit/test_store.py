"""The store: what is committed is there once, for every reader, with statistics of the declared columns and of no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidings import crash
from tidings.errors import Damaged, Refused
from tidings.lock import RunLock, holder
from tidings.store import SPARK_SETTINGS, TABLES, Store
from tidings.tables import parsed

# PySpark leaves its authenticated local socket to the collector when io encryption is on; the warning is not about our code.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed.*socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
BATCH = 1 << 24
NOON = datetime(2026, 11, 2, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "tables")


def rows(batch: int, count: int = 3, source: str = "crm") -> pa.Table:
    return pa.table(
        {
            "offset": pa.array([batch * BATCH + n for n in range(count)], pa.int64()),
            "source": [source] * count,
            "generation": ["g1"] * count,
            "batch": pa.array([batch] * count, pa.int64()),
            "event_id": [f"event-{batch}-{n}" for n in range(count)],
            "time": pa.array([NOON + timedelta(minutes=batch)] * count, pa.timestamp("us", "UTC")),
            "payload": [os.urandom(40) for _ in range(count)],
            "vector": pa.array([[("crm", n)] for n in range(count)], pa.map_(pa.string(), pa.int64())),
        }
    )


def written(store: Store, table: pa.Table, name: str = "journal") -> str:
    folder = Path(store.fresh(name))
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "part-0.parquet")
    return str(folder)


def committed(store: Store, batches: int, source: str = "crm") -> None:
    for number in range(batches):
        folder = written(store, rows(number, source=source))
        assert store.commit("journal", folder, app=f"{source}/g1", version=number)


def folders(store: Store) -> set[str]:
    return {path.name for path in (store.root / "journal").iterdir() if path.name != "_delta_log"}


@pytest.mark.spark
def test_what_spark_writes_every_reader_sees(spark, store):
    shape = StructType.fromJson(parsed(store.schema("journal")))
    given = {
        "offset": F.col("id"),
        "source": F.lit("crm"),
        "generation": F.lit("g1"),
        "batch": F.lit(0).cast("bigint"),
        "time": F.lit(NOON) + F.make_interval(secs=F.col("id")),
        "vector": F.create_map(F.lit("crm"), F.col("id")),
        "consent": F.lit(None).cast(shape["consent"].dataType),
        "recipients": F.array(F.lit("klaviyo")),
        "deadlines": F.create_map(F.lit("klaviyo"), F.lit(NOON)),
        "payload": F.sha2(F.col("id").cast("string"), 256).cast("binary"),
    }
    frame = spark.range(0, 1000, 1, 2).select(*[given[f.name].alias(f.name) for f in shape if f.name in given])
    folder = store.fresh("journal")
    frame.write.parquet(folder)
    assert store.commit("journal", folder, app="crm/g1", version=0, metadata={"cause": "batch"})

    assert DeltaTable(str(store.root / "journal")).count() == 1000
    assert DeltaTable(str(store.root / "journal")).to_pyarrow_table(columns=["offset"]).num_rows == 1000
    seen = store.arrow("journal", ["offset", "time", "vector", "deadlines", "locale"], filter=pc.field("offset") == 7)
    [row] = seen.to_pylist()
    assert row["time"] == NOON + timedelta(seconds=7)
    assert row["vector"] == [("crm", 7)]
    assert row["locale"] is None
    assert row["deadlines"] == [("klaviyo", NOON)]
    again = spark.read.schema(store.schema("journal")).parquet(*[f.path for f in store.files("journal")])
    assert again.agg(F.count("*"), F.sum("offset"), F.max("vector.crm")).first()[:] == (1000, 499500, 999)
    assert sum(f.rows for f in store.files("journal")) == 1000
    # Spark's checksum files are not synced, so they are not kept either.
    assert {path.suffix for path in Path(folder).iterdir()} == {".parquet"}


@pytest.mark.spark
def test_the_layout_means_the_same_to_spark_and_delta(spark):
    for name, table in TABLES.items():
        ours = StructType.fromJson(parsed(table.ddl))
        assert ours == StructType.fromDDL(table.ddl), name
        assert set(table.statistics) | set(table.sort) <= set(table.fields), name
    for key, value in SPARK_SETTINGS.items():
        assert spark.conf.get(key) == value, key


def test_statistics_are_of_the_declared_columns_and_of_no_others(store):
    store.commit("journal", written(store, rows(1)), app="crm/g1", version=1)
    entries = [
        json.loads(line) for line in (store.root / "journal/_delta_log" / f"{1:020d}.json").read_text().splitlines()
    ]
    stats = json.loads(next(e["add"] for e in entries if "add" in e)["stats"])
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {
        "offset": BATCH,
        "source": "crm",
        "generation": "g1",
        "batch": 1,
        "time": "2026-11-02T12:01:00.123Z",
    }
    assert stats["maxValues"]["time"] == "2026-11-02T12:01:00.124Z"
    assert stats["maxValues"]["offset"] == BATCH + 2
    assert set(stats["nullCount"]) == set(TABLES["journal"].statistics)
    assert stats["nullCount"]["recorded"] == 3
    config = DeltaTable(str(store.root / "journal")).metadata().configuration
    assert config["delta.dataSkippingStatsColumns"] == ",".join(TABLES["journal"].statistics)


def test_a_repeated_commit_changes_nothing(store):
    first = written(store, rows(0))
    assert store.commit("journal", first, app="crm/g1", version=0)
    before = store.version("journal")
    other = written(store, rows(0, 5))
    assert not store.commit("journal", other, app="crm/g1", version=0)
    assert not store.commit("journal", first, app="crm/g1", version=0)
    assert not Store(store.root).commit("journal", None, app="crm/g1", version=0)
    assert store.version("journal") == before
    assert store.arrow("journal").num_rows == 3
    assert folders(store) == {Path(first).name}


def test_version_zero_is_not_never(store):
    assert store.transaction_version("journal", "crm/g1") is None
    assert store.commit("journal", None, app="crm/g1", version=0)
    assert store.transaction_version("journal", "crm/g1") == 0
    assert store.transaction_version("journal", "crm/g2") is None


def test_a_new_generation_is_never_skipped(store):
    committed(store, 4)
    assert store.commit("journal", written(store, rows(0)), app="crm/g2", version=0)
    assert store.arrow("journal").num_rows == 15
    assert store.transaction_version("journal", "crm/g1") == 3


@pytest.mark.parametrize("shared", [True, False], ids=["one store", "two stores"])
def test_threads_commit_at_once_and_each_batch_lands_once(store, shared):
    results: list[tuple[int, bool]] = []
    failures: list[BaseException] = []

    def run(mine: Store, app: str) -> None:
        try:
            for number in range(12):
                folder = written(mine, rows(number, source=app))
                assert mine.commit("journal", folder, app=app, version=number)
                results.append((number, mine.commit("journal", None, app="contested", version=number)))
        except BaseException as error:
            failures.append(error)

    store.commit("journal", None, app="start", version=0)
    stores = [store, store if shared else Store(store.root)]
    threads = [threading.Thread(target=run, args=(s, app)) for s, app in zip(stores, ("a", "b"), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.arrow("journal").num_rows == 2 * 12 * 3
    # Version n of the contested app lands at most once; one that came after n + 1 lands not at all.
    won = [number for number, landed in results if landed]
    assert sorted(won) == sorted(set(won))
    assert {store.transaction_version("journal", app) for app in ("a", "b", "contested")} == {11}


def test_cursors_travel_with_the_commit_and_never_go_back(store):
    assert store.commit("attempts", None, app="lanes", version=0, cursors={"klaviyo|crm/g1": 5, "hook|crm/g1": 9})
    assert store.commit("attempts", None, app="lanes", version=1, cursors={"klaviyo|crm/g1": 5, "hook|crm/g1": 10})
    assert store.transaction_version("attempts", "hook|crm/g1") == 10
    with pytest.raises(Damaged, match="cursor_went_back"):
        store.commit("attempts", None, app="lanes", version=2, cursors={"klaviyo|crm/g1": 4})
    assert store.transaction_version("attempts", "lanes") == 1
    assert store.commit("attempts", None, app="lanes", version=2, cursors={"klaviyo|crm/g1": 6})
    # A repeat with older cursors is still a repeat.
    assert not store.commit("attempts", None, app="lanes", version=1, cursors={"klaviyo|crm/g1": 1})


def test_transactions_and_rows_outlive_checkpoints_and_reopening(store):
    committed(store, 3)
    for number in range(100):
        assert store.commit("journal", None, app="other", version=number, cursors={"lane": number})
    log = store.root / "journal/_delta_log"
    assert {path.name for path in log.iterdir() if "checkpoint" in path.name} >= {
        f"{32:020d}.checkpoint.parquet",
        f"{96:020d}.checkpoint.parquet",
        "_last_checkpoint",
    }
    long_ago = time.time() - 30 * 86400
    for path in log.iterdir():
        os.utime(path, (long_ago, long_ago))
    store.clean_up("journal", keep_above=60)
    assert (log / f"{1:020d}.json").exists()
    store.clean_up("journal", keep_above=store.version("journal"))
    assert not (log / f"{1:020d}.json").exists()
    for each in (store, Store(store.root)):
        assert each.transaction_version("journal", "crm/g1") == 2
        assert each.transaction_version("journal", "lane") == 99
        assert each.arrow("journal").num_rows == 9
    assert not store.commit("journal", None, app="crm/g1", version=2)
    with pytest.raises(Damaged, match="log_missing"):
        store.added("journal", 1)


def test_a_slice_is_what_the_statistics_cannot_exclude(store):
    committed(store, 6)
    committed(store, 3, "pos")
    cases = [
        (None, None, {}, 9),
        ("offset", -1, {}, 9),
        ("offset", 3 * BATCH + 2, {}, 2),
        ("offset", 3 * BATCH + 1, {"source": "crm"}, 3),
        ("offset", 3 * BATCH, {"source": "pos"}, 0),
        ("offset", None, {"source": "pos", "generation": "g1"}, 3),
        ("time", NOON + timedelta(minutes=4), {}, 2),
        ("recorded", NOON, {}, 9),  # no file says anything about it, so none is left out
    ]
    for column, above, where, expected in cases:
        assert len(store.files("journal", column, above, where=where)) == expected, (column, above, where)
    picked = store.arrow("journal", ["offset"], files=store.files("journal", "offset", 4 * BATCH + 2))
    assert picked["offset"].to_pylist() == [5 * BATCH, 5 * BATCH + 1, 5 * BATCH + 2]
    assert Store(store.root).files("counts") == []
    assert Store(store.root).arrow("counts", ["value"]).num_rows == 0


def test_a_file_excluded_by_its_statistics_is_not_opened(store):
    committed(store, 3)
    oldest = min(store.files("journal"), key=lambda f: f.minimum["offset"])
    Path(oldest.path).unlink()
    found = store.arrow("journal", ["offset"], filter=pc.field("offset") >= BATCH)
    assert found.num_rows == 6
    with pytest.raises(FileNotFoundError):
        store.arrow("journal", ["offset"])


def test_compaction_keeps_rows_bytes_and_what_was_not_sequenced(store):
    committed(store, 8)
    committed(store, 4, "pos")
    before = store.arrow("journal").sort_by([("source", "ascending"), ("offset", "ascending")])
    cursor = store.version("journal") - 2
    unread = [f for version in (cursor + 1, cursor + 2) for f in store.added("journal", version)]
    assert len(unread) == 2
    assert store.compact("journal", keep_above=cursor) == 10
    live = store.files("journal")
    assert len(live) == 3
    assert {f.path for f in unread} <= {f.path for f in live}
    assert store.added("journal", store.version("journal")) == []
    [file] = store.added("journal", 2)
    assert file.minimum["time"] <= NOON + timedelta(minutes=1) <= file.maximum["time"]
    assert store.arrow("journal", ["offset"], files=[file])["offset"].to_pylist() == [BATCH, BATCH + 1, BATCH + 2]
    for each in (store, Store(store.root)):
        after = each.arrow("journal").sort_by([("source", "ascending"), ("offset", "ascending")])
        assert after.equals(before)
    assert DeltaTable(str(store.root / "journal")).count() == 36
    assert len(store.files("journal", "offset", 7 * BATCH + 5)) == 0
    assert store.transaction_version("journal", "crm/g1") == 7
    assert store.compact("journal", keep_above=cursor) == 0
    assert store.sweep(older_than=-1) == []  # replaced files stay for readers of the version before


def test_compaction_can_let_go_of_erased_rows(store):
    committed(store, 3)
    gone = store.compact("journal", reduce=lambda t: t.filter(pc.field("event_id") != "event-1-1"))
    assert gone == 3
    assert "event-1-1" not in store.arrow("journal", ["event_id"])["event_id"].to_pylist()
    assert store.arrow("journal").num_rows == 8


def test_orphans_are_swept_only_when_nobody_can_need_them(store):
    committed(store, 2)
    alive = folders(store)
    young, old, batch = (written(Store(store.root), rows(9)) for _ in range(3))
    mine = written(store, rows(3))
    for folder in (old, mine):
        for path in (*Path(folder).iterdir(), Path(folder)):
            os.utime(path, (time.time() - 7200, time.time() - 7200))
    swept = store.sweep(settled=[batch])
    assert sorted(swept) == sorted([old, batch])
    assert folders(store) == alive | {Path(young).name, Path(mine).name}
    assert store.commit("journal", mine, app="crm/g1", version=2)


def test_what_does_not_fit_the_layout_is_not_committed(store):
    extra = rows(0).append_column("email", pa.array(["jo@example.com"] * 3))
    naive = rows(0).set_column(5, "time", pa.array([NOON.replace(tzinfo=None)] * 3, pa.timestamp("us")))
    for table, found in [(extra, "column email"), (naive, "column time")]:
        with pytest.raises(Damaged, match="table_layout") as refused:
            store.commit("journal", written(store, table), app="crm/g1", version=0)
        assert found in str(refused.value)
        assert "jo@example.com" not in str(refused.value)
    assert store.transaction_version("journal", "crm/g1") is None
    empty = rows(0).append_column("email", pa.nulls(3, pa.string()))
    assert store.commit("journal", written(store, empty), app="crm/g1", version=0)
    assert "email" not in store.arrow("journal").column_names


def test_a_table_of_an_earlier_version_learns_its_new_columns(store):
    columns = parsed(TABLES["journal"].ddl)["fields"]
    older = Schema.from_json(json.dumps({"type": "struct", "fields": columns[:-2]}))
    DeltaTable.create(str(store.root / "journal"), older)
    assert store.arrow("journal").num_rows == 0
    assert store.commit("journal", written(store, rows(0)), app="crm/g1", version=0)
    seen = DeltaTable(str(store.root / "journal"))
    assert [field.name for field in seen.schema().fields] == list(TABLES["journal"].fields)
    assert seen.to_pyarrow_table(columns=["offset", "entry"]).num_rows == 3


def test_an_empty_batch_still_records_its_transaction(store):
    assert store.commit("journal", written(store, rows(0, 0)), app="crm/g1", version=0)
    assert store.transaction_version("journal", "crm/g1") == 0
    assert store.files("journal") == []


def test_a_folder_that_vanished_is_not_an_empty_batch(store):
    with pytest.raises(Damaged, match="folder_missing"):
        store.commit("journal", store.fresh("journal"), app="crm/g1", version=0)
    with pytest.raises(Refused, match="folder_outside"):
        store.commit("journal", str(store.root.parent / "elsewhere"), app="crm/g1", version=0)
    assert store.transaction_version("journal", "crm/g1") is None


def test_a_folder_written_for_several_tables_is_moved_to_its_own(store):
    shared = Path(store.fresh("journal"))
    part = shared / "table=journal"
    part.mkdir(parents=True)
    pq.write_table(rows(0), part / "part-0.parquet")
    assert store.commit("journal", str(part), app="crm/g1", version=0)
    assert store.arrow("journal").num_rows == 3
    assert not part.exists()


@pytest.mark.parametrize("place", ["s3://bucket/tables", "abfss://x@y/tables", "gs:bucket"])
def test_other_file_systems_are_refused_by_name(place):
    with pytest.raises(Refused, match="storage_scheme") as refused:
        Store(place)
    assert place.split(":")[0] in str(refused.value)


def test_local_uris_are_paths(tmp_path):
    assert Store(f"file://{tmp_path}/a b").root == tmp_path / "a b"
    assert Store(f"file:{tmp_path}").root == tmp_path


def test_every_table_has_its_crash_points():
    assert {f"{table}.{point}" for table in TABLES for point in ("before_commit", "after_commit")} <= set(crash.POINTS)


HOLD = "import sys; from tidings.lock import RunLock\nwith RunLock(sys.argv[1]): print('held', flush=True); sys.stdin.read()"


def test_a_second_runner_is_refused_and_told_who_holds_it(tmp_path):
    data = tmp_path / "data"
    assert holder(data) is None
    command = [sys.executable, "-c", HOLD, str(data)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(Refused, match="already_running") as refused, RunLock(data):
            pass
        assert f"process {first.pid} on " in str(refused.value)
        assert holder(data)["pid"] == first.pid
        first.kill()
        first.wait()
        # The dead process left its name in the file; the lock itself died with it.
        assert str(first.pid) in (data / "lock").read_text()
        assert holder(data) is None
        with RunLock(data):
            assert holder(data)["pid"] == os.getpid()
            with pytest.raises(Refused, match=str(os.getpid())), RunLock(data):
                pass
    assert holder(data) is None
    assert (data / "lock").read_text() == ""
