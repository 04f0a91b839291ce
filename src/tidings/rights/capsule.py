"""The capsule: what is left of a person while recipients are told, and nothing else. Pure.

Each recipient has its own part, sealed under its own key: the record's key, the name by which this recipient knows the person, and only
those identifiers that its erase verb asks for. A part's key is a row of the key files under the part's own tag, which nobody can work out
from the person; it is destroyed when the recipient has acknowledged, or two people said that it need not.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tidings.contract import Contract
from tidings.errors import ConfigurationError
from tidings.lanes.job import wire_subject
from tidings.rights.people import Person
from tidings.seal.keyring import TAG_BYTES, associated, seal_payload

if TYPE_CHECKING:
    from tidings.settings import Settings

FEED = ("rights", "capsule")  # source and generation of what is sent out of capsules
LANE, TASK = "lane", "task"


@dataclass(frozen=True)
class Sealed:
    """One recipient's part, ready to be committed."""

    recipient: str
    way: str
    event_id: str
    tag: bytes
    kid: bytes
    key: bytes = field(repr=False)
    sealed: bytes = field(repr=False)
    deadline: datetime | None = None

    def as_row(self) -> dict[str, Any]:
        names = ("recipient", "way", "event_id", "kid", "tag", "sealed", "deadline")
        return {name: getattr(self, name) for name in names}


def part(
    settings: Settings, request: str, recipient: str, way: str, people: Iterable[Person], deadline: datetime | None
) -> Sealed:
    """What this recipient must be told of these records of one person."""
    records = [_record(settings, recipient, way, person) for person in people]
    first = records[0]
    plain = {**first, "changed": [], "also": records[1:]} if len(records) > 1 else {**first, "changed": []}
    event_id = f"{request}-{recipient}"
    tag, kid, key = secrets.token_bytes(TAG_BYTES), secrets.token_bytes(TAG_BYTES), secrets.token_bytes(32)
    sealed = seal_payload(
        json.dumps(plain, ensure_ascii=False, sort_keys=True).encode(),
        key,
        settings.keyring.derive("iv"),
        associated("journal", event_id, "payload"),
    )
    return Sealed(recipient, way, event_id, tag, kid, key, sealed, deadline)


def _record(settings: Settings, recipient: str, way: str, person: Person) -> dict[str, Any]:
    contract = settings.entities.get(person.entity)
    paths = needed(settings, recipient, contract) if way == LANE else _identifiers(contract)
    before: dict[str, Any] = {}
    for path in paths & person.fields.keys():
        put(before, path, person.fields[path])
    subject = wire_subject(settings.keyring.derive("wire"), recipient, person.tag)
    return {"key": person.key, "before": before or None, "after": None, "subject": subject}


def needed(settings: Settings, recipient: str, contract: Contract | None) -> set[str]:
    """The fields that the recipient's erase verb looks at; a channel without verbs gets the record's key alone."""
    from tidings.channels.manifest import load_manifest

    if contract is None or recipient not in settings.subscribers:
        return set()
    try:
        manifest = load_manifest(settings.subscribers[recipient].manifest, settings.manifests_path)
    except ConfigurationError:
        return set()
    text = " ".join(verb.model_dump_json(by_alias=True) for verb in manifest.routed("delete"))
    words = set(re.findall(r"[A-Za-z0-9_]+", text))
    kinds = {kind for kind in contract.identifiers.values() if any(kind in word for word in words)}
    mine = {path for path, kind in contract.identifiers.items() if kind in kinds}
    named = (places for name, places in manifest.fields.items() if name in words)
    return mine | {
        place.partition(".")[2] for places in named for place in places if place.startswith(("before.", "after."))
    }


def _identifiers(contract: Contract | None) -> set[str]:
    return set(contract.identifiers) if contract else set()


def put(image: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for name in outer:
        image = image.setdefault(name, {})
    image[last] = value


def journal_row(
    asked: Mapping[str, Any], sealed: Mapping[str, Any], offset: int, batch: int, now: datetime
) -> dict[str, Any]:
    """The event that one recipient gets: as the event that asked for it, with its own id, key and payload."""
    copied = ("tenant", "banner", "location", "locale", "routing_hint", "entity", "schema_version", "policy_version",
              "hlc", "lamport", "vector", "subjectseq", "decision", "consent", "time", "change_type", "operation")  # fmt: skip
    due = dict(asked["deadlines"] or ()).get(sealed["recipient"])
    return {name: asked[name] for name in copied} | {
        "offset": offset, "source": FEED[0], "generation": FEED[1], "batch": batch, "recorded": now,
        "event_id": sealed["event_id"], "kid": sealed["kid"], "key_file": f"rights-capsule-{batch}-00000000",
        "payload": sealed["sealed"], "recipients": [sealed["recipient"]], "flags": ["erasure"],
        "deadlines": [(sealed["recipient"], due)] if due else None, "causation": asked["event_id"],
    }  # fmt: skip
