"""`tidings try deadline`: until when a law leaves time, reckoned step by step. No JVM, and no folder needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import ConfigurationError, Refused
from tidings.verbs.options import AsJson, Here, answer

if TYPE_CHECKING:
    from tidings.gate.calendars import Calendars
    from tidings.gate.statutes import Statute

Id = Annotated[str, typer.Option("--statute", metavar="ID", help="A statute of the catalogue or of policy/statutes/.")]
Received = Annotated[
    str,
    typer.Option(
        "--received", metavar="TIMESTAMP", help="What starts the clock: a date, or a time with or without offset."
    ),
]
Extended = Annotated[bool, typer.Option("--extended", help="With the law's one extension.")]
Paused = Annotated[
    list[str] | None, typer.Option("--paused", metavar="FROM..TO", help="While the clock stood still; may be repeated.")
]
Share = Annotated[str, typer.Option("--subwindow", metavar="SHARE", help="The operator's part of the window, up to 1.")]
Jurisdiction = Annotated[
    str, typer.Option("--jurisdiction", metavar="PLACE", help="A place within the statute's, such as DE for the EU.")
]

_SHARE = re.compile(r"[01]?\.?[0-9]{1,9}", re.ASCII)


def register(app: typer.Typer) -> None:
    app.command("deadline")(deadline)


def deadline(
    statute: Id,
    received: Received,
    extended: Extended = False,
    paused: Paused = None,
    subwindow: Share = "0.5",
    jurisdiction: Jurisdiction = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Say when a statutory clock ends, and how that was reckoned."""
    from tidings.gate import deadlines

    statutes, calendars = _laws(directory)
    asked = deadlines.Asked(received, extended, tuple(paused or ()), share(subwindow), jurisdiction.upper())
    said = deadlines.deadline(statutes, statute, asked, calendars)
    if as_json:
        answer(said)
    else:
        print("\n".join(_told(said)))


def _laws(directory: Path) -> tuple[dict[str, Statute], Calendars]:
    """The folder's laws and calendars; the catalogue alone where there is no folder."""
    from tidings import settings as folder
    from tidings.gate.calendars import LIBRARY
    from tidings.gate.loading import catalogue_statutes, own_calendars

    if not (directory / "tidings.yaml").exists():
        statutes, problems = catalogue_statutes()
        calendars = LIBRARY
    else:
        settings = folder.load(directory, secrets=False)
        calendars, problems = own_calendars(settings)
        statutes, wrong = catalogue_statutes(settings)
        problems += wrong
    if problems:
        raise ConfigurationError(problems)
    return statutes, calendars


def share(text: str) -> Fraction:
    """A part of the window, exactly as written."""
    found = Fraction(text) if _SHARE.fullmatch(text) else Fraction(0)
    if not 0 < found <= 1:
        raise Refused("subwindow", repr(text[:20]), "a share above 0 and up to 1, such as 0.5", "Mend the share.")
    return found


def _told(said: Mapping[str, Any]) -> Iterator[str]:
    yield f"{said['statute']}: {said['law']}, {said['citation']} ({said['jurisdiction']}, {said['zone']})"
    for name in ("due", "subwindow_due", "extended_due"):
        yield f"  {name:14} {said[name] or 'none'}"
    for other in said["also"]:
        yield f"  {'also':14} {other['due'] or 'none'} {other['statute']}: {other['summary']}"
    yield from (f"  {number}. {step}" for number, step in enumerate(said["steps"], 1))
    yield f"  Source: {said['source']} (confidence {said['confidence']})"
