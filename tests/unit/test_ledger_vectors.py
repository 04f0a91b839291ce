"""The public test vectors: RFC 6962 trees and proofs, C2SP notes and tiles, a whole log written by somebody else."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from tidings.errors import Damaged
from tidings.ledger.log import Log
from tidings.ledger.merkle import (
    inclusion_path,
    leaf_hash,
    nodes_of,
    root_of,
    verify_consistency,
    verify_inclusion,
)
from tidings.ledger.note import Checkpoint, Verifier
from tidings.ledger.tiles import Edge, Tiles, grow, tile_path
from tidings.ledger.vocabulary import canonical

REPOSITORY = Path(__file__).parents[2]
VECTORS = Path(os.environ.get("TIDINGS_VECTORS") or REPOSITORY.parent / "shared" / "vectors")

pytestmark = pytest.mark.skipif(
    not VECTORS.is_dir(), reason="no public vectors here; TIDINGS_VECTORS names their folder"
)


def vectors(name: str) -> Any:
    return json.loads((VECTORS / name).read_text())


def decoded(value: str | None) -> bytes:
    return base64.b64decode(value or "")


def test_tree_roots() -> None:
    data = vectors("rfc6962/tree_roots.json")
    leaves = [leaf_hash(bytes.fromhex(leaf)) for leaf in data["leaves_hex"]]
    expected = [bytes.fromhex(root) for root in data["root_by_tree_size_hex"]]
    assert [root_of(leaves[:size]) for size in range(len(leaves) + 1)] == expected


def test_inclusion_proofs() -> None:
    cases = vectors("rfc6962/merkle_inclusion.json")["cases"]
    wrong = []
    for case in cases:
        path = [decoded(step) for step in case["proof"] or []]
        leaf, root = decoded(case["leafHash"]), decoded(case["root"])
        if verify_inclusion(case["leafIdx"], case["treeSize"], leaf, path, root) == case["wantErr"]:
            wrong.append(case["source_path"])
    assert (wrong, len(cases)) == ([], 98)


def test_consistency_proofs() -> None:
    """A proof from size 0 is among those that must be refused; the witness protocol decides it before asking."""
    cases = vectors("rfc6962/merkle_consistency.json")["cases"]
    wrong = []
    for case in cases:
        path = [decoded(step) for step in case["proof"] or []]
        roots = decoded(case["root1"]), decoded(case["root2"])
        if verify_consistency(case["size1"], case["size2"], path, *roots) == case["wantErr"]:
            wrong.append(case["source_path"])
    assert (wrong, len(cases)) == ([], 98)
    assert all(case["wantErr"] for case in cases if case["size1"] == 0)


def test_signed_note_of_the_specification() -> None:
    example = vectors("c2sp/spec_examples.json")["signed_note_example"]
    verifier = Verifier.parse(example["vkey"])
    assert verifier.vkey == example["vkey"]
    assert verifier.open(example["note"].encode()) == "This is an example message.\n"
    with pytest.raises(Damaged):
        verifier.open(example["note"].replace("example message", "example massage").encode())


def test_tile_paths_and_covers() -> None:
    examples = vectors("c2sp/spec_examples.json")
    for example in examples["tile_path_examples"]:
        assert tile_path(0, example["index"]) == "tile/0/" + example["path"]
    for cover in examples["tile_cover_examples"]:
        size = cover["tree_size"]
        names = set(grow(Edge(), [b"x"] * size).files)
        widths = {level: (size >> 8 * level) % 256 for level in (0, 1, 2)}
        assert widths[0] == cover["partial_level0_width"]
        assert widths[1] == cover["partial_level1_width"]
        for level, width in widths.items():
            full = size >> 8 * (level + 1)
            expected = {tile_path(level, n) for n in range(full)}
            expected |= {tile_path(level, full, width)} if width else set()
            assert {name for name in names if name.startswith(f"tile/{level}/")} == expected


def test_a_log_written_by_another_implementation() -> None:
    folder = VECTORS / "tessera_log"
    said = (folder / "SOURCE.txt").read_text()
    vkey = next(line.split(": ", 1)[1] for line in said.splitlines() if line.startswith("Public key"))
    leaves = next(line.split(": ", 1)[1] for line in said.splitlines() if line.startswith("Leaves")).split()
    verifier, tiles = Verifier.parse(vkey), Tiles(folder)
    for size in range(16):
        head = Checkpoint.open((folder / f"checkpoint.{size}").read_bytes(), verifier)
        assert head.size == size
        assert head.root == root_of(leaf_hash(leaf.encode()) for leaf in leaves[:size])
        edge = tiles.edge(size)
        assert edge.root() == head.root
        assert list(edge.entries) == [leaf.encode() for leaf in leaves[:size]]
        for index in range(size):
            path = inclusion_path(index, size, tiles.node(size))
            assert verify_inclusion(index, size, leaf_hash(leaves[index].encode()), path, head.root)


def test_our_files_for_the_same_entries_are_theirs(tmp_path: Path) -> None:
    folder = VECTORS / "tessera_log"
    entries = Tiles(folder).bundle(0, 15)
    with Log(tmp_path / "log", "example.com/log/testdata", bytes(32)) as log:
        for entry in entries:
            log.append([entry])
    for path in (folder / "tile").rglob("*"):
        if path.is_file():
            assert (tmp_path / "log" / path.relative_to(folder)).read_bytes() == path.read_bytes()


def test_canonical_json_where_our_entries_live() -> None:
    """Our encoder is held to the cases with ASCII keys and no fractions; the library to all of them."""
    ours = 0
    for case in vectors("jcs_rfc8785/cases.json")["cases"]:
        text = base64.b64decode(case["input_b64"]).decode()
        expected = bytes.fromhex(case["canonical_hex"])
        assert rfc8785.dumps(json.loads(text)) == expected, case["name"]
        if plain(json.loads(text)):
            ours += 1
            assert canonical(json.loads(text)) == expected, case["name"]
    assert ours


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(key.isascii() and plain(inner) for key, inner in value.items())
    return all(map(plain, value)) if isinstance(value, list) else not isinstance(value, float)


def test_membership_trees_are_the_same_trees() -> None:
    data = vectors("rfc6962/tree_roots.json")
    leaves = [leaf_hash(bytes.fromhex(leaf)) for leaf in data["leaves_hex"]]
    for size in range(1, 9):
        root = bytes.fromhex(data["root_by_tree_size_hex"][size])
        node = nodes_of(leaves[:size])
        for index in range(size):
            assert verify_inclusion(index, size, leaves[index], inclusion_path(index, size, node), root)
