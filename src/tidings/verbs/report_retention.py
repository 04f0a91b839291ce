"""`tidings report retention`: how long each class of record is kept, by which duty, and what would go today."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidings.verbs.options import AsJson, Here, answer


def retention(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Per class of record: how much there is, since when, until when it is kept, by which duty, and what holds it."""
    from tidings.keeping import Keeping, retention_of
    from tidings.ledger.opening import attested_in
    from tidings.report.retention import retention as report_of
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    store, today = Store(settings.data_path / "tables"), datetime.now(UTC).date()
    said = report_of(Keeping(settings, store, retention_of(settings), attested_in(settings.data_path), today))
    if as_json:
        answer(said)
    else:
        _show(said)


def _show(said: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table()
    for name in ("class", "records", "bytes", "oldest", "keep until", "duty", "would go"):
        table.add_column(name, overflow="fold")
    for one in said["classes"]:
        numbers = [f"{one[name]:,}" if one[name] is not None else "" for name in ("records", "bytes")]
        until = str(one["keep_until"] or ("" if one["goes"] != "nothing" else "for ever"))
        cells = (one["class"], *numbers, str(one["oldest"] or ""), until, one["duty"] or "", f"{one['would_go']:,}")
        table.add_row(*map(escape, cells))
    console.print(table)
    for one in said["classes"]:
        for hold in one["holds"]:
            console.print(f"{one['class']} is held: {escape(hold)}")
        for reason, rows in one["stays"].items():
            console.print(f"{one['class']}: {rows:,} records are over and stay: {escape(reason)}")
