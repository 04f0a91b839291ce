"""`tidings replay`: send a stretch of the past to one subscriber again; first see what would happen. No Spark.

Without --dry-run it becomes a durable order that the running process carries out beside live traffic; `list`, `show`, `pause`, `resume`
and `cancel` speak of orders.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, known_subscriber, note

if TYPE_CHECKING:
    from tidings.gate.again import Again
    from tidings.lanes.buffer import Order
    from tidings.lanes.foresee import Forecast
    from tidings.lanes.lane import Tables

Who = Annotated[str, typer.Option("--subscriber", help="The subscriber that is sent to.")]
From = Annotated[str, typer.Option("--from", help="Journaled from then on: a date, an RFC 3339 time, or `2h ago`.")]
To = Annotated[str, typer.Option("--to", help="Journaled before then; a date means through that day.")]
Subject = Annotated[str, typer.Option("--subject", help="One person: an e-mail, a phone or ENTITY:KEY.")]
Types = Annotated[list[str] | None, typer.Option("--type", help="Only this change type; may be repeated.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would happen and send nothing.")]
Again_ = Annotated[bool, typer.Option("--again", help="Also what the subscriber acknowledged already, or may have.")]
Late = Annotated[
    bool, typer.Option("--bootstrap", help="For a subscriber that was added later: events decided without it.")
]
Latest = Annotated[bool, typer.Option("--latest", help="Only the newest event of each person and consent class.")]
Rate = Annotated[
    float, typer.Option("--rate", help="At most so many deliveries a second; 0: as the lane allows.", min=0)
]
Most = Annotated[int, typer.Option("--most", help="At most so many open at once.", min=1)]
Why = Annotated[str, typer.Option("--reason", help="Why; it is attested in the ledger.")]
Name = Annotated[str, typer.Argument(metavar="REPLAY", help="As `tidings replay list` names it.")]

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)[a-z]*\s+ago")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_MEANING = {
    "sent": "would be sent",
    "skipped": "acknowledged already",
    "superseded": "something newer was acknowledged, or is sent instead",
    "refused": "the gate says no",
    "erased": "the person was erased",
    "expired": "what it said is no longer kept",
    "deferred": "the gate cannot tell; it would wait",
    "in_doubt": "may have arrived; --again sends it",
    "underway": "the lane has it in hand",
}


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Send a stretch of the past to one subscriber again.", rich_markup_mode=None)
    group.callback(invoke_without_command=True)(replay)
    for name, verb in (("list", show_all), ("show", show), ("pause", pause), ("resume", resume), ("cancel", cancel)):
        group.command(name)(verb)
    app.add_typer(group, name="replay")


def replay(
    context: typer.Context,
    subscriber: Who = "",
    start: From = "",
    end: To = "",
    subject: Subject = "",
    types: Types = None,
    dry_run: Dry = False,
    again: Again_ = False,
    bootstrap: Late = False,
    latest: Latest = False,
    rate: Rate = 0.0,
    most: Most = 100,
    reason: Why = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Say what a replay would do (--dry-run), or order it."""
    if context.invoked_subcommand is not None:
        return
    from tidings.lanes.buffer import Order

    tables, policy = opened(directory)
    known(tables, subscriber)
    if not dry_run and not reason.strip():
        raise Refused("no_reason", "a replay without a reason", "--reason TEXT", "It is attested, so it must say why.")
    if bootstrap and tables.settings.subscribers[subscriber].filter is not None:
        what = f"{subscriber} has a filter, and old events were not asked whether they match it"
        raise Refused("bootstrap_filter", what, "a subscriber without `filter`", "Nothing was ordered.")
    order = Order(
        start=moment(start), end=moment(end, late=True) or None, types=tuple(types or ()), again=again,
        bootstrap=bootstrap, latest=latest, rate=rate, most=most,
    )  # fmt: skip
    if order.end is not None and order.end <= order.start:
        what = f"--from {start} --to {end}, which holds nothing"
        raise Refused("moment", what, "an end after the beginning", "Nothing was changed.")
    if subject:
        order = replace(order, people=whose(tables, subject))
    order_or_say(tables, policy, subscriber, order, (dry_run, reason, as_json))


def order_or_say(tables: Tables, policy: Again, subscriber: str, order: Order, how: tuple[bool, str, bool]) -> None:
    """The forecast, and unless it is a dry run the order."""
    from tidings.lanes import control
    from tidings.lanes.foresee import foresee

    dry_run, reason, as_json = how
    found = foresee(tables, subscriber, order, policy)
    if not sum(found.counts.values()):
        _known_types(tables, order)
    said: dict[str, Any] = found.as_dict() | {"subscriber": subscriber, "dry_run": dry_run}
    if not dry_run:
        order = replace(order, count=found.counts["sent"])
        order_said = order.as_dict() | {"range": order.words()}
        request = control.ask(tables.settings.data_path, subscriber, "replay", reason, order=order_said)
        said["replay"] = request.name
    if as_json:
        answer(said)
        return
    for line in lines(found):
        print(line)
    if not dry_run:
        note(f"{said['replay']}: ordered; `tidings run` takes it up within a second, or when it starts")


def _known_types(tables: Tables, order: Order) -> None:
    """Where nothing fits, a type that no contract has is the reason. What an older contract had may still be stored, and then fits."""
    from tidings.contract import SIGNAL_TYPES

    there = {*SIGNAL_TYPES, *tables.settings.change_types}
    strange = sorted(set(order.types) - there)
    if strange:
        raise Refused(
            "unknown_type", f"--type {strange[0]}", f"one of {', '.join(sorted(there))}", "Nothing was changed."
        )


def lines(found: Forecast) -> list[str]:
    counts = found.as_dict()["counts"]
    made = [f"{word:11}{count:>10,}  {_MEANING[word]}" for word, count in counts.items() if count or word == "sent"]
    made += [f"e.g. {word}: {', '.join(ids)}" for word, ids in sorted(found.samples.items())]
    return [*made, *found.gone, f"{found.files_read} of {found.files_total} journal files were read"]


def show_all(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """List the orders, oldest first."""
    from tidings.lanes.ordered import orders

    tables, _ = opened(directory)
    found = orders(tables)
    if as_json:
        answer([one.as_dict() for one in found])
        return
    for one in found:
        print(f"{one.at}  {one.name}  {one.state}  {one.share:.0%}  {one.range}  ({one.reason})")
    note(f"{len(found)} replay{'' if len(found) == 1 else 's'}")


def show(name: Name, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """How far one order has come, and how its deliveries ended."""
    from tidings.lanes.ordered import ends_of, orders

    tables, _ = opened(directory)
    one = _one(orders(tables), name)
    found = one.as_dict() | {"deliveries": ends_of(tables, one)}
    if as_json:
        answer(found)
        return
    for key, value in found.items():
        print(f"{key:12}{value}")


def pause(name: Name, reason: Why = "", directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Take up nothing more; what is under way goes on."""
    _ask("replay_pause", name, reason, directory, as_json)


def resume(name: Name, reason: Why = "", directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Go on with a paused replay."""
    _ask("replay_resume", name, reason, directory, as_json)


def cancel(name: Name, reason: Why = "", directory: Here = Path("."), as_json: AsJson = False) -> None:
    """End a replay where it is; what is under way goes on."""
    _ask("replay_cancel", name, reason, directory, as_json)


def _ask(action: Any, name: str, reason: str, directory: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from tidings.lanes import control
    from tidings.lanes.ordered import orders

    word = action.removeprefix("replay_")
    if not reason.strip():
        raise Refused("no_reason", f"{word} without a reason", "--reason TEXT", "It is attested, so it must say why.")
    tables, _ = opened(directory)
    one = _one(orders(tables), name)
    if one.state in ("done", "cancelled"):
        raise Refused("replay_over", f"{name} is {one.state}", "a replay under way", "Nothing was changed.")
    request = control.ask(tables.settings.data_path, one.lane, action, reason, event=name)
    if as_json:
        answer(asdict(request))
        return
    print(f"{name}: {word} asked; `tidings run` takes it up within a second, or when it starts")


def _one(found: list[Any], name: str) -> Any:
    one = next((one for one in found if one.name == name), None)
    if one is None:
        raise Refused("unknown_replay", name, "a replay that was ordered", "See `tidings replay list`.")
    return one


def opened(directory: Path) -> tuple[Tables, Again]:
    """Tables and the gate as it stands now; a policy that is not in force yet is asked about everything."""
    from tidings.gate.again import Again
    from tidings.gate.decisions import DecisionTable
    from tidings.gate.loading import load_policy
    from tidings.lanes.lane import Tables
    from tidings.lanes.policies import in_force, in_force_since
    from tidings.seal.keyfiles import KeyFiles
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    store = Store(settings.data_path / "tables")
    policy = load_policy(settings)
    since = in_force_since(store) if in_force(store) == policy.version else time.time()
    again = Again(store, DecisionTable(store.decisions, policy), in_force_since=since)
    return Tables(store, KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek")), settings), again


def known(tables: Tables, subscriber: str) -> None:
    known_subscriber(tables.settings.subscribers, subscriber)


def whose(tables: Tables, subject: str) -> tuple[tuple[str, str], ...]:
    """One key of each person that is meant: the order names nobody, and an erasure takes the key away."""
    from tidings.report.people import tags_of

    found = [tables.keys.find(tag) for tag in tags_of(tables.settings, tables.store, subject)]
    keys = tuple((name, kid.hex()) for kept in found if kept for name, kid, _ in kept[:1])
    if not keys:
        what = "nobody of whom anything is stored"
        raise Refused("nobody_found", what, "a person with events", "Erased people cannot be found either.")
    return keys


def moment(text: str, late: bool = False) -> float:
    """Seconds since 1970; 0 when nothing was said."""
    from tidings.gate.moments import moment as written

    if not text:
        return 0.0
    ago = _AGO.fullmatch(text.strip().lower())
    if ago is not None:
        return max(0.0, time.time() - float(ago[1]) * _UNITS[ago[2]])
    return written(text, "UTC", late=late).instant.timestamp()
