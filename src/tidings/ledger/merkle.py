"""RFC 6962 Merkle trees over SHA-256: hashing, proofs, and the RFC 9162 verification algorithms. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

HASH_SIZE = 32
EMPTY_ROOT = sha256(b"").digest()

# node(level, i) is the hash of the complete subtree over leaves [i << level, (i + 1) << level).
Node = Callable[[int, int], bytes]


def leaf_hash(data: bytes) -> bytes:
    return sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def complete_root(hashes: Sequence[bytes]) -> bytes:
    """The root over a power-of-two number of hashes, pair by pair."""
    row = list(hashes)
    while len(row) > 1:
        row = [sha256(b"\x01" + row[i] + row[i + 1]).digest() for i in range(0, len(row), 2)]
    return row[0]


def fold(peaks: Sequence[bytes]) -> bytes:
    """The root over the complete subtrees of a tree, largest first."""
    if not peaks:
        return EMPTY_ROOT
    root = peaks[-1]
    for peak in reversed(peaks[:-1]):
        root = node_hash(peak, root)
    return root


class Frontier:
    """A growing tree that keeps only its right edge: enough for the root at any size it passes."""

    def __init__(self) -> None:
        self.size = 0
        self._peaks: list[bytes] = []

    def add(self, leaf: bytes) -> None:
        carry, size = leaf, self.size
        while size & 1:
            carry = sha256(b"\x01" + self._peaks.pop() + carry).digest()
            size >>= 1
        self._peaks.append(carry)
        self.size += 1

    def root(self) -> bytes:
        return fold(self._peaks)


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The root over leaf hashes."""
    frontier = Frontier()
    for leaf in leaves:
        frontier.add(leaf)
    return frontier.root()


def nodes_of(leaves: Sequence[bytes]) -> Node:
    """The node function of a tree held in memory."""
    rows = [list(leaves)]
    while len(rows[-1]) > 1:
        below = rows[-1]
        rows.append([node_hash(below[i], below[i + 1]) for i in range(0, len(below) - 1, 2)])
    return lambda level, i: rows[level][i]


def _split(size: int) -> int:
    """The largest power of two smaller than size (size > 1)."""
    return 1 << (size - 1).bit_length() - 1


def range_root(start: int, end: int, node: Node) -> bytes:
    """The RFC 6962 hash over leaves [start, end), start on a boundary of a subtree that holds them."""
    peaks = []
    while start < end:
        level = (end - start).bit_length() - 1
        peaks.append(node(level, start >> level))
        start += 1 << level
    return fold(peaks)


def inclusion_path(index: int, size: int, node: Node) -> list[bytes]:
    """PATH(index, D[size]), the leaf's sibling first."""
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not in a tree of {size}")
    path, start, end = [], 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(range_root(middle, end, node))
            end = middle
        else:
            path.append(range_root(start, middle, node))
            start = middle
    return path[::-1]


def consistency_path(old: int, new: int, node: Node) -> list[bytes]:
    """PROOF(old, D[new]); 0 < old <= new."""
    if not 0 < old <= new:
        raise ValueError(f"no consistency proof from {old} to {new}")
    path, start, end, whole = [], 0, new, True
    while old != end:
        middle = start + _split(end - start)
        if old <= middle:
            path.append(range_root(middle, end, node))
            end = middle
        else:
            path.append(range_root(start, middle, node))
            start, whole = middle, False
    if not whole:
        path.append(range_root(start, end, node))
    return path[::-1]


def verify_inclusion(index: int, size: int, leaf: bytes, path: Sequence[bytes], root: bytes) -> bool:
    """RFC 9162 section 2.1.3.2."""
    if not 0 <= index < size or any(len(h) != HASH_SIZE for h in (*path, leaf, root)):
        return False
    position, last, computed = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if position & 1 or position == last:
            computed = node_hash(sibling, computed)
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            computed = node_hash(computed, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and computed == root


def verify_consistency(old: int, new: int, path: Sequence[bytes], old_root: bytes, new_root: bytes) -> bool:
    """RFC 9162 section 2.1.4.2. A proof from size 0 is refused: what an empty tree means is the protocol's affair."""
    if not 0 < old <= new:
        return False
    if old == new:
        return not path and old_root == new_root
    if not path or any(len(h) != HASH_SIZE for h in (*path, old_root, new_root)):
        return False
    proof = list(path) if old & (old - 1) else [old_root, *path]
    position, last = old - 1, new - 1
    while position & 1:
        position, last = position >> 1, last >> 1
    before = after = proof[0]
    for sibling in proof[1:]:
        if last == 0:
            return False
        if position & 1 or position == last:
            before, after = node_hash(sibling, before), node_hash(sibling, after)
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            after = node_hash(after, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and before == old_root and after == new_root
