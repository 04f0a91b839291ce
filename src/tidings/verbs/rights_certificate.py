"""`tidings rights certificate REQUEST`: the signed archive that shows how a person's request ended, or how far it is. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidings.verbs.options import AsJson, Here, answer, given, note


def register(app: typer.Typer) -> None:
    app.command("certificate")(certificate)


def certificate(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id.")],
    directory: Here = Path("."),
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write it here.", show_default="named by the request"),
    ] = None,
    for_person: Annotated[
        Path | None,
        typer.Option(
            "--for-person", metavar="FILE", help="Add an opening of the identifiers in this file (kind: value)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the certificate of a request; while it is open, an interim statement that says so."""
    from tidings.rights.certificate import issue
    from tidings.rights.certificate_person import opening
    from tidings.settings import load

    settings = load(directory)
    said = opening(settings, request, given(for_person).decode("utf-8", errors="replace")) if for_person else b""
    issued = issue(settings, request, said)
    path = output or Path(issued.name)
    path.write_bytes(issued.archive)
    if as_json:
        answer({"file": str(path), "document": issued.document, "request": request, "missing": list(issued.missing)})
        return
    print(f"{issued.document} of request {request}: {path}")
    for reason in issued.missing:
        print(f"  missing: {reason}")
    note(
        f"Anyone can check it: tidings verify {path} --key FILE, with the key of {settings.data_path}/ledger/root/vkey"
    )
