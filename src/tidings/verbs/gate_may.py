"""`tidings gate may`: the question before a message: may this person be contacted now, on this channel, for this purpose? No JVM."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer

EXITS = {"yes": 0, "no": 3, "unknown": 4}
CHANNELS = ("email", "sms", "phone", "push", "post", "ads")


def register(app: typer.Typer) -> None:
    app.command("may")(may)


def may(
    subject: Annotated[str, typer.Option("--subject", metavar="WHO", help="An e-mail, a phone, or customer:1001.")],
    channel: Annotated[str, typer.Option("--channel", help=f"One of {', '.join(CHANNELS)}.")],
    purpose: Annotated[str, typer.Option("--purpose", help="marketing, transactional, or a purpose of a subscriber.")],
    at: Annotated[str, typer.Option("--at", metavar="TIME", help="As it was known then, instead of now.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Say whether a person may be contacted, why, and under which law. Ends with 0 for yes, 3 for no, 4 for unknown."""
    if channel not in CHANNELS:
        raise Refused("choice", f"the channel {channel}", f"one of {', '.join(CHANNELS)}", "Choose one of them.")
    said = _asked(directory, {"subject": subject, "channel": channel, "purpose": purpose}, _moment(at))
    if as_json:
        answer(said)
    else:
        cited = "; ".join(law["citation"] for law in said["statutes"])
        print(f"{said['may']}: {said['reason']}" + (f" [{cited}]" if cited else ""))
    raise typer.Exit(EXITS[said["may"]])


def _moment(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text) if text else None
    except ValueError:
        raise Refused("date", "--at that is no time", "a time such as 2026-11-16T09:00:00Z", "Mend it.") from None
    return at if at is None or at.tzinfo else at.replace(tzinfo=UTC)


def _asked(directory: Path, asked: dict[str, str], at: datetime | None) -> dict[str, Any]:
    from tidings.gate.loading import load_policy
    from tidings.report.contact import may_contact
    from tidings.settings import load
    from tidings.store import Store
    from tidings.verbs.why import laws

    settings = load(directory, secrets=False)
    policy = load_policy(settings)
    store = Store(settings.data_path / "tables")
    begun = time.perf_counter()
    found = may_contact(settings, store, policy, asked, at)
    took = round((time.perf_counter() - begun) * 1000, 1)
    hours = found.pop("hours", None)
    cited = [{name: str(hours[name]) for name in ("id", "law", "citation", "confidence")}] if hours else []
    return found | {"statutes": cited or laws(policy, found.pop("laws")), "took_ms": took}
