"""What is already known of a batch's subjects: their last image, their consents. Looked up by tag, never by scanning history."""

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
from tidings.store import Store

SMALL = 500  # up to this many tags are named in the filter, so that Parquet skips pages; above, the table is joined
KEY = ("bucket", "tag")
IMAGE = "image string, fields map<string,string>"


@dataclass(frozen=True)
class Known:
    """Frames keyed by bucket and tag: `subjects` (consents, jurisdiction, flags) and, where the source keeps it, `last_seen`."""

    subjects: DataFrame
    last_seen: DataFrame | None


@dataclass(frozen=True)
class Looking:
    """Whom a batch is about: its tags when they are few (`None` when they are not), and how the batch is divided."""

    batch: Batch
    tags: Sequence[bytes] | None
    partitions: int = 1


def known(spark: SparkSession, store: Store, keys: tuple[KeyFiles, DataFrame], look: Looking) -> Known:
    """State committed before this batch. The batch's own rows are left out, so a repeat computes the same."""
    subjects = _latest(_rows(spark, store, "subjects", look), "consents", "jurisdiction", "flags")
    subjects = subjects.select(*KEY, *[F.col(c).alias(f"known_{c}") for c in ("consents", "jurisdiction", "flags")])
    if not look.batch.keeps:
        return Known(_hinted(subjects, look), None)
    images = _latest(_rows(spark, store, "last_seen", look), "kid", "image", "time")
    opened = images.join(_opened(spark, *keys, look), [*KEY, "kid"], "left")
    plain = F.from_json(
        open_column(F.col("image"), F.col("key"), aad_column("last_seen", F.hex("tag"), "image")).cast("string"), IMAGE
    )
    last = opened.select(*KEY, "time", plain.alias("plain")).select(
        *KEY,
        F.col("plain.fields").alias("known_fields"),
        F.col("plain.image").alias("known_image"),
        F.col("time").alias("known_time"),
    )
    return Known(_hinted(subjects, look), _hinted(last, look))


def nothing_of(spark: SparkSession, schema: str) -> DataFrame:
    """No rows of this schema; Spark sees that there are none and plans no join with them."""
    shape = cast(T.StructType, T.StructType.fromDDL(schema))
    return spark.range(0).filter(F.lit(False)).select(*[F.lit(None).cast(f.dataType).alias(f.name) for f in shape])


def _hinted(frame: DataFrame, look: Looking) -> DataFrame:
    """Few rows go to every task; many lie as the batch does and are hashed where they are, so that no row of it is sorted."""
    return frame.hint("shuffle_hash") if look.tags is None else F.broadcast(frame.coalesce(1))


def _rows(spark: SparkSession, store: Store, table: str, look: Looking) -> DataFrame:
    batch = look.batch
    own = (
        (F.col("source") == batch.source) & (F.col("generation") == batch.generation) & (F.col("batch") >= batch.number)
    )
    return _near(_parquet(spark, [f.path for f in store.files(table)], store.schema(table)).filter(~own), look)


def _near(frame: DataFrame, look: Looking) -> DataFrame:
    """The rows that a batch can meet: those of its few tags, or all of them, divided as the batch is."""
    if look.tags is None:
        return frame.repartition(look.partitions, "bucket")
    return frame.filter(_one_of(look.tags))


def _parquet(spark: SparkSession, paths: Sequence[str], schema: str) -> DataFrame:
    # Every file is its own partition in this session (see session.py), so small reads are gathered again.
    if not paths:
        return nothing_of(spark, schema)
    frame = spark.read.schema(schema).parquet(*paths)
    return frame.coalesce(max(1, min(4, len(paths))))


def _one_of(tags: Sequence[bytes]) -> Column:
    return F.col("tag").isin([F.lit(bytes(tag)) for tag in tags]) if tags else F.lit(False)


def _latest(rows: DataFrame, *columns: str) -> DataFrame:
    """The newest row per tag; versions are hybrid clock texts, comparable between sources."""
    value = F.max_by(F.struct(*columns), F.col("version")).alias("value")
    return rows.groupBy(*KEY).agg(value).select(*KEY, *[F.col(f"value.{c}").alias(c) for c in columns])


def _opened(spark: SparkSession, files: KeyFiles, kek: DataFrame, look: Looking) -> DataFrame:
    rows = _parquet(spark, files.paths(), "tag binary, kid binary, key binary")
    rows = _near(rows.withColumn("bucket", bucket_column(F.col("tag")) % BUCKETS), look)
    wrapped = rows.crossJoin(F.broadcast(kek))
    key = unwrap_column(F.col("key"), F.col("k_kek"), F.col("tag"), F.col("kid")).alias("key")
    return wrapped.select(*KEY, "kid", key).dropDuplicates([*KEY, "kid"])
