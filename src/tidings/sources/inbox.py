"""The inbox: messages handed to us directly. Durable before it answers: sealed, fsynced, then acknowledged.

What breaks its guarantee: nothing but the loss of the disk. A caller that gets no answer must send again; the second copy is a
second message, and is recognised by the vendor's own message id where the dialect has one, or by its name where it came with one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings import crash
from tidings.durable import replace, sync_file
from tidings.errors import Refused
from tidings.seal.cards import mask_text
from tidings.seal.columns import aad_column, open_column
from tidings.seal.keyring import Keyring, associated, seal_payload

SCHEMA = "place string, arrived timestamp, row bigint, sealed binary"
MAX_MESSAGES = 100_000
crash.POINTS["inbox.synced"] = "messages are durable in the inbox, the caller has no answer yet"


@dataclass(frozen=True)
class Receipt:
    """What the caller gets: the segment's name and how many messages it holds."""

    segment: str
    messages: int


class Named(NamedTuple):
    """A message with a name of its own: the same name and time however often it is handed over."""

    body: str
    place: str
    micros: int  # when it came into being, by the clock of whoever named it


@dataclass(frozen=True)
class Folder:
    """Where the segments of a source lie until the journal holds what is in them."""

    path: Path

    def retire(self, names: Sequence[str]) -> None:
        """The journal holds these: what is kept twice would outlive an erasure, sealed under no person's key."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)


def accept(folder: Path, keyring: Keyring, messages: Sequence[str | Named]) -> Receipt:
    """Store messages; when this returns they survive a power cut."""
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise Refused("inbox_size", f"{len(messages)} messages", f"1 to {MAX_MESSAGES}", "Send them in several calls.")
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time_ns() // 1000
    masked = [mask_text(one if isinstance(one, str) else one.body)[0] for one in messages]
    sha = hashlib.sha256("\n".join(masked).encode("utf-8", "surrogatepass")).hexdigest()
    name = f"{now:016d}-{sha}"
    key, k_iv = keyring.derive("inbox"), keyring.derive("iv")
    places = [f"{name[:49]}/{n}" if isinstance(one, str) else one.place for n, one in enumerate(messages)]
    sealed = [
        seal_payload(text.encode("utf-8", "surrogatepass"), key, k_iv, associated("inbox", place, "body"))
        for text, place in zip(masked, places, strict=True)
    ]
    arrived = [now if isinstance(one, str) else one.micros for one in messages]
    table = pa.table(
        {
            "place": pa.array(places, pa.string()),
            "arrived": pa.array(arrived, pa.timestamp("us", "UTC")),
            "row": pa.array(range(len(masked)), pa.int64()),
            "sealed": pa.array(sealed, pa.binary()),
        }
    )
    temporary = folder / f".{name}.new"
    pq.write_table(table, temporary, write_statistics=False)
    sync_file(temporary)
    replace(temporary, folder / f"{name}.parquet")
    crash.point("inbox.synced")
    return Receipt(name, len(masked))


def read(spark: SparkSession, folder: Path, *, max_files: int) -> DataFrame:
    """Sealed rows of new segments, as a stream."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", max_files).parquet(str(folder))
    return rows.select("*", F.col("_metadata.file_name").alias("segment"))


def messages(rows: DataFrame, source: str, keys: DataFrame) -> DataFrame:
    """MESSAGE rows, opened natively; `keys` is the one-row frame with `k_inbox`."""
    body = open_column(F.col("sealed"), F.col("k_inbox"), aad_column("inbox", F.col("place"), "body"))
    rank = F.concat_ws(
        "-", F.substring("segment", 1, 16), F.lit("0" * 14), F.lpad(F.col("row").cast("string"), 10, "0")
    )
    return rows.crossJoin(F.broadcast(keys)).select(
        F.lit(source).alias("source"),
        F.col("place"),
        F.col("arrived"),
        rank.alias("rank"),
        body.cast("string").alias("body"),
        F.lit(None).cast("string").alias("file"),
        (F.col("row") + 1).alias("line"),
    )
