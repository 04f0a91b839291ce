"""`tidings gate review`: events that a rule holds until a person has looked at them; let one pass, or refuse it. No Spark."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, note

if TYPE_CHECKING:
    from tidings.report.reviews import Review
    from tidings.settings import Settings


def register(app: typer.Typer) -> None:
    app.command("review")(review)


def review(
    event: Annotated[
        str, typer.Argument(metavar="[EVENT]", help="The event's id; without one, what waits is listed.")
    ] = "",
    approve: Annotated[
        bool, typer.Option("--approve", help="Let it pass, where nothing but the review holds it.")
    ] = False,
    refuse: Annotated[bool, typer.Option("--refuse", help="It never goes out to those who wait.")] = False,
    by: Annotated[str, typer.Option("--by", help="Who has looked at it; it is attested in the ledger.")] = "",
    reason: Annotated[str, typer.Option("--reason", help="Why; it is attested in the ledger.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """List the events that wait for a person's review, or say of one of them what becomes of it."""
    settings, waiting = _reviews(directory)
    if event:
        _say(settings, _open(waiting, event), _action(approve, refuse), by, reason, as_json)
    elif approve or refuse:
        raise Refused("unknown_review", "a word without an event", "an event's id", "See `tidings gate review`.")
    elif as_json:
        answer([asdict(one) for one in waiting])
    else:
        for one in waiting:
            what = f"{one.entity} {one.change_type} to {', '.join(one.waiting)}"
            print(f"{one.time}  {one.event}  {what}: {'; '.join(one.reasons)}  {one.state}")
        note(f"{len(waiting)} shown, {sum(one.state == 'open' for one in waiting)} open")


def _action(approve: bool, refuse: bool) -> str:
    if approve == refuse:
        found = "both --approve and --refuse" if approve else "neither --approve nor --refuse"
        raise Refused("approve_or_refuse", found, "one of them", "Say what becomes of it. Nothing was recorded.")
    return "release" if approve else "refuse"


def _open(waiting: list[Review], event: str) -> Review:
    one = next((one for one in waiting if one.event == event), None)
    if one is None or one.state != "open":
        found = "no event of this id waits for a review" if one is None else f"an event that was {one.state}"
        raise Refused("unknown_review", found, "an event that waits for a review", "See `tidings gate review`.")
    return one


def _say(settings: Settings, one: Review, action: str, by: str, reason: str, as_json: bool) -> None:
    from tidings.lanes import control

    if not by.strip() or not reason.strip():
        expected = "--by NAME and --reason TEXT"
        raise Refused("no_reason", "a word without who says it or why", expected, "Both are recorded in the ledger.")
    place: dict[str, str | int] = {"source": one.source, "generation": one.generation, "offset": one.offset}
    chosen: control.Action = "release" if action == "release" else "refuse"
    request = control.ask(settings.data_path, control.WORDS, chosen, reason, by, event=one.event, **place)
    if as_json:
        answer(asdict(request))
        return
    print(f"{one.event}: {action} recorded; `tidings run` takes it up within a second, or when it starts")


def _reviews(directory: Path) -> tuple[Settings, list[Review]]:
    from tidings.report.reviews import reviews
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    return settings, reviews(settings, Store(settings.data_path / "tables"))
