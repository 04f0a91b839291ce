"""`tidings try gate`: what the policy says of situations in hand, for every subscriber or for one you describe. No JVM."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here

if TYPE_CHECKING:
    from tidings.gate.decide import Decision, Policy, Recipient
    from tidings.settings import Settings

Lines = Annotated[str, typer.Argument(metavar="FILE", help="JSON Lines of facts; - is standard input.")]
Described = Annotated[
    str,
    typer.Option("--recipient", metavar="JSON", help='Decide for this recipient instead, e.g. {"role":"marketing"}.'),
]
MOMENTS = ("time", "request_time")


def register(app: typer.Typer) -> None:
    app.command("gate")(gate)


def gate(path: Lines = "-", recipient: Described = "", directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Decide each line, such as {"change_type":"email","entity":"customer","jurisdiction":"DE"}, and say why."""
    settings, policy = _policy(directory, described=bool(recipient))
    if recipient:
        policy = dataclasses.replace(policy, recipients=(_described(recipient),))
    text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    wrong = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        said = {"line": number, **_answer(line, policy, settings)}
        wrong += "problems" in said
        print(json.dumps(said, ensure_ascii=False) if as_json else "\n".join(_told(said)))
    if wrong:
        raise typer.Exit(2)


def _policy(directory: Path, *, described: bool) -> tuple[Settings | None, Policy]:
    """The folder's policy; the starter bundle where there is no folder and the recipient is described anyway."""
    from tidings import settings as folder
    from tidings.gate.loading import load_policy, starter_policy

    if described and not (directory / "tidings.yaml").exists():
        return None, starter_policy()
    settings = folder.load(directory, secrets=False)
    return settings, load_policy(settings)


def _described(text: str) -> Recipient:
    from tidings.gate.facts import MANY, RECIPIENT_FACTS
    from tidings.gate.loading import described

    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise Refused(
            "recipient", "text that is not a JSON object", 'an object such as {"role":"marketing"}', "Quote it."
        )
    for name, value in given.items():
        fact = RECIPIENT_FACTS.get(name)
        if fact is None:
            expected = "one of " + ", ".join(RECIPIENT_FACTS)
            raise Refused("recipient", f"the recipient fact {name}", expected, "Mend the name.")
        if not (isinstance(value, list) if name in MANY else fact.accepts(value)):
            raise Refused("recipient", f"{name}: {value!r}", fact.expected(), "Mend the value.")
    return described(given)


def _answer(line: str, policy: Policy, settings: Settings | None) -> dict[str, Any]:
    from tidings.gate.decide import as_row, told
    from tidings.gate.facts import complete, wrong

    try:
        given = json.loads(line)
    except ValueError as error:
        return {"problems": [f"not JSON: {error}"]}
    given = given.get("facts", given.get("situation", given)) if isinstance(given, dict) else None
    if not isinstance(given, dict):
        return {"problems": ["not a JSON object of facts"]}
    moments, problems = _moments(given)
    given = {name: value for name, value in given.items() if name not in MOMENTS}
    problems += wrong(given) + _unnamed(given, settings)
    if problems:
        return {"problems": problems}
    facts = complete({**_implied(given, settings), **given})
    decisions = told(policy, facts)
    row = as_row(policy, facts, decisions)
    kept = {name: value for name, value in row["facts"].items() if value is not None}
    return {
        "situation": row["situation"],
        "policy_version": row["policy_version"],
        "facts": kept,
        "recipients": [_shown(decision, policy, moments) for decision in decisions],
    }


def _unnamed(given: Mapping[str, Any], settings: Settings | None) -> list[str]:
    problems = [] if given.get("change_type") else ["change_type: found nothing; expected what changed"]
    entity = given.get("entity")
    if settings is not None and entity is not None and entity not in settings.entities:
        problems.append(f"entity: found {entity!r}; expected one of {', '.join(settings.entities)}")
    return problems


def _implied(given: Mapping[str, Any], settings: Settings | None) -> dict[str, Any]:
    """What the folder says about an event that the line does not."""
    from tidings.contract import LIFE_CYCLE
    from tidings.gate.categories import personal, sensitive_types

    change = given["change_type"]
    implied: dict[str, Any] = {"operation": change if change in LIFE_CYCLE else "update", "personal": True}
    if settings is None:
        return implied
    implied |= {"jurisdiction": settings.jurisdiction, "test_mode": settings.test_mode.enabled}
    contract = settings.entities.get(str(given.get("entity")))
    if contract is not None:
        implied |= {"entity_kind": contract.kind, "personal": personal(contract)}
        implied["sensitive"] = change in sensitive_types(contract)
    return implied


def _moments(given: Mapping[str, Any]) -> tuple[dict[str, datetime], list[str]]:
    moments, problems = {}, []
    for name in MOMENTS:
        if given.get(name) is None:
            continue
        try:
            moment = datetime.fromisoformat(str(given[name]))
            moments[name] = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        except ValueError:
            problems.append(f"{name}: found {given[name]!r}; expected a time such as 2026-11-16T09:00:00Z")
    return moments, problems


def _shown(decision: Decision, policy: Policy, moments: Mapping[str, datetime]) -> dict[str, Any]:
    from tidings.gate.clocks import due

    ends = []
    for clock in decision.clocks:
        start = moments.get("time") if clock.origin == "event" else moments.get("request_time", moments.get("time"))
        end = due(clock, start.astimezone(UTC), policy.calendars) if start else None
        ends += [end] if end else []
    laws = [policy.statutes[name] for name in decision.statutes if name in policy.statutes]
    shown = dataclasses.asdict(decision)
    return shown | {
        "statutes": [
            {"id": law.id, "law": law.law, "citation": law.citation, "confidence": law.confidence} for law in laws
        ],
        "clocks": [str(clock) for clock in decision.clocks],
        "deadline": min(ends).isoformat() if ends else None,
    }


def _told(said: Mapping[str, Any]) -> Iterator[str]:
    if "problems" in said:
        yield from (f"line {said['line']}: {problem}" for problem in said["problems"])
        return
    facts = said["facts"]
    yield f"line {said['line']}: {facts['change_type']} of {facts.get('entity', 'anything')}, situation {said['situation']}"
    for one in said["recipients"] or ():
        laws = "; ".join(law["citation"] for law in one["statutes"])
        until = one["deadline"] or "; ".join(one["clocks"])
        yield f"  {one['outcome']:5} {one['subscriber']}: {'; '.join(one['reasons'])}" + (f" [{laws}]" if laws else "")
        if until and one["outcome"] != "deny":
            yield f"        priority {one['priority']}, {one['semantics']}, until {until}"
    if not said["recipients"]:
        yield "  nobody subscribed to it"
