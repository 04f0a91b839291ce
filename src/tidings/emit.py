"""One source's batches: from rows to committed tables. Called by the only foreachBatch (run.py), by replays and by the bench.

The order of commits is the guarantee: key file → progress file → journal (this commit makes the batch true) → what is remembered.
A repeat finds the journal committed and completes what is missing; a batch's own rows are never part of what it looks up.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tidings import counting, crash, held
from tidings.decisions import Decisions
from tidings.errors import SourceStopped
from tidings.flow import Context, contracts_of, gathered, writing
from tidings.known import known, nothing_of
from tidings.progress import Generations, Marks, Progress
from tidings.rights import fence
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import new_secret
from tidings.settings import Settings
from tidings.shapes import Source
from tidings.stages.conflict import mastered
from tidings.stages.event import Batch
from tidings.store import Store
from tidings.turns import turn

DESK = "desk"  # the application under which tombstones are committed
REMEMBERED = ("last_seen", "subjects", "identities", "quarantine")
PURPOSES = ("tag", "id", "iv", "kek", "quarantine")
HELD = "source string, generation string, batch bigint, time timestamp, change binary"
# Values that hardly ever repeat: looking for repeats costs more than writing them.
PLAIN = {
    f"parquet.enable.dictionary#{name}": "false"
    for name in ("event_id", "change", "hlc", "payload", "entry", "tag", "kid", "key", "hash", "image", "sealed")
}
BIG = 8 << 20  # bytes of input above which a batch is not looked over before it is processed
crash.POINTS["emit.written"] = "a batch's files are written, nothing is committed"
crash.POINTS["emit.keys"] = "the key file is in place, the journal is not committed"
crash.POINTS["emit.journal"] = "the journal is committed, what is remembered is not"
crash.POINTS["emit.done"] = "everything of a batch is committed, the stream does not know yet"


class Unheard(Exception):
    """Messages in dialects that the source has not spoken before: its plan must be made again. Nothing was written."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        super().__init__(", ".join(sorted(names)))


@dataclass
class Emitter:
    """Everything a source's batches need; holds no state of its own besides handles."""

    spark: SparkSession
    settings: Settings
    source: Source
    store: Store
    decisions: Decisions
    generation: str
    sealed: bool = True
    told: Callable[[Mapping[str, int]], None] = field(default=lambda counts: None)

    def __post_init__(self) -> None:
        data = self.settings.data_path
        self.generations = Generations(data, self.source.name)
        self.keyfiles = KeyFiles(data / "keys", self.settings.keyring.derive("kek"))
        self.app = f"{self.source.name}/{self.generation}"

    def committed(self, generation: str | None = None) -> int | None:
        return self.store.transaction_version("journal", f"{self.source.name}/{generation or self.generation}")

    def emit(self, rows: DataFrame, number: int, size: int = 0) -> None:
        """Process batch `number` of the stream; `size` is its input in bytes."""
        done = self.committed()
        if done is not None and done >= number and all(self._remembered(table, number) for table in REMEMBERED):
            self.generations.forget_lots()
            return
        with turn(self.settings, self.store, self.source.name), fence.passing():
            folder, counts = self._emit(rows, number, size)
        shutil.rmtree(folder, ignore_errors=True)  # what was committed has been renamed into its table
        self.told(counts)

    def _emit(self, rows: DataFrame, number: int, size: int) -> tuple[Path, dict[str, int]]:
        # A repeat starts where the first time did: with other marks it would remember its subjects under other versions.
        progress = self.generations.before(self.generation, number, self.committed)
        batch = self._batch(number, progress.marks)
        with self.keyfiles.reading():
            folder, counts, after = self._write(rows, batch, progress, size)
        crash.point("emit.written")
        self._commit(folder, batch, after)
        return folder, counts

    def _remembered(self, table: str, number: int) -> bool:
        version = self.store.transaction_version(table, self.app)
        return version is not None and version >= number

    def _batch(self, number: int, marks: Marks) -> Batch:
        masters = bool(mastered(contracts_of(self.settings, self.source)))
        keeps = self.source.images != "full" or masters
        name = f"{self.source.name}-{self.generation}-{number}-{new_secret().hex()[:8]}"
        emitted = self.source.snapshot == "emit"
        lots = self.generations.lots(self.generation, number)
        return Batch(self.source.name, self.generation, number, name, marks, keeps, emitted, masters, lots)

    def _write(
        self, rows: DataFrame, batch: Batch, progress: Progress, size: int
    ) -> tuple[Path, dict[str, int], Progress]:
        """Write every table's files of this batch; again when a situation was undecided or a re-delivery must be looked up."""
        spark = rows.sparkSession
        _compile(spark, size > BIG)
        near, glance = self._gathered(rows, batch, size)
        context = Context(self.settings, self.source, self.decisions, self._already(spark, glance, batch), self.sealed)
        for _ in range(4):
            folder = Path(self.store.fresh("journal"))
            seen, out = Observation(), Observation()
            frame = writing(
                near,
                batch,
                context,
                (_observing(seen, *counting.counters(self.source)), _observing(out, self.decisions.unknown())),
            )
            frame.write.options(**PLAIN).partitionBy("out").parquet(str(folder))
            found = seen.get
            if found["unheard"]:
                shutil.rmtree(folder)
                raise Unheard([found["unheard"]])
            undecided = self.decisions.learn(out.get)
            suspects = found["suspects"] or 0
            if suspects and glance.first is None and self.store.files("journal", where={"source": self.source.name}):
                glance = held.Glance(found["first_suspect"], found["last_suspect"])
                context = replace(context, already=self._already(spark, glance, batch))
            elif not undecided:
                return folder, counting.totals(found), counting.after(progress, found, self.source, folder)
            shutil.rmtree(folder)
        raise SourceStopped("undecided", "situations that stay undecided", "a decision each", "Report this batch.")

    def _gathered(self, rows: DataFrame, batch: Batch, size: int) -> tuple[DataFrame, held.Glance]:
        """Each row with what is known of its subject: in hand when the batch is small, joined by Spark when it is not."""
        spark, one = rows.sparkSession, one_row(self.settings, batch)
        if size <= BIG:
            small = held.hold(rows)
            if new := held.unheard(small):
                raise Unheard(new)
            known_of = held.known_of(self.store, self.keyfiles, batch, small)
            return held.gathered(spark, small, one, known_of), held.glance(small, batch.marks)
        keys, partitions = spark.createDataFrame(one), spark.sparkContext.defaultParallelism
        joined = known(spark, self.store, (self.keyfiles, keys.select("k_kek")), batch, partitions)
        return gathered(rows, keys, joined, partitions), held.Glance()

    def _already(self, spark: SparkSession, glance: held.Glance, batch: Batch) -> DataFrame:
        """Change ids that the journal holds in the slice of time that the suspects point to, this batch's own left out."""
        schema = "change_id binary, journalled boolean"
        if glance.first is None or glance.last is None:
            return nothing_of(spark, schema)
        first, last = counting.utc(glance.first), counting.utc(glance.last) + timedelta(milliseconds=1)
        near = self.store.files(
            "journal", "time", first - timedelta(milliseconds=1), where={"source": self.source.name}
        )
        paths = [f.path for f in near if f.minimum.get("time", first) <= last]
        if not paths:
            return nothing_of(spark, schema)
        held = spark.read.schema(HELD).parquet(*paths)
        own = (F.col("generation") == batch.generation) & (F.col("batch") >= batch.number)
        mine = held.filter((F.col("source") == self.source.name) & ~own & F.col("time").between(first, last))
        return (
            mine.select(F.col("change").alias("change_id"), F.lit(True).alias("journalled"))
            .coalesce(2)
            .dropDuplicates(["change_id"])
        )

    def _commit(self, folder: Path, batch: Batch, after: Progress) -> None:
        number = batch.number
        keys = folder / "out=keys"
        if keys.exists():
            self.keyfiles.adopt(str(keys), batch.key_file)
        crash.point("emit.keys")
        if (done := self.committed()) is None or done < number:
            self.generations.save(self.generation, number, after)
            self.generations.keep_lots(self.generation, number, batch.lots)
        journal = folder / "out=journal"
        gated = {"tombstones": str(self.store.transaction_version("subjects", DESK))}  # as of which it was decided
        self.store.commit(
            "journal", str(journal) if journal.exists() else None, app=self.app, version=number, metadata=gated
        )
        crash.point("emit.journal")
        for table in REMEMBERED:
            part = folder / f"out={table}"
            self.store.commit(table, str(part) if part.exists() else None, app=self.app, version=number)
        self.generations.forget_lots()
        crash.point("emit.done")


def one_row(settings: Settings, batch: Batch) -> pa.Table:
    """Keys, this batch's secret and its place, as one row to put beside every other: nothing of it shows in a plan."""
    keys = {f"k_{purpose}": settings.keyring.derive(purpose) for purpose in PURPOSES}
    keys |= {"secret": new_secret(), "lots": batch.lots or new_secret()}
    types = {str: pa.string(), int: pa.int64(), list: pa.map_(pa.string(), pa.string())}
    columns = {name: pa.array([key], pa.binary()) for name, key in keys.items()}
    columns |= {name: pa.array([value], types[type(value)]) for name, value in batch.values().items()}
    return pa.table(columns)


def _compile(spark: SparkSession, worth: bool) -> None:
    """Code for a plan this wide takes a second to generate: worth it for many rows, not for a hundred, which are interpreted."""
    spark.conf.set("spark.sql.codegen.wholeStage", str(worth).lower())
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if worth else "NO_CODEGEN")


def _observing(observation: Observation, *columns: Column) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: rows.observe(observation, *columns)
