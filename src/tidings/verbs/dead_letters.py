"""`tidings dead-letters`: deliveries that need a person; look, send again, approve the exception, or let them expire. No Spark."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, known_subscriber, note

if TYPE_CHECKING:
    from tidings.lanes.letters import Letter
    from tidings.settings import Settings
    from tidings.store import Store

Event = Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")]
Maybe = Annotated[str, typer.Argument(metavar="EVENT", help="The event's id; without it, every open letter that fits.")]
Who = Annotated[str, typer.Option("--subscriber", metavar="NAME", help="Only this subscriber's.")]
Code = Annotated[
    str, typer.Option("--code", metavar="CODE", help="Only with this code, such as status_400 or in_doubt.")
]
Type = Annotated[str, typer.Option("--type", metavar="TYPE", help="Only of this change type.")]
Since = Annotated[str, typer.Option("--since", metavar="TIME", help="Only those given up from then on.")]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="Only those given up until then.")]
Subject = Annotated[
    str, typer.Option("--subject", metavar="WHO", help="Only of this person: an e-mail, a phone, customer:1001.")
]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is attested.")]
By = Annotated[str, typer.Option("--by", metavar="WHO", help="Who approves; it is attested.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
Expect = Annotated[
    int, typer.Option("--expect", metavar="N", help="Do it if it concerns exactly N letters.", show_default=False)
]


def register(app: typer.Typer) -> None:
    letters = typer.Typer(help="Deliveries that need a person.", rich_markup_mode=None)
    letters.callback(invoke_without_command=True)(_all)
    for verb in (list_, show, retry, approve, expire):
        letters.command(verb.__name__.rstrip("_"))(verb)
    app.add_typer(letters, name="dead-letters")


def _all(context: typer.Context, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """List the dead letters, oldest first."""
    if context.invoked_subcommand is None:
        list_(directory=directory, as_json=as_json)


def list_(
    subscriber: Who = "",
    code: Code = "",
    type_: Type = "",
    since: Since = "",
    until: Until = "",
    subject: Subject = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """List the dead letters, oldest first: first and last attempt, subscriber, event, type, code, attempts, state."""
    _, _, found = _letters(directory, _said(subscriber, code, type_, since, until, subject))
    if as_json:
        answer([letter.as_dict() for letter in found])
        return
    for letter in found:
        attempts = f"{letter.attempts} attempt{'' if letter.attempts == 1 else 's'}"
        said = (letter.first, letter.last, letter.lane, letter.event, letter.change_type, letter.code, attempts)
        print("  ".join((*said, letter.state)))
    note(f"{_many(len(found))}, {sum(letter.state == 'open' for letter in found)} open")


def show(event: Event, subscriber: Who = "", directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Everything that was tried for an event, and for what was given up the very request and response."""
    from tidings.lanes.exchanges import shown
    from tidings.lanes.letters import history
    from tidings.seal.keyfiles import KeyFiles

    settings, store, letters = _letters(directory, _said(subscriber))
    tried = [row for row in history(store, event) if subscriber in ("", row["lane"])]
    if not tried:
        known = "an event that was tried"
        raise Refused("unknown_event", f"no attempt for {event}", known, "See `tidings dead-letters list`.")
    keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    mine = [letter for letter in letters if letter.event == event]
    said = {"tried": tried, "letters": [one.as_dict() | {"exchange": shown(store, keys, one)} for one in mine]}
    if as_json:
        answer(said)
    else:
        _print(said)


def _print(said: dict[str, Any]) -> None:
    for row in said["tried"]:
        what = "intended" if row["intent"] else f"{row['result']} {row['code'] or ''}".strip()
        after = row["final"] or (f"next {row['next_due']}" if row["next_due"] else "")
        print(f"{row['finished']}  {row['lane']}  attempt {row['attempt']}  {what}  {after}".rstrip())
    for letter in said["letters"]:
        found = letter["exchange"]
        print(f"\n{letter['lane']}: {letter['code']}, {letter['state']}")
        if "gone" in found:
            print(f"  request and response: {found['gone']}")
            continue
        request, response = found["request"], found["response"]
        print(f"  {request['method']} {request['url']}")
        for name, value in request["headers"].items():
            print(f"  {name}: {value}")
        print(f"\n  {request['body']}\n\n  → {response['fault'] or response['status']}\n  {response['body']}")


def retry(
    event: Maybe = "",
    reason: Why = "",
    subscriber: Who = "",
    code: Code = "",
    type_: Type = "",
    since: Since = "",
    until: Until = "",
    subject: Subject = "",
    yes: Yes = False,
    expect: Expect = -1,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Send dead letters again, each ahead of what waits for the same subject: one, or all that fit."""
    from tidings.lanes.letters import sendable

    _reasoned("retry", reason)
    settings, store, letters = _letters(directory, _said(subscriber, code, type_, since, until, subject))
    found = [_only(letters, event)] if event else [letter for letter in letters if letter.state == "open"]
    able = sendable(store, found)
    if event and not able:
        what = "what this event said is gone: the time of its payload is over"
        raise Refused("payload_expired", what, "an event with its payload", "Let its master send the change again.")
    if len(able) < len(found):
        note(f"{_many(len(found) - len(able))} left out: what they said is gone, the time of their payload is over")
    if not event:
        _confirmed("sent again", len(able), yes, expect)
    _asked(settings, able, ("retry", reason, ""), as_json)


def approve(
    event: Event,
    reason: Why = "",
    by: By = "",
    subscriber: Who = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Accept that a delivery will not happen; the exception has a name and a reason, and both are attested."""
    _reasoned("approve", reason, by)
    settings, _, letters = _letters(directory, _said(subscriber))
    _asked(settings, [_only(letters, event)], ("approve", reason, by), as_json)


def expire(
    subscriber: Who = "",
    code: Code = "",
    type_: Type = "",
    days: Annotated[int, typer.Option("--older-than", metavar="DAYS", help="Instead of the policy's time.")] = 0,
    erasures: Annotated[bool, typer.Option("--erasures", help="Also erasures, which stay open otherwise.")] = False,
    yes: Yes = False,
    expect: Expect = -1,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """End open letters whose time is over, by `retention: {dead_letters: ...}` or by age; attested one by one."""
    from tidings.gate.retention import OWN, Duty, Schedule
    from tidings.gate.statutes import Amount
    from tidings.keeping import retention_of
    from tidings.lanes.letters import overage

    settings, _, letters = _letters(directory, _said(subscriber, code, type_))
    schedule = retention_of(settings)["dead_letters"]
    if days:
        schedule = Schedule("dead_letters", (Duty(OWN, Amount("days", days)),), named=True)
    if not schedule.named:
        expected = "`retention: {dead_letters: {months: 24}}` in policy/, or --older-than DAYS"
        raise Refused("no_letter_age", "no time for dead letters", expected, "Nothing was changed.")
    today = datetime.now(UTC).date()
    over = overage(letters, schedule, today, erasures)
    _confirmed("ended as expired", len(over), yes, expect)
    _asked(settings, over, ("expire", f"open for longer than {schedule.decides(today)}"[:500], ""), as_json)


def _said(
    subscriber: str, code: str = "", kind: str = "", since: str = "", until: str = "", subject: str = ""
) -> dict[str, str]:
    said = {"subscriber": subscriber, "code": code, "change_type": kind}
    return said | {"since": since, "until": until, "subject": subject}


def _letters(directory: Path, said: dict[str, str]) -> tuple[Settings, Store, list[Letter]]:
    from tidings.lanes.letters import Wanted, dead_letters
    from tidings.report.people import ids_of
    from tidings.settings import load
    from tidings.store import Store
    from tidings.verbs.report import moment

    settings = load(directory, secrets=False)
    store = Store(settings.data_path / "tables")
    rest = {name: said[name] for name in ("subscriber", "code", "change_type")}
    events = ids_of(settings, store, said["subject"]) if said["subject"] else None
    wanted = Wanted(**rest, since=moment(said["since"]), until=moment(said["until"]), events=events)
    found = dead_letters(store, settings.data_path, wanted)
    name = said["subscriber"]
    # A subscriber that was taken out of the folder may have left letters behind.
    if name and not found and not dead_letters(store, settings.data_path, Wanted(subscriber=name)):
        known_subscriber(settings.subscribers, name)
    return settings, store, found


def _only(letters: list[Letter], event: str) -> Letter:
    found = [one for one in letters if one.event == event]
    if len(found) != 1:
        names = ", ".join(one.lane for one in found)
        known = "no dead letter of this event" if not found else f"dead letters of this event in {names}"
        now = "Name it with --subscriber; see `tidings dead-letters list`."
        raise Refused("unknown_dead_letter", known, "exactly one", now)
    return found[0]


def _reasoned(action: str, reason: str, by: str = "") -> None:
    if not reason.strip():
        raise Refused("no_reason", f"{action} without a reason", "--reason TEXT", "It is attested, so it must say why.")
    if len(f"{reason}{by}".encode()) > 800 or not f"{reason}{by}".isprintable():
        raise Refused("long_reason", "a reason that does not fit", "one line of at most 800 bytes", "Say it shorter.")


def _confirmed(what: str, count: int, yes: bool, expect: int) -> None:
    """The exact number is shown before anything is asked of a lane."""
    note(f"{_many(count)} will be {what}")
    if expect >= 0 and expect != count:
        raise Refused("letters_differ", _many(count), f"{expect}, as --expect says", "Nothing was changed; look again.")
    if yes or expect >= 0 or count == 0:
        return
    if not (sys.stdin.isatty() and typer.confirm("Go on?", err=True)):
        raise Refused("unconfirmed", _many(count), f"--yes, or --expect {count}", "Nothing was changed.")


def _asked(settings: Settings, letters: list[Letter], said: tuple[Any, str, str], as_json: bool) -> None:
    from tidings.lanes.letters import ask

    action, reason, by = said
    ask(settings.data_path, letters, action, reason, by)
    if as_json:
        answer({"action": action, "count": len(letters), "letters": [letter.as_dict() for letter in letters]})
        return
    if letters:
        print(f"{action} of {_many(len(letters))} asked; `tidings run` takes it up within a second, or when it starts")


def _many(count: int) -> str:
    return f"{count:,} dead letter{'' if count == 1 else 's'}"
