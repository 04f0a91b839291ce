"""`tidings rights`: requests of people. No Spark."""

from __future__ import annotations

import typer

from tidings.verbs import rights_certificate, rights_clocks, rights_holds, rights_import, rights_requests

PARTS = (rights_requests, rights_import, rights_clocks, rights_certificate, rights_holds)


def register(app: typer.Typer) -> None:
    rights = typer.Typer(help="Requests of people.", rich_markup_mode=None, no_args_is_help=True)
    rights.callback()(_requests)
    for part in PARTS:
        part.register(rights)
    app.add_typer(rights, name="rights")


def _requests() -> None:
    """Requests of people: what they asked, and how it stands."""
