"""`tidings explain EVENT`: why each subscriber was told, or not, under which law, until when, and what would change it. No JVM."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer

if TYPE_CHECKING:
    from tidings.gate.decide import Policy

_DECIDED = ("rules", "redact", "tags", "missing", "review", "would", "shadowed", "retention", "reach")


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")],
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Show the situation an event was in, what was decided for each recipient and why, and how each delivery stands."""
    import pyarrow.dataset as ds

    from tidings.gate.decisions import decided_in
    from tidings.gate.loading import load_policy
    from tidings.report.account import ends, journal_rows, pairs
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    policy = load_policy(settings)
    store = Store(settings.data_path / "tables")
    rows = journal_rows(store, ds.field("event_id") == event, ["policy_version", "hlc", "schema_version", "consent"])
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
        "policy_now": policy.version,
        "situation": decided.get("facts", {}),
        "recipients": _recipients(row, decided, pairs(row, ends(store, {event})), policy),
    }
    if as_json:
        answer(said)
    else:
        _show(said)


def _recipients(
    row: dict[str, Any], decided: dict[str, Any], here: list[dict[str, Any]], policy: Policy
) -> list[dict[str, Any]]:
    """What was decided then; citations, and what would change it, under the policy of now."""
    from tidings.verbs.why import laws

    chosen = {one["subscriber"]: one for one in decided.get("recipients", ())}
    found = []
    for pair in here:
        one = chosen.get(pair["subscriber"], {})
        found.append(
            {
                **pair,
                "decision": one.get("outcome", ""),
                "reasons": one.get("reasons", []),
                "statutes": list(one.get("statutes", ())),
                "laws": laws(policy, one.get("statutes", ())),
                "anchors": one.get("anchors", {}),
                "priority": one.get("priority"),
                **{name: one[name] for name in _DECIDED if name in one},
                **_why(row, decided, one, policy),
            }
        )
    return found


def _why(row: dict[str, Any], decided: Mapping[str, Any], one: Mapping[str, Any], policy: Policy) -> dict[str, Any]:
    from tidings.gate.arithmetic import reckoned
    from tidings.gate.clocks import Clock
    from tidings.gate.decide import verdicts
    from tidings.gate.facts import complete, derive
    from tidings.gate.suppose import what_would_change
    from tidings.verbs.why import modes

    facts, recipient = (
        decided.get("facts"),
        {each.subscriber: each for each in policy.recipients}.get(one.get("subscriber", "")),
    )
    said = verdicts(policy, derive(complete(facts)), recipient) if facts and recipient else []
    clocks = [Clock(**decided["clocks"][number]) for number in one.get("clocks", ())]
    return {
        "arithmetic": reckoned(policy, clocks, _moments(row), said),
        "modes": modes(policy, one.get("anchors", {})),
        "would_change": what_would_change(policy, facts, recipient) if facts and recipient else [],
    }


def _moments(row: dict[str, Any]) -> dict[str, datetime]:
    """When clocks start: nobody wins time with a date after the message came."""
    asked = (row["consent"] or {}).get("request_time") or row["time"]
    return {"time": min(row["time"], row["recorded"]), "request_time": min(asked, row["recorded"])}


def _show(said: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tidings.verbs.why import lines

    console = Console()
    console.print(f"[bold]{said['change_type']}[/] of {said['entity']} from {said['source']} at {said['time']}")
    facts = ", ".join(f"{name} {value}" for name, value in said["situation"].items() if value not in (None, False))
    console.print(f"Situation under policy {said['policy_version']}: {escape(facts)}")
    table = Table()
    for name in ("subscriber", "decision", "why", "statutes", "deadline", "now"):
        table.add_column(name)
    for one in said["recipients"]:
        why, cited = "; ".join(one["reasons"]), ", ".join(one["statutes"])
        cells = (one["subscriber"], one["decision"], why, cited, one["deadline"] or "", one["outcome"])
        table.add_row(*map(escape, cells))
    console.print(table)
    for one in said["recipients"]:
        console.print(
            f"[bold]{escape(one['subscriber'])}[/]: {one['decision']}, priority {one['priority']}, {one['semantics']}"
        )
        for line in lines(one, "  "):
            console.print(escape(line), soft_wrap=True)
    if said["policy_now"] != said["policy_version"]:
        console.print(f"The policy is {said['policy_now']} by now; what would change it is said under this one.")
