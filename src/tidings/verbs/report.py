"""`tidings report`: what a person hands to somebody who asks; `capture` says what each source saw, `recipients` who received somebody's data."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs import report_alerts, report_retention, report_sla
from tidings.verbs.options import AsJson, Here, answer, note


def register(app: typer.Typer) -> None:
    report = typer.Typer(no_args_is_help=True, help="Reports over what is committed.", rich_markup_mode=None)
    report.callback()(_reports)
    report.command("capture")(capture)
    report.command("recipients")(recipients)
    report.command("retention")(report_retention.retention)
    report.command("sla")(report_sla.sla)
    report.command("alerts")(report_alerts.alerts)
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


def recipients(
    subject: Annotated[str, typer.Option("--subject", metavar="WHO", help="An e-mail, a phone, or customer:1001.")],
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="Only calls from then on.")] = "",
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="Only calls up to then.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Who ever received this person's data, from when to when, what kind, and how surely."""
    from tidings.gate.loading import load_policy
    from tidings.report.recipients import recipients_of
    from tidings.settings import load
    from tidings.store import Store

    between = (moment(since), moment(until))
    settings = load(directory, secrets=False)
    store = Store(settings.data_path / "tables")
    said = recipients_of(settings, store, load_policy(settings), subject, between)
    if as_json:
        answer({"recipients": said})
        return
    for one in said:
        where = f"{one['role'] or 'no longer configured'}, {one['acts_as'] or '?'} in {one['region'] or '?'}"
        print(f"{one['subscriber']} ({where}): {one['received']}, {one['ack']}, {one['events']} events")
        print(f"  from {one['first']} to {one['last']}: {', '.join(one['change_types'])}")
        if one["onward"]:
            print(f"  passes it on to {', '.join(one['onward'])}")
    note(f"{len(said)} recipients" if said else "Nobody received anything, nothing is stored, or it has been erased.")


def moment(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text) if text else None
    except ValueError:
        raise Refused("date", "something else", "a time such as 2026-11-16T09:00:00Z", "Mend it.") from None
    return at if at is None or at.tzinfo else at.replace(tzinfo=UTC)


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
