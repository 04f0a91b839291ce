"""`tidings try detect` and `tidings try render`: the events that messages in hand would make, and how they would leave."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here

Lines = Annotated[str, typer.Argument(metavar="FILE", help="JSON Lines; - is standard input.")]
SourceName = Annotated[str, typer.Option("--source", help="The source whose dialect and contracts apply.")]


def register(app: typer.Typer) -> None:
    app.command("detect")(detect)
    app.command("render")(render)


def detect(path: Lines = "-", source: SourceName = "", directory: Here = Path("."), as_json: AsJson = False) -> None:
    """One line per event: its type, what changed, its consent, its signal, its flags, who would be told."""
    for row in _rows(path, source, directory):
        print(json.dumps(_event(row) if row["out"] == "journal" else _refused(row), default=str))


def render(
    path: Lines = "-",
    source: SourceName = "",
    subscriber: Annotated[str, typer.Option("--subscriber", help="Only this one.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """One CloudEvents line per event and subscriber that would be told."""
    from tidings.stages.envelope import render as envelope

    for row in _rows(path, source, directory):
        if row["out"] != "journal":
            print(json.dumps(_refused(row)))
            continue
        data = json.loads(row["payload"])
        for one in row["recipients"]:
            if one["outcome"] == "allow" and subscriber in ("", one["subscriber"]):
                print(json.dumps(envelope(row, f"{one['subscriber']}:subject", data), default=str))


def _rows(path: str, source: str, directory: Path) -> list[dict[str, Any]]:
    from tidings.rehearse import rehearse
    from tidings.session import session
    from tidings.settings import load

    settings = load(directory, secrets=False)
    name = source or next(iter(settings.sources))
    if name not in settings.sources:
        raise Refused(
            "unknown_source", f"source {name}", f"one of {', '.join(settings.sources)}", "Name it with --source."
        )
    raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    lines = raw.decode("utf-8", "replace").removesuffix("\n").split("\n")
    spark = session()
    try:
        return rehearse(spark, settings, settings.sources[name], lines)
    finally:
        spark.stop()


def _event(row: dict[str, Any]) -> dict[str, Any]:
    data = json.loads(row["payload"])
    names = (
        "event_id",
        "change_type",
        "operation",
        "entity",
        "time",
        "correlation",
        "banner",
        "location",
        "locale",
        "flags",
        "consent",
    )
    told = [{k: one[k] for k in ("subscriber", "outcome", "reasons")} for one in row["recipients"]]
    said = {name: data[name] for name in ("changed", "moved", "signal") if name in data}
    return {**{name: row.get(name) for name in names}, **said, "recipients": told}


def _refused(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "quarantine": {"code": row["code"], "path": row.get("path"), "detail": row.get("detail"), "line": row["line"]}
    }
