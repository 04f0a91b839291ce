"""`tidings source install|remove|snippet NAME`: what a database needs so that its log can be read, shown first and undone by the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer

if TYPE_CHECKING:
    from tidings.sources.tap import Log

Name = Annotated[str, typer.Argument(metavar="NAME", help="The source.")]
Only = Annotated[bool, typer.Option("--dry-run", help="Show the SQL and run nothing.")]


def register(app: typer.Typer) -> None:
    source = typer.Typer(
        no_args_is_help=True, help="Prepare a database for capture, and take it back.", rich_markup_mode=None
    )
    source.command("install")(install)
    source.command("remove")(remove)
    source.command("snippet")(snippet)
    app.add_typer(source, name="source")


def install(name: Name, dry_run: Only = False, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Make what a source needs on its server: a slot, a table, a trigger; the SQL is shown first."""
    tap = _tap(directory, name)
    _run(tap, [do for do, _ in tap.statements()], dry_run, as_json)


def remove(name: Name, dry_run: Only = False, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Drop what `install` made. Changes that were not read yet are lost with it."""
    tap = _tap(directory, name)
    _run(tap, [undo for _, undo in reversed(tap.statements()) if undo], dry_run, as_json)


def snippet(name: Name, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Print the Python function that writes to an outbox in the application's own transaction."""
    tap = _tap(directory, name)
    text = getattr(tap, "snippet", None)
    if text is None:
        raise Refused("unknown_source", f"the source {name}, which is no outbox", "a source of kind outbox")
    if as_json:
        answer({"source": name, "snippet": text()})
    else:
        print(text(), end="")


def _tap(directory: Path, name: str) -> Log:
    from tidings.settings import load
    from tidings.sources.tap import tap_of

    settings = load(directory)
    source = settings.sources.get(name)
    tap = tap_of(settings, source) if source else None
    if tap is None or not tap.statements():
        readers = {one.name: tap_of(settings, one) for one in settings.sources.values()}
        known = [one for one, reader in readers.items() if reader and reader.statements()]
        found = f"the source {name}" if source is None else f"the source {name}, which is {source.kind}"
        expected = f"a source with something to install: {', '.join(known) or 'none is declared'}"
        raise Refused("unknown_source", found, expected)
    return tap


def _run(tap: Log, statements: list[str], dry_run: bool, as_json: bool) -> None:
    if not as_json:
        print("\n".join(f"{statement};" for statement in statements), flush=True)
    if not dry_run:
        tap.execute(statements)
    if as_json:
        answer({"source": tap.source, "statements": statements, "done": not dry_run})
