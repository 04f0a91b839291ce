"""`tidings quarantine`: messages that did not become events, each with a code, and with its exact cause when asked."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.verbs.options import AsJson, Here, answer


def register(app: typer.Typer) -> None:
    app.command("quarantine")(quarantine)


def quarantine(
    directory: Here = Path("."),
    code: Annotated[str, typer.Option("--code", help="Only this code.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many messages to diagnose, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Count quarantined messages by code and name the cause, line and column of the newest."""
    from tidings.settings import load
    from tidings.stages.codes import CODES
    from tidings.store import Store

    settings = load(directory, secrets=False)
    rows = Store(settings.data_path / "tables").arrow("quarantine").sort_by([("arrived", "descending")]).to_pylist()
    rows = [row for row in rows if not code or row["code"] == code]
    counts = Counter(row["code"] for row in rows)
    codes = [{"code": name, "count": count, "about": CODES.get(name, "")} for name, count in counts.most_common()]
    said = {"codes": codes, "messages": [_diagnosed(settings.keyring, row) for row in rows[:limit]]}
    if as_json:
        answer(said)
    else:
        _show(said)


def body_of(keyring: Any, row: dict[str, Any]) -> bytes:
    """The masked message, opened under its day's key."""
    import hashlib
    import hmac

    from tidings.seal.keyring import associated, open_payload

    day: date = row["day"]
    key = hmac.new(keyring.derive("quarantine"), day.isoformat().encode(), hashlib.sha256).digest()
    return open_payload(key, associated("quarantine", row["place"], "body"), row["sealed"])


def _diagnosed(keyring: Any, row: dict[str, Any]) -> dict[str, Any]:
    from tidings.diagnose import diagnose

    found = (
        diagnose(body_of(keyring, row), row["code"], row["path"] or "", row["detail"] or "") if row["sealed"] else None
    )
    return {
        "source": row["source"],
        "file": row["file"],
        "line": row["line"],
        "arrived": row["arrived"].isoformat(),
        "code": row["code"],
        "path": row["path"],
        "table": row["entity"],
        "detail": row["detail"],
        "masked": bool(row["masked"]),
        "cause": found.cause if found else "",
        "column": found.column if found else None,
    }


def _show(said: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for one in said["codes"]:
        console.print(f"{one['count']:6}  [bold]{one['code']}[/]  {escape(one['about'])}")
    table = Table()
    for name in ("source", "file", "line", "column", "code", "cause"):
        table.add_column(name)
    for one in said["messages"]:
        where = (one["source"], one["file"] or "", str(one["line"] or ""), str(one["column"] or ""))
        table.add_row(*map(escape, (*where, one["code"], one["cause"] or one["detail"] or "")))
    console.print(table)
