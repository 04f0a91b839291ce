"""Secrets both sides share: made once, kept in the operator's secrets folder, readable by the owner alone."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Mapping
from pathlib import Path


def make(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    """The secret of each vendor; what is not there yet is drawn now."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in names:
        path = folder / f"{name}.key"
        if not path.exists():
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(_draw(name))
    return dict(read(folder, names))


def read(folder: Path, names: tuple[str, ...]) -> Mapping[str, str]:
    return {name: (folder / f"{name}.key").read_text().strip() for name in names}


def _draw(name: str) -> str:
    if name == "concierge":
        return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    if name == "twilio":
        return f"AC{secrets.token_hex(16)}:{secrets.token_hex(16)}"
    return secrets.token_hex(20)
