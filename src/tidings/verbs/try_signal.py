"""`tidings try signal`: what a header, a consent string or a JSON line says, and what it asks for. No JVM, and no folder needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.verbs.options import AsJson, Here, answer

if TYPE_CHECKING:
    from tidings.rights.signals import Signal

Given = Annotated[str, typer.Argument(help="A header, a string or JSON; lines of standard input when it is left out.")]
Lives = Annotated[str, typer.Option("--jurisdiction", metavar="PLACE", help="Where the person lives, such as US-CA.")]


def register(app: typer.Typer) -> None:
    app.command("signal")(signal)


def signal(given: Given = "", jurisdiction: Lives = "", directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Say what a privacy signal means. Nothing is recorded."""
    from tidings.rights import signals

    lines = [given] if given else [line.strip() for line in sys.stdin if line.strip()]
    told = []
    for line in lines:
        one = _read(line, jurisdiction)
        told.append(asdict(signals.hear(one)) | {"fields": _fields(one)})
    if as_json:
        answer(told)
        return
    for said in told:
        print("\n".join(_told(said)))


def _read(line: str, jurisdiction: str) -> Signal:
    from tidings.rights.bits import BadSignal
    from tidings.rights.signals import Signal, sec_gpc
    from tidings.strict import strict_value

    name, colon, value = line.partition(":")
    if colon and name.strip().lower() == "sec-gpc":
        return Signal.of({"jurisdiction": jurisdiction, "gpc": sec_gpc(value.strip(" \t"))})
    if line.startswith("{"):
        try:
            said = strict_value(line.encode(errors="surrogatepass"))
        except ValueError:
            raise BadSignal("bad_word", "JSON") from None
        return Signal.of({"jurisdiction": jurisdiction} | said)
    kind = "gpp" if "~" in line or line.startswith("D") else "usp" if len(line) == 4 else "tcf"
    return Signal.of({"jurisdiction": jurisdiction, kind: line})


def _fields(signal: Signal) -> dict[str, Mapping[str, Any]]:
    """Every field of every section that can be read."""
    from tidings.rights import gpp, tcf
    from tidings.rights.bits import BadSignal

    found: dict[str, Mapping[str, Any]] = {}
    try:
        if signal.gpp:
            found |= {one.name: one.fields for one in gpp.decode(signal.gpp).sections}
        if signal.tcf:
            found["tcfeuv2"] = tcf.decode(signal.tcf).fields()
        if signal.usp:
            found["uspv1"] = gpp.us_privacy(signal.usp)
    except BadSignal:
        return found  # `unread` says it
    return {name: {field: _shown(value) for field, value in said.items()} for name, said in found.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, tuple) and value and not isinstance(value[0], int):
        return [f"purpose {one.purpose}, kind {one.kind}: {one.vendors}" for one in value]
    return value if isinstance(value, int | str | tuple) else str(value)


def _told(said: Mapping[str, Any]) -> Iterator[str]:
    for one in said["meanings"]:
        yield f"asks for {one['kind']} of {', '.join(one['scope'])} ({', '.join(one['said_by'])})"
    if not said["meanings"]:
        yield "asks for nothing"
    if said["granted"]:
        yield f"  allows {', '.join(said['granted'])}"
    if said["child"]:
        yield "  about a child"
    for part, reason in said["unread"].items():
        yield f"  not read: {part} ({reason})"
    for section, fields in said["fields"].items():
        yield f"  {section}: " + ", ".join(f"{name} {value}" for name, value in fields.items())
