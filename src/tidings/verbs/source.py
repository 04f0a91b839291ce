"""`tidings source install|remove NAME`: what a database needs so that its log can be read, shown first and undone by the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.errors import Refused, SourceStopped
from tidings.verbs.options import AsJson, Here, answer

if TYPE_CHECKING:
    from tidings.sources.postgresql import Capture

Name = Annotated[str, typer.Argument(metavar="NAME", help="The source.")]
Only = Annotated[bool, typer.Option("--dry-run", help="Show the SQL and run nothing.")]


def register(app: typer.Typer) -> None:
    source = typer.Typer(
        no_args_is_help=True, help="Prepare a database for capture, and take it back.", rich_markup_mode=None
    )
    source.command("install")(install)
    source.command("remove")(remove)
    app.add_typer(source, name="source")


def install(name: Name, dry_run: Only = False, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Make the publication and the slot of a PostgreSQL source; the SQL is shown first."""
    capture = _capture(directory, name)
    _run(capture, [do for do, _ in capture.statements()], dry_run, as_json)


def remove(name: Name, dry_run: Only = False, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Drop what `install` made. Changes that were not read yet are lost with the slot."""
    capture = _capture(directory, name)
    _run(capture, [undo for _, undo in reversed(capture.statements())], dry_run, as_json)


def _capture(directory: Path, name: str) -> Capture:
    from tidings.settings import load
    from tidings.sources.postgresql import capture_of

    settings = load(directory)
    source = settings.sources.get(name)
    if source is None or source.kind != "postgresql":
        known = [one.name for one in settings.sources.values() if one.kind == "postgresql"]
        found = f"the source {name}" if source is None else f"the source {name}, which is {source.kind}"
        raise Refused("unknown_source", found, f"a PostgreSQL source: {', '.join(known) or 'none is declared'}")
    return capture_of(settings, source)


def _run(capture: Capture, statements: list[str], dry_run: bool, as_json: bool) -> None:
    if not as_json:
        print("\n".join(f"{statement};" for statement in statements), flush=True)
    if not dry_run:
        with capture.connected() as connection:
            import psycopg

            try:
                for statement in statements:
                    connection.execute(statement.encode())
            except psycopg.Error as error:
                said = error.diag.message_primary or type(error).__name__
                what_now = "Mend it and run the verb again; what was done stays until `tidings source remove`."
                raise SourceStopped(
                    "source_not_ready", f"the server says: {said}", "the SQL to run", what_now
                ) from None
    if as_json:
        answer({"source": capture.source, "statements": statements, "done": not dry_run})
