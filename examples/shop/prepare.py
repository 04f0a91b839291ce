"""Makes what a run needs and the repository does not hold: drop folders, the master key, the vendors' secrets."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from .vendors import keys
from .vendors.server import VENDORS

HERE = Path(__file__).parent
WRITTEN = ("tidings.yaml", "sources", "entities", "subscribers", "policy")  # what a person wrote; the rest is made
SOURCES = ("crm", "loyalty", "shop", "legacy")


def prepare(folder: Path = HERE) -> Path:
    """Make what is missing; what is there is kept, so that a second run continues."""
    for source in SOURCES:
        (folder / "drop" / source).mkdir(parents=True, exist_ok=True)
    (folder / "data").mkdir(exist_ok=True)
    keys.make(folder / "secrets", tuple(VENDORS))
    master = folder / "secrets" / "master.key"
    if not master.exists():
        handle = os.open(master, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
    return folder


def copy(target: Path, vendors: str = "") -> Path:
    """The operator's folder somewhere else, prepared; `vendors` is where its vendors listen instead."""
    target.mkdir(parents=True, exist_ok=True)
    for name in WRITTEN:
        one = HERE / name
        _ = shutil.copytree(one, target / name) if one.is_dir() else shutil.copy(one, target / name)
    for path in (target / "subscribers").glob("*.yaml") if vendors else ():
        path.write_text(path.read_text().replace("http://127.0.0.1:18731", vendors))
    return prepare(target)
