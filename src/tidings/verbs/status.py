"""`tidings status`: what came in, what went out, what is open; with --reconcile, whether the books balance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.verbs.options import AsJson, Here, answer
from tidings.verbs.report_alerts import lines, open_alerts

SOURCE = ("messages", "events", "snapshots", "duplicates", "stale", "skipped", "quarantined", "masked", "clock_ahead")


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    directory: Here = Path("."),
    reconcile: Annotated[bool, typer.Option("--reconcile", help="Account for every (event, subscriber) pair.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show sources, lanes and the ledger; exit 1 when --reconcile finds the books out of balance."""
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    store = Store(settings.data_path / "tables")
    said = summary(settings, store, reconcile)
    if as_json:
        answer(said)
    else:
        _show(said)
    if reconcile and not said["books"]["balanced"]:
        raise typer.Exit(1)


def totals(settings: Any, store: Any) -> dict[str, dict[str, Any]]:
    """Running totals per source, from the progress of its last committed batch."""
    from tidings.report.capture import progress_of

    after = {name: progress_of(settings, store, name) for name in settings.sources}
    return {name: {**progress.totals, "newest": progress.newest} for name, progress in after.items()}


def summary(settings: Any, store: Any, books: bool) -> dict[str, Any]:
    from tidings.lock import holder
    from tidings.report.account import ends, journal_rows, pairs, reconcile

    counted = totals(settings, store)
    rows, known = journal_rows(store), ends(store)
    lanes: dict[str, Counter[str]] = {name: Counter() for name in settings.subscribers}
    refusals: Counter[str] = Counter()
    for row in rows:
        for pair in pairs(row, known):
            lane = lanes.setdefault(pair["subscriber"], Counter())
            lane[pair["outcome"]] += 1
            lane["attempts"] += pair["attempts"]
            if pair["outcome"] == "refused":
                refusals[pair["reason"]] += 1
    said: dict[str, Any] = {
        "running": holder(settings.data_path),
        "sources": [
            {"name": n, **{k: t.get(k, 0) for k in SOURCE}, "newest": t.get("newest", "")} for n, t in counted.items()
        ],
        "lanes": [{"subscriber": name, **_lane(count)} for name, count in sorted(lanes.items())],
        "refusals": dict(refusals.most_common()),
        "alerts": open_alerts(settings),
        "ledger": _checkpoint(settings.data_path / "ledger" / "root" / "checkpoint"),
    }
    if books:
        said["books"] = reconcile(store, counted, rows, known)
    return said


def _lane(count: Counter[str]) -> dict[str, int]:
    names = (
        "acknowledged",
        "refused",
        "waiting",
        "deferred",
        "dead_lettered",
        "in_doubt",
        "superseded",
        "erased",
        "expired",
        "attempts",
    )
    return {name: count[name] for name in names}


def _checkpoint(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    origin, size, root = path.read_text().splitlines()[:3]
    return {"origin": origin, "size": int(size), "root": root}


def _show(said: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    sources = Table(title="sources", title_justify="left")
    for name in ("name", *SOURCE):
        sources.add_column(name, justify="left" if name == "name" else "right")
    for one in said["sources"]:
        sources.add_row(one["name"], *[str(one[k]) for k in SOURCE])
    lanes = Table(title="lanes", title_justify="left")
    shown = ("acknowledged", "refused", "waiting", "deferred", "dead_lettered", "in_doubt", "attempts")
    for name in ("subscriber", *shown):
        lanes.add_column(name, justify="left" if name == "subscriber" else "right")
    for one in said["lanes"]:
        lanes.add_row(one["subscriber"], *[str(one[k]) for k in shown])
    console.print(sources, lanes)
    for one in said["alerts"]:
        console.print(*lines(one), sep="\n", markup=False, highlight=False)
    if said["ledger"]:
        console.print(f"ledger: {said['ledger']['size']} entries in the root log, root {said['ledger']['root']}")
    if books := said.get("books"):
        word = "balance" if books["balanced"] else "DO NOT balance"
        console.print(f"{books['pairs']} pairs: the books {word}.", *books["problems"], sep="\n")
