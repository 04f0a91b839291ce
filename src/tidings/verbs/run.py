"""`tidings run`: take what comes, decide, deliver, attest; until stopped."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

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
    from tidings.verbs.board import Board

    with Board(as_json) as board:
        runner = Runner(load(directory), master=master or None, progress=board)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: runner.stop.set())
        runner.run(until_idle=until_idle, patience=patience)
    note("Stopped. What is committed stays; the next run goes on from here.")
