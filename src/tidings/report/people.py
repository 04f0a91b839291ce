"""From what a person has in hand (an e-mail, a phone, customer:1001) to their events, opened. No JVM."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tidings.errors import Damaged, Refused
from tidings.gate.decisions import decided_in
from tidings.near import holding_batches
from tidings.phones import e164
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import associated, open_payload
from tidings.settings import Settings
from tidings.store import Store

_PHONE = re.compile(r"\+?[0-9][0-9 ().-]{5,}")


def tags_of(settings: Settings, store: Store, who: str) -> list[bytes]:
    """The subjects that `who` names; several records may share an e-mail."""
    entity, _, key = who.partition(":")
    if key and entity in settings.entities:
        return [settings.keyring.tag(settings.tenant, entity, key)]
    hashes = hashes_of(settings, who)
    found = store.lookup("identities", hashes) if store.files("identities") else None
    return [] if found is None else sorted(set(found["tag"].to_pylist()))


def hashes_of(settings: Settings, who: str) -> list[bytes]:
    """The keyed hashes under which an e-mail or a phone may be filed."""
    if "@" in who:
        kind, forms = "email", {unicodedata.normalize("NFC", "".join(who.split())).lower()}
    elif _PHONE.fullmatch(who.strip()):
        kind, forms = "phone", _numbers(settings, who)
    else:
        known = ", ".join(f"{name}:KEY" for name in settings.entities)
        raise Refused("unknown_person", "something else", f"an e-mail, a phone or {known}", "Ask again.")
    return [settings.keyring.identifier_hash(kind, form) for form in sorted(forms)]


def _numbers(settings: Settings, who: str) -> set[str]:
    """The forms under which a number may be filed: as typed, and as dialled in each place that the operator knows."""
    sites = settings.locations.values()
    places = {settings.jurisdiction, *(banner.jurisdiction or "" for banner in settings.banners.values())}
    places |= {site.jurisdiction for site in sites}
    numbers = {e164(who, place).partition(";")[0] for place in places}
    return {re.sub(r"[^0-9+]", "", who), *numbers}


def ids_of(settings: Settings, store: Store, who: str) -> set[str]:
    """The ids of somebody's events; nothing is opened."""
    keys = _keys(settings, tags_of(settings, store, who))
    return set(_rows(store, keys, ["event_id"])["event_id"].to_pylist()) if keys else set()


def _keys(settings: Settings, tags: list[bytes]) -> dict[bytes, tuple[str, bytes]]:
    files = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    return {kid: (name, key) for _, name, kid, key in files.about(tags)}


def _rows(store: Store, keys: dict[bytes, tuple[str, bytes]], columns: list[str] | None = None) -> pa.Table:
    near = holding_batches(store.files("journal"), {name for name, _ in keys.values()})
    return store.arrow("journal", columns, files=near, filter=ds.field("kid").isin(pa.array(sorted(keys), pa.binary())))


def events_of(settings: Settings, store: Store, tags: list[bytes]) -> list[dict[str, Any]]:
    """Journal rows of these subjects, opened; a row whose key is gone is not found, because nothing links it any more."""
    keys = _keys(settings, tags)
    if not keys:
        return []
    rows = _rows(store, keys)
    rows = rows.sort_by([("time", "ascending"), ("source", "ascending"), ("offset", "ascending")])
    decided = decided_in(store.decisions)
    return [
        {**row, "recipients": decided.recipients(row), "data": opened(row, keys[row["kid"]][1])}
        for row in rows.to_pylist()
    ]


def opened(row: dict[str, Any], key: bytes) -> dict[str, Any]:
    """The sealed part of a journal row; what was said is gone when its time was over."""
    if row["payload"] is None:
        return {"expired": True}
    try:
        plain = open_payload(key, associated("journal", row["event_id"], "payload"), row["payload"])
    except Damaged:
        return {"unreadable": True}
    data: dict[str, Any] = json.loads(plain)
    return data


def differences(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Changed fields with what they were and what they are."""
    before, after = data.get("before") or {}, data.get("after") or {}
    return {name: {"before": _at(before, name), "after": _at(after, name)} for name in data.get("changed") or ()}


def _at(image: Any, path: str) -> Any:
    for part in path.split("."):
        image = image.get(part) if isinstance(image, dict) else None
    return image
