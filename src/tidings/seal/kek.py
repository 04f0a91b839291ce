"""Which version of the key-encryption key wraps the key files: data/keys/kek.json, beside the files it speaks of.

    no file            version 1
    {"version": 2}     every key is wrapped under version 2
    … "next": 3        a rotation to 3 is under way: some files are under 2, some under 3, and nobody opens them until it is done

It lies with the key files because a backup must hold both or neither. A version is a number and no secret: the keys come from the master.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tidings import durable
from tidings.errors import Damaged, Refused

NAME = "kek.json"


@dataclass(frozen=True)
class Kek:
    """The version in force, and the one that a rotation is on its way to."""

    version: int = 1
    next: int | None = None


def purpose(version: int) -> str:
    """Under which name the master gives this version; the first has none, as it is older than versions."""
    return "kek" if version == 1 else f"kek/{version}"


def read(keys: Path) -> Kek:
    try:
        said = json.loads((keys / NAME).read_bytes())
        found = Kek(int(said["version"]), int(said["next"]) if said.get("next") is not None else None)
    except FileNotFoundError:
        return Kek()
    except (ValueError, KeyError, TypeError):
        found = Kek(0)
    if found.version < 1 or found.next not in (None, found.version + 1):
        expected = "the version of the key-encryption key"
        raise Damaged("kek_version", f"another text in {NAME}", expected, "Put it back from the backup of data/keys.")
    return found


def write(keys: Path, kek: Kek) -> None:
    """Durable on return; readers see the old text or the new one."""
    said = {"version": kek.version} | ({"next": kek.next} if kek.next is not None else {})
    durable.make_folder(keys, 0o700)
    durable.durable_write(keys / NAME, json.dumps(said) + "\n")


def settled(keys: Path) -> None:
    """Refuse to open key files in the middle of a rotation."""
    if read(keys).next is not None:
        raise Refused(
            "rotation_unfinished",
            "key files in the middle of a rotation",
            "all of them under one key-encryption key",
            "Run `tidings keys rotate` again; it goes on where it was stopped. Nothing was opened.",
        )
