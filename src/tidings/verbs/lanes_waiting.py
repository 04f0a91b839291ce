"""`tidings lanes waiting`: deliveries that were accepted and wait for an answer; `acknowledge` and `reject` are a person's. No Spark."""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, known_subscriber

To = Annotated[str, typer.Option("--subscriber", help="The subscriber that was told.")]
Event = Annotated[list[str], typer.Argument(metavar="EVENT...", help="Events it is about.")]
Why = Annotated[str, typer.Option("--reason", help="What happened; it is attested in the ledger.")]
By = Annotated[str, typer.Option("--by", help="Who says so; the user of this machine when not given.")]
Evidence = Annotated[Path | None, typer.Option("--evidence", help="A file that shows it; its digest is attested.")]
Strength = Annotated[str, typer.Option("--strength", help="What the evidence proves: A1 to A4.")]


@dataclass(frozen=True)
class Waiting:
    """One delivery without its last word."""

    subscriber: str
    event: str
    change_type: str
    state: str  # accepted or notified
    since: str
    asked_next: str | None
    deadline: str | None


def register(lanes: typer.Typer) -> None:
    lanes.command("waiting")(waiting)
    lanes.command("acknowledge")(acknowledge)
    lanes.command("reject")(reject)


def waiting(subscriber: To = "", directory: Here = Path("."), as_json: AsJson = False) -> None:
    """List what was accepted and not answered for: by whom, since when, and when we ask again."""
    found = [one for one in found_waiting(directory) if subscriber in ("", one.subscriber)]
    if subscriber and not found:
        from tidings.settings import load

        known_subscriber(load(directory, secrets=False).subscribers, subscriber)
    if as_json:
        answer([asdict(one) for one in found])
        return
    for one in found:
        after = f"asked again {one.asked_next}" if one.asked_next else "a person, a callback or a pull must say"
        until = f", until {one.deadline}" if one.deadline else ""
        print(f"{one.subscriber}  {one.event}  {one.change_type}  {one.state} since {one.since}; {after}{until}")
    if not found:
        print("nothing waits for an answer")


def acknowledge(
    events: Event,
    subscriber: To = "",
    reason: Why = "",
    by: By = "",
    evidence: Evidence = None,
    strength: Strength = "A3",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Say that the subscriber has done it, with what shows it."""
    if strength not in ("A1", "A2", "A3", "A4"):
        raise Refused("strength", strength, "A1, A2, A3 or A4", "Say what the evidence proves.")
    _say(directory, subscriber, events, True, (reason, by), (strength, _digest(evidence)), as_json)


def reject(
    events: Event,
    subscriber: To = "",
    reason: Why = "",
    by: By = "",
    evidence: Evidence = None,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Say that the subscriber will not do it; the delivery becomes a dead letter."""
    _say(directory, subscriber, events, False, (reason, by), ("A0", _digest(evidence)), as_json)


def found_waiting(directory: Path) -> list[Waiting]:
    from tidings.lanes.lane import Tables
    from tidings.lanes.limits import rules_of
    from tidings.lanes.slices import feeds
    from tidings.seal.keyfiles import KeyFiles
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    store = Store(settings.data_path / "tables")
    tables = Tables(store, KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek")), settings)
    places, found = list(feeds(store)), []
    for subscriber in settings.subscribers.values():
        rules = rules_of(settings, subscriber)
        state, _, _ = tables.recovered(rules, places)
        for delivery in state.awaiting.values():
            weak = delivery.change_type in rules.notices
            found.append(
                Waiting(
                    subscriber.name,
                    delivery.event_id,
                    delivery.change_type,
                    "notified" if weak else "accepted",
                    _at(delivery.first) or "",
                    _at(delivery.due),
                    _at(delivery.deadline),
                )
            )
    return sorted(found, key=lambda one: (one.subscriber, one.since, one.event))


def _say(
    directory: Path,
    subscriber: str,
    events: list[str],
    done: bool,
    said: tuple[str, str],
    proof: tuple[str, str],
    as_json: bool,
) -> None:
    from tidings.lanes import control
    from tidings.settings import load

    reason, by = said
    if not reason.strip():
        raise Refused("no_reason", "an answer without a reason", "--reason TEXT", "It is attested, so it must say why.")
    open_ones = {(one.subscriber, one.event) for one in found_waiting(directory)}
    unknown = [event for event in events if (subscriber, event) not in open_ones]
    if unknown:
        raise Refused(
            "not_waiting",
            f"{', '.join(unknown)} at {subscriber or 'no subscriber'}",
            "deliveries that `tidings lanes waiting` lists",
            "Nothing was recorded.",
        )
    strength, evidence = proof
    data = load(directory, secrets=False).data_path
    request = control.answer(data, subscriber, events, done, reason, by, strength, evidence)
    if as_json:
        answer(asdict(request))
        return
    word = "acknowledged" if done else "rejected"
    print(f"{len(events)} {word} for {subscriber}; `tidings run` takes it up within a second, or when it starts")


def _digest(evidence: Path | None) -> str:
    if evidence is None:
        return ""
    try:
        return hashlib.sha256(evidence.read_bytes()).hexdigest()
    except OSError as error:
        raise Refused(
            "evidence", f"{evidence}: {error.strerror}", "a file that can be read", "Name the file."
        ) from None


def _at(seconds: float | None) -> str | None:
    if seconds is None or seconds > time.time() * 10:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
