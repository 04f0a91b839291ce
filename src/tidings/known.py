"""What is already known of a large batch's subjects: their last image, their consents, joined by tag. `held.py` does it for a small one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidings.seal.columns import aad_column, bucket_column, open_column, unwrap_column
from tidings.seal.keyfiles import KeyFiles
from tidings.session import BUCKETS
from tidings.stages.event import Batch
from tidings.stages.joint import STATE
from tidings.store import Store

HASHED = (
    "shuffle_hash"  # both sides lie by bucket: hashed where they are, no row of the batch is moved or sorted for it
)
KEY = ("bucket", "tag")
IMAGE = "image string, fields map<string,string>"


@dataclass(frozen=True)
class Known:
    """Frames keyed by bucket and tag: `subjects` (consents, jurisdiction, flags) and, where the source keeps it, `last_seen`."""

    subjects: DataFrame
    last_seen: DataFrame | None


def known(spark: SparkSession, store: Store, keys: tuple[KeyFiles, DataFrame], batch: Batch, partitions: int) -> Known:
    """State committed before this batch, divided as the batch is. Its own rows are left out, so a repeat computes the same."""
    kept = ("consents", "jurisdiction", "flags", *(("version",) if batch.masters else ()))
    subjects = _latest(_rows(spark, store, "subjects", batch, partitions), *kept)
    subjects = subjects.select(*KEY, *[F.col(c).alias(f"known_{c}") for c in kept])
    if not batch.keeps:
        return Known(subjects.hint(HASHED), None)
    images = _latest(_rows(spark, store, "last_seen", batch, partitions), "kid", "image", "time", "vector", "version")
    opened = images.join(_opened(spark, *keys, partitions), [*KEY, "kid"], "left")
    plain = F.from_json(
        open_column(F.col("image"), F.col("key"), aad_column("last_seen", F.hex("tag"), "image")).cast("string"),
        f"{IMAGE}, {STATE}" if batch.masters else IMAGE,
    )
    last = opened.select(*KEY, "time", "vector", "version", plain.alias("plain")).select(
        *KEY,
        F.col("plain.fields").alias("known_fields"),
        F.col("plain.image").alias("known_image"),
        F.col("time").alias("known_time"),
        *(_between_masters() if batch.masters else ()),
    )
    return Known(subjects.hint(HASHED), last.hint(HASHED))


def _between_masters() -> list[Column]:
    beside = {"vector": F.col("vector"), "image_version": F.col("version")}
    sealed = {name: F.col(f"plain.{name}") for name in ("masters", "wrote", "held")}
    return [column.alias(f"known_{name}") for name, column in (sealed | beside).items()]


def nothing_of(spark: SparkSession, schema: str) -> DataFrame:
    """No rows of this schema; Spark sees that there are none and plans no join with them."""
    shape = cast(T.StructType, T.StructType.fromDDL(schema))
    return spark.range(0).filter(F.lit(False)).select(*[F.lit(None).cast(f.dataType).alias(f.name) for f in shape])


def _rows(spark: SparkSession, store: Store, table: str, batch: Batch, partitions: int) -> DataFrame:
    own = (
        (F.col("source") == batch.source) & (F.col("generation") == batch.generation) & (F.col("batch") >= batch.number)
    )
    rows = _parquet(spark, [f.path for f in store.files(table)], store.schema(table))
    return rows.filter(~own).repartition(partitions, "bucket")


def _parquet(spark: SparkSession, paths: Sequence[str], schema: str) -> DataFrame:
    # Every file is its own partition in this session (see session.py), so small reads are gathered again.
    if not paths:
        return nothing_of(spark, schema)
    frame = spark.read.schema(schema).parquet(*paths)
    return frame.coalesce(max(1, min(4, len(paths))))


def _latest(rows: DataFrame, *columns: str) -> DataFrame:
    """The newest row per tag; versions are hybrid clock texts, comparable between sources."""
    value = F.max_by(F.struct(*columns), F.col("version")).alias("value")
    return rows.groupBy(*KEY).agg(value).select(*KEY, *[F.col(f"value.{c}").alias(c) for c in columns])


def _opened(spark: SparkSession, files: KeyFiles, kek: DataFrame, partitions: int) -> DataFrame:
    rows = _parquet(spark, files.paths(), "tag binary, kid binary, key binary")
    rows = rows.withColumn("bucket", bucket_column(F.col("tag")) % BUCKETS).repartition(partitions, "bucket")
    wrapped = rows.crossJoin(F.broadcast(kek))
    key = unwrap_column(F.col("key"), F.col("k_kek"), F.col("tag"), F.col("kid")).alias("key")
    return wrapped.select(*KEY, "kid", key).dropDuplicates([*KEY, "kid"])
