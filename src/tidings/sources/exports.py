"""Full exports of one table, each compared with the one before: what is new, what differs, what is gone.

    drop folder ─claim→ export ┐
             the last export ──┴─full outer join→ changes, sealed ─rename→ inbox ─Spark→ messages → journal

The join is Spark's own and nothing is kept in clear but the operator's own files. What it cannot see: anything that happened and was undone
between two exports, and in which order. What breaks the guarantee: an export that is not whole; one that lacks too many rows, or has a key
twice, stops the source before anything is told.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tidings import crash
from tidings.durable import durable_write, replace, sync_file
from tidings.errors import SourceStopped
from tidings.seal.cards import mask
from tidings.seal.columns import aad_column, keys_frame, seal_column
from tidings.seal.keyring import Keyring
from tidings.sources.files import DropFolder

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
crash.POINTS["exports.compared"] = "two exports are compared, nothing is in the inbox yet"
crash.POINTS["exports.told"] = "the changes are in the inbox, the newer export is not yet the last one"


@dataclass
class Exports:
    """One source's exports. `keys` are the contract's key fields; `most` is the share of rows that may be gone at once."""

    source: str
    table: str
    keys: tuple[str, ...]
    most: float
    drop: DropFolder
    inbox: Path
    home: Path
    keyring: Keyring
    trouble: SourceStopped | None = None

    def step(self) -> None:
        """Compare the next export that waits, if there is one."""
        self.drop.claim()
        self._finish()
        if (newer := self._next()) is not None:
            self._compare(self._state()["last"], newer)
            self._finish()

    def waiting(self) -> bool:
        """Is there an export that is not compared, or something of one that no finished batch has read?"""
        told = next(self.inbox.glob("*.parquet"), None) is None and self._state()["doing"] is None
        return self.drop.waiting() or self._next() is not None or not told

    def waited(self) -> float:
        return 0.0

    def retire(self, names: Sequence[str]) -> None:
        """The journal holds what was in these segments."""
        for name in names:
            (self.inbox / name).unlink(missing_ok=True)

    def _state(self) -> dict[str, str | None]:
        path = self.home / "state.json"
        return {"last": None, "doing": None, **(json.loads(path.read_text()) if path.exists() else {})}

    def _next(self) -> str | None:
        last = self._state()["last"] or ""
        return min((p.name for p in self.drop.claimed.iterdir() if p.name > last), default=None)

    def _compare(self, older: str | None, newer: str) -> None:
        """Write the changes to our own folder; the state then says that they are ready."""
        spark, work = SparkSession.active(), self.home / "work"
        shutil.rmtree(work, ignore_errors=True)
        seen = Observation()
        then, now = (self._read(spark, name, side) for name, side in ((older, "old"), (newer, "new")))
        both = then.join(now, "k", "full_outer").observe(seen, *_counters())
        self._sealed(both, older, newer).write.parquet(str(work))
        self._whole(newer, seen.get)
        (part,) = work.glob("part-*.parquet")
        sync_file(part)
        crash.point("exports.compared")
        durable_write(self.home / "state.json", json.dumps({"last": older, "doing": newer}))

    def _finish(self) -> None:
        """Hand over what is ready. A kill in between finds either the file or the state, and goes on from there."""
        state = self._state()
        if (newer := state["doing"]) is None:
            return
        for part in (self.home / "work").glob("part-*.parquet"):
            self.inbox.mkdir(parents=True, exist_ok=True)
            replace(part, self.inbox / f"{Path(newer).stem}.parquet")
        crash.point("exports.told")
        durable_write(self.home / "state.json", json.dumps({"last": newer, "doing": None}))
        if state["last"] is not None:
            self.drop.retire([state["last"]])

    def _read(self, spark: SparkSession, name: str | None, side: str) -> DataFrame:
        """(k, key, image, n) of an export, named after its side: one row per key, and how many had it."""
        images = _images(spark, self.drop.claimed / name) if name else spark.createDataFrame([], "image string")
        parsed = F.try_parse_json("image")
        values = [F.try_variant_get(parsed, _path(key), "string") for key in self.keys]
        whole = F.to_json(F.struct(*[F.try_variant_get(parsed, _path(k), "variant").alias(k) for k in self.keys]))
        told = images.select(
            # A row without a key cannot be compared: it is told as it is, and refused where every message is judged.
            F.when(F.size(F.array_compact(F.array(*values))) < len(values), F.concat(F.lit("\x00"), "image"))
            .otherwise(F.concat_ws("\x1f", *values))
            .alias("k"),
            whole.alias("key"),
            F.coalesce(F.to_json(parsed), "image").alias("image"),
        )
        first = [F.first(part).alias(f"{side}_{part}") for part in ("key", "image")]
        return told.groupBy("k").agg(*first, F.count("*").alias(f"{side}_n"))

    def _sealed(self, both: DataFrame, older: str | None, newer: str) -> DataFrame:
        """Inbox rows of what differs, in the order of their keys."""
        micros, digest = newer[:16], newer[17:49]
        old, new = F.col("old_image"), F.col("new_image")
        first = "snapshot" if older is None else "insert"
        op = F.when(old.isNull(), F.lit(first)).when(new.isNull(), F.lit("delete")).when(old != new, F.lit("update"))
        row = F.monotonically_increasing_id()
        changes = both.withColumn("op", op).where("op IS NOT NULL").coalesce(1)
        changes = changes.sortWithinPartitions("k").withColumn("row", row)
        parts = {
            "export": F.lit(f'"{digest}"'), "number": F.lit(micros), "row": F.col("row").cast("string"),
            "table": F.lit(json.dumps(self.table)), "op": F.concat(F.lit('"'), "op", F.lit('"')),
            "key": F.coalesce("new_key", "old_key"), "before": F.coalesce(old, F.lit("null")), "after": F.coalesce(new, F.lit("null")),
        }  # fmt: skip
        pieces = [piece for name, text in parts.items() for piece in (F.lit(f', "{name}": '), text)]
        body = F.concat(F.lit("{"), F.substring(F.concat(*pieces), 3, 2**31 - 1), F.lit("}"))
        told = F.when(F.col("k").startswith("\x00"), new).otherwise(body)
        place = F.concat_ws("/", F.lit(digest), F.col("row").cast("string"))
        keys = keys_frame(both.sparkSession, {f"k_{name}": self.keyring.derive(name) for name in ("inbox", "iv")})
        sealed = seal_column(mask(told), F.col("k_inbox"), F.col("k_iv"), aad_column("inbox", place, "body"))
        arrived = F.timestamp_micros(F.lit(int(micros)))
        kept = changes.where(told.isNotNull()).crossJoin(F.broadcast(keys))
        return kept.select(place.alias("place"), arrived.alias("arrived"), "row", sealed.alias("sealed"))

    def _whole(self, newer: str, seen: dict[str, int]) -> None:
        """Raises when the newer export cannot be the whole table."""
        what_now = f"Take {newer} out of the folder `claimed`, or"
        if seen["twice"]:
            found = f"source {self.source}: {seen['twice']} keys more than once in one export"
            raise SourceStopped("export_refused", found, "each key once", f"{what_now} mend the contract's key.")
        if seen["older"] and seen["gone"] > self.most * seen["older"]:
            found = f"source {self.source}: {seen['gone']} of {seen['older']} rows are gone"
            expected = f"at most {self.most:.0%} of the rows gone at once"
            raise SourceStopped("export_refused", found, expected, f"{what_now} raise `max_deletes` if they are.")


def _counters() -> list[Column]:
    older, newer, keyed = F.col("old_n"), F.col("new_n"), ~F.col("k").startswith("\x00")
    return [
        F.count_if(keyed & older.isNotNull()).alias("older"),
        F.count_if(keyed & older.isNotNull() & newer.isNull()).alias("gone"),
        F.count_if(keyed & (newer > 1)).alias("twice"),
    ]


def _images(spark: SparkSession, path: Path) -> DataFrame:
    """Every row of an export as one JSON text."""
    if path.suffix == ".csv":
        rows = spark.read.csv(str(path), header=True, multiLine=True, escape='"')
    elif path.suffix == ".parquet":
        rows = spark.read.parquet(str(path))
    else:
        return spark.read.text(str(path), lineSep="\n").select(F.col("value").alias("image")).where("trim(image) <> ''")
    return rows.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("image"))


def _path(name: str) -> str:
    return "$" + "".join(f"['{part}']" for part in name.split("."))


def exports_of(settings: Settings, source: Source) -> Exports:
    ((table, contract),) = source.entities.items()
    home = settings.data_path / "exports" / source.name
    home.mkdir(parents=True, exist_ok=True)
    drop = DropFolder(settings.source_path(source.name), source.after, suffixes=SUFFIXES)
    inbox = settings.data_path / "inbox" / source.name
    keys, most = settings.entities[contract].key, source.max_deletes
    return Exports(source.name, table, keys, 0.5 if most is None else most, drop, inbox, home, settings.keyring)
