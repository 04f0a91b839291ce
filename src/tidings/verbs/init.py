"""`tidings init DIR`: a small working operator, so that the first `check` passes and the first `run` does something."""

from __future__ import annotations

import base64
import os
import secrets
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer

FOLDERS = ("drop/crm", "schemas", "secrets")


def register(app: typer.Typer) -> None:
    app.command("init")(init)


def init(
    name: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make; it must not exist or be empty.")],
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Write a small working operator's folder."""
    written = write(directory / name)
    if as_json:
        answer({"written": written})
        return
    print("\n".join(written))
    print(f"\nNext: tidings check -C {directory / name}")


def write(target: Path) -> list[str]:
    """The folder's files, as paths relative to it; refused when something is already there."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        found = f"{target} is not empty" if target.is_dir() else f"{target} is a file"
        raise Refused("not_empty", found, "a new or empty folder", "Name another folder; nothing was written.")
    from tidings.verbs import schemas

    try:
        for folder in FOLDERS:
            (target / folder).mkdir(parents=True, exist_ok=True)
        (target / "secrets").chmod(0o700)
        _copy(files("tidings").joinpath("template"), target)
        for name, text in _secrets().items():
            _write_secret(target / "secrets" / name, text)
        schemas.write(target / "schemas")
    except OSError as error:
        reason = (error.strerror or "an I/O error").lower()
        raise Refused(
            "unreadable", f"{target}: {reason}", "a folder that can be written", "Mend it and try again."
        ) from None
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


def _copy(shelf: Traversable, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for entry in shelf.iterdir():
        if entry.is_dir():
            _copy(entry, target / entry.name)
        else:
            # A package cannot carry a .gitignore that would not also hide its own files.
            name = ".gitignore" if entry.name == "gitignore" else entry.name
            (target / name).write_bytes(entry.read_bytes())


def _secrets() -> dict[str, str]:
    signing = base64.b64encode(secrets.token_bytes(32)).decode()
    return {
        "master.key": secrets.token_hex(32),
        "hook.key": f"whsec_{signing}",
        "newsletter.key": secrets.token_hex(16),
    }


def _write_secret(path: Path, text: str) -> None:
    """Created with 0600 from the first byte and on disk before anybody depends on it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        stream.write(text + "\n")
        stream.flush()
        os.fsync(stream.fileno())
