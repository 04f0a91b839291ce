"""The two options every verb takes, and how a verb answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.errors import Refused

Here = Annotated[Path, typer.Option("-C", metavar="DIR", help="The operator's folder.", show_default="here")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON on stdout.")]


def answer(data: Any) -> None:
    """One JSON document on stdout."""
    json.dump(data, sys.stdout, ensure_ascii=False, indent=2, default=str)
    sys.stdout.write("\n")


def note(text: str) -> None:
    """A line about progress or consequence, on stderr."""
    print(text, file=sys.stderr, flush=True)


def known_subscriber(names: Iterable[str], name: str) -> None:
    """Refuse a subscriber that is not there: an empty answer would read like "nothing is wrong"."""
    if name not in (there := tuple(names)):
        expected = f"--subscriber, one of {', '.join(there)}"
        raise Refused("unknown_lane", name or "no subscriber", expected, "Nothing was changed.")


def given(path: Path) -> bytes:
    """The bytes of a file that was named on the command line."""
    try:
        return path.read_bytes()
    except OSError as error:
        found = f"{path}, which cannot be read ({type(error).__name__})"
        raise Refused("unreadable", found, "a file that can be read", "Name another.") from None
