"""How the demo tells it: one screen, facts only, each from the side that can know it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .changes import Truth
from .vendors import books

if TYPE_CHECKING:
    from .demo import Pair, TimelineEvent, Told


@dataclass(frozen=True)
class Vendor:
    """One vendor's own account of us."""

    acknowledged: int  # pairs, as we say
    applied: int
    repeated: int  # duplicates and unchanged states: seen again, no second effect
    throttled: int
    longest_wait: float  # the longest Retry-After it asked for
    catching_up: float  # seconds from its first refusal to its last effect
    twice: int
    gone: int  # "not there any more", which is a yes to a deletion

    @property
    def lost(self) -> int:
        """Acknowledged by us and not in its books."""
        return max(0, self.acknowledged - self.applied - self.repeated - self.gone)


def vendor(held: Path, name: str, acknowledged: int, since: float) -> Vendor:
    """Effects are counted over all rounds, as acknowledgements are; throttling since this one began."""
    asked = (
        "SELECT (SELECT COUNT(*) FROM effects WHERE vendor=:v AND outcome='applied') AS applied,"
        " (SELECT COUNT(*) FROM effects WHERE vendor=:v AND outcome IN ('duplicate','unchanged')) AS repeated,"
        " (SELECT COUNT(*) FROM calls WHERE vendor=:v AND reason='throttled' AND at>=:s) AS throttled,"
        " (SELECT COALESCE(MAX(retry_after),0) FROM calls WHERE vendor=:v AND at>=:s) AS wait,"
        " (SELECT COALESCE((SELECT MAX(at) FROM effects WHERE vendor=:v)-(SELECT MIN(at) FROM calls WHERE vendor=:v"
        "  AND reason='throttled' AND at>=:s),0)) AS catching,"
        " (SELECT COUNT(*) FROM calls WHERE vendor=:v AND reason='not_found') AS gone"
    )
    row = books.read(held, asked.replace(":v", "?1").replace(":s", "?2"), name, since)[0]
    twice = sum(1 for one in books.twice_applied(held) if one["vendor"] == name)
    waits = (row["wait"], max(0.0, row["catching"]))
    return Vendor(acknowledged, row["applied"], row["repeated"], row["throttled"], *waits, twice, row["gone"])


def opening(console: Console, truth: Truth) -> None:
    written = ", ".join(f"{count} from {source}" for source, count in truth.messages.items())
    console.print(
        f"[bold]Round {truth.round}[/]: {written}. Maya Okafor has a new e-mail address. Who gets to know, and when?\n"
    )


def show(console: Console, told: Told) -> None:
    parts = [heroine(told), throttled(told), asked(told), refused(told), arrivals(told), ledger(told), verdict(told)]
    console.print(Group(*[part for part in parts if part is not None]))


def heroine(told: Told) -> Table:
    first = next(iter(told.heroine), None)
    table = Table(
        title="Her new address, as the CRM reported it", title_justify="left", expand=True, caption_justify="left"
    )
    for name, side in (
        ("subscriber", "left"),
        ("seen after", "right"),
        ("calls", "right"),
        ("ack", "left"),
        ("outcome", "left"),
    ):
        table.add_column(name, justify="right" if side == "right" else "left")
    for pair in sorted(first["pairs"], key=_when) if first else ():
        after = f"{pair['seen_after_s']:.1f} s" if pair["seen_after_s"] is not None else "-"
        table.add_row(pair["subscriber"], after, str(pair["attempts"]), pair["ack"], _outcome(pair))
    for event in told.heroine[1:]:
        table.caption = _elsewhere(event)
    return table


def _when(pair: Pair) -> tuple[bool, float, str]:
    after = pair["seen_after_s"]
    return after is None, after or 0.0, pair["subscriber"]


def _outcome(pair: Pair) -> str:
    return pair["outcome"] if pair["outcome"] == "acknowledged" else f"{pair['outcome']}: {pair['reason']}"


def _elsewhere(event: TimelineEvent) -> str:
    told = sum(1 for pair in event["pairs"] if pair["outcome"] == "acknowledged")
    return f"The {event['source']} source reported it too, without saying what it was before: {told} of {len(event['pairs'])} told."


def throttled(told: Told) -> Panel | None:
    found = told.vendors.get("klaviyo")
    if found is None:
        return None
    lines = [
        f"{found.throttled} times Klaviyo said 429 and asked for up to {found.longest_wait:.0f} s.",
        f"Caught up {found.catching_up:.1f} s after the first refusal: {found.acknowledged} acknowledged,"
        f" {found.applied} applied, {found.repeated} seen again without effect, {found.twice} applied twice, {found.lost} lost.",
    ]
    return Panel("\n".join(lines), title="The throttled e-mail platform, from its own books", title_align="left")


def asked(told: Told) -> Table:
    table = Table(title="What people asked", title_justify="left", expand=True, caption_justify="left")
    for name in ("request", "came by", "stands", "due", "recipients"):
        table.add_column(name)
    for one in told.requests:
        states: dict[str, int] = {}
        for part in one["recipients"]:
            said = f"{part['state']}, by hand" if part["way"] == "task" else part["state"]
            states[said] = states.get(said, 0) + 1
        counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        table.add_row(one["kind"], one["way"], one["state"], (one["due"] or "-")[:10], counted)
    table.caption = (
        "An erasure is fulfilled when everybody has acknowledged it or two people have answered for the rest."
    )
    return table


def refused(told: Told) -> Table:
    table = Table(title="What was not sent, and why", title_justify="left", expand=True)
    table.add_column("reason")
    table.add_column("pairs", justify="right")
    for reason, count in sorted(told.status["refusals"].items(), key=lambda pair: -pair[1]):
        table.add_row(reason, str(count))
    return table


def arrivals(told: Told) -> Table:
    table = Table(title="What arrived", title_justify="left", expand=True, caption_justify="left")
    names = (
        "messages",
        "events",
        "snapshots",
        "duplicates",
        "stale",
        "skipped",
        "quarantined",
        "masked",
        "clock_ahead",
    )
    table.add_column("")
    for source in told.status["sources"]:
        table.add_column(source["name"], justify="right")
    for name in names:
        table.add_row(name.replace("_", " "), *[str(source.get(name, 0)) for source in told.status["sources"]])
    codes = ", ".join(f"{row['count']} {row['code']}" for row in told.quarantine["codes"])
    table.caption = f"In quarantine: {codes or 'nothing'}."
    return table


def ledger(told: Told) -> Panel:
    lines = [f"{log['origin']}: {log['size']} entries, root {str(log['root'])[:16]}…" for log in told.ledger["logs"]]
    lines.append(_checked("the whole ledger", told.ledger["verified"], told.ledger["entries"]))
    lines.append(_checked("the receipt of her change", told.receipt["verified"], told.receipt["entries"]))
    lines += told.ledger["caveats"]
    return Panel("\n".join(lines), title="The ledger", title_align="left")


def _checked(what: str, good: bool, entries: int) -> str:
    return f"{'verified' if good else 'NOT verified'}: {what}, {entries} entries"


def verdict(told: Told) -> Text:
    found = told.status["books"]
    counted = ", ".join(
        f"{count} {name}" for name, count in sorted(found["outcomes"].items(), key=lambda pair: -pair[1])
    )
    if told.wrong:
        return Text("The books do not agree:\n  " + "\n  ".join(told.wrong), style="bold red")
    said = f"The books balance: {found['pairs']} pairs, {counted}; the vendors' books agree. {told.seconds:.0f} s."
    return Text(said, style="bold green")
