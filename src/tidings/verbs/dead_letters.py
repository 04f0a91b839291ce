"""`tidings dead-letters`: deliveries that need a person; look, send again, or approve the exception. No Spark."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, note

if TYPE_CHECKING:
    from tidings.lanes.letters import Letter
    from tidings.settings import Settings
    from tidings.store import Store

Event = Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")]
Lane = Annotated[str, typer.Option("--lane", help="The subscriber, when several have this dead letter.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it is recorded.")]


def register(app: typer.Typer) -> None:
    letters = typer.Typer(help="Deliveries that need a person.", rich_markup_mode=None)
    letters.callback(invoke_without_command=True)(show)
    letters.command("inspect")(inspect)
    letters.command("retry")(retry)
    letters.command("approve")(approve)
    app.add_typer(letters, name="dead-letters")


def show(context: typer.Context, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """List the dead letters, oldest first."""
    if context.invoked_subcommand is not None:
        return
    _, _, found = _letters(directory)
    if as_json:
        answer([letter.as_dict() for letter in found])
        return
    for letter in found:
        attempts = f"{letter.attempts} attempt{'' if letter.attempts == 1 else 's'}"
        print(
            f"{letter.at}  {letter.lane}  {letter.event}  {letter.change_type}  {letter.code}  {attempts}  {letter.state}"
        )
    note(f"{len(found)} dead letter{'' if len(found) == 1 else 's'}, {sum(x.state == 'open' for x in found)} open")


def inspect(event: Event, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Everything that was tried for an event."""
    from tidings.lanes.letters import history

    _, store, _ = _letters(directory)
    found = history(store, event)
    if not found:
        raise Refused(
            "unknown_event", f"no attempt for {event}", "an event that was tried", "See `tidings dead-letters`."
        )
    if as_json:
        answer(found)
        return
    for row in found:
        what = "intended" if row["intent"] else f"{row['result']} {row['code'] or ''}".strip()
        after = row["final"] or (f"next {row['next_due']}" if row["next_due"] else "")
        print(f"{row['finished']}  {row['lane']}  attempt {row['attempt']}  {what}  {after}".rstrip())


def retry(
    event: Event, reason: Why = "", lane: Lane = "", directory: Here = Path("."), as_json: AsJson = False
) -> None:
    """Send a dead letter again, ahead of what waits for the same subject."""
    _ask("retry", event, (lane, reason), directory, as_json)


def approve(
    event: Event, reason: Why = "", lane: Lane = "", directory: Here = Path("."), as_json: AsJson = False
) -> None:
    """Accept that a delivery will not happen; the exception has a name and a reason."""
    _ask("approve", event, (lane, reason), directory, as_json)


def _letters(directory: Path) -> tuple[Settings, Store, list[Letter]]:
    from tidings.lanes.letters import dead_letters
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    store = Store(settings.data_path / "tables")
    return settings, store, dead_letters(store, settings.data_path)


def _ask(action: str, event: str, said: tuple[str, str], directory: Path, as_json: bool) -> None:
    from tidings.lanes import control
    from tidings.lanes.letters import sendable

    lane, reason = said
    if not reason.strip():
        raise Refused("no_reason", f"{action} without a reason", "--reason TEXT", "It is recorded, so it must say why.")
    settings, store, letters = _letters(directory)
    found = [one for one in letters if one.event == event and lane in ("", one.lane)]
    if len(found) != 1:
        names = ", ".join(one.lane for one in found)
        known = "no dead letter of this event" if not found else f"dead letters of this event in {names}"
        raise Refused("unknown_dead_letter", known, "exactly one", "Name it with --lane; see `tidings dead-letters`.")
    letter = found[0]
    if action == "retry" and not sendable(store, letter):
        what = "what this event said is gone: the time of its payload is over"
        raise Refused("payload_expired", what, "an event with its payload", "Let its master send the change again.")
    where: dict[str, str | int] = {
        "event": event,
        "source": letter.source,
        "generation": letter.generation,
        "offset": letter.offset,
    }
    request = control.ask(settings.data_path, letter.lane, "retry" if action == "retry" else "approve", reason, **where)
    if as_json:
        answer(asdict(request))
        return
    print(f"{letter.lane}: {action} of {event} asked; `tidings run` takes it up within a second, or when it starts")
