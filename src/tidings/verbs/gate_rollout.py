"""`tidings gate rollout`: which anchors count, what would change if one more did, and the change itself."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import ConfigurationError, Refused
from tidings.verbs.options import AsJson, Here, answer, note

if TYPE_CHECKING:
    from tidings.settings import Settings

FILE = "policy/rollout.yaml"
HEAD = "# How far each anchor counts; written by `tidings gate rollout`, newest step last. Steps stay: they are the record.\n"


def register(app: typer.Typer) -> None:
    app.command("rollout")(rollout)


def rollout(
    anchor: Annotated[str, typer.Argument(metavar="[ANCHOR]", help="The anchor to change; none shows all.")] = "",
    to: Annotated[str, typer.Option("--to", metavar="MODE", help="shadow, canary or enforce.")] = "",
    share: Annotated[float, typer.Option(help="Of the people, for canary: 0.1 is a tenth.")] = 0.0,
    counsel: Annotated[str, typer.Option(help="Who answers for a change before thirty days of shadow.")] = "",
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    since: Annotated[str, typer.Option(metavar="DATE", help="Count pairs since this day.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Show how far each anchor counts and what the silent ones would have changed; with --to, change it."""
    from tidings.gate.loading import load_policy
    from tidings.report.difference import difference
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    policy = load_policy(settings)
    rules = {rule.id: rule.anchor for rule in policy.rules}
    said: dict[str, Any] = {"anchors": _anchors(settings)}
    said |= difference(Store(settings.data_path / "tables"), rules, _day(since))
    if anchor:
        said["changes"] = [one for one in said["changes"] if one["anchor"] == anchor]
    if to:
        said["step"] = _change(settings, anchor, to, share, counsel, reason)
    if as_json:
        answer(said)
    else:
        _show(said)


def _day(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC) if text else None
    except ValueError:
        raise Refused("date", text, "a day as YYYY-MM-DD", "Mend --since.") from None


def _anchors(settings: Settings) -> list[dict[str, Any]]:
    from tidings.gate.facts import ANCHORS
    from tidings.gate.rollout import read_rollout

    steps, _ = read_rollout(settings.policies.documents)
    found = []
    for anchor in ANCHORS:
        last = steps[anchor][-1] if steps.get(anchor) else None
        since = {"since": last.since.isoformat(), "counsel": last.counsel} if last else {}
        mode = last.in_force.mode if last else "enforce"
        found.append({"anchor": anchor, "mode": mode, "share": last.in_force.share if last else 1.0, **since})
    return found


def _change(settings: Settings, anchor: str, to: str, share: float, counsel: str, reason: str) -> dict[str, Any]:
    """Append the step to the policy folder; nothing is written when the folder would not pass with it."""
    import yaml

    from tidings import yaml_lines
    from tidings.gate.facts import ANCHORS
    from tidings.gate.rollout import read_rollout

    if anchor not in ANCHORS:
        raise Refused("anchor", anchor or "no anchor", "one of " + ", ".join(ANCHORS), "Name the anchor to change.")
    today = datetime.now(UTC).date()
    step: dict[str, Any] = {"mode": to, "from": today.isoformat()}
    step |= {"share": share} if to == "canary" else {}
    step |= {key: text for key, text in (("counsel", counsel), ("reason", reason)) if text}
    path = settings.directory / FILE
    elsewhere = [one for one in settings.policies.documents if anchor in (one.data.get("rollout") or {})]
    if elsewhere and elsewhere[0].file != FILE:
        raise Refused("rollout", f"{anchor} has its steps in {elsewhere[0].file}", FILE, "Add the step there by hand.")
    data = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {"rollout": {}}
    data["rollout"].setdefault(anchor, []).append(step)
    text = HEAD + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    document, problems = yaml_lines.parse(text, FILE)
    problems += read_rollout([document], today)[1] if document else []
    if problems:
        raise ConfigurationError(problems)
    path.write_text(text, encoding="utf-8")
    note(f"{FILE}: {anchor} is in {to} from the next start on; the change is attested then.")
    return {"anchor": anchor, **step}


def _show(said: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for one in said["anchors"]:
        share = f" for {one['share']:.1%} of the people" if one["mode"] == "canary" else ""
        since = f" since {date.fromisoformat(one['since'])}" if one.get("since") else ""
        console.print(f"{one['anchor']:11} {one['mode']}{share}{since}")
    console.print(f"{said['events']:,} events, {said['pairs']:,} pairs; silent rules spoke on {said['pairs_where_silent_rules_spoke']:,}")  # fmt: skip
    if not said["changes"]:
        console.print("Nothing would have been decided otherwise.")
        return
    table = Table()
    for name in ("anchor", "rule", "subscriber", "now", "would", "pairs"):
        table.add_column(name, overflow="fold")
    for one in said["changes"]:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in one.values()))
    console.print(table)
