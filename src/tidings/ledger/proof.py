"""Receipts: C2SP tlog-proof for one entry, and the one record that shows what became of an event.

A receipt holds entries, each proven into its class log's head, and those heads, each proven into one head of the
root log. Its holder needs that root head's public key and nothing of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidings.errors import Damaged, Refused, TidingsError
from tidings.ledger.attestation import Member, member_leaf, membership
from tidings.ledger.classes import INDEX, ROOT, checkpoint_note, class_logs
from tidings.ledger.log import CHECKPOINT, VKEY
from tidings.ledger.merkle import HASH_SIZE, inclusion_path, leaf_hash, verify_inclusion
from tidings.ledger.note import Checkpoint, Verifier, decode, encode, split
from tidings.ledger.sequencer import Index
from tidings.ledger.tiles import WIDTH, Tiles, width_at
from tidings.ledger.verification import LOCAL, UNPINNED, UNWITNESSED, Verdict
from tidings.ledger.vocabulary import encode_entry, validate_entry
from tidings.strict import strict_value

PROOF = "c2sp.org/tlog-proof@v1"
RECEIPT = "tidings-receipt/1"
MAX_RECEIPT = 8 * 1024 * 1024  # some thousand calls of one event; JSON takes many times its size in memory


@dataclass(frozen=True)
class Proof:
    """One entry's inclusion in one signed head."""

    index: int
    path: tuple[bytes, ...]
    checkpoint: bytes

    @property
    def text(self) -> str:
        lines = [PROOF, f"index {self.index}", *map(encode, self.path), ""]
        return "\n".join(lines) + "\n" + self.checkpoint.decode()

    @classmethod
    def parse(cls, text: str) -> Proof:
        head, blank, note = text.partition("\n\n")
        lines = head.split("\n")
        if not blank or lines[0] != PROOF:
            raise Damaged("ledger-proof", "a proof of another form", f"one that begins with {PROOF}")
        rest = lines[2:] if len(lines) > 1 and lines[1].startswith("extra ") else lines[1:]
        name, _, number = rest[0].partition(" ") if rest else ("", "", "")
        if name != "index" or not number.isdecimal() or not number.isascii() or str(int(number)) != number:
            raise Damaged("ledger-proof", "a proof without an index", "an index line")
        return cls(int(number), tuple(map(decode, rest[1:])), note.encode())

    def verify(self, entry: bytes, verifier: Verifier) -> Checkpoint:
        """The head that includes the entry; Damaged when it does not."""
        head = Checkpoint.open(self.checkpoint, verifier)
        if not verify_inclusion(self.index, head.size, leaf_hash(entry), self.path, head.root):
            raise Damaged("ledger-proof", f"entry {self.index} is not in {head.origin}", "a path to the signed root")
        return head


@dataclass(frozen=True)
class Piece:
    """What a receipt shall prove: an entry, how it came in as far as that is known, a call's members if it is one.

    A writer may sequence a table as a whole, by its versions, or feed by feed (`journal/<feed>`), by its batches.
    """

    table: str
    entry: bytes
    version: int | None = None
    members: Sequence[Member] = ()
    feed: str = ""
    batch: int | None = None


@dataclass(frozen=True)
class _Place:
    log: str
    table: str
    version: int
    index: int


def prove(folder: Path, log: str, index: int, checkpoint: bytes) -> Proof:
    size = Checkpoint.parse(split(checkpoint)[0]).size
    return Proof(index, tuple(inclusion_path(index, size, Tiles(folder / log).node(size))), checkpoint)


def receipt(folder: Path, event_id: str, pieces: Sequence[Piece], root_head: bytes = b"") -> dict[str, Any]:
    """The canonical record of an event, self-contained; under `root_head` where several records shall share one."""
    vkey = _text(folder / ROOT / VKEY).strip()
    root_head = root_head or _text(folder / ROOT / CHECKPOINT).encode()
    entries, logs = [], {}
    for piece in pieces:
        place = _locate(folder, piece)
        number, head_entry = _recorded_head(folder, place, Verifier.parse(vkey), root_head)
        note = checkpoint_note(head_entry)
        proven: dict[str, Any] = {
            "entry": validate_entry(piece.entry),
            "proof": prove(folder, place.log, place.index, note).text,
        }
        if piece.members:
            proven["member"] = _member(piece.members, event_id)
        entries.append(proven)
        head_proof = prove(folder, ROOT, number, root_head)
        logs[number] = {"entry": validate_entry(head_entry), "proof": head_proof.text}
    return {"format": RECEIPT, "event_id": event_id, "vkey": vkey, "entries": entries, "heads": list(logs.values())}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        raise Refused("ledger-empty", "no ledger here yet", "a ledger", "Let `tidings run` record something.") from None


def _member(members: Sequence[Member], event_id: str) -> dict[str, Any]:
    found = membership(members, event_id)
    path = [step.hex() for step in found.path]
    return {"event_id": event_id, "outcome": found.member[1], "index": found.index, "size": found.size, "path": path}


def _locate(folder: Path, piece: Piece) -> _Place:
    """Where an entry is: in the span of its version or batch, else by its hash, the newest tiles first."""
    wanted = leaf_hash(piece.entry)
    ways = [(piece.table, piece.version)]
    if piece.feed:
        ways.insert(0, (f"{piece.table}/{piece.feed}", piece.batch))
    for log in class_logs(folder):
        size = Checkpoint.parse(split(_text(folder / log / CHECKPOINT).encode())[0]).size
        for table, version in ways:
            index = Index(folder / log / INDEX, table)
            for start, end in _spans(index, version):
                at = _search(Tiles(folder / log), wanted, start, min(end, size))
                if at is not None:
                    return _Place(log, table, _version_at(index, at), at)
    found = f"an entry of {piece.table} that no log holds"
    what_now = "It is recorded shortly after it happens; try again, then `tidings verify`."
    raise Refused("ledger-unknown", found, "a recorded entry", what_now)


def _spans(index: Index, version: int | None) -> list[tuple[int, int]]:
    """What to search: one version's entries, or all up to the table's last."""
    span = index.last() if version is None else index.find(version)
    return [(0 if version is None else span.start, span.end)] if span else []


def _search(tiles: Tiles, wanted: bytes, start: int, end: int) -> int | None:
    for number in range((end - 1) // WIDTH, start // WIDTH - 1, -1):
        row = tiles.tile(0, number, width_at(0, number, end))
        at = row.find(wanted)
        while at % HASH_SIZE and at >= 0:
            at = row.find(wanted, at + 1)
        if at >= 0 and start <= (found := number * WIDTH + at // HASH_SIZE) < end:
            return found
    return None


def _version_at(index: Index, at: int) -> int:
    low, high = 0, len(index)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if index[middle].end <= at else (low, middle)
    return index[low].version


def _recorded_head(folder: Path, place: _Place, vkey: Verifier, root_head: bytes) -> tuple[int, bytes]:
    """The head of the class log that the root log recorded with the entry's version."""
    head = Checkpoint.open(root_head, vkey)
    origin = head.origin.removesuffix(ROOT) + place.log
    span = Index(folder / ROOT / INDEX, place.table).find(place.version)
    tiles = Tiles(folder / ROOT)
    for number in range(span.start, span.end) if span and span.end <= head.size else ():
        entry = tiles.entry(number, head.size)
        if validate_entry(entry).get("origin") == origin:
            return number, entry
    found = f"{place.table} version {place.version} is not in the root log yet"
    raise Refused("ledger-pending", found, "a recorded head", "Try again when the next version is recorded.")


def verify_receipt(document: Any, vkey: str = "") -> Verdict:
    """A receipt by itself; with `vkey`, as issued under that key and no other."""
    verdict = Verdict("receipt", caveats=[LOCAL, UNWITNESSED, *([] if vkey else [UNPINNED])])
    try:
        if not isinstance(document, dict) or document.get("format") != RECEIPT:
            raise Damaged("ledger-receipt", "a document of another form", f"format {RECEIPT}")
        verifier = Verifier.parse(vkey or document["vkey"])
        heads = dict(_verified_heads(document["heads"], verifier, verdict))
        event_id = document["event_id"]
        if not document["entries"]:
            verdict.wrong("it proves no entry")
        for number, proven in enumerate(document["entries"]):
            for problem in _entry_problems(proven, event_id, verifier, heads):
                verdict.wrong(f"entry {number}: {problem}")
            verdict.entries += 1
    except TidingsError as error:
        verdict.wrong(str(error))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        found = f"a part that is missing or of another form ({type(error).__name__})"
        verdict.wrong(str(Damaged("ledger-receipt", found, "a receipt made by `tidings prove`")))
    return verdict


def _verified_heads(proofs: list[Any], verifier: Verifier, verdict: Verdict) -> Iterator[tuple[bytes, Checkpoint]]:
    """Class heads by their note, each included in the one root head."""
    roots = set()
    for proven in proofs:
        entry = encode_entry(proven["entry"])
        proof = Proof.parse(proven["proof"])
        root = proof.verify(entry, verifier)
        roots.add(proof.checkpoint)
        note = checkpoint_note(entry)
        yield note, Checkpoint.open(note, verifier.named(proven["entry"]["origin"]))
        verdict.checkpoints += 1
        verdict.logs = [{"log": ROOT, "origin": root.origin, "size": root.size, "root": root.root.hex()}]
    if len(roots) != 1:
        verdict.wrong(f"{len(roots)} root heads where one must stand for all")


def _entry_problems(proven: Any, event_id: str, verifier: Verifier, heads: dict[bytes, Checkpoint]) -> Iterator[str]:
    entry = encode_entry(proven["entry"])
    values = validate_entry(entry)
    proof = Proof.parse(proven["proof"])
    if proof.checkpoint not in heads:
        yield "its head is not among those the root log recorded"
        return
    try:
        proof.verify(entry, verifier.named(heads[proof.checkpoint].origin))
    except TidingsError as error:
        yield str(error)
    if "event_id" in values:
        if values["event_id"] != event_id:
            yield "it speaks of another event"
        return
    member = proven.get("member")
    if member is None:
        yield "it names no member for this event"
        return
    leaf = leaf_hash(member_leaf((member["event_id"], member["outcome"])))
    path = [bytes.fromhex(step) for step in member["path"]]
    root = bytes.fromhex(values["members_root"])
    if (
        member["event_id"] != event_id
        or member["size"] != values["count"]
        or member["outcome"] not in values["outcomes"]
    ):
        yield "its member does not fit the call"
    if not verify_inclusion(member["index"], member["size"], leaf, path, root):
        yield "its member is not in the call's tree"


def read_receipt(data: bytes) -> Any:
    """A receipt's document; Refused when it is not JSON."""
    if len(data) > MAX_RECEIPT:
        raise Refused("ledger-receipt", f"a file of {len(data)} bytes", f"at most {MAX_RECEIPT}")
    try:
        return strict_value(data)
    except ValueError:
        raise Refused("ledger-receipt", "a file that is not JSON", "a receipt made by `tidings prove`") from None
