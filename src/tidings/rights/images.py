"""People of whom no event was ever told (a snapshot told of them, or their events' time is over): learned from their last image. No JVM."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tidings.errors import Damaged
from tidings.rights.people import Person, learn_image
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import associated, open_payload

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.store import Store


def learned(settings: Settings, store: Store, keys: KeyFiles, people: Mapping[bytes, Person]) -> None:
    """Fill in what the journal did not say; who has no image stays as they are."""
    silent = {tag for tag, one in people.items() if one.key is None or not one.entity}
    rows = store.lookup("last_seen", silent).to_pylist() if silent and store.files("last_seen") else []
    opening = keys.of({row["tag"] for row in rows}) if rows else {}
    for row in sorted(rows, key=lambda row: row["version"] or ""):
        for image in _images(row, opening):
            learn_image(people[row["tag"]], image)
            _placed(settings, people[row["tag"]], image)


def _images(row: Mapping[str, Any], opening: Mapping[bytes, tuple[bytes, bytes]]) -> Iterator[dict[str, Any]]:
    """The record as it was last seen, by each source that writes it."""
    try:
        aad = associated("last_seen", row["tag"].hex().upper(), "image")
        plain = json.loads(open_payload(opening[row["kid"]][1], aad, row["image"]))
    except (Damaged, KeyError):
        return
    texts: Iterable[str | None] = [one.get("image") for one in (plain, *(plain.get("masters") or {}).values())]
    for image in (json.loads(text) for text in texts if text):
        if isinstance(image, dict):
            yield image


def _placed(settings: Settings, person: Person, image: Mapping[str, Any]) -> None:
    """Which contract's record it is: the one whose key gives this tag."""
    for name, contract in settings.entities.items():
        key = {path: image.get(path) for path in contract.key}
        text = "\x1f".join(str(value) for value in key.values())
        if None not in key.values() and settings.keyring.tag(settings.tenant, name, text) == person.tag:
            person.entity, person.key = name, key
