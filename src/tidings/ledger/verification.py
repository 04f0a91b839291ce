"""Verifying a whole ledger from its files alone: every entry, every tile, every head ever signed.

Reads what a stranger would read and trusts one public key. It finds; it does not raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tidings.errors import Damaged, TidingsError
from tidings.ledger.classes import INDEX, ROOT, checkpoint_note, class_logs
from tidings.ledger.log import CHECKPOINT, VKEY, archived
from tidings.ledger.merkle import EMPTY_ROOT, Frontier, complete_root, leaf_hash
from tidings.ledger.note import Checkpoint, Verifier
from tidings.ledger.sequencer import Index, Span, indexed_tables
from tidings.ledger.tiles import ENTRIES, WIDTH, Tiles, tile_path
from tidings.ledger.vocabulary import validate_entry

LOCAL = "tamper-evident, not WORM: whoever holds the disk and the signing key can write another history"
UNWITNESSED = "unwitnessed: nobody outside has co-signed these heads; compare the root head with one you kept"
UNPINNED = "the public key was read beside the ledger; give the one you kept with --vkey to know whose ledger this is"
MAX_PROBLEMS = 100


@dataclass
class Verdict:
    """What was looked at and what is wrong with it. `caveats` hold even when nothing is wrong."""

    subject: str
    entries: int = 0
    tiles: int = 0
    checkpoints: int = 0
    logs: list[dict[str, object]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    caveats: list[str] = field(default_factory=lambda: [LOCAL, UNWITNESSED])

    @property
    def good(self) -> bool:
        return not self.problems

    @property
    def full(self) -> bool:
        """So much is wrong that nothing more is looked at: a head may claim more entries than there are atoms."""
        return len(self.problems) >= MAX_PROBLEMS

    def wrong(self, problem: str) -> None:
        if not self.full:
            self.problems.append(problem)

    def as_dict(self) -> dict[str, object]:
        return {"verified": self.good, **vars(self)}


class _Walk:
    """One pass over one log: leaves stream through a frontier and meet every claim made about them on the way."""

    def __init__(self, name: str, folder: Path, verdict: Verdict) -> None:
        self.name, self.tiles, self.verdict = name, Tiles(folder), verdict
        self.claims: dict[int, list[tuple[str, bytes]]] = {}
        self.spans: list[tuple[str, Span]] = []

    def claim(self, size: int, root: bytes, who: str) -> None:
        if size == 0:
            if root != EMPTY_ROOT:
                self.wrong(f"{who} signs another root for an empty tree")
            return
        self.claims.setdefault(size, []).append((who, root))

    def wrong(self, problem: str) -> None:
        self.verdict.wrong(f"{self.name}: {problem}")

    def run(self, size: int) -> None:
        frontier, rising = Frontier(), []
        spans = iter(self._covering(size))
        inside, current = Frontier(), next(spans, None)
        for number in range(-(-size // WIDTH)):
            if self.verdict.full:
                return
            width = min(WIDTH, size - number * WIDTH)
            leaves = self._leaves(number, width)
            for leaf in leaves:
                frontier.add(leaf)
                inside.add(leaf)
                if frontier.size in self.claims:
                    self._settle(frontier)
                if current and frontier.size == current[1].end:
                    if inside.root() != current[1].digest:
                        self.wrong(
                            f"the index digest of {current[0]} version {current[1].version} does not fit its entries"
                        )
                    inside, current = Frontier(), next(spans, None)
            if width == WIDTH:
                rising.append(complete_root(leaves))
        for beyond in sorted(claimed for claimed in self.claims if claimed > size):
            self.wrong(f"{self.claims[beyond][0][0]} covers {beyond} entries, the log has {size}")
        self._upper(rising)

    def _covering(self, size: int) -> list[tuple[str, Span]]:
        """The spans of the index up to the last head, if they lie end to end. What starts beyond is still being written."""
        covered = sorted((item for item in self.spans if item[1].start < size), key=lambda item: item[1].start)
        at = 0
        for table, span in covered:
            if span.start != at:
                self.wrong(f"the index of {table} version {span.version} starts at {span.start}, not at {at}")
                return []
            at = span.end
        if at != size:
            self.wrong(f"the index covers {at} of {size} entries")
            return []
        return covered

    def _settle(self, frontier: Frontier) -> None:
        root = frontier.root()
        for who, claimed in self.claims[frontier.size]:
            if claimed != root:
                self.wrong(f"{who} at size {frontier.size} does not fit the entries")

    def _leaves(self, number: int, width: int) -> list[bytes]:
        """The leaf hashes by the entries themselves, held against the level 0 tile."""
        try:
            entries = self.tiles.bundle(number, width)
            tile = self.tiles.tile(0, number, width)
        except Damaged as damage:
            self.wrong(damage.found)
            return [b"\x00" * 32] * width
        leaves = [leaf_hash(entry) for entry in entries]
        for problem in (*self.tiles.unlike(ENTRIES, number, entries), *self.tiles.unlike(0, number, leaves)):
            self.wrong(problem)
        if b"".join(leaves) != tile:
            self.wrong(f"{tile_path(0, number, width)} does not hold the hashes of its entries")
        for offset, entry in enumerate(entries):
            try:
                validate_entry(entry)
            except TidingsError as refusal:
                self.wrong(f"entry {number * WIDTH + offset}: {refusal.found}")
        self.verdict.entries += width
        self.verdict.tiles += 2
        return leaves

    def _upper(self, row: list[bytes]) -> None:
        level = 1
        while row:
            rising = []
            for number in range(-(-len(row) // WIDTH)):
                expected = row[number * WIDTH : (number + 1) * WIDTH]
                try:
                    tile = self.tiles.tile(level, number, len(expected))
                except Damaged as damage:
                    self.wrong(damage.found)
                else:
                    for problem in self.tiles.unlike(level, number, expected):
                        self.wrong(problem)
                    if tile != b"".join(expected):
                        self.wrong(f"{tile_path(level, number, len(expected))} does not hold the hashes below it")
                self.verdict.tiles += 1
                if len(expected) == WIDTH:
                    rising.append(complete_root(expected))
            row, level = rising, level + 1


def verify_ledger(folder: Path, vkey: str = "") -> Verdict:
    """Everything under a ledger folder; with `vkey`, as the ledger of that key and no other."""
    verdict = Verdict(str(folder))
    if not vkey:
        verdict.caveats.append(UNPINNED)
    try:
        verifier = Verifier.parse(vkey or (folder / ROOT / VKEY).read_text())
    except (TidingsError, OSError, UnicodeDecodeError) as error:
        verdict.wrong(f"{ROOT}: no readable public key ({type(error).__name__})")
        return verdict
    origin = verifier.name.removesuffix("/" + ROOT)
    recorded: dict[str, list[Checkpoint]] = {}
    # The root log first: a writer may be at work, and what the root has recorded its logs have by then.
    _verify_log(ROOT, folder / ROOT, verifier, recorded, verdict)
    names = class_logs(folder)
    for name in names:
        _verify_log(name, folder / name, verifier.named(f"{origin}/{name}"), recorded, verdict)
    for lost in recorded.keys() - {f"{origin}/{name}" for name in names}:
        verdict.wrong(f"{lost}: the root log recorded its heads, the log is missing")
    return verdict


def _verify_log(
    name: str, folder: Path, verifier: Verifier, recorded: dict[str, list[Checkpoint]], verdict: Verdict
) -> None:
    walk = _Walk(name, folder, verdict)
    published = _published(folder, verifier, walk)
    heads = list(_heads(folder, verifier, walk))
    if not (folder / VKEY).is_file() or (folder / VKEY).read_bytes() != (verifier.vkey + "\n").encode():
        walk.wrong("the public key beside it is another")
    if published is None:
        return
    for number, head in enumerate(heads):
        walk.claim(head.size, head.root, f"archived head {number}")
        if number and head.size <= heads[number - 1].size:
            walk.wrong(f"archived head {number} does not grow")
    for head in recorded.get(verifier.name, []):
        walk.claim(head.size, head.root, "a head in the root log")
    if not heads or published not in heads:
        walk.wrong("the published head is not in the archive")
    walk.claim(published.size, published.root, "the published head")
    size = max([published.size, *(head.size for head in heads)])
    _read_index(folder / INDEX, walk)
    walk.run(size)
    verdict.checkpoints += len(heads)
    verdict.logs.append({"log": name, "origin": verifier.name, "size": size, "root": published.root.hex()})
    if name == ROOT:
        _collect(walk, size, verifier, recorded)


def _heads(folder: Path, verifier: Verifier, walk: _Walk) -> Iterator[Checkpoint]:
    try:
        for note in archived(folder):
            yield Checkpoint.open(note, verifier)
    except (TidingsError, ValueError, OSError) as error:
        walk.wrong(f"the archive of heads: {error if isinstance(error, TidingsError) else type(error).__name__}")


def _published(folder: Path, verifier: Verifier, walk: _Walk) -> Checkpoint | None:
    try:
        return Checkpoint.open((folder / CHECKPOINT).read_bytes(), verifier)
    except (TidingsError, OSError) as error:
        walk.wrong(f"the published head: {error if isinstance(error, TidingsError) else 'it is missing'}")
        return None


def _read_index(folder: Path, walk: _Walk) -> None:
    for table in indexed_tables(folder) if folder.is_dir() else []:
        index = Index(folder, table)
        try:
            spans = list(index)
        except (Damaged, OSError) as damage:
            walk.wrong(damage.found if isinstance(damage, Damaged) else f"the index of {table} cannot be read")
            continue
        walk.spans += [(table, span) for span in spans if span.count]
        if any(after.version <= before.version for before, after in pairwise(spans)):
            walk.wrong(f"the versions of {table} are out of order")


def _collect(walk: _Walk, size: int, verifier: Verifier, recorded: dict[str, list[Checkpoint]]) -> None:
    """The class heads in the root log, each with its own signature checked."""
    for number in range(-(-size // WIDTH)):
        if walk.verdict.full:
            return
        try:
            entries = walk.tiles.bundle(number, min(WIDTH, size - number * WIDTH))
        except Damaged:
            continue
        for entry in entries:
            try:
                note = checkpoint_note(entry)
                head = Checkpoint.open(note, verifier.named(validate_entry(entry)["origin"]))
            except TidingsError as error:
                walk.wrong(f"a recorded head: {error.found}")
            else:
                recorded.setdefault(head.origin, []).append(head)
