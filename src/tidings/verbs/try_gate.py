"""`tidings try gate`: what the policy says of situations in hand, for every subscriber or for one you describe, and why. No JVM."""

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

Lines = Annotated[
    str,
    typer.Argument(
        metavar="FACTS", help="A file of facts: one JSON object, a list, or JSON Lines; - is standard input."
    ),
]
Described = Annotated[
    str,
    typer.Option("--recipient", metavar="JSON", help='Decide for this recipient instead, e.g. {"role":"marketing"}.'),
]
MOMENTS = ("time", "request_time")


def register(app: typer.Typer) -> None:
    app.command("gate")(gate)


def gate(path: Lines = "-", recipient: Described = "", directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Decide each situation, such as {"change_type":"email","entity":"customer","jurisdiction":"DE"}, and say why."""
    given = _read(path)
    described = bool(recipient) or any(isinstance(one, dict) and "recipient" in one for _, one in given)
    settings, policy = _policy(directory, described=described)
    if recipient:
        policy = dataclasses.replace(policy, recipients=(_asked(recipient),))
    wrong = 0
    for number, one in given:
        said = {"line": number, **_answer(one, policy, settings)}
        wrong += "problems" in said
        print(json.dumps(said, ensure_ascii=False) if as_json else "\n".join(_told(said)))
    if wrong:
        raise typer.Exit(2)


def _read(path: str) -> list[tuple[int, Any]]:
    """The situations with their numbers; what is not JSON stays text."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        expected = "a file of facts in UTF-8"
        raise Refused("facts_file", f"{path}, {type(error).__name__}", expected, "Name another file.") from None
    try:
        whole = json.loads(text)
    except ValueError:
        return [(number, _json(line)) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return list(enumerate(whole if isinstance(whole, list) else [whole], 1))


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        return f"not JSON: {error}"


def _policy(directory: Path, *, described: bool) -> tuple[Settings | None, Policy]:
    """The folder's policy; the starter bundle where there is no folder and the recipient is described anyway."""
    from tidings import settings as folder
    from tidings.gate.loading import load_policy, starter_policy

    if described and not (directory / "tidings.yaml").exists():
        return None, starter_policy()
    settings = folder.load(directory, secrets=False)
    return settings, load_policy(settings)


def _asked(text: str) -> Recipient:
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    problems = recipient_problems(given)
    if problems:
        found = problems[0].partition("; expected ")
        raise Refused("recipient", found[0], found[2], "Mend it.")
    return _described(given)


def recipient_problems(given: Any) -> list[str]:
    """What is wrong with a described recipient."""
    from tidings.gate.facts import MANY, RECIPIENT_FACTS

    if not isinstance(given, dict):
        return ['recipient: found something else; expected an object such as {"role":"marketing"}']
    problems = []
    for name, value in given.items():
        fact = RECIPIENT_FACTS.get(name)
        if fact is None:
            problems.append(f"recipient.{name}: not a fact; expected one of {', '.join(RECIPIENT_FACTS)}")
        elif not (isinstance(value, list) if name in MANY else fact.accepts(value)):
            problems.append(f"recipient.{name}: found {value!r}; expected {fact.expected()}")
    return problems


def _described(given: Mapping[str, Any]) -> Recipient:
    """The recipient, and what was said of it that is worked out for a configured one: transfer, approved, ack, exactly_once."""
    from tidings.gate.facts import PAIRED
    from tidings.gate.loading import described
    from tidings.gate.suppose import Supposed

    return Supposed.of(described(given), {name: value for name, value in given.items() if name in PAIRED})


def _answer(given: Any, policy: Policy, settings: Settings | None) -> dict[str, Any]:
    from tidings.gate.decide import as_row, told
    from tidings.gate.facts import complete, wrong

    if isinstance(given, str):
        return {"problems": [given]}
    own = given.get("recipient") if isinstance(given, dict) else None
    given = given.get("facts", given.get("situation", given)) if isinstance(given, dict) else None
    if not isinstance(given, dict):
        return {"problems": ["not a JSON object of facts"]}
    moments, problems = _moments(given)
    given = {name: value for name, value in given.items() if name not in (*MOMENTS, "recipient")}
    problems += wrong(given) + _unnamed(given, settings) + ([] if own is None else recipient_problems(own))
    if problems:
        return {"problems": problems}
    policy = policy if own is None else dataclasses.replace(policy, recipients=(_described(own),))
    facts = complete({**_implied(given, settings), **given})
    decisions = told(policy, facts)
    row = as_row(policy, facts, decisions)
    kept = {name: value for name, value in row["facts"].items() if value is not None}
    return {
        "situation": row["situation"],
        "policy_version": row["policy_version"],
        "facts": kept,
        "recipients": [_shown(decision, policy, facts, moments) for decision in decisions],
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
    from tidings.gate.categories import facts_of
    from tidings.gate.loading import operator_facts

    change = given["change_type"]
    implied: dict[str, Any] = {"operation": change if change in LIFE_CYCLE else "update", "personal": True}
    if settings is None:
        return implied
    implied |= {"jurisdiction": settings.jurisdiction, **operator_facts(settings, str(given.get("banner") or ""))}
    source = settings.sources.get(str(given.get("source")))
    implied |= {"capture": source.kind} if source else {}
    contract = settings.entities.get(str(given.get("entity")))
    return implied if contract is None else implied | facts_of(contract, change)


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


def _shown(
    decision: Decision, policy: Policy, facts: Mapping[str, Any], moments: Mapping[str, datetime]
) -> dict[str, Any]:
    from tidings.verbs.why import laws, reasoned

    recipient = next(one for one in policy.recipients if one.subscriber == decision.subscriber)
    why = reasoned(policy, facts, recipient, moments)
    ends = [one["due"] for one in why["arithmetic"] if one["due"]]
    cited = laws(policy, decision.statutes)
    shown = dataclasses.asdict(decision) | {"statutes": cited, "clocks": [str(clock) for clock in decision.clocks]}
    return shown | {"deadline": min(ends) if ends else None, "laws": cited} | why


def _told(said: Mapping[str, Any]) -> Iterator[str]:
    from tidings.verbs.why import lines

    if "problems" in said:
        yield from (f"line {said['line']}: {problem}" for problem in said["problems"])
        return
    facts = said["facts"]
    yield f"line {said['line']}: {facts['change_type']} of {facts.get('entity', 'anything')}, situation {said['situation']}"
    for one in said["recipients"] or ():
        cited = "; ".join(law["citation"] for law in one["statutes"])
        yield f"  {one['outcome']:5} {one['subscriber']}: {'; '.join(one['reasons'])}" + (
            f" [{cited}]" if cited else ""
        )
        if one["outcome"] != "deny":
            yield f"        priority {one['priority']}, {one['semantics']}"
        yield from lines(one)
    if not said["recipients"]:
        yield "  nobody subscribed to it"
