"""Where secrets come from: the environment, or a file of the declared folder and nowhere else."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from tidings.errors import Refused

MAX_SECRET_BYTES = 64_000


@dataclass(frozen=True, repr=False)
class Secret:
    """A value that never shows itself: `repr`, `str` and formatting give ***."""

    _value: bytes = field(repr=False)

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "***"

    def reveal(self) -> str:
        """The text, for the one place that must use it."""
        return self._value.decode()

    def reveal_bytes(self) -> bytes:
        return self._value


def resolve(reference: str, folder: Path) -> Secret:
    """The secret `env:NAME` or `file:NAME` points at; refused when it is not there or outside the folder."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = os.environ.get(name)
        if not value:
            raise Refused("secret_missing", f"no environment variable {name}", "a value", "Set it and start again.")
        return Secret(os.fsencode(value))
    if kind != "file" or not name:
        raise Refused("secret_in_clear", "text that is not a reference", "env:NAME or file:NAME", "Name the secret.")
    path = contained(folder, name)
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "an I/O error").lower()
        raise Refused(
            "secret_missing", f"file:{name} ({reason})", "a readable file in the secrets folder", "Create it."
        ) from None
    value_bytes = raw.rstrip(b"\r\n")
    if not value_bytes or len(raw) > MAX_SECRET_BYTES:
        raise Refused(
            "secret_missing", f"file:{name} is {'too large' if value_bytes else 'empty'}", "a secret", "Fill it in."
        )
    try:
        value_bytes.decode()
    except UnicodeDecodeError:
        raise Refused("secret_missing", f"file:{name} is not UTF-8", "a secret in text", "Encode it as text.") from None
    return Secret(value_bytes)


def contained(folder: Path, name: str) -> Path:
    """The real path of `name` under `folder`, or a refusal: no absolute path, no `..`, no link that leads out."""
    relative = Path(name)
    home = folder.resolve()
    real = (home / relative).resolve()
    if relative.is_absolute() or ".." in relative.parts or not real.is_relative_to(home) or real == home:
        raise Refused(
            "secret_escapes", f"file:{name}", "a file inside the secrets folder", "Move the file into the folder."
        )
    return real


def readable_by_others(reference: str, folder: Path) -> bool:
    """Whether the file's permissions let somebody else read it."""
    kind, _, name = reference.partition(":")
    if kind != "file":
        return False
    return bool(stat.S_IMODE(contained(folder, name).stat().st_mode) & 0o077)
