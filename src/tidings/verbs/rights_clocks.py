"""`tidings rights clocks|letter|incident`: until when, what the person is told, and incidents on the clock. No Spark.

What is said here is put down for the desk of `tidings run`, which writes the step; nothing else writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, note

if TYPE_CHECKING:
    from tidings.rights.book import Request
    from tidings.rights.clocks import Laws
    from tidings.settings import Settings

Id = Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id.")]
Incident = Annotated[str, typer.Argument(metavar="INCIDENT", help="The incident's id.")]
Maybe = Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id; without it, every open one.")]
By = Annotated[str, typer.Option("--by", metavar="WHO", help="Who answers for it; it is attested.")]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is attested.")]
Evidence = Annotated[str, typer.Option("--evidence", metavar="DIGEST", help="SHA-256 of what shows it.")]


def register(app: typer.Typer) -> None:
    app.command("clocks")(clocks)
    app.command("letter")(letter)
    incident = typer.Typer(no_args_is_help=True, help="Security incidents and their notices.", rich_markup_mode=None)
    for verb in (open_, assess, notify, close):
        incident.command(verb.__name__.rstrip("_"))(verb)
    app.add_typer(incident, name="incident")


def clocks(
    request: Maybe = "",
    stuck: Annotated[bool, typer.Option("--stuck", help="Only requests that stand still or are late.")] = False,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Until when each law leaves time, and how that was reckoned; without a request, all that are open, the nearest end first."""
    from tidings.rights.clocks import clocks_of

    _, laws, requests = _book(directory)
    now = datetime.now(UTC)
    if request:
        one = _named(requests, request)
        found = clocks_of(one, laws, now)
        if as_json:
            answer({"request": one.id, "state": one.state, "clocks": [clock.as_dict() for clock in found]})
        else:
            print("\n".join(_told(one, found)))
        return
    rows = [_row(one, laws, now) for one in requests.values() if one.open]
    told = sorted((row for row in rows if row["marks"] or not stuck), key=lambda row: (row["due"], row["request"]))
    if as_json:
        answer({"requests": told})
    for row in () if as_json else told:
        print(f"{row['due']}  {row['state']:9}  {row['kind']:18}  {row['request']}  {', '.join(row['marks'])}".rstrip())


def letter(
    request: Id,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="receipt, identity, extension, completion, …")],
    preview: Annotated[bool, typer.Option("--preview", help="Show it; nothing is sent.")] = False,
    by: By = "",
    evidence: Evidence = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Show a letter as it would leave now, or say that you sent it yourself."""
    from tidings.rights import intake
    from tidings.rights.asks import Word
    from tidings.rights.letters import written
    from tidings.rights.post import sender_of

    settings, laws, requests = _book(directory, secrets=not preview)
    one = _named(requests, request)
    made = written(one, kind, sender_of(settings), laws, datetime.now(UTC))
    if not preview:
        if not re.fullmatch("[0-9a-f]{64}", evidence):
            raise Refused("no_evidence", "a letter sent by hand", "the digest of what was sent", "Add --evidence.")
        intake.say(settings, Word(one.id, "done", by, recipient=f"letter:{kind}", evidence=evidence))
        note("Put down; `tidings run` writes the step.")
    if as_json:
        answer({"request": one.id, "kind": kind, "subject": made.subject, "text": made.text, "digest": made.digest})
    elif preview:
        print(f"{made.subject}\n\n{made.text}")


def open_(
    aware: Annotated[str, typer.Option("--aware", metavar="TIME", help="When you became aware, with its offset.")],
    by: By,
    place: Annotated[list[str], typer.Option("--place", metavar="PLACE", help="Where people concerned live; repeat.")],
    recipient: Annotated[
        list[str] | None, typer.Option("--recipient", metavar="NAME", help="Who had the data.")
    ] = None,
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="From when what they got counts.")] = "",
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="Until when.", show_default="aware")] = "",
    reason: Why = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Open an incident: its clocks run from the moment of awareness."""
    from tidings.rights import incidents
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory)
    says = {"what": "open", "aware": aware, "places": ",".join(one.upper() for one in place)}
    incidents.checked(says, datetime.now(UTC))
    count = None
    if recipient:
        begin = incidents.moment(since or "1970-01-01T00:00:00Z")
        end = incidents.moment(until or aware)
        store = Store(settings.data_path / "tables")
        count = incidents.concerned(settings, store, recipient, begin, end).as_dict()
        says |= {"recipients": ",".join(recipient), "since": begin.isoformat(), "until": end.isoformat()}
        says |= {"people": str(count["people"]), "events": str(count["events"])}
    name = incidents.fresh()
    _say(settings, name, by, reason, says)
    if as_json:
        answer({"incident": name, "concerned": count})
    else:
        print(name + (f": {count['people']} people, {count['events']} events" if count else ""))


def assess(
    incident: Incident,
    risk: Annotated[str, typer.Option("--risk", metavar="RISK", help="none, risk or high, for the people concerned.")],
    by: By,
    reason: Why,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Say how grave it is for people; with none, nobody is notified and the reason is kept."""
    _said(directory, as_json, incident, by, reason, {"what": "assess", "risk": risk})


def notify(
    incident: Incident,
    clock: Annotated[str, typer.Option("--clock", metavar="STATUTE", help="The notice, as `rights clocks` names it.")],
    by: By,
    evidence: Evidence,
    sent: Annotated[str, typer.Option("--sent", metavar="TIME", help="When it was sent.", show_default="now")] = "",
    reason: Why = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Say that a notice was given, with evidence; a late one needs its reason."""
    _said(directory, as_json, incident, by, reason, {"what": "notify", "clock": clock, "sent": sent}, evidence)


def close(incident: Incident, by: By, reason: Why = "", directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Close an incident; while a notice is owed it stays open."""
    _said(directory, as_json, incident, by, reason, {"what": "close"})


def _said(
    directory: Path, as_json: bool, incident: str, by: str, reason: str, says: dict[str, str], evidence: str = ""
) -> None:
    """Looked at now as the desk will look at it, so that a no is told to whoever speaks."""
    from tidings.rights import incidents
    from tidings.rights.asks import Word

    settings, laws, requests = _book(directory, secrets=True)
    one = _named(requests, incident)
    word = Word(one.id, "incident", by, reason, evidence=evidence, says=says)
    draft = incidents.answer(one, word, laws, datetime.now(UTC))
    if draft.what == "declined":
        raise Refused("declined", draft.reason, "what the incident's state allows", "Nothing was put down.")
    _say(settings, one.id, by, reason, says, evidence)
    if as_json:
        answer({"incident": one.id, "step": draft.what})
    else:
        note("Put down; `tidings run` writes the step.")


def _say(settings: Settings, name: str, by: str, reason: str, says: dict[str, str], evidence: str = "") -> None:
    from tidings.rights import intake
    from tidings.rights.asks import Word

    intake.say(settings, Word(name, "incident", by, reason, evidence=evidence, says=says))


def _book(directory: Path, *, secrets: bool = False) -> tuple[Settings, Laws, dict[str, Request]]:
    from tidings.rights.book import Book
    from tidings.rights.clocks import Laws
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=secrets)
    return settings, Laws.of(settings), Book(Store(settings.data_path / "tables")).refresh().requests


def _named(requests: dict[str, Request], name: str) -> Request:
    if name not in requests:
        raise Refused(
            "unknown_request", f"request {name[:64]!r}", "one that was taken in", "See `tidings rights clocks`."
        )
    return requests[name]


def _row(request: Request, laws: Laws, now: datetime) -> dict[str, Any]:
    from tidings.rights.clocks import due_of, shown
    from tidings.rights.sweeper import causes

    marks = [kind for kind, _, _ in causes([request], laws, now)]
    due = shown(due_of(request, laws, now))
    return {"request": request.id, "kind": request.kind, "state": request.state, "due": due, "marks": marks}


def _told(request: Request, found: list[Any]) -> Iterator[str]:
    from tidings.rights.clocks import shown

    yield f"{request.id}: {request.kind}, {request.state}, received {shown(request.opened)}"
    for clock in found:
        yield f"{clock.statute} ({clock.duty}): {clock.law}, {clock.citation}"
        yield f"  due {shown(clock.due) or 'no number'}, own part {shown(clock.part) or '-'}, extension {clock.extension or 'none'}"
        yield from (f"  {number}. {step}" for number, step in enumerate(clock.steps, 1))
