"""`tidings saga list` and `tidings saga show EVENT`: changes that several subscribers take together, each as one story."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, note

if TYPE_CHECKING:
    from tidings.sagas import Part, Story


def register(app: typer.Typer) -> None:
    saga = typer.Typer(no_args_is_help=True, help="Changes that several subscribers take together.")
    saga.command("list")(list_)
    saga.command("show")(show)
    app.add_typer(saga, name="saga")


def list_(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """One line per story: since when, how it stands, who said yes and who said no."""
    found = _stories(directory)
    if as_json:
        answer({"stories": [story.as_dict() for story in found]})
    elif not found:
        note("No event of a saga is in the journal.")
    for story in () if as_json else found:
        said = ", ".join(f"{part.subscriber} {part.outcome}" for part in story.parts)
        print(f"{story.began}  {story.standing:8}  {story.saga}  {story.event_id}  {said}")


def show(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The id of the event.")],
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """One story: how it began, who said yes, who said no, what was taken back, what is open."""
    found = _stories(directory, event)
    if not found:
        expected = "an event of a saga, as `tidings saga list` shows them"
        raise Refused("unknown_event", f"event {event[:64]}", expected, "Look for its id there.")
    if as_json:
        answer(found[0].as_dict())
    else:
        print("\n".join(_lines(found[0])))


def _stories(directory: Path, event: str = "") -> list[Story]:
    from tidings.sagas import stories
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    return stories(settings, Store(settings.data_path / "tables"), event)


def _lines(story: Story) -> list[str]:
    head = (
        f"{story.saga}: {story.change_type} of {story.entity}, {story.event_id}, began {story.began}: {story.standing}"
    )
    return [head, *(f"  {part.subscriber}: {_said(part)}" for part in story.parts)]


def _said(part: Part) -> str:
    why = f" ({part.why})" if part.why else ""
    undo = {
        "": "",
        "asked": "; asked to take it back",
        "undone": f"; took it back with {part.undo_event}",
        "a person": "; a person must see to it",
    }[part.undo]
    return f"{part.outcome}{why}{undo}"
