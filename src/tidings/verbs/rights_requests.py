"""`tidings rights ask | list | show | say`: requests of people from the command line. No Spark; `tidings run` does the work."""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, given, note

if TYPE_CHECKING:
    from tidings.rights.book import Request

Who = Annotated[
    list[str], typer.Option("--who", help="email:A@B.C, phone:+1… or ENTITY:KEY; may be given several times.")
]
Named = Annotated[str, typer.Argument(metavar="REQUEST", help="The id of the request, or its first characters.")]


def register(app: typer.Typer) -> None:
    app.command("ask")(ask)
    app.command("list")(list_)
    app.command("show")(show)
    app.command("say")(say)
    app.command("bundle")(bundle)


def ask(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="erasure, access, rectification, opt_out, …")],
    who: Who,
    received: Annotated[str, typer.Option(help="When the person asked, with its offset; now when not said.")] = "",
    jurisdiction: Annotated[
        list[str] | None, typer.Option(help="Where the person lives, like US-CA; several start several clocks.")
    ] = None,
    assurance: Annotated[str, typer.Option(help="none, claimed, verified or strong.")] = "claimed",
    scope: Annotated[list[str] | None, typer.Option(help="A channel, a purpose or a field; none means all.")] = None,
    value: Annotated[list[str] | None, typer.Option(help="FIELD=VALUE of a rectification.")] = None,
    contact: Annotated[str, typer.Option(help="Where letters to the person go.")] = "",
    reference: Annotated[str, typer.Option(help="Your own id; asking twice under it is asking once.")] = "",
    about: Annotated[str, typer.Option(help="Of an appeal: the request that was refused.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Take in a request for a person; prints its id. Nothing says whether the person is known."""
    from tidings.rights import intake
    from tidings.rights.asks import Ask, Identifier
    from tidings.rights.incidents import moment

    settings = _settings(directory)
    made = Ask(
        kind,
        tuple(Identifier(*one.partition(":")[::2]) for one in who),
        "cli",
        moment(received) if received else datetime.now(UTC),
        assurance,
        ",".join(jurisdiction or ()),
        reference=reference,
        scope=tuple(scope or ()),
        values=dict(_pair(one) for one in value or ()),
        contact=contact,
        about=about,
    )
    name = intake.hand_in(settings, made)
    answer({"request": name}) if as_json else print(name)


def list_(
    every: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Requests, the one that is due first first."""
    found = [one for one in _book(directory).requests.values() if every or one.open]
    found.sort(key=lambda one: (one.due or datetime.max.replace(tzinfo=UTC), one.opened, one.id))
    if as_json:
        answer({"requests": [_said(one) for one in found]})
        return
    for one in found:
        due = one.due.date().isoformat() if one.due else "no date"
        print(f"{one.id}  {one.kind:18} {one.state:10} due {due}  {_counted(one)}")
    note(f"{len(found)} requests")


def show(request: Named, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """One request: every step with who took it, and every recipient."""
    one = _one(directory, request)
    if as_json:
        answer(_said(one) | {"steps": [_step(step) for step in one.steps]})
        return
    print(f"{one.kind} {one.id}, came by {one.way} {one.opened.isoformat(timespec='seconds')}: {one.state}")
    for step in one.steps:
        why = f": {step.reason}" if step.reason else ""
        what = f"{step.what} {step.details.get('recipient', '')}".strip()
        print(f"  {step.at.isoformat(timespec='seconds')}  {what}{why}  ({step.actor})")
    for part in one.parts.values():
        print(f"  {part.recipient}: {part.state}{' (by hand)' if part.way == 'task' else ''}")


def say(
    request: Named,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="verify, cancel, approve, refuse, done, except, …")],
    by: Annotated[str, typer.Option("--by", help="Who answers for it.")],
    reason: Annotated[str, typer.Option(help="Why.")] = "",
    recipient: Annotated[str, typer.Option(help="Of done and except: whom it is about.")] = "",
    evidence: Annotated[Path | None, typer.Option(help="A file that shows it; its digest is kept.")] = None,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Say something of a request: a proof of identity, an approval, evidence of what was done by hand."""
    from tidings.rights import intake
    from tidings.rights.asks import Word

    one = _one(directory, request)
    shown = hashlib.sha256(given(evidence)).hexdigest() if evidence else ""
    intake.say(_settings(directory), Word(one.id, action, by, reason, recipient, shown))
    said = {"request": one.id, "action": action, "evidence": shown}
    answer(said) if as_json else note(f"{action} of {one.id} is put down; `tidings run` takes it up.")


def bundle(
    request: Named,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where it is written; yours to hand over and delete.")],
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """What the person gets who asked what is held: history, records, recipients. `say … done --evidence FILE` ends the request."""
    import json

    from tidings.gate.loading import load_policy
    from tidings.rights import bundle as bundles
    from tidings.settings import load
    from tidings.store import Store

    settings, one = load(directory, secrets=False), _one(directory, request)
    made = bundles.bundle(settings, Store(settings.data_path / "tables"), load_policy(settings), one)
    output.touch(0o600)
    output.write_text(json.dumps(made, ensure_ascii=False, indent=1, default=str) + "\n", encoding="utf-8")
    digest = hashlib.sha256(output.read_bytes()).hexdigest()
    answer({"file": str(output), "digest": digest}) if as_json else note(f"{output}, SHA-256 {digest}")


def _pair(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise Refused("field_value", "a --value without a field or a value", "FIELD=VALUE", "Nothing was taken in.")
    return name, value


def _settings(directory: Path) -> Any:
    from tidings.settings import load

    settings = load(directory, secrets=False)
    if settings.operator.rights is None:
        expected = "`rights: {}` in tidings.yaml"
        raise Refused("no_rights", "a folder that takes no requests of people", expected, "Add it and run again.")
    return settings


def _book(directory: Path) -> Any:
    from tidings.rights.book import Book
    from tidings.settings import load
    from tidings.store import Store

    return Book(Store(load(directory, secrets=False).data_path / "tables")).refresh()


def _one(directory: Path, name: str) -> Request:
    found: list[Request] = [one for key, one in _book(directory).requests.items() if key.startswith(name)]
    if len(found) != 1 or not name:
        expected = "the id of one request, as `tidings rights list --all` shows them"
        raise Refused("unknown_request", f"{len(found)} requests of this id", expected, "Look there.")
    return found[0]


def _counted(one: Request) -> str:
    states = Counter(part.state for part in one.parts.values())
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def _step(step: Any) -> dict[str, Any]:
    said = {"at": step.at.isoformat(), "what": step.what, "state": step.state, "actor": step.actor}
    return said | {"reason": step.reason, "details": dict(step.details)}


def _said(one: Request) -> dict[str, Any]:
    parts = [{"recipient": p.recipient, "way": p.way, "state": p.state} for p in one.parts.values()]
    return {
        "request": one.id, "kind": one.kind, "state": one.state, "way": one.way, "opened": one.opened.isoformat(),
        "due": one.due.isoformat() if one.due else None, "jurisdiction": one.jurisdiction, "assurance": one.assurance,
        "recipients": parts,
    }  # fmt: skip
