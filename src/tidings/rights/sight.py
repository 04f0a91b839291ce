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
MERGES = 8  # from one record to the next, as far as a person is followed


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
        """The records of these people: those named, and those they were merged with."""
        found: dict[bytes, Person] = {}
        new = set(tags)
        for _ in range(MERGES):
            people = _remembered(self._people, new, self._look_up)
            found |= {one.tag: one for one in people}
            new = {tag for one in people for tag in one.same} - found.keys()
            if not new:
                break
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
