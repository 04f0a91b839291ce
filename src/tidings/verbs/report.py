"""`tidings report`: what a person hands to somebody who asks; `capture` says what each source saw and what of it is mapped."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from tidings.verbs import report_retention
from tidings.verbs.options import AsJson, Here, answer


def register(app: typer.Typer) -> None:
    report = typer.Typer(no_args_is_help=True, help="Reports over what is committed.", rich_markup_mode=None)
    report.callback()(_reports)
    report.command("capture")(capture)
    report.command("retention")(report_retention.retention)
    app.add_typer(report, name="report")


def _reports() -> None:
    """Reports over what is committed."""


def capture(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Per source: what was seen, mapped, unmapped, refused and skipped; events by change type; lag and rate."""
    from tidings.report.capture import capture as report_of
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    said = report_of(settings, Store(settings.data_path / "tables"), datetime.now(UTC))
    if as_json:
        answer(said)
    else:
        _show(said)


def _show(said: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for source in said["sources"]:
        _head(console, source)
        _tables(console, source)
        _types(console, source)


def _head(console: Any, source: dict[str, Any]) -> None:
    from rich.markup import escape

    heard = ", ".join(source["dialects"]) or "nothing yet"
    console.print(f"[bold]{escape(source['name'])}[/]  {source['kind']}, dialect {source['dialect']}; heard: {heard}")
    names = ("messages", "changes", "events", "snapshots", "duplicates", "stale")
    console.print("  " + "  ".join(f"{name} {source[name]:,}" for name in names))
    for name in ("quarantined", "skipped"):
        each = ", ".join(f"{what} {count:,}" for what, count in source[name].items())
        console.print(f"  {name}: {each or 'none'}")
    if source["first_seen"]:
        console.print(f"  arrived from {source['first_seen'][:19]} to {source['last_seen'][:19]} UTC")
    lag, rate = source["lag"], source["per_minute"]
    if lag["behind_s"] is not None:
        console.print(
            f"  newest commit {_time(lag['behind_s'])} ago; commit to arrival in the last {lag['batches']} batches:"
        )
        console.print(f"    p50 {_time(lag['p50_s'])}, p99 {_time(lag['p99_s'])}")
    console.print(f"  messages per minute: {rate['last_hour']:,} in the last hour, {rate['whole']:,} over all")


def _tables(console: Any, source: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    shown = Table("table", "contract", title_justify="left")
    shown.add_column("changes", justify="right")
    shown.add_column("fields no contract names")
    for one in source["tables"]:
        contract = one["contract"] or "[bold red]unmapped[/]"
        fields = ", ".join(one["unnamed_fields"])
        shown.add_row(escape(one["table"]), contract, f"{one['changes']:,}", escape(fields))
    console.print(shown)


def _types(console: Any, source: dict[str, Any]) -> None:
    from rich.table import Table

    seen = [one for one in source["types"] if one["events"]]
    if seen:
        shown = Table("contract", "change type")
        shown.add_column("events", justify="right")
        for one in seen:
            shown.add_row(one["contract"], one["type"], f"{one['events']:,}")
        console.print(shown)
    never: dict[str, list[str]] = {}
    for one in source["types"]:
        if not one["events"]:
            never.setdefault(one["contract"], []).append(one["type"])
    for contract, kinds in never.items():
        console.print(f"  never seen of {contract}: {', '.join(kinds)}")
    console.print()


def _time(seconds: float | None) -> str:
    """A stretch of time as a person says it."""
    if seconds is None:
        return "unknown"
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} s"
