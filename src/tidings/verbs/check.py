"""`tidings check`: run without effects. Every problem at once, or the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import SubscriberError, TidingsError
from tidings.verbs.options import AsJson, Here, answer, note

if TYPE_CHECKING:
    from tidings.plan import Plan, PlannedSubscriber
    from tidings.settings import Settings


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    directory: Here = Path("."),
    as_json: AsJson = False,
    connect: Annotated[
        bool, typer.Option("--connect", help="Make one harmless authenticated call per subscriber and database.")
    ] = False,
    subjects: Annotated[int, typer.Option(min=1, help="Records of the backfill in the capacity lines.")] = 1_000_000,
) -> None:
    """Check the folder and print the plan; nothing is started, written or sent."""
    from tidings.plan import plan, verified

    settings = verified(directory)
    planned = plan(settings, subjects)
    answers = [_answer_of(settings, name) for name in settings.subscribers] if connect else []
    answers += [row for name in settings.sources if (row := _server_of(settings, name))] if connect else []
    if as_json:
        answer({**planned.as_dict(), **({"connect": answers} if connect else {})})
    else:
        print("\n".join([*_lines(planned), *map(_answer_line, answers)]))
        for warning in planned.warnings:
            note(f"warning: {warning}")
    if not all(row["answered"] for row in answers):
        raise typer.Exit(SubscriberError.exit_code)


def _answer_of(settings: Settings, name: str) -> dict[str, Any]:
    """What a subscriber says to one harmless call."""
    from tidings.plan import open_subscriber

    channel = open_subscriber(settings, name)
    try:
        said = channel.ping()
    finally:
        channel.close()
    good = said.result == "acknowledged"
    row = {"subscriber": name, "answered": good, "result": said.result, "code": said.code, "status": said.status}
    return row | {"detail": said.detail}


def _server_of(settings: Settings, name: str) -> dict[str, Any] | None:
    """Whether a source's server is set up for capture; nothing is read from it."""
    from tidings.sources.pump import queue_of
    from tidings.sources.tap import tap_of

    row = {"source": name, "answered": True, "result": "ready", "code": "", "status": 0}
    try:
        source = settings.sources[name]
        reader = tap_of(settings, source) or queue_of(settings, source)
        if reader is None:
            return None
        reader.verify()
        row["result"] = "; ".join(["ready", *getattr(reader, "remarks", list)()])
    except TidingsError as error:
        return row | {"answered": False, "result": f"{error.found}. {error.what_now}", "code": error.code}
    return row


def _answer_line(row: dict[str, Any]) -> str:
    if "source" in row:
        return f"connect {row['source']}: {row['result']}"
    status = f" (HTTP {row['status']})" if row["status"] else ""
    detail = f": {row['detail']}" if row["detail"] and not row["answered"] else ""
    return (
        f"connect {row['subscriber']}: {'answered' if row['answered'] else row['result']} {row['code']}{status}{detail}"
    )


def _lines(plan: Plan) -> Iterator[str]:
    places = "; ".join(f"{banner} ({', '.join(names) or 'no locations'})" for banner, names in plan.banners.items())
    yield f"tenant {plan.tenant}: {places}; jurisdiction {plan.jurisdiction}; data in {plan.data}"
    yield ""
    for source in plan.sources:
        where = f"{source.banner}/{source.location}" if source.location else source.banner
        yield f"source {source.name}: {source.kind}{f' {source.path}' if source.path else ''} as {source.dialect}, at {where}"
        files = f"; files afterwards: {source.after}" if source.kind == "files" else ""
        yield f"  snapshot rows: {source.snapshot}{files}"
        for table, contract in source.entities.items():
            yield f"  {table} → {contract}"
    yield ""
    for entity in plan.entities:
        yield f"entity {entity.name} ({entity.kind}, version {entity.version}): key {', '.join(entity.key)}; {entity.fields} fields"
        yield f"  changes: {', '.join(entity.change_types) or 'life cycle only'}"
    if plan.own_types:
        yield f"own change types: {', '.join(plan.own_types)}"
    yield ""
    for subscriber in plan.subscribers:
        yield from _subscriber_lines(subscriber)
    yield ""
    yield f"policy {plan.policy_version}: {plan.rules} rules"
    yield f"test mode: {f'on, only {plan.test_subjects} named subjects are sent' if plan.test_mode else 'off'}"
    yield "ok: nothing was started"


def _subscriber_lines(subscriber: PlannedSubscriber) -> Iterator[str]:
    agreement = "processing agreement" if subscriber.dpa else "no processing agreement"
    says = f"{subscriber.manifest} over {subscriber.channel}; {subscriber.role}, {subscriber.region}, {agreement}"
    yield f"subscriber {subscriber.name}: {says}" + ("; filtered" if subscriber.filtered else "")
    groups: dict[tuple[str, float, str], list[str]] = {}
    for promise in subscriber.promises:
        groups.setdefault((promise.semantics, promise.sla_s, promise.ack), []).append(promise.change_type)
    for (semantics, sla, ack), types in groups.items():
        yield f"  {semantics}, within {duration(sla)}, acknowledged {ack}: {', '.join(types)}"
    if not groups:
        yield "  nothing: no contract makes a change type it takes"
    can = subscriber.capacity
    yield (
        f"  capacity: {can.calls_per_second:g} calls/s × {can.members_per_call} per call:"
        f" {can.subjects:,} subjects take {duration(can.backfill_s)}"
    )


def duration(seconds: float) -> str:
    """`90061` → `1 d 1 h`: the two largest units that matter."""
    if 0 < seconds < 1:
        return "less than 1 s"
    left, parts = round(seconds), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"
