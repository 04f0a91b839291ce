"""The two options every verb takes, and how a verb answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Here = Annotated[Path, typer.Option("-C", metavar="DIR", help="The operator's folder.", show_default="here")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON on stdout.")]


def answer(data: Any) -> None:
    """One JSON document on stdout."""
    json.dump(data, sys.stdout, ensure_ascii=False, indent=2, default=str)
    sys.stdout.write("\n")


def note(text: str) -> None:
    """A line about progress or consequence, on stderr."""
    print(text, file=sys.stderr, flush=True)
