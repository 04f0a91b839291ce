"""`tidings explain EVENT`: why each subscriber was told, or not, and under which law."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")],
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Show the situation an event was in, what was decided for each recipient, and how each delivery stands."""
    import pyarrow.dataset as ds

    from tidings.gate.decisions import decided_in
    from tidings.report.account import ends, journal_rows, pairs
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    store = Store(settings.data_path / "tables")
    rows = journal_rows(store, ds.field("event_id") == event, ["policy_version", "hlc", "schema_version"])
    if not rows:
        raise Refused(
            "unknown-event", "no event with this id in the journal", "an event id", "`tidings timeline` shows them."
        )
    row = rows[0]
    decided = decided_in(store.decisions).get(row["decision"]) or {}
    said = {
        "event_id": event,
        "change_type": row["change_type"],
        "operation": row["operation"],
        "entity": row["entity"],
        "source": row["source"],
        "time": row["time"].isoformat(),
        "flags": row["flags"] or [],
        "policy_version": row["policy_version"],
        "situation": decided.get("facts", {}),
        "recipients": _recipients(row, decided, pairs(row, ends(store, {event}))),
    }
    if as_json:
        answer(said)
    else:
        _show(said)


def _recipients(row: dict[str, Any], decided: dict[str, Any], here: list[dict[str, Any]]) -> list[dict[str, Any]]:
    laws = {one["subscriber"]: one for one in decided.get("recipients", ())}
    given = {one["subscriber"]: one for one in row["recipients"] or ()}
    return [
        {
            **pair,
            "decision": given[pair["subscriber"]]["outcome"],
            "reasons": given[pair["subscriber"]]["reasons"],
            "statutes": list(laws.get(pair["subscriber"], {}).get("statutes", ())),
            "anchors": laws.get(pair["subscriber"], {}).get("anchors", {}),
            "priority": given[pair["subscriber"]]["priority"],
        }
        for pair in here
    ]


def _show(said: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(f"[bold]{said['change_type']}[/] of {said['entity']} from {said['source']} at {said['time']}")
    facts = ", ".join(f"{name} {value}" for name, value in said["situation"].items() if value not in (None, False))
    console.print(f"Situation under policy {said['policy_version']}: {escape(facts)}")
    table = Table()
    for name in ("subscriber", "decision", "why", "statutes", "deadline", "now"):
        table.add_column(name)
    for one in said["recipients"]:
        why = "; ".join(one["reasons"])
        cells = (
            one["subscriber"],
            one["decision"],
            why,
            ", ".join(one["statutes"]),
            one["deadline"] or "",
            one["outcome"],
        )
        table.add_row(*map(escape, cells))
    console.print(table)
