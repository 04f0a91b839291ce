"""`tidings bench`: numbers a claim can be checked with, each beside the bare limit of the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.verbs.options import AsJson, Here, answer, note

Events = Annotated[int, typer.Option("--events", min=1000, help="How many events.")]
SAMPLES = Path("tests/conformance/samples")  # of a checkout; they are not part of the package
Subscribers = Annotated[int, typer.Option("--subscribers", min=1, max=200, help="How many subscribers.")]


def register(app: typer.Typer) -> None:
    bench = typer.Typer(no_args_is_help=True, help="Measure; nothing of the operator's folder is touched.")
    bench.command("emit")(emit)
    bench.command("gate")(gate)
    bench.command("deliver")(deliver)
    bench.command("flat")(flat)
    bench.command("dialects")(dialects)
    bench.command("capture")(capture)
    bench.command("rights")(rights)
    app.add_typer(bench, name="bench")


def emit(
    events: Events = 200_000,
    subscribers: Subscribers = 30,
    unsealed: Annotated[bool, typer.Option("--unsealed", help="Only without sealing.")] = False,
    long: Annotated[bool, typer.Option("--long", help="Ten million events.")] = False,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Messages to journal rows: events/s, the bare limit, the ratio; sealed and unsealed."""
    from tidings.benches.emit import measure

    count = 10_000_000 if long else events
    said: dict[str, Any] = measure(count, subscribers, sealed=not unsealed, say=note)
    if not unsealed:
        said["unsealed"] = measure(count, subscribers, sealed=False, say=note)
    _say(said, as_json)


def gate(
    events: Events = 60_000,
    subscribers: Subscribers = 30,
    rules: Annotated[int, typer.Option("--rules", min=30, max=500, help="How many rules.")] = 300,
    engine: Annotated[str, typer.Option("--engine", help="Also with a policy of rego or cedar.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """The share of emit time that the gate takes, and how an operator with another policy engine compares."""
    from tidings.benches.gate import measure
    from tidings.benches.operator import ENGINES
    from tidings.errors import Refused

    if engine and engine not in ENGINES:
        raise Refused("engine", engine, "one of " + ", ".join(ENGINES), "Choose one of them.")
    _say(measure(events, subscribers, rules, engine=engine, say=note), as_json)


def deliver(
    events: Events = 40_000,
    subscribers: Subscribers = 10,
    single: Annotated[bool, typer.Option("--single", help="One event per request, beside a bare client.")] = False,
    faults: Annotated[bool, typer.Option("--faults", help="p99 of the healthy beside three sick ones.")] = False,
    backlog: Annotated[int, typer.Option("--backlog", min=0, help="How fast so many events are caught up.")] = 0,
    files: Annotated[bool, typer.Option("--files", help="From a file to the last acknowledgement.")] = False,
    long: Annotated[bool, typer.Option("--long", help="A backlog of 3,600,000 events.")] = False,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Journal rows to acknowledgements against a sink on loopback: batched unless an option says otherwise."""
    from tidings.benches import deliver as bench
    from tidings.benches import trickle

    if single:
        said = bench.single(events // 10, subscribers, say=note)
    elif faults:
        said = bench.sick(20.0, max(subscribers, len(bench.SICK) + 1), say=note)
    elif backlog or long:
        said = bench.backlog(3_600_000 if long else backlog, subscribers, say=note)
    elif files:
        said = trickle.measure(events // 10, subscribers, say=note)
    else:
        said = bench.batched(events, subscribers, say=note)
    _say(said, as_json)


def flat(
    batches: Annotated[int, typer.Option("--batches", min=20, help="How many batches.")] = 200,
    subjects: Annotated[int, typer.Option("--subjects", min=1000, help="Known subjects.")] = 1_000_000,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Cost per event as tables grow: the 10th batch beside the last, and commit times."""
    from tidings.benches.flat import measure

    _say(measure(batches, subjects, say=note), as_json)


def dialects(
    messages: Annotated[int, typer.Option("--messages", min=1000, help="How many messages of each dialect.")] = 20_000,
    only: Annotated[list[str] | None, typer.Option("--dialect", help="Only this one; may be repeated.")] = None,
    samples: Annotated[Path, typer.Option(exists=True, file_okay=False, help="A folder of DIALECT.jsonl.")] = SAMPLES,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Decode each dialect's samples, varied, beside a bare from_json of the same bytes; worst ratio first."""
    from tidings.benches.dialects import measure

    said = measure(samples, messages, only or (), say=note)
    if as_json:
        answer(said)
        return
    each = said.pop("each")
    for row in each:
        print(f"{row['dialect']:<26} {row['ratio']:>6}  {row['decode_us']:>7} us of {row['bare_us']:>6} bare")
    _say(said, as_json)


def capture(
    connection: Annotated[str, typer.Option("--connection", help="env:NAME or file:NAME of a PostgreSQL connection.")],
    rate: Annotated[int, typer.Option("--rate", min=0, help="Rows a second to write; 0 is as many as it can.")] = 5_000,
    seconds: Annotated[int, typer.Option("--seconds", min=5, help="How long to write.")] = 30,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """PostgreSQL's log to the journal at a rate of row changes, beside the server alone; makes and drops a table and a slot."""
    from tidings.benches.capture import measure
    from tidings.secret import resolve

    _say(measure(resolve(connection, directory / "secrets").reveal(), rate, seconds, say=note), as_json)


def rights(
    requests: Annotated[int, typer.Option("--requests", min=10, help="How many people ask to be erased.")] = 10_000,
    subjects: Annotated[int, typer.Option("--subjects", min=1000, help="Known subjects.")] = 1_000_000,
    recipients: Annotated[int, typer.Option("--recipients", min=1, max=200, help="Who must be told of each.")] = 12,
    lookup: Annotated[
        bool, typer.Option("--lookup", help="Files opened for one person, as the journal grows.")
    ] = False,
    rows: Annotated[int, typer.Option("--rows", min=10_000, help="Of the smaller journal of --lookup.")] = 1_000_000,
    emit: Annotated[bool, typer.Option("--emit", help="Emit without and with erasures in the past.")] = False,
    events: Events = 200_000,
    erasures: Annotated[int, typer.Option("--erasures", min=1000, help="In the past of --emit.")] = 100_000,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Erasures from the ask to the last acknowledgement; what one person's look-up reads; what past erasures cost emit."""
    if lookup:
        from tidings.benches import lookup as looking

        said = looking.measure(rows, recipients, say=note)
    elif emit:
        from tidings.benches import erased

        said = erased.measure(events, erasures, recipients, say=note)
    else:
        from tidings.benches import rights as desk

        said = desk.measure(requests, subjects, recipients, say=note)
    _say(said, as_json)


def _say(said: dict[str, Any], as_json: bool) -> None:
    if as_json:
        answer(said)
        return
    for name, value in said.items():
        print(f"{name:>16}  {value}")
