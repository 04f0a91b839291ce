"""What is already known of a batch's subjects: their last image, their consents. Looked up by tag, never by scanning history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings.seal.columns import aad_column, open_column, unwrap_column
from tidings.seal.keyfiles import KeyFiles
from tidings.stages.event import Batch
from tidings.store import Store

SMALL = 500  # up to this many tags are named in the filter, so that Parquet skips pages; above, the table is joined
IMAGE = "image string, fields map<string,string>"


@dataclass(frozen=True)
class Known:
    """Frames keyed by tag: `subjects` (consents, jurisdiction, flags) and, where the source keeps it, `last_seen`."""

    subjects: DataFrame
    last_seen: DataFrame | None


def known(
    spark: SparkSession, store: Store, keys: tuple[KeyFiles, DataFrame], batch: Batch, tags: Sequence[bytes] | None
) -> Known:
    """State committed before this batch. The batch's own rows are left out, so a repeat computes the same."""
    subjects = _latest(_rows(spark, store, "subjects", batch, tags), "consents", "jurisdiction", "flags")
    subjects = subjects.select("tag", *[F.col(c).alias(f"known_{c}") for c in ("consents", "jurisdiction", "flags")])
    if not batch.keeps:
        return Known(_small(subjects, tags), None)
    images = _latest(_rows(spark, store, "last_seen", batch, tags), "kid", "image", "time")
    opened = images.join(_opened(spark, *keys, tags), ["tag", "kid"], "left")
    plain = F.from_json(
        open_column(F.col("image"), F.col("key"), aad_column("last_seen", F.hex("tag"), "image")).cast("string"), IMAGE
    )
    last = opened.select("tag", "time", plain.alias("plain")).select(
        "tag",
        F.col("plain.fields").alias("known_fields"),
        F.col("plain.image").alias("known_image"),
        F.col("time").alias("known_time"),
    )
    return Known(_small(subjects, tags), _small(last, tags))


def _small(frame: DataFrame, tags: Sequence[bytes] | None) -> DataFrame:
    return frame if tags is None else F.broadcast(frame.coalesce(1))


def _rows(spark: SparkSession, store: Store, table: str, batch: Batch, tags: Sequence[bytes] | None) -> DataFrame:
    own = (
        (F.col("source") == batch.source) & (F.col("generation") == batch.generation) & (F.col("batch") >= batch.number)
    )
    frame = _parquet(spark, [f.path for f in store.files(table)], store.schema(table)).filter(~own)
    return frame.filter(_one_of(tags)) if tags is not None else frame


def _parquet(spark: SparkSession, paths: Sequence[str], schema: str) -> DataFrame:
    # Every file is its own partition in this session (see session.py), so small reads are gathered again.
    if not paths:
        return spark.createDataFrame([], schema)
    frame = spark.read.schema(schema).parquet(*paths)
    return frame.coalesce(max(1, min(4, len(paths))))


def _one_of(tags: Sequence[bytes]) -> Column:
    return F.col("tag").isin([F.lit(bytes(tag)) for tag in tags]) if tags else F.lit(False)


def _latest(rows: DataFrame, *columns: str) -> DataFrame:
    """The newest row per tag; versions are hybrid clock texts, comparable between sources."""
    value = F.max_by(F.struct(*columns), F.col("version")).alias("value")
    return rows.groupBy("tag").agg(value).select("tag", *[F.col(f"value.{c}").alias(c) for c in columns])


def _opened(spark: SparkSession, files: KeyFiles, kek: DataFrame, tags: Sequence[bytes] | None) -> DataFrame:
    rows = _parquet(spark, files.paths(), "tag binary, kid binary, key binary")
    rows = rows.filter(_one_of(tags)) if tags is not None else rows
    wrapped = rows.crossJoin(F.broadcast(kek))
    return wrapped.select(
        "tag", "kid", unwrap_column(F.col("key"), F.col("k_kek"), F.col("tag"), F.col("kid")).alias("key")
    ).dropDuplicates(["tag", "kid"])
