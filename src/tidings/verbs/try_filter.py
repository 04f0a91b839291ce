"""`tidings try filter`: what filters say of events in hand. No JVM, and no folder needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here

MAX_LINE = 4_000_000
_NAMES = ("expression", "filter", "filters")

Lines = Annotated[str, typer.Argument(metavar="FILE", help='JSON Lines {"expression", "event"}; - is standard input.')]


class Said(NamedTuple):
    result: Any
    error: str | None
    why: str = ""


def register(app: typer.Typer) -> None:
    app.command("filter")(filter_)


def filter_(path: Lines = "-", directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Say what each filter gives for its event: the value, and the kind of error if there is one."""
    for number, line in enumerate(_lines(path), 1):
        said = _said(line)
        if as_json:
            print(json.dumps({"result": said.result, "error": said.error}), flush=True)
        else:
            why = said.why.encode("ascii", "backslashreplace").decode()  # It may quote what no terminal can show.
            print(f"{number:6}  {json.dumps(said.result):10}  {said.error or '':18}  {why}".rstrip(), flush=True)


def _lines(path: str) -> Iterator[bytes | None]:
    """One line at a time, so that answers come while questions are still asked; None for a line that is too long."""
    if path == "-":
        yield from _cut(sys.stdin.buffer)
        return
    try:
        with Path(path).open("rb") as stream:
            yield from _cut(stream)
    except OSError as error:
        found = (error.strerror or "an I/O error").lower()
        raise Refused("unreadable", f"{path}: {found}", "a readable file", "Name another file, or -.") from None


def _cut(stream: BinaryIO) -> Iterator[bytes | None]:
    while line := stream.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            while line and not line.endswith(b"\n"):
                line = stream.readline(MAX_LINE)
            yield None
        elif line.strip():
            yield line


def _said(line: bytes | None) -> Said:
    from tidings.gate.cesql_values import answer, context
    from tidings.gate.filters import FilterError, read

    try:
        if line is None:
            raise ValueError(f"a line of more than {MAX_LINE:,} bytes")
        filter_said, event = _asked(json.loads(line))
        attributes = context(event)
    except (ValueError, RecursionError) as error:
        # The text of a JSON error does not quote the line.
        return Said(False, "generic", "deeply nested JSON" if isinstance(error, RecursionError) else str(error))
    try:
        tree = read(filter_said)
    except FilterError as error:
        return Said(False, "parse" if error.column else "generic", error.message)
    value, kind = answer(tree, attributes)
    return Said(value, kind)


def _asked(asked: Any) -> tuple[Any, Mapping[str, Any]]:
    """What is asked of which event. A text is CESQL, an object or a list is of the Subscriptions dialects, by whichever name it comes."""
    names = [name for name in _NAMES if isinstance(asked, dict) and name in asked]
    if len(names) != 1:
        raise ValueError('expected an object with "expression" (or "filter", "filters") and "event"')
    event = asked.get("event")
    event = {} if event is None else event
    if not isinstance(event, dict):
        raise ValueError("expected a CloudEvent in JSON as event")
    said = asked[names[0]]
    # Written without quotes, `true` and `10` are expressions too.
    if names[0] == "expression" and isinstance(said, bool | int):
        said = json.dumps(said)
    return said, event
