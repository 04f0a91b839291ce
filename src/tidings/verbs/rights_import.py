"""`tidings rights import FILE.csv`: requests as a list, all of it or, on demand, its good lines. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, given, note


def register(app: typer.Typer) -> None:
    app.command("import")(import_list)


def import_list(
    file: Annotated[Path, typer.Argument(help="A CSV file; docs/rights-intake.md lists its columns.")],
    good_lines: Annotated[
        bool, typer.Option("--good-lines", help="Take the good lines and report the others.")
    ] = False,
    report: Annotated[Path | None, typer.Option("--report", help="Write the problems here, as CSV.")] = None,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Take a list of requests in. With a problem nothing is taken, unless --good-lines says otherwise."""
    from tidings.rights import lists
    from tidings.settings import load

    taken = lists.take(load(directory, secrets=False), given(file), file.name, good_lines=good_lines)
    if report is not None:
        report.write_text(lists.report(taken), encoding="utf-8")
    if as_json:
        answer(taken.as_dict())
    else:
        for problem in taken.problems:
            note(str(problem))
        lines = len({one.line for one in taken.problems})
        print(f"{len(taken.requests)} request(s) taken in, {lines} line(s) with problems")
    if taken.problems and not taken.requests:
        raise typer.Exit(Refused.exit_code)
