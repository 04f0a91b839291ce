"""`tidings run`: take what comes, decide, deliver, attest; until stopped."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.verbs.options import AsJson, Here, note


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    directory: Here = Path("."),
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Stop when nothing is left to do now.")] = False,
    master: Annotated[str, typer.Option("--master", help="A Spark master; default: this machine.")] = "",
    patience: Annotated[
        float, typer.Option("--patience", help="With --until-idle: wait for retries due within this many seconds.")
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Run the operator's folder: sources, gate, lanes, ledger."""
    from tidings.run import Runner
    from tidings.settings import load

    runner = Runner(load(directory), master=master or None, progress=_printer(as_json))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: runner.stop.set())
    runner.run(until_idle=until_idle, patience=patience)
    note("Stopped. What is committed stays; the next run goes on from here.")


def _printer(as_json: bool) -> Any:
    """Progress on stderr: one JSON line per step, or a line for a person when something moved."""
    last: dict[str, Any] = {}

    def show(said: Any) -> None:
        for name, value in said.items():
            if last.get(name) == value:
                continue
            last[name] = value
            if as_json:
                print(json.dumps({name: value}), file=sys.stderr, flush=True)
            else:
                told = ", ".join(f"{k} {v}" for k, v in value.items() if v)
                print(f"{name}: {told}", file=sys.stderr, flush=True)

    return show
