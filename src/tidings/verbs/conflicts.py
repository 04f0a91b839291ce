"""`tidings conflicts`: changes that two masters dispute and that wait for a person; say which of them holds. No Spark."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, note

if TYPE_CHECKING:
    from tidings.report.disputes import Dispute
    from tidings.settings import Settings

Event = Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")]
All = Annotated[bool, typer.Option("--all", help="Also those that somebody has decided.")]


def register(app: typer.Typer) -> None:
    conflicts = typer.Typer(help="Changes that two masters dispute and that wait for a person.", rich_markup_mode=None)
    conflicts.callback(invoke_without_command=True)(show)
    conflicts.command("list")(listed)
    conflicts.command("resolve")(resolve)
    app.add_typer(conflicts, name="conflicts")


def show(context: typer.Context, every: All = False, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """List the changes that wait for a person, oldest first."""
    if context.invoked_subcommand is None:
        listed(every, directory, as_json)


def listed(every: All = False, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """List the changes that wait for a person, oldest first."""
    _, found = _disputes(directory)
    shown = [one for one in found if every or one.state == "open"]
    if as_json:
        answer([asdict(one) for one in shown])
        return
    for one in shown:
        where = f"{', '.join(one.fields) or 'erased'}  {one.source} against {', '.join(one.against) or '?'}"
        print(f"{one.time}  {one.event}  {one.entity} {one.change_type}  {where}  {one.state}")
    note(f"{len(shown)} shown, {sum(one.state == 'open' for one in found)} open")


def resolve(
    event: Event,
    keep: Annotated[bool, typer.Option("--keep", help="The change holds: it goes out and stands from now on.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="The change does not hold: it never goes out.")] = False,
    by: Annotated[str, typer.Option("--by", help="Who decides; it is attested in the ledger.")] = "",
    why: Annotated[str, typer.Option("--why", help="Why; it is attested in the ledger.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Say whether a held change holds; who says so and why is attested."""
    from tidings.lanes import control

    if keep == drop:
        found = "both --keep and --drop" if keep else "neither --keep nor --drop"
        raise Refused("keep_or_drop", found, "one of them", "Say whether the change holds. Nothing was recorded.")
    if not by.strip() or not why.strip():
        expected = "--by WHO and --why TEXT"
        raise Refused("no_reason", "a word without who says it or why", expected, "Both are recorded in the ledger.")
    settings, disputes = _disputes(directory)
    one = next((one for one in disputes if one.event == event), None)
    if one is None or one.state != "open":
        found = "no change of this id was held" if one is None else f"a change that is {one.state}"
        raise Refused("unknown_conflict", found, "a held change that is open", "See `tidings conflicts list --all`.")
    place: dict[str, str | int] = {"source": one.source, "generation": one.generation, "offset": one.offset}
    action: control.Action = "keep" if keep else "drop"
    request = control.ask(settings.data_path, control.WORDS, action, why, by, event=event, **place)
    if as_json:
        answer(asdict(request))
        return
    print(f"{event}: {action} recorded; `tidings run` takes it up within a second, or when it starts")


def _disputes(directory: Path) -> tuple[Settings, list[Dispute]]:
    from tidings.report.disputes import disputes
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    return settings, disputes(settings, Store(settings.data_path / "tables"))
