"""Looks for people in every byte of a folder, whatever the bytes are packed in. It fails on what it cannot open.

    folder ─containers→ pieces of bytes ─eight bytes of every spelling→ places ─the whole spelling→ finds

What it cannot see: a value that was cut into pieces, encrypted, or turned by a function that `spellings` does not know.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from containers import Piece, opened
from spellings import SHORTEST, Spelling, exact, inside, plain

WIDTH = 8
BATCH = 4 << 20


class Find(NamedTuple):
    """One identifier in one place."""

    identifier: str
    spelling: str
    file: str
    inside: str


class Needles:
    """Many byte strings looked for at once: by eight bytes of each, then as a whole."""

    def __init__(self, spelled: Iterable[tuple[str, Spelling]]) -> None:
        self.by_anchor: dict[int, dict[bytes, set[tuple[str, str]]]] = defaultdict(dict)
        for identifier, (name, pattern) in spelled:
            if len(pattern) >= SHORTEST:
                self.by_anchor[_number(pattern)].setdefault(pattern, set()).add((identifier, name))
        self.anchors = pa.array(sorted(self.by_anchor), pa.int64())

    def places(self, data: bytes) -> Iterator[tuple[int, str, str]]:
        """(place, identifier, spelling) of everything found."""
        for start in range(WIDTH):
            count = (len(data) - start) // WIDTH
            if count <= 0:
                return
            words = pa.py_buffer(data[start : start + count * WIDTH])
            here = pa.Array.from_buffers(pa.int64(), count, [None, words])
            for index in pc.indices_nonzero(pc.is_in(here, value_set=self.anchors)).to_pylist():
                at = start + index * WIDTH
                for pattern, named in self.by_anchor[_number(data[at : at + WIDTH])].items():
                    if data.startswith(pattern, at):
                        yield from ((at, identifier, name) for identifier, name in named)


class Scanner:
    """Looks for these identifiers. Made once, used for any number of folders."""

    def __init__(self, identifiers: Iterable[str]) -> None:
        wanted = sorted(set(identifiers))
        self.plain = Needles((one, (name, raw.lower())) for one in wanted for name, raw in plain(one))
        self.exact = Needles((one, spelling) for one in wanted for spelling in exact(one))

    @classmethod
    def of_bytes(cls, values: Iterable[tuple[str, bytes]]) -> Scanner:
        """Looks for keyed values (tags, hashes, kids) by name: raw, in hex and in base64."""
        one = cls(())
        named = [(name, value.hex(), value) for name, value in values]
        one.plain = Needles((name, ("hex", text.encode())) for name, text, _ in named)
        one.exact = Needles((name, spelling) for name, text, value in named for spelling in _keyed(text, value))
        return one

    def scan(self, folder: Path, known: Callable[[Path], bool] = lambda path: False) -> set[Find]:
        """Every find below the folder; UnknownContainer for a file that nobody can open, unless it is `known` not to matter."""
        found: set[Find] = set()
        for batch in _batches(self._pieces(folder, known)):
            found.update(self._finds(batch))
        return found

    def _pieces(self, folder: Path, known: Callable[[Path], bool]) -> Iterator[tuple[str, Piece]]:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            yield name, Piece("its name", name.encode())
            if path.is_file() and not known(path):
                yield from ((name, piece) for piece in opened(path, name))

    def _finds(self, batch: list[tuple[str, Piece]]) -> Iterator[Find]:
        data = b"\0\n\0".join(piece.data for _, piece in batch)
        starts, at = [], 0
        for _, piece in batch:
            starts.append(at)
            at += len(piece.data) + 3
        for needles, text in ((self.plain, data.lower()), (self.exact, data)):
            for place, identifier, spelling in needles.places(text):
                name, piece = batch[bisect_right(starts, place) - 1]
                yield Find(identifier, spelling, name, piece.inside)


def _keyed(text: str, value: bytes) -> Iterator[Spelling]:
    yield "raw", value
    for shift in range(3):
        yield "base64", inside(value, shift, b"+/")
        yield "base64 of the hex", inside(text.encode(), shift, b"+/")


def _batches(pieces: Iterable[tuple[str, Piece]]) -> Iterator[list[tuple[str, Piece]]]:
    """Small pieces are looked through together."""
    batch: list[tuple[str, Piece]] = []
    size = 0
    for one in pieces:
        batch.append(one)
        size += len(one[1].data)
        if size > BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def _number(data: bytes) -> int:
    return int(struct.unpack_from("<q", data)[0])
