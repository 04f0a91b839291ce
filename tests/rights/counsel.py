"""An operator whose counsel has a key, and an erasure of somebody who is under a hold. No JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from erased_history import Past

from tidings.rights.holdstore import opened

ERASURE = {"flags": ["erasure"], "change_type": "delete", "operation": "delete", "recipients": []}
PRIVATE = X25519PrivateKey.from_private_bytes(bytes(range(32)))


def with_counsel(shop: Past, more: str = "") -> Past:
    counsel_in(shop.history.folder, more)
    return shop


def counsel_in(folder: Path, more: str = "") -> None:
    """The private half lies outside the operator's folder."""
    public = PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "secrets" / "counsel.pub").write_bytes(public)
    page = folder / "tidings.yaml"
    page.write_text(page.read_text() + f"\nrights: {{holds: {{counsel_key: file:counsel.pub{more}}}}}\n")


def private_file(folder: Path) -> Path:
    path = folder / "counsel.key"
    path.write_bytes(PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def erase(shop: Past, person: int, **row: Any) -> None:
    shop.history.batch(0, 1, first=person, row=ERASURE | row, moved=False, settled=False)


def read(shop: Past) -> list[dict[str, Any]]:
    """What counsel reads in every file."""
    paths = sorted((shop.data / "holds").glob("*.hold")) if (shop.data / "holds").is_dir() else []
    return [dict(one) for path in paths for one in opened(path, PRIVATE)]


def held_records(shop: Past) -> list[tuple[str, str]]:
    """(table, what it is) of every record that is held, as often as it is."""
    found = []
    for one in read(shop):
        for record in one["records"]:
            own = f"{record.get('record')}/{record.get('version')}"
            what = record["row"]["event_id"] if record["table"] == "journal" else record.get("place") or own
            found.append((record["table"], what))
    return sorted(found)
