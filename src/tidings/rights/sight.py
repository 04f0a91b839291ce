"""What is known of many people at once: each table is read one time for all of them, and what was read holds until it is put away.

One person's look-up opens a few small parts of many files; a thousand of them one by one open the same files a thousand times. So
whoever has many to ask about asks for all of them first, and then for each: the second time it is at hand. The desk puts it away whenever
a table may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, TypeVar

from tidings.rights.book import Row
from tidings.rights.images import learned
from tidings.rights.people import Person, look_up
from tidings.seal.keyfiles import KeyFiles

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.store import Store

T = TypeVar("T")
MOST_RECORDS = 1_000  # beyond those that were named; a person of more is looked at by a human long before


class Sight:
    """Look-ups that remember."""

    def __init__(self, settings: Settings, store: Store, keys: KeyFiles) -> None:
        self.settings, self.store, self.keys = settings, store, keys
        self._people: dict[bytes, list[Person]] = {}
        self._live: dict[bytes, list[bytes]] = {}
        self._rows: dict[str, dict[bytes, list[Row]]] = {"subjects": {}, "identities": {}}

    def put_away(self) -> None:
        self._people, self._live, self._rows = {}, {}, {table: {} for table in self._rows}

    def closure(self, tags: Iterable[bytes]) -> dict[bytes, Person]:
        """The records of these people: those named, those they went into, and those that went into them, however long the way."""
        found: dict[bytes, Person] = {}
        seen, new = set[bytes](), set(tags)
        most = len(new) + MOST_RECORDS
        while new and len(seen) < most:
            seen |= new
            people = _remembered(self._people, new, self._look_up)
            found |= {one.tag: one for one in people}
            filed = {row["tag"] for row in self.identities(self._merged(people))} - seen
            # Filed once, it stays filed; whether it is still so, the record itself says.
            before = [one for one in _remembered(self._people, filed, self._look_up) if one.same & found.keys()]
            new = ({tag for one in people for tag in one.same} | {one.tag for one in before}) - seen
        return found

    def _merged(self, people: Iterable[Person]) -> set[bytes]:
        """By what the records are filed that went into these."""
        found = set()
        for one in people:
            contract = self.settings.entities.get(one.entity)
            values = list(one.key.values()) if isinstance(one.key, dict) else [one.key]
            if contract and contract.merges and len(values) == 1 and values[0] is not None:
                kind = f"merged.{one.entity}"
                found.add(self.settings.keyring.identifier_hash(kind, str(values[0]).strip()))
        return found

    def subjects(self, tags: Iterable[bytes]) -> list[Row]:
        return self._of("subjects", "tag", tags)

    def identities(self, hashes: Iterable[bytes]) -> list[Row]:
        return self._of("identities", "hash", hashes)

    def live(self, tags: Iterable[bytes]) -> set[bytes]:
        """Those of these records that have a key left."""

        def read(new: Collection[bytes]) -> dict[bytes, list[bytes]]:
            return {tag: [tag] for tag in self.keys.held(new)}

        return set(_remembered(self._live, set(tags), read))

    def _of(self, table: str, key: str, values: Iterable[bytes]) -> list[Row]:
        def read(new: Collection[bytes]) -> dict[bytes, list[Row]]:
            found: dict[bytes, list[Row]] = {}
            for row in self.store.lookup(table, new).to_pylist() if self.store.files(table) else ():
                found.setdefault(row[key], []).append(row)
            return found

        return _remembered(self._rows[table], set(values), read)

    def _look_up(self, new: Collection[bytes]) -> dict[bytes, list[Person]]:
        look = look_up(self.store, self.keys, self.settings.keyring, self.settings.tenant, new)
        learned(self.settings, self.store, self.keys, look.people)
        return {tag: [one] for tag, one in look.people.items()}


def _remembered(
    known: dict[bytes, list[T]], wanted: set[bytes], read: Callable[[Collection[bytes]], dict[bytes, list[T]]]
) -> list[T]:
    """What is known of these; what nobody asked about yet is read, and that there is nothing is known as well."""
    if new := wanted - known.keys():
        known |= {value: [] for value in new} | read(new)
    return [one for value in sorted(wanted) for one in known[value]]
