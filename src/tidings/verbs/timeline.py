"""`tidings timeline WHO`: one person's events and where each has arrived."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.verbs.options import AsJson, Here, answer, note


def register(app: typer.Typer) -> None:
    app.command("timeline")(timeline)


def timeline(
    who: Annotated[str, typer.Argument(metavar="WHO", help="An e-mail, a phone, or ENTITY:KEY such as customer:1001.")],
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Find one customer, open their events and show when each subscriber saw them."""
    from tidings.report.people import events_of, tags_of
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    store = Store(settings.data_path / "tables")
    rows = events_of(settings, store, tags_of(settings, store, who))
    events = _events(store, rows)
    if as_json:
        answer({"events": events})
    elif not events:
        note("Nothing is stored about this person, or it has been erased.")
    else:
        _show(events)


def _events(store: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from tidings.report.account import bootstrapped, ends, pairs
    from tidings.report.people import differences

    if not rows:
        return []
    known = ends(store, {row["event_id"] for row in rows}, min(row["recorded"] for row in rows))
    late = bootstrapped(known)
    return [
        {
            "event_id": row["event_id"],
            "change_type": row["change_type"],
            "operation": row["operation"],
            "entity": row["entity"],
            "source": row["source"],
            "time": row["time"].isoformat(),
            "flags": [*(row["flags"] or []), *(["payload_expired"] if row["data"].get("expired") else [])],
            "changed": differences(row["data"]),
            "pairs": pairs(row, known, late.get(row["event_id"], ())),
        }
        for row in rows
    ]


def _show(events: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for event in events:
        title = (
            f"{event['time']}  {event['change_type']}  ({event['entity']} from {event['source']})  {event['event_id']}"
        )
        table = Table(title=escape(title), title_justify="left", caption_justify="left")
        changed = ", ".join(f"{k}: {v['before']!r} → {v['after']!r}" for k, v in event["changed"].items())
        table.caption = escape(changed)
        for name in ("subscriber", "outcome", "seen after", "attempts", "ack", "why"):
            table.add_column(name)
        for pair in event["pairs"]:
            seen = "" if pair["seen_after_s"] is None else f"{pair['seen_after_s']:.1f} s"
            cells = (pair["subscriber"], pair["outcome"], seen, str(pair["attempts"]), pair["ack"], pair["reason"])
            table.add_row(*map(escape, cells))
        console.print(table)
