"""What somebody with every secret that is left and a list of all customers can work out: everything that is keyed by a person."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tidings.lanes.job import wire_subject
from tidings.seal.keyring import Keyring
from tidings.settings import Settings

UNITS = ("insert", "update", "delete", "email", "tier")


def keyed(
    settings: Settings, key_json: str, identifiers: Mapping[str, str], kind: str = "customer"
) -> Iterator[tuple[str, bytes]]:
    """Tag, hashes of identifiers, and the name by which each subscriber knows the person."""
    keyring: Keyring = settings.keyring
    tag = keyring.tag(settings.tenant, kind, key_json)
    yield "tag", tag
    for name, value in identifiers.items():
        yield f"hash of {name}", keyring.identifier_hash(name, value)
    for lane in settings.subscribers:
        yield f"subject at {lane}", bytes.fromhex(wire_subject(keyring.derive("wire"), lane, tag))


def change_of(k_id: bytes, row: Mapping[str, Any], entity: str, tag: bytes) -> bytes:
    """What recognises a change that comes again, if it is this person's."""
    said = (row["source"], row["epoch"], entity, row["operation"], row["position"], "0", "", tag.hex().upper())
    return hmac.new(k_id, "\x1f".join(said).encode(), hashlib.sha256).digest()[:16]


def event_ids(k_id: bytes, change: bytes, units: Iterable[str] = UNITS) -> Iterator[str]:
    """The end of an event's id, if it were made of that."""
    for unit in units:
        raw = hmac.new(k_id, change + unit.encode(), hashlib.sha256).hexdigest()
        yield raw[6:18]
