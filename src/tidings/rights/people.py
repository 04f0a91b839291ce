"""What we hold of people who are about to be erased: their rows of the journal, who was told, what they are found by. No JVM.

From a person to their rows the way leads through the key files, whose names say the batch; journal files whose statistics exclude those
batches are not opened. So what is read for one person does not grow with the journal.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tidings.errors import Damaged
from tidings.gate.decisions import decided_in
from tidings.near import holding_batches
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import Keyring, associated, open_payload
from tidings.store import Store

COLUMNS = [
    "event_id", "kid", "time", "entity", "change_type", "decision", "recipients", "payload", "consent", "causation",
]  # fmt: skip
MERGES = ("identity_merge", "rekey")


@dataclass
class Person:
    """One subject: the last that was said of each field, who was told of it, and which other subjects are the same person."""

    tag: bytes
    entity: str = ""
    key: Any = None
    fields: dict[str, Any] = field(default_factory=dict, repr=False)
    ever: dict[str, set[str]] = field(default_factory=dict, repr=False)  # every value that a field had
    told: set[str] = field(default_factory=set)
    same: set[bytes] = field(default_factory=set)
    # Class, channel and purpose of a consent → when it was withdrawn, and by which request, if by one.
    withdrawn: dict[tuple[str, str, str], list[tuple[datetime, str]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """Who was found, and how many journal files were opened of how many."""

    people: dict[bytes, Person]
    opened: int
    files: int


def look_up(store: Store, keys: KeyFiles, ring: Keyring, tenant: str, tags: Collection[bytes]) -> Look:
    """These people; somebody without a key row is not in the answer."""
    held = {kid: (tag, name, key) for tag, name, kid, key in keys.about(tags)}
    files = store.files("journal")
    near = holding_batches(files, {name for _, name, _ in held.values()})
    look = ds.field("kid").isin(pa.array(sorted(held), pa.binary()))
    # File by file: of many people's rows little is kept, and what is read on the way is not held together.
    rows = [row for file in near for row in store.arrow("journal", COLUMNS, files=[file], filter=look).to_pylist()]
    found = {tag: Person(tag) for tag, _, _ in held.values()}
    decided = decided_in(store.decisions)
    for row in sorted(rows, key=lambda row: (row["time"], row["event_id"])):
        tag, _, key = held[row["kid"]]
        allowed = {
            one["subscriber"] for one in decided.recipients(row | {"deadlines": None}) if one["outcome"] != "deny"
        }
        found[tag].told |= allowed
        _learn(found[tag], row, _opened(row, key), (ring, tenant))
    return Look(found, len(near), len(files))


def rows_about(
    store: Store, keys: KeyFiles, tags: Collection[bytes], columns: list[str]
) -> Iterable[tuple[bytes, dict[str, Any], dict[str, Any] | None]]:
    """(whose, row, what was sealed in it) of these people's journal rows; a payload that was not asked for or is over is None."""
    held = {kid: (tag, name, key) for tag, name, kid, key in keys.about(tags)}
    near = holding_batches(store.files("journal"), {name for _, name, _ in held.values()})
    look = ds.field("kid").isin(pa.array(sorted(held), pa.binary()))
    for row in store.arrow("journal", columns, files=near, filter=look).to_pylist() if held else ():
        tag, _, key = held[row["kid"]]
        yield tag, row, _opened(row, key) if row.get("payload") is not None else None


def _learn(person: Person, row: Mapping[str, Any], data: Mapping[str, Any], who: tuple[Keyring, str]) -> None:
    ring, tenant = who
    person.entity = row["entity"] or person.entity
    person.key = data.get("key") if data.get("key") is not None else person.key
    for image in (data.get("before"), data.get("after")):
        if isinstance(image, dict):
            learn_image(person, image)
    said = row["consent"]
    if said and said["state"] == "withdrawn":
        place = (said["class"] or "", said["channel"] or "", said["purpose"] or "")
        moment = said["request_time"] or row["time"]
        person.withdrawn.setdefault(place, []).append((moment, row["causation"] or ""))
    for moved in data.get("moved") or () if row["change_type"] in MERGES else ():
        ends = {end: moved.get(end) for end in ("from", "to") if moved.get(end) not in (None, "")}
        tags = {ring.tag(tenant, person.entity, str(end)) for end in ends.values()}
        # A merge that was taken back made two people again, and the erasure of one is not the other's.
        person.same = person.same - tags if "to" not in ends else person.same | tags


def learn_image(person: Person, image: Mapping[str, Any]) -> None:
    for path, value in _flat(image):
        person.fields[path] = value
        person.ever.setdefault(path, set()).add(str(value))


def _flat(image: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in image.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")
        elif value is not None:
            yield f"{path}{name}", value


def _opened(row: Mapping[str, Any], key: bytes) -> dict[str, Any]:
    if row["payload"] is None:
        return {}
    try:
        plain = open_payload(key, associated("journal", row["event_id"], "payload"), row["payload"])
    except Damaged:
        return {}
    data: dict[str, Any] = json.loads(plain)
    return data
