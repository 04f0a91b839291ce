"""`tidings report alerts`: what needs a person now, by severity, and what did."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.verbs.options import AsJson, Here, answer, note


def alerts(
    every: Annotated[bool, typer.Option("--all", help="Also what was raised and cleared before.")] = False,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """The open alerts, the most severe first, each with the time to answer by and its runbook."""
    from tidings.alertbook import history
    from tidings.settings import load

    settings = load(directory, secrets=False)
    found = open_alerts(settings)
    before = history(settings.data_path / "alerts") if every else []
    if as_json:
        answer({"open": found, "history": before} if every else {"open": found})
        return
    for past in before:
        print("  ".join(str(past[name]) for name in ("at", "what", "severity", "kind", "subject", "detail")))
    for one in found:
        for line in lines(one):
            print(line)
    note(f"{len(found)} open alert{'' if len(found) == 1 else 's'}")


def open_alerts(settings: Any) -> list[dict[str, Any]]:
    from tidings.alertbook import listed

    return listed(settings.data_path / "alerts", settings.operator.runbooks)


def lines(one: dict[str, Any]) -> list[str]:
    """One alert for a person."""
    until = f", answer by {one['answer_by']}" if one["answer_by"] else ""
    return [
        f"{one['severity']}  {one['title']}: {one['subject']} ({one['detail']})",
        f"    since {one['raised']}{until}; {one['runbook']}",
    ]
