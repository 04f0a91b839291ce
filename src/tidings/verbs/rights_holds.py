"""`tidings rights hold list | show | release | open`: what is kept of erased people under counsel's key. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, note

if TYPE_CHECKING:
    from tidings.rights.holdstore import Held

Named = Annotated[str, typer.Argument(metavar="HOLD", help="The id of the hold, or its first characters.")]


def register(app: typer.Typer) -> None:
    hold = typer.Typer(no_args_is_help=True, help="Records of erased people under a hold.", rich_markup_mode=None)
    hold.callback()(_holds)
    hold.command("list")(list_)
    hold.command("show")(show)
    hold.command("release")(release)
    hold.command("open")(open_)
    app.add_typer(hold, name="hold")


def _holds() -> None:
    """Records of erased people under a hold."""


def list_(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Every hold, the one that ends first first."""
    found = sorted(_all(directory), key=lambda one: (one.until or "9999", one.hold))
    if as_json:
        answer({"holds": [_said(one) for one in found]})
        return
    for one in found:
        print(f"{one.hold}  until {one.until or 'released'}  {len(one.items)} records  {', '.join(one.grounds)}")
    note(f"{len(found)} holds")


def show(hold: Named, directory: Here = Path("."), as_json: AsJson = False) -> None:
    """One hold: why, until when, in which file, and what was said of it. Nothing of the person: counsel opens that."""
    one = _one(directory, hold)
    said = _said(one) | {"steps": list(_steps(directory, one))}
    if as_json:
        answer(said)
        return
    for name, value in said.items():
        if name != "steps":
            print(f"{name}: {', '.join(value) if isinstance(value, list) else value}")
    for step in said["steps"]:
        print(f"  {step['at']}  {step['what']}: {step['reason']}  ({step['actor']})")


def release(
    hold: Named,
    by: Annotated[str, typer.Option("--by", help="Who answers for it; two different people say the same.")],
    reason: Annotated[str, typer.Option("--reason", help="Why it is over before its time.")],
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Say that a hold is over before its last day. What is held goes when a second person has said so too."""
    from tidings.rights import intake
    from tidings.rights.asks import Word
    from tidings.settings import load

    one = _one(directory, hold)
    if not reason.strip():
        raise Refused(
            "no_reason", "a release without a reason", "why the hold is over", "Say --reason. Nothing changed."
        )
    intake.say(load(directory, secrets=False), Word(one.request, "release", by, reason, says={"hold": one.hold}))
    others = {step["actor"] for step in _steps(directory, one) if step["what"] == "release_asked"}
    second = bool({name.strip().casefold() for name in others} - {by.strip().casefold()})
    if as_json:
        answer({"hold": one.hold, "request": one.request, "second": second})
    else:
        note("Put down; `tidings run` takes it up." + ("" if second else " A second person must say the same."))


def open_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of data/holds, or a copy of it.")],
    key: Annotated[Path, typer.Option("--key", metavar="PRIVATE", help="Counsel's private key, X25519 in PEM.")],
    hold: Annotated[str, typer.Option("--hold", metavar="HOLD", help="This hold alone.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Print what is held as JSON. For counsel, on a machine of theirs: it needs the file and the key, and no folder."""
    from tidings.rights.holdstore import opened, private_key

    path = file if file.is_absolute() else directory / file
    for one in (path, key):
        if not one.is_file():
            raise Refused(
                "missing_file", f"no file {one.name}", "a hold's file and counsel's key", "Nothing was opened."
            )
    found = [one for one in opened(path, private_key(key.read_bytes())) if one["hold"].startswith(hold)]
    answer({"holds": found})


def _all(directory: Path) -> list[Held]:
    from tidings.rights.book import Book
    from tidings.rights.holdstore import HoldStore
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    book = Book(Store(settings.data_path / "tables")).refresh()
    gone = {step.details.get("hold") for one in book.requests.values() for step in one.happened("hold_released")}
    return [one for one in HoldStore(settings.data_path, b"").all() if one.hold not in gone]


def _one(directory: Path, name: str) -> Held:
    found = [one for one in _all(directory) if one.hold.startswith(name)]
    if len(found) != 1 or not name:
        expected = "the id of one hold, as `tidings rights hold list` shows them"
        raise Refused("unknown_hold", f"{len(found)} holds of this id", expected, "Look there.")
    return found[0]


def _steps(directory: Path, held: Held) -> list[dict[str, Any]]:
    from tidings.rights.book import Book
    from tidings.settings import load
    from tidings.store import Store

    book = Book(Store(load(directory, secrets=False).data_path / "tables")).refresh()
    request = book.requests.get(held.request)
    said = [step for step in (request.steps if request else ()) if step.details.get("hold") == held.hold]
    return [
        {"at": step.at.isoformat(timespec="seconds"), "what": step.what, "actor": step.actor, "reason": step.reason}
        for step in said
    ]


def _said(one: Held) -> dict[str, Any]:
    return {
        "hold": one.hold, "request": one.request, "until": one.until or None, "grounds": list(one.grounds),
        "records": len(one.items), "sealed_for": one.sealed_for, "file": one.path.name, "digest": one.digest,
    }  # fmt: skip
