"""`tidings lanes cursors`, `compare` and `move`: where subscribers stand in the buffer, and how a person changes it. No Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer
from tidings.verbs.replay import known, moment, opened, order_or_say

if TYPE_CHECKING:
    from tidings.lanes.lane import Tables
    from tidings.lanes.member import Feed

To = Annotated[
    str, typer.Option("--to", help="`end`, an offset with --feed, or a moment: a date, an RFC 3339 time, `2h ago`.")
]
Where = Annotated[str, typer.Option("--feed", help="SOURCE/GENERATION; every feed when left out.")]
Who = Annotated[str, typer.Option("--subscriber", help="The subscriber whose cursor moves.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would happen and change nothing.")]
Again = Annotated[bool, typer.Option("--again", help="Moving back: also what the subscriber acknowledged.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it is attested in the ledger.")]
Lane = Annotated[str, typer.Argument(metavar="NAME", help="A subscriber.")]


def register(lanes: typer.Typer) -> None:
    for verb in (cursors, compare, move):
        lanes.command(verb.__name__)(verb)


def cursors(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """List every cursor: position, lag in events and seconds, oldest unsettled delivery."""
    from tidings.lanes.cursors import cursors as found_in

    tables, _ = opened(directory)
    found = found_in(tables, time.time())
    if as_json:
        answer([one.as_dict() for one in found])
        return
    for one in found:
        behind = f"{one.lag:,} events behind ({one.lag_s:.0f} s)" if one.lag else "at the head"
        waits = (
            f", {one.unsettled:,} unsettled, the oldest {one.oldest} for {one.oldest_s:.0f} s" if one.unsettled else ""
        )
        print(f"{one.subscriber}  {one.feed}  {one.position} of {one.head}  {behind}{waits}")


def compare(first: Lane, second: Lane, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Say in each feed which of two subscribers is ahead, and by how many events."""
    from tidings.lanes.cursors import cursors as found_in

    tables, _ = opened(directory)
    for name in (first, second):
        known(tables, name)
    found: dict[str, dict[str, Any]] = {}
    for one in found_in(tables, time.time()):
        if one.subscriber in (first, second):
            found.setdefault(one.feed, {})[one.subscriber] = one.position
            found[one.feed][f"{one.subscriber}_lag"] = one.lag
    rows = [
        {"feed": feed, **places, "ahead": places[f"{second}_lag"] - places[f"{first}_lag"]}
        for feed, places in sorted(found.items())
    ]
    if as_json:
        answer(rows)
        return
    for row in rows:
        by = row["ahead"]
        words = "both at the same place" if not by else f"{first if by > 0 else second} is {abs(by):,} events ahead"
        print(f"{row['feed']}  {first} {row[first]}  {second} {row[second]}  {words}")


def move(
    subscriber: Who = "",
    to: To = "",
    feed: Where = "",
    reason: Why = "",
    again: Again = False,
    dry_run: Dry = False,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Move a cursor: forward ends what it passes over, recorded; back is a replay from there."""
    tables, policy = opened(directory)
    known(tables, subscriber)
    if not dry_run and not reason.strip():
        raise Refused("no_reason", "move without a reason", "--reason TEXT", "It is attested, so it must say why.")
    targets, now = _targets(tables, to, feed), _positions(tables, subscriber)
    forward = {f: offset for f, offset in targets.items() if offset > now.get(f, -1)}
    if forward:
        _forward(tables, subscriber, forward, (dry_run, reason, as_json))
        return
    from tidings.lanes.buffer import Order
    from tidings.lanes.cursors import recorded_at

    begun = [at for f, offset in targets.items() if (at := recorded_at(tables, f, offset))]
    order = Order(start=min(begun, default=0.0), again=again)
    order_or_say(tables, policy, subscriber, order, (dry_run, reason, as_json))


def _forward(tables: Tables, subscriber: str, to: dict[Feed, int], how: tuple[bool, str, bool]) -> None:
    from tidings.lanes import control
    from tidings.lanes.cursors import passed_over

    dry_run, reason, as_json = how
    count = passed_over(tables, subscriber, to)
    order = {"to": {str(feed): offset for feed, offset in to.items()}, "count": count}
    if not dry_run:
        control.ask(tables.settings.data_path, subscriber, "move", reason, order=order)
    if as_json:
        answer({"subscriber": subscriber, "dry_run": dry_run, "expired": count, **order})
        return
    would = "would end" if dry_run else "end"
    print(
        f"{subscriber}: {count:,} deliveries {would} expired, unsent; {', '.join(f'{f} to {at}' for f, at in to.items())}"
    )


def _positions(tables: Tables, subscriber: str) -> dict[Feed, int]:
    from tidings.lanes.limits import rules_of
    from tidings.lanes.slices import feeds

    rules = rules_of(tables.settings, tables.settings.subscribers[subscriber])
    return tables.recovered(rules, feeds(tables.store))[0].cursors


def _targets(tables: Tables, to: str, feed: str) -> dict[Feed, int]:
    from tidings.lanes.cursors import position_before
    from tidings.lanes.slices import feeds

    tops = {known_feed: top for known_feed, top in feeds(tables.store).items() if feed in ("", str(known_feed))}
    if not tops:
        raise Refused(
            "unknown_feed", feed or "an empty journal", "a feed of the journal", "See `tidings lanes cursors`."
        )
    if to.isdigit():
        if not feed:
            raise Refused("unknown_feed", f"offset {to} without its feed", "--feed SOURCE/GENERATION", "Name the feed.")
        return {one: min(int(to), top) for one, top in tops.items()}
    if to == "end":
        return dict(tops)
    if not to:
        raise Refused("moment", "nowhere", "--to end, an offset or a moment", "Say where the cursor goes.")
    before = position_before(tables, moment(to))
    return {one: before[one] for one in tops}
