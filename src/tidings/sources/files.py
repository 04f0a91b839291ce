"""Drop folder of JSON Lines: files are claimed once, by content, under neutral names, and read as a stream.

What breaks its guarantee: a producer that writes in place instead of renaming a finished file into the folder
(we may claim half of it), and a folder that is not on one file system (the claim is a rename).

    drop/crm/anything.jsonl  →  drop/crm/claimed/<microseconds>-<sha256>.jsonl  →  drop/crm/archive/…
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings import crash
from tidings.durable import durable_write, replace, sync_folder

SUFFIXES = (".jsonl", ".ndjson", ".json")
_CHUNK = 1 << 20
crash.POINTS["files.marked"] = "a file's claim is written down, the file is not yet moved"
crash.POINTS["files.claimed"] = "a file is claimed, no batch has read it"


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes, read in pieces."""
    sha = hashlib.sha256()
    with path.open("rb") as handle:
        while piece := handle.read(_CHUNK):
            sha.update(piece)
    return sha.hexdigest()


@dataclass
class DropFolder:
    """One operator's drop folder and what has been claimed from it."""

    path: Path
    after: str = "archive"
    suffixes: tuple[str, ...] = SUFFIXES
    duplicates: int = 0
    _last: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        for part in ("claimed", "archive", "duplicates", "seen"):
            (self.path / part).mkdir(parents=True, exist_ok=True)

    @property
    def claimed(self) -> Path:
        return self.path / "claimed"

    def claim(self) -> int:
        """Move every finished file to its neutral name; returns how many are new."""
        new = 0
        for path in self._waiting():
            new += self._claim(path)
        return new

    def waiting(self) -> bool:
        """Is there a file nobody has claimed?"""
        return next(self._waiting(), None) is not None

    def _waiting(self) -> Iterator[Path]:
        found = [e for e in os.scandir(self.path) if e.name.endswith(self.suffixes) and not e.name.startswith(".")]
        for entry in sorted((e for e in found if e.is_file()), key=lambda e: (e.stat().st_mtime_ns, e.name)):
            yield Path(entry.path)

    def _claim(self, path: Path) -> int:
        sha = digest(path)
        mark = self.path / "seen" / sha[:2] / sha
        known = json.loads(mark.read_text()) if mark.exists() else None
        if known and known["moved"]:
            self.duplicates += 1
            path.rename(self.path / "duplicates" / f"{self._now():016d}-{sha}.jsonl")
            return 0
        name = known["name"] if known else f"{self._now():016d}-{sha}{self._suffix(path)}"
        if not known:
            self._mark(mark, name, moved=False)
        crash.point("files.marked")
        replace(path, self.claimed / name)
        sync_folder(self.path)
        self._mark(mark, name, moved=True)
        crash.point("files.claimed")
        return 1

    def _mark(self, mark: Path, name: str, *, moved: bool) -> None:
        durable_write(mark, json.dumps({"name": name, "moved": moved}))

    def _suffix(self, path: Path) -> str:
        """Lines are lines whatever they are called; other forms keep their name."""
        return ".jsonl" if path.suffix in SUFFIXES else path.suffix

    def _now(self) -> int:
        """Microseconds, strictly growing, also when the clock does not."""
        self._last = max(time.time_ns() // 1000, self._last + 1)
        return self._last

    def retire(self, names: list[str]) -> None:
        """Put away files whose batch is committed, as the source asks."""
        for name in names:
            path = self.claimed / name
            if self.after == "keep" or not path.exists():
                continue
            if self.after == "delete":
                path.unlink()
            else:
                path.rename(self.path / "archive" / name)


def batch_files(checkpoint: Path, batch: int) -> list[tuple[str, int]]:
    """(name, bytes) of the files that the stream gave to this batch, from the stream's own log."""
    log = checkpoint / "sources" / "0"
    for candidate in (log / str(batch), log / f"{batch}.compact"):
        if candidate.exists():
            rows = [json.loads(line) for line in candidate.read_text().splitlines() if line.startswith("{")]
            paths = [Path(row["path"].removeprefix("file://")) for row in rows if row["batchId"] == batch]
            return [(p.name, p.stat().st_size if p.exists() else 0) for p in paths]
    return []


def read(spark: SparkSession, folder: Path, *, max_files: int, streaming: bool = True) -> DataFrame:
    """Raw lines with the file's name and the line's number, natively."""
    reader = spark.readStream.option("maxFilesPerTrigger", max_files) if streaming else spark.read
    lines = reader.schema("value string").option("lineSep", "\n").format("text").load(str(folder))
    row = F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1)
    return lines.select(
        F.col("value"),
        F.col("_metadata.file_name").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
        row.alias("row"),
    )


def messages(lines: DataFrame, source: str) -> DataFrame:
    """MESSAGE rows: place and arrival come from the claimed name, so a re-read gives the same row."""
    micros = F.substring("file", 1, 16)
    sha = F.substring("file", 18, 32)
    return lines.select(
        F.lit(source).alias("source"),
        F.concat_ws("/", sha, F.col("block").cast("string"), F.col("row").cast("string")).alias("place"),
        F.timestamp_micros(micros.cast("bigint")).alias("arrived"),
        F.concat_ws(
            "-", micros, F.lpad(F.col("block").cast("string"), 14, "0"), F.lpad(F.col("row").cast("string"), 10, "0")
        ).alias("rank"),
        F.col("value").alias("body"),
        F.col("file"),
        (F.col("row") + 1).alias("line"),
    )
