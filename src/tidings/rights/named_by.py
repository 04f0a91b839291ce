"""What people are found by, and the words by which messages name them. No JVM."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidings.errors import Refused
from tidings.report.people import hashes_of
from tidings.rights import dropped
from tidings.rights.mentions import ANCHOR, Record
from tidings.rights.people import Person

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.store import Store


def hashed(settings: Settings, kind: str, value: str) -> list[bytes]:
    """The keyed hashes under which an identifier may be filed."""
    if kind in ("email", "phone"):
        try:
            return hashes_of(settings, value)
        except Refused:  # neither an address nor a number: nobody is filed under it
            return []
    return [settings.keyring.identifier_hash(kind, value.strip())]


def identifying(settings: Settings, store: Store, people: list[Person]) -> list[str | Record]:
    """Every identifier these people ever had, unless somebody else is found by it, and the keys of their records."""
    filed = _filed(settings, people)
    others = _others(store, filed, {person.tag for person in people})
    found: list[str | Record] = []
    for person in people:
        contract = settings.entities.get(person.entity)
        if contract is None:
            continue
        tables = tables_of(settings, person.entity)
        for path, kind in contract.identifiers.items():
            said = sorted(person.ever.get(path, ()))
            own = [one for one in said if others.isdisjoint(filed[person.entity, kind, one])]
            found += own
            found += [Record(person.entity, {path: one}, tables) for one in own if len(one.strip()) < ANCHOR]
        if person.key is not None:
            key = person.key if isinstance(person.key, dict) else {contract.key[0]: person.key}
            found.append(Record(person.entity, {name: str(value) for name, value in key.items()}, tables))
    return found


Filed = dict[tuple[str, str, str], set[tuple[bytes, str]]]


def _filed(settings: Settings, people: Iterable[Person]) -> Filed:
    """(entity, kind, value) → how it is filed."""
    found: Filed = {}
    for person in people:
        contract = settings.entities.get(person.entity)
        for path, kind in (contract.identifiers if contract else {}).items():
            for value in person.ever.get(path, ()):
                found[person.entity, kind, value] = {(one, person.entity) for one in hashed(settings, kind, value)}
    return found


def _others(store: Store, filed: Filed, names: set[bytes]) -> set[tuple[bytes, str]]:
    """What somebody who is not among these is found by as well."""
    every = {one for many in filed.values() for one, _ in many}
    rows = store.lookup("identities", every).to_pylist() if every and store.files("identities") else []
    return {(row["hash"], row["entity"]) for row in rows if row["tag"] not in names}


def tables_of(settings: Settings, entity: str) -> dict[str, tuple[str, ...]]:
    """Source → the words by which its messages say that they are about this entity; none where they are about nothing else."""
    found = {}
    for name, source in settings.sources.items():
        mine = [table for table, one in source.entities.items() if one == entity]
        words = tuple(re.split(r"[./]", table)[-1].lower() for table in mine)
        if mine:
            found[name] = () if len(mine) == len(source.entities) else words
    return found


def told_places(settings: Settings, store: Store) -> set[str]:
    """Files with messages as they came, as far as they can be looked through while batches go on."""
    files = {file.path for file in store.files("quarantine")}
    return files | {str(path) for _, path in dropped.lying(settings, still=True)}
