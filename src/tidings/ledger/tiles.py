"""C2SP tlog-tiles: the paths, how a tree grows by tiles, and reading them back."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from tidings.errors import Damaged
from tidings.ledger.merkle import HASH_SIZE, Node, complete_root, fold, leaf_hash

WIDTH = 256
HEIGHT = 8
MAX_ENTRY = 65_535
ENTRIES = "entries"
_CACHED_TILES = 1024


def tile_path(level: int | str, index: int, width: int = WIDTH) -> str:
    """`tile/0/x001/x234/067`, with `.p/<width>` for a partial tile; the level may be `entries`."""
    parts = [f"{index % 1000:03d}"]
    while index := index // 1000:
        parts.append(f"x{index % 1000:03d}")
    suffix = f".p/{width}" if width < WIDTH else ""
    return f"tile/{level}/{'/'.join(reversed(parts))}{suffix}"


def pack(entries: Sequence[bytes]) -> bytes:
    """An entry bundle: each entry behind its big-endian 16-bit length."""
    return b"".join(struct.pack(">H", len(entry)) + entry for entry in entries)


def unpack(bundle: bytes) -> list[bytes]:
    entries, at = [], 0
    while at < len(bundle):
        end = at + 2 + int.from_bytes(bundle[at : at + 2], "big")
        if at + 2 > len(bundle) or end > len(bundle):
            raise Damaged(
                "ledger-tiles", "an entry bundle that ends inside an entry", "whole entries", "Restore the file."
            )
        entries.append(bundle[at + 2 : end])
        at = end
    return entries


@dataclass(frozen=True)
class Edge:
    """The right edge of a tree: all that growing it needs. `levels` holds the partial tile of each level."""

    size: int = 0
    entries: tuple[bytes, ...] = ()
    levels: tuple[tuple[bytes, ...], ...] = ()

    def root(self) -> bytes:
        return fold([peak for row in reversed(self.levels) for peak in _peaks(row)])


@dataclass(frozen=True)
class Growth:
    """What appending changes: the files to store, the folders of partial tiles they supersede, the new edge."""

    files: dict[str, bytes]
    superseded: list[str]
    edge: Edge


def _peaks(row: Sequence[bytes]) -> list[bytes]:
    sizes = [1 << bit for bit in reversed(range(HEIGHT)) if len(row) >> bit & 1]
    return [complete_root(row[end - size : end]) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def grow(edge: Edge, entries: Sequence[bytes]) -> Growth:
    """Append entries to a tree: the same edge and entries always give the same files."""
    files: dict[str, bytes] = {}
    superseded: list[str] = []
    tail = [*edge.entries, *entries]
    first = edge.size // WIDTH
    for at in range(0, len(tail), WIDTH):
        bundle = tail[at : at + WIDTH]
        files[tile_path(ENTRIES, first + at // WIDTH, len(bundle))] = pack(bundle)
    if edge.entries and len(tail) >= WIDTH:
        superseded.append(tile_path(ENTRIES, first) + ".p")
    levels, level, rising = list(edge.levels), 0, [leaf_hash(entry) for entry in entries]
    while rising:
        partial = levels[level] if level < len(levels) else ()
        row, first = [*partial, *rising], edge.size >> HEIGHT * (level + 1)
        rising = []
        for at in range(0, len(row), WIDTH):
            tile = row[at : at + WIDTH]
            files[tile_path(level, first + at // WIDTH, len(tile))] = b"".join(tile)
            if len(tile) == WIDTH:
                rising.append(complete_root(tile))
        if partial and rising:
            superseded.append(tile_path(level, first) + ".p")
        levels[level : level + 1] = [tuple(row[len(row) - len(row) % WIDTH :])]
        level += 1
    kept = tuple(tail[len(tail) - len(tail) % WIDTH :])
    return Growth(files, superseded, Edge(edge.size + len(entries), kept, tuple(levels)))


class Tiles:
    """Reads a tile folder. Every width is asked for by a checkpoint's size; a wider tile answers for a narrower one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cache: dict[tuple[int, int, int], bytes] = {}

    def _read(self, level: int | str, index: int, width: int) -> tuple[str, bytes, int]:
        """The name and bytes of a tile at least this wide, and how wide that file must be."""
        for wide in dict.fromkeys((width, WIDTH)):
            name = tile_path(level, index, wide)
            try:
                return name, (self.folder / name).read_bytes(), wide
            except FileNotFoundError:
                continue
            except OSError as error:
                found = f"{name} cannot be read ({type(error).__name__})"
                raise Damaged("ledger-tiles", found, "the tile", "Restore the file from a copy of this log.") from None
        name = tile_path(level, index, width)
        raise Damaged("ledger-tiles", f"{name} is missing", "the tile", "Restore the file from a copy of this log.")

    def tile(self, level: int, index: int, width: int) -> bytes:
        """`width` hashes of a tile, concatenated."""
        name, data, wide = self._read(level, index, width)
        if len(data) != wide * HASH_SIZE:
            raise Damaged("ledger-tiles", f"{name} is {len(data)} bytes", f"{wide * HASH_SIZE}", "Restore the file.")
        return data[: width * HASH_SIZE]

    def bundle(self, index: int, width: int) -> list[bytes]:
        """`width` entries of a bundle."""
        name, data, wide = self._read(ENTRIES, index, width)
        entries = unpack(data)
        if len(entries) != wide:
            raise Damaged("ledger-tiles", f"{name} holds {len(entries)} entries", str(wide), "Restore the file.")
        return entries[:width]

    def unlike(self, level: int | str, index: int, row: Sequence[bytes]) -> Iterator[str]:
        """Narrower tiles that an older head was proven by and that do not hold the beginning of this one."""
        folder = self.folder / f"{tile_path(level, index)}.p"
        # A writer takes such a folder away when its tile is full, also while it is looked at.
        names = sorted(folder.glob("*")) if folder.is_dir() else []
        for path in names:
            width = int(path.name) if path.name.isascii() and path.name.isdecimal() and len(path.name) < 4 else 0
            whole = row[:width]
            if not 0 < width < len(row):
                continue
            try:
                fits = path.read_bytes() == (pack(whole) if level == ENTRIES else b"".join(whole))
            except FileNotFoundError:
                continue
            except OSError:
                fits = False
            if not fits:
                yield f"{tile_path(level, index, width)} does not hold what the tile after it holds"

    def entry(self, index: int, size: int) -> bytes:
        return self.bundle(index // WIDTH, width_at(0, index // WIDTH, size))[index % WIDTH]

    def node(self, size: int) -> Node:
        """The node function of the tree at `size`."""

        def node(level: int, index: int) -> bytes:
            row, within = divmod(level, HEIGHT)
            start = index << within
            number, offset = divmod(start, WIDTH)
            tile = self._cached(row, number, width_at(row, number, size))
            span = tile[offset * HASH_SIZE : (offset + (1 << within)) * HASH_SIZE]
            return complete_root([span[i : i + HASH_SIZE] for i in range(0, len(span), HASH_SIZE)])

        return node

    def _cached(self, level: int, index: int, width: int) -> bytes:
        key = (level, index, width)
        if key not in self._cache:
            if len(self._cache) >= _CACHED_TILES:
                self._cache.clear()
            self._cache[key] = self.tile(level, index, width)
        return self._cache[key]

    def edge(self, size: int) -> Edge:
        """The right edge at `size`; its last bundle is held against its leaf hashes."""
        levels = []
        level = 0
        while count := size >> HEIGHT * level:
            number, width = divmod(count, WIDTH)
            data = self.tile(level, number, width) if width else b""
            levels.append(tuple(data[i : i + HASH_SIZE] for i in range(0, len(data), HASH_SIZE)))
            level += 1
        entries = tuple(self.bundle(*divmod(size, WIDTH))) if size % WIDTH else ()
        if entries and tuple(map(leaf_hash, entries)) != levels[0]:
            raise Damaged(
                "ledger-tiles", "the last entry bundle does not hash to its tile", "equal hashes", "Restore both."
            )
        return Edge(size, entries, tuple(levels))


def width_at(level: int, index: int, size: int) -> int:
    """How wide a tile is in the tree of `size`."""
    return min(WIDTH, (size >> HEIGHT * level) - index * WIDTH)
