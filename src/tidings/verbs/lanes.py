"""`tidings lanes`: where every subscriber stands; `pause` and `resume` are the stop button, `cursors` and `move` the buffer. No Spark."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tidings.errors import Refused
from tidings.verbs import cursors, lanes_waiting
from tidings.verbs.options import AsJson, Here, answer, note

if TYPE_CHECKING:
    from tidings.lanes.lane import Tables
    from tidings.lanes.member import Feed, Rules
    from tidings.settings import Settings

Why = Annotated[str, typer.Option("--reason", help="Why; it is attested in the ledger.")]
Who = Annotated[str, typer.Argument(metavar="[NAME]", help="The subscriber.")]
All = Annotated[bool, typer.Option("--all", help="Every lane.")]

PARTS = (lanes_waiting, cursors)


@dataclass(frozen=True)
class Standing:
    """One lane as the tables show it; a running process may be a moment ahead."""

    subscriber: str
    cursors: dict[str, int]
    lag: int
    unsettled: int
    parked: int
    breaker: str
    paused: str


def register(app: typer.Typer) -> None:
    lanes = typer.Typer(help="Where every subscriber stands; pause and resume.", rich_markup_mode=None)
    lanes.callback(invoke_without_command=True)(show)
    lanes.command("pause")(pause)
    lanes.command("resume")(resume)
    for part in PARTS:
        part.register(lanes)
    app.add_typer(lanes, name="lanes")


def show(context: typer.Context, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """List the lanes: cursor, lag in events, unsettled deliveries, parked subjects, breaker, pause."""
    if context.invoked_subcommand is not None:
        return
    found = standings(directory)
    if as_json:
        answer([asdict(one) for one in found])
        return
    for line in _lines(found):
        print(line)


def pause(
    name: Who = "", every: All = False, reason: Why = "", directory: Here = Path("."), as_json: AsJson = False
) -> None:
    """Stop sending to a subscriber, or to all; what arrives is kept."""
    _ask("pause", _chosen(directory, name, every), reason, as_json)


def resume(
    name: Who = "", every: All = False, reason: Why = "", directory: Here = Path("."), as_json: AsJson = False
) -> None:
    """Go on sending, from where it stopped."""
    _ask("resume", _chosen(directory, name, every), reason, as_json)


def standings(directory: Path) -> list[Standing]:
    from tidings.lanes.lane import Tables
    from tidings.lanes.limits import rules_of
    from tidings.lanes.slices import feeds
    from tidings.seal.keyfiles import KeyFiles
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    store = Store(settings.data_path / "tables")
    keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    tables, found = Tables(store, keys, settings), list(feeds(store))
    return [_standing(tables, rules_of(settings, one), found) for one in settings.subscribers.values()]


def _standing(tables: Tables, rules: Rules, feeds: list[Feed]) -> Standing:
    from tidings.lanes import control
    from tidings.lanes.cursors import unread

    state, _, _ = tables.recovered(rules, feeds)
    now = time.time()
    return Standing(
        subscriber=rules.name,
        cursors={str(feed): state.cursors.get(feed, -1) for feed in feeds},
        lag=sum(unread(tables, feed, state.cursors.get(feed, -1))[0] for feed in feeds),
        unsettled=len(state.unsettled),
        parked=state.parked(now),
        breaker=state.breaker.look(now),
        paused=control.paused(control.asked(tables.settings.data_path, rules.name)),
    )


def _chosen(directory: Path, name: str, every: bool) -> tuple[Settings, list[str]]:
    from tidings.settings import load

    settings = load(directory, secrets=False)
    known = list(settings.subscribers)
    if every and not name:
        return settings, known
    if every or name not in known:
        found = f"{name} and --all" if every else name or "no name"
        raise Refused("unknown_lane", found, f"--all or one of {', '.join(known)}", "Nothing was changed.")
    return settings, [name]


def _ask(action: Literal["pause", "resume"], chosen: tuple[Settings, list[str]], reason: str, as_json: bool) -> None:
    from tidings.lanes import control

    settings, names = chosen
    if not reason.strip():
        raise Refused("no_reason", f"{action} without a reason", "--reason TEXT", "It is attested, so it must say why.")
    made = []
    for name in names:
        now = control.paused(control.asked(settings.data_path, name))
        if bool(now) == (action == "pause"):
            note(f"{name} is {'already paused: ' + now if now else 'not paused'}")
            continue
        made.append(asdict(control.ask(settings.data_path, name, action, reason)))
    if as_json:
        answer(made)
        return
    for request in made:
        print(f"{request['lane']}: {action} asked; `tidings run` takes it up within a second, or when it starts")


def _lines(found: list[Standing]) -> list[str]:
    rows: list[tuple[Any, ...]] = [("subscriber", "lag", "unsettled", "parked", "breaker", "paused", "cursor")]
    for one in found:
        cursor = " ".join(f"{feed}:{offset}" for feed, offset in one.cursors.items()) or "-"
        rows.append((one.subscriber, one.lag, one.unsettled, one.parked, one.breaker, one.paused or "-", cursor))
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
