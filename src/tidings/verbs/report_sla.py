"""`tidings report sla`: what was promised, predicted and kept, per subscriber and change type, and what is at risk now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer

COLUMNS = (
    "type",
    "sla_s",
    "acknowledged",
    "late",
    "took_p50_s",
    "took_p95_s",
    "predicted",
    "error_p50_s",
    "error_p95_s",
)


def sla(
    subscriber: Annotated[str, typer.Option("--subscriber", metavar="NAME", help="Only this one.")] = "",
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="Instead of the last seven days.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Acknowledgements against their promises and predictions; what waits, what is late, what will be."""
    from tidings.report.sla import sla as report_of
    from tidings.settings import load
    from tidings.store import Store
    from tidings.verbs.report import moment

    settings = load(directory, secrets=False)
    if subscriber and subscriber not in settings.subscribers:
        known = ", ".join(settings.subscribers)
        raise Refused("unknown_lane", subscriber, f"one of {known}", "Nothing was looked at.")
    now = datetime.now(UTC)
    store, begin = Store(settings.data_path / "tables"), moment(since) or now - timedelta(days=7)
    said = report_of(settings, store, now, begin, subscriber)
    if as_json:
        answer({"subscribers": said})
        return
    for one in said:
        when = f", the next breach at {one['next_breach']}" if one["next_breach"] else ""
        print(f"{one['subscriber']}: {one['waiting']} wait, {one['at_risk']} at risk, {one['late_now']} late{when}")
        rows = [COLUMNS, *(tuple("-" if kind[c] is None else str(kind[c]) for c in COLUMNS) for kind in one["types"])]
        widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
        for row in rows if one["types"] else ():
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
