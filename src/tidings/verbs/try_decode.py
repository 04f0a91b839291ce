"""`tidings try decode`: what a dialect makes of messages in hand, one line for each."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AUTO = "auto"
# One job's share: enough to keep the cores busy, little enough to hold twice.
LINES_AT_ONCE, BYTES_AT_ONCE = 50_000, 32 << 20


def dialects() -> list[str]:
    """The names the catalogue has, without reading a dialect."""
    entries = (entry.name for entry in files("tidings").joinpath("catalog", "dialects").iterdir())
    return sorted(name.removesuffix(".yaml") for name in entries if name.endswith(".yaml") and name[0] != "_")


Lines = Annotated[str, typer.Argument(metavar="FILE", help="JSON Lines; - is standard input.")]
KeyColumns = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="ENTITY=COLUMN,…", help="Key columns where messages carry no key; * is any entity."),
]


DialectName = Annotated[str, typer.Option("--dialect", help=f"One of {', '.join(dialects())}; or auto.")]


def register(app: typer.Typer) -> None:
    app.command("decode")(decode)


def decode(
    path: Lines = "-",
    dialect: DialectName = AUTO,
    key: KeyColumns = None,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """One line of JSON per message: its change (a list for several), why it is skipped, or why it is refused."""
    if dialect not in (AUTO, *dialects()):
        what_now = "Name one of them; nothing was read."
        raise Refused("unknown_dialect", f"the dialect {dialect}", f"auto, {', '.join(dialects())}", what_now)
    keys = _keys(key or [])
    with _opened(path) as stream:
        _decode(stream, dialect, keys)


def _keys(given: list[str]) -> dict[str, list[str]]:
    found = {}
    for text in given:
        entity, _, columns = text.rpartition("=")
        names = [name.strip() for name in columns.split(",")]
        if not entity or not all(names):
            raise typer.BadParameter(f"found {text!r}; expected ENTITY=COLUMN,COLUMN", param_hint="--key")
        found[entity.strip()] = names
    return found


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    if not os.access(path, os.R_OK) or Path(path).is_dir():
        raise Refused("unreadable", f"{path}, which cannot be read", "a file of JSON Lines", "Mend it and try again.")
    with Path(path).open("rb") as stream:
        yield stream


def _decode(stream: BinaryIO, dialect: str, keys: dict[str, list[str]]) -> None:
    with tempfile.TemporaryDirectory(prefix="tidings-", ignore_cleanup_errors=True) as scratch:
        spark = _session(Path(scratch))
        try:
            heard: set[str] = set()
            for lines in portions(stream):
                for said in decoded(spark, lines, dialect, keys, heard):
                    sys.stdout.buffer.write(said.encode("utf-8", "surrogateescape") + b"\n")
                sys.stdout.buffer.flush()
        finally:
            spark.stop()


def _session(scratch: Path) -> SparkSession:
    """A session whose JVM has our stderr as its stdout, so that nothing it says can stand among the answers."""
    from tidings.session import session

    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        return session(scratch)
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def portions(stream: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines, split at \\n alone and without a \\r before it, a job's share at a time."""
    held: list[bytes] = []
    size = 0
    for line in stream:
        held.append(line.removesuffix(b"\n").removesuffix(b"\r"))
        size += len(line)
        if len(held) == LINES_AT_ONCE or size >= BYTES_AT_ONCE:
            yield held
            held, size = [], 0
    if held:
        yield held


def decoded(
    spark: SparkSession, lines: list[bytes], dialect: str, keys: dict[str, list[str]], heard: set[str] | None = None
) -> Iterator[str]:
    """For every line its answer, in order, through the stage that a running source goes through.

    `auto` first finds out which dialects are spoken, then decodes those; `heard` remembers them from portion to portion.
    """
    from tidings.stages.change import UNHEARD

    heard, messages = set() if heard is None else heard, _messages(spark, lines)
    rows = _changes(messages, dialect, keys, heard)
    while new := {row["problem"]["detail"] for row in rows if row["problem"] and row["problem"]["code"] == UNHEARD}:
        heard |= new
        rows = _changes(messages, dialect, keys, heard)
    answers: dict[int, list[tuple[int, str]]] = {}
    for row in rows:
        answers.setdefault(row["line"], []).append((row["ordinal"], _answer(row, lines[row["line"]])))
    for number in range(len(lines)):
        several = [text for _, text in sorted(answers[number])]
        yield several[0] if len(several) == 1 else f"[{', '.join(several)}]"


def _changes(messages: DataFrame, dialect: str, keys: dict[str, list[str]], heard: set[str]) -> list[Any]:
    from pyspark.sql import functions as F

    from tidings.stages.change import change
    from tidings.stages.decode import TEXTS

    changes = change(messages, dialect, keys, heard if dialect == AUTO else None)
    said = changes.select(
        "line",
        "ordinal",
        "op",
        "entity",
        *[F.col(text).alias(name) for name, text in TEXTS.items()],
        F.date_format("commit_time", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").alias("commit_time"),
        "position",
        "txn",
        "skip",
        "problem",
    )
    return said.collect()


def _messages(spark: SparkSession, lines: list[bytes]) -> DataFrame:
    """MESSAGE rows; the bodies travel as bytes, so that what is not UTF-8 reaches the stage as it is."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    from tidings.stages.message import MESSAGE

    table = pa.table({"line": pa.array(range(len(lines)), pa.int64()), "body": pa.array(lines, pa.binary())})
    rows = spark.createDataFrame(table)
    given = {"line": F.col("line"), "body": F.col("body").cast("string")}
    return rows.select(
        *[given.get(each.name, F.lit(None).cast(each.dataType)).alias(each.name) for each in MESSAGE.fields]
    )


def _answer(row: Any, body: bytes) -> str:
    """Key and images stay the text Spark wrote: a number read and written again might not be the same."""
    from tidings.diagnose import diagnose

    if row["problem"]:
        code, path, said = row["problem"]
        detail = diagnose(body, code, path or "", said or "").detail
        return json.dumps({"quarantine": {"code": code, "detail": detail}}, ensure_ascii=False)
    if row["skip"]:
        return json.dumps({"skip": row["skip"]}, ensure_ascii=False)
    texts = {
        name: json.dumps(row[name], ensure_ascii=False) for name in ("op", "entity", "commit_time", "position", "txn")
    }
    texts |= {name: row[name] or "null" for name in ("key", "before", "after")}
    order = ("op", "entity", "key", "before", "after", "commit_time", "position", "txn")
    return "{" + ", ".join(f'"{name}": {texts[name]}' for name in order) + "}"
