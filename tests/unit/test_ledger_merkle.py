"""Trees against the definition in RFC 6962, and tiles against trees."""

from __future__ import annotations

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from tidings.ledger.merkle import (
    consistency_path,
    inclusion_path,
    leaf_hash,
    nodes_of,
    root_of,
    verify_consistency,
    verify_inclusion,
)
from tidings.ledger.tiles import Edge, grow, pack, unpack

LEAVES = [leaf_hash(str(i).encode()) for i in range(700)]
sizes = st.integers(1, len(LEAVES))


def definition(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962 section 2.1, word for word."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return sha256(b"\x01" + definition(leaves[:k]) + definition(leaves[k:])).digest()


@given(st.integers(0, len(LEAVES)))
def test_root_is_the_definition(size: int) -> None:
    assert root_of(LEAVES[:size]) == definition(LEAVES[:size])


@given(sizes, st.data())
def test_inclusion_holds_for_its_leaf_and_no_other(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    path = inclusion_path(index, size, nodes_of(LEAVES[:size]))
    root = root_of(LEAVES[:size])
    assert verify_inclusion(index, size, LEAVES[index], path, root)
    other = data.draw(st.integers(-1, size))
    if other != index:
        assert not verify_inclusion(other, size, LEAVES[index], path, root)
        assert not verify_inclusion(index, size, leaf_hash(str(other).encode()), path, root)
    assert not verify_inclusion(index, size, LEAVES[index], [*path, root], root)
    if path:
        assert not verify_inclusion(index, size, LEAVES[index], path[:-1], root)


@given(sizes, st.data())
def test_consistency_holds_between_prefixes_only(new: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, new))
    path = consistency_path(old, new, nodes_of(LEAVES[:new]))
    before, after = root_of(LEAVES[:old]), root_of(LEAVES[:new])
    assert verify_consistency(old, new, path, before, after)
    forked = root_of([*LEAVES[: old - 1], leaf_hash(b"another")])
    assert not verify_consistency(old, new, path, forked, after)
    if path:
        place = data.draw(st.integers(0, len(path) - 1))
        bent = [*path[:place], sha256(path[place]).digest(), *path[place + 1 :]]
        assert not verify_consistency(old, new, bent, before, after)
        assert not verify_consistency(old, new, path[1:], before, after)


@given(st.lists(st.integers(0, 600), max_size=8))
def test_growing_in_steps_gives_the_tiles_of_growing_at_once(steps: list[int]) -> None:
    """Every file of the one-step tree is written, byte for byte, on the way of any other."""
    entries = [str(i).encode() for i in range(sum(steps))]
    edge, files, done = Edge(), {}, 0
    for step in steps:
        growth = grow(edge, entries[done : done + step])
        edge, done = growth.edge, done + step
        assert edge.root() == root_of(leaf_hash(e) for e in entries[:done])
        files |= growth.files
        assert all(f"{name}/{w}" not in growth.files for name in growth.superseded for w in range(1, 256))
    at_once = grow(Edge(), entries)
    assert at_once.edge == edge or not entries
    assert {name: files[name] for name in at_once.files} == at_once.files


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_bundles_give_back_their_entries(entries: list[bytes]) -> None:
    assert unpack(pack(entries)) == entries
