"""`tidings try render`: the exact requests that an event would become for one subscriber. Nothing is sent, no secret is read."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer

if TYPE_CHECKING:
    from tidings.channels.call import Member
    from tidings.channels.rehearsal import Rendered
    from tidings.shapes import Subscriber

Event = Annotated[
    str,
    typer.Argument(metavar="EVENT", help="A CloudEvents JSON file, - for standard input, or the id of a stored event."),
]
For = Annotated[str, typer.Option("--subscriber", metavar="NAME", help="A subscriber of the folder.")]
By = Annotated[str, typer.Option("--manifest", metavar="NAME", help="A manifest instead; needs no folder.")]
Var = Annotated[list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="With --manifest: one of its vars.")]


def register(app: typer.Typer) -> None:
    app.command("render")(render)


def render(
    event: Event = "-",
    subscriber: For = "",
    manifest: By = "",
    var: Var = None,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Print method, URL, headers and body of each request, with the names of secrets where their values would be."""
    from tidings.channels.rehearsal import rehearsed

    if bool(subscriber) == bool(manifest):
        raise typer.BadParameter("give one of --subscriber and --manifest", param_hint="--subscriber")
    one, manifests = _described(manifest, var or []) if manifest else _configured(directory, subscriber)
    said = [rehearsed(one, member, manifests) for member in _members(event, directory, one)]
    if as_json:
        answer([rendered.as_data() for rendered in said])
    else:
        print("\n\n".join(_told(rendered) for rendered in said))


def _configured(directory: Path, name: str) -> tuple[Subscriber, Path | None]:
    from tidings import settings as folder

    settings = folder.load(directory, secrets=False)
    if name not in settings.subscribers:
        known = ", ".join(sorted(settings.subscribers)) or "none is configured"
        raise Refused("unknown_subscriber", f"the subscriber {name}", known, "Name one of them.")
    return settings.subscribers[name], settings.manifests_path


def _described(name: str, given: list[str]) -> tuple[Subscriber, Path | None]:
    """A subscriber of the manifest alone; what the operator would have to fill in is shown by its name."""
    from tidings.channels.manifest import load_manifest
    from tidings.shapes import Subscriber

    manifest = load_manifest(name)
    variables: dict[str, Any] = {key: f"<{key}>" for key, value in manifest.vars.items() if value is None}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"found {text!r}; expected NAME=VALUE", param_hint="--var")
        variables[key] = value
    url = manifest.url or "https://subscriber.example.com"
    return Subscriber(name=name, manifest=name, url=url, vars=variables, role="service", region="US"), None


def _members(event: str, directory: Path, subscriber: Subscriber) -> list[Member]:
    from tidings.channels.rehearsal import member_of

    if event != "-" and not Path(event).exists() and (directory / "tidings.yaml").exists():
        return [_stored(event, directory, subscriber)]
    return [member_of(envelope) for envelope in _envelopes(event)]


def _stored(event: str, directory: Path, subscriber: Subscriber) -> Member:
    """An event of the journal as this subscriber's lane hands it over: under its own pseudonym, without what it may not see."""
    import pyarrow.dataset as ds

    from tidings import settings as folder
    from tidings.channels.rehearsal import member_of
    from tidings.gate.decisions import decided_in
    from tidings.lanes.cargo import ROW
    from tidings.lanes.job import wire_subject
    from tidings.report.people import opened
    from tidings.seal.keyfiles import KeyFiles
    from tidings.stages.envelope import addressed
    from tidings.store import Store

    settings = folder.load(directory, secrets=False)
    store = Store(settings.data_path / "tables")
    columns = [*ROW, "kid", "key_file", "decision", "recipients"]
    look = ds.field("event_id") == event
    rows = store.arrow("journal", columns, filter=look).to_pylist() if store.files("journal") else []
    if not rows:
        expected = "a file, -, or the id of an event in the journal"
        raise Refused(
            "unknown-event", "no file and no event of this name", expected, "`tidings timeline` shows events."
        )
    row = rows[0]
    keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    found = keys.load({row["key_file"]} - {None}, {row["kid"]} - {None})
    data = opened(row, found[row["kid"]][1]) if row["kid"] in found else {"erased": True}
    if subscriber.name not in (row["recipients"] or ()) or "key" not in data:
        what = "an event that is not for this subscriber, or whose person was erased"
        raise Refused("nothing_to_render", what, "an event it is to be told of", "`tidings explain` says why.")
    redact = decided_in(store.decisions).choices(row["decision"])[subscriber.name]["redact"]
    wire = wire_subject(settings.keyring.derive("wire"), subscriber.name, found[row["kid"]][0])
    member = member_of(addressed(row, wire, data, redact))
    return dataclasses.replace(member, change_type=row["change_type"], withheld=tuple(redact))


def _envelopes(path: str) -> list[Any]:
    """One event, a batch of them, or JSON Lines."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = f"{path}, {type(error).__name__}"
        raise Refused(
            "event_file", found, "a CloudEvents file in UTF-8", "Name another file or an event's id."
        ) from None
    events = _read(text)
    if not events:
        raise Refused("event_file", "nothing", "at least one CloudEvents event", "Name another file or an event's id.")
    return events


def _read(text: str) -> list[Any]:
    try:
        whole = json.loads(text)
        return whole if isinstance(whole, list) else [whole]
    except (ValueError, RecursionError):
        pass
    try:
        # A text may hold other characters that end a line; in JSON Lines only one of them does.
        events = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError):
        raise Refused("event_file", "something else than JSON", "a CloudEvents file", "Mend it.") from None
    if not events:
        raise Refused("event_file", "nothing", "at least one CloudEvents event", "Name another file or an event's id.")
    return events


def _told(rendered: Rendered) -> str:
    lines = [f"# {rendered.event}: {rendered.outcome}"]
    for verb, request in rendered.requests:
        lines += [f"\n# {verb}", f"{request.method} {request.url}"]
        lines += [f"{name}: {value}" for name, value in sorted(request.headers.items())]
        if request.body:
            lines += ["", request.body.decode()]
    return "\n".join(lines)
