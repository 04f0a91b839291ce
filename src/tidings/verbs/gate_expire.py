"""`tidings gate expire`: let go of what is over, attested; with --dry-run, say what would go and why the rest stays."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer

if TYPE_CHECKING:
    from tidings.expiry import Step
    from tidings.settings import Settings


def register(app: typer.Typer) -> None:
    app.command("expire")(expire)


def expire(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; nothing does.")] = False,
    now: Annotated[str, typer.Option("--now", metavar="DATE", help="As if it were this day; with --dry-run.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Let go of records whose time is over. `tidings run` does the same once a day."""
    from tidings.keeping import retention_of
    from tidings.settings import load

    if now and not dry_run:
        raise Refused("only_dry_run", "--now without --dry-run", "both", "What goes, goes by the clock. Nothing went.")
    settings = load(directory, secrets=False)
    named = [name for name, one in retention_of(settings).schedules.items() if one.named]
    said: dict[str, Any] = {"classes": named, "dry_run": dry_run}
    said |= _planned(settings, _day(now)) if dry_run else {"went": [_told(step) for step in _done(settings)]}
    if as_json:
        answer(said)
    else:
        _show(said)


def _planned(settings: Settings, today: date) -> dict[str, Any]:
    from dataclasses import asdict

    from tidings.expiry import Planner
    from tidings.keeping import Keeping, retention_of
    from tidings.ledger.opening import attested_in
    from tidings.store import Store

    store = Store(settings.data_path / "tables")
    planner = Planner(Keeping(settings, store, retention_of(settings), attested_in(settings.data_path), today))
    would = [_told(step) for step in planner.steps()]
    return {"today": str(today), "would_go": would, "stays": [asdict(kept) for kept in planner.kept]}


def _done(settings: Settings) -> list[Step]:
    """One process at a time: while `tidings run` is at work it does this itself."""
    from tidings.attest import advance, ledger_of
    from tidings.care import expire as let_go
    from tidings.lock import RunLock
    from tidings.store import Store

    with RunLock(settings.data_path), ledger_of(settings) as ledger:
        store = Store(settings.data_path / "tables")
        advance(store, ledger)
        steps = let_go(settings.directory, store, ledger.position, time.time())
        advance(store, ledger)
    return steps


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text) if text else datetime.now(UTC).date()
    except ValueError:
        raise Refused("date", text, "a day as YYYY-MM-DD", "Mend --now.") from None


def _told(step: Step) -> dict[str, Any]:
    return {
        "class": step.record_class,
        "records": step.records,
        "goes": step.goes,
        "rows": step.rows,
        "files": len(step.files),
        "bytes": sum(file.size for file in step.files),
        "from": min(file.first for file in step.files) if step.files else None,
        "to": max(file.last for file in step.files) if step.files else None,
        "keep_until": step.keep_until,
        "duty": step.duty,
    }


def _show(said: dict[str, Any]) -> None:
    if not said["classes"]:
        print("No `retention:` in a policy document names a class: nothing ever goes.")
        return
    word = "would go" if said["dry_run"] else "went"
    for one in said["would_go"] if said["dry_run"] else said["went"]:
        print(
            f"{one['class']}: {one['goes']} of {one['rows']:,} records in {one['records']} {word}, {one['from']} to {one['to']};"
            f" kept until {one['keep_until']} ({one['duty']})"
        )
    for one in said.get("stays", ()):
        print(f"{one['record_class']}: {one['rows']:,} records in {one['records']} stay: {one['reason']}")
    if not said.get("would_go") and not said.get("went"):
        print("Nothing is over.")
