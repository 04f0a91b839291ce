"""What a source has committed: one small file per batch, written before the journal commit that makes it true.

    data/state/<source>/<generation>/<batch>.json
    data/state/<source>/<generation>/<batch>.lots      the secret by which the batch's subjects were divided, until the batch is done

A generation lives with the stream's checkpoint. Deleting the checkpoint starts a new generation, which begins with the marks of the
last one: nothing is skipped, and what comes again is recognised.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidings.durable import durable_write
from tidings.seen import Seen

KEEP = 20  # state files kept per generation; only the last committed one is needed


@dataclass(frozen=True)
class Marks:
    """High-water marks per (epoch, table), the hybrid clock, the Lamport counter."""

    high: Mapping[str, str] = field(default_factory=dict)
    hlc: tuple[int, int] = (0, 0)
    lamport: int = 0


@dataclass(frozen=True)
class Progress:
    """Marks and running totals after a batch."""

    marks: Marks = field(default_factory=Marks)
    totals: dict[str, int] = field(default_factory=dict)
    newest: str = ""  # commit time of the newest change, ISO 8601
    seen: Seen = field(default_factory=Seen)

    def plus(self, marks: Marks, counts: dict[str, int], newest: str, seen: Seen) -> Progress:
        totals = dict(Counter(self.totals) + Counter(counts))
        return Progress(marks, totals, max(self.newest, newest), self.seen.plus(seen))

    def dump(self) -> str:
        marks = {"high": dict(self.marks.high), "hlc": list(self.marks.hlc), "lamport": self.marks.lamport}
        said = {"marks": marks, "totals": self.totals, "newest": self.newest, "seen": self.seen.dump()}
        return json.dumps(said, sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> Progress:
        data = json.loads(text)
        high, hlc, lamport = (data["marks"][name] for name in ("high", "hlc", "lamport"))
        seen = Seen.parse(data.get("seen", {}))  # a file of before this was counted has none
        return cls(Marks(high, (hlc[0], hlc[1]), lamport), data["totals"], data["newest"], seen)


class Generations:
    """The generations of one source."""

    def __init__(self, data: Path, source: str) -> None:
        self.folder = data / "state" / source
        self.checkpoint = data / "checkpoints" / source

    def current(self) -> str:
        """The generation of this checkpoint; made when the checkpoint is new."""
        mark = self.checkpoint / "generation"
        if not mark.exists():
            durable_write(mark, f"g{len(self.all()) + 1:04d}{secrets.token_hex(4)}")
        return mark.read_text()

    def heard(self, *more: str) -> list[str]:
        """The dialects this source has spoken, with those it speaks now."""
        place = self.checkpoint / "heard.json"
        known = json.loads(place.read_text()) if place.exists() else []
        if not set(more) <= set(known):
            durable_write(place, json.dumps(sorted({*known, *more})))
        return sorted({*known, *more})

    def all(self) -> list[str]:
        return sorted(p.name for p in self.folder.iterdir()) if self.folder.exists() else []

    def path(self, generation: str, batch: int) -> Path:
        return self.folder / generation / f"{batch}.json"

    def after(self, generation: str, committed: Callable[[str], int | None]) -> Progress:
        """Progress after the last committed batch of this generation, else of the newest one before it that committed any."""
        for name in sorted({*self.all(), generation}, reverse=True):
            batch = committed(name) if name <= generation else None
            if batch is not None:
                return Progress.parse(self.path(name, batch).read_text())
        return Progress()

    def before(self, generation: str, batch: int, committed: Callable[[str], int | None]) -> Progress:
        """Progress as this batch found it the first time, also when the batch itself is committed by now."""
        earlier = [int(p.stem) for p in (self.folder / generation).glob("[0-9]*.json") if int(p.stem) < batch]
        if earlier:
            return Progress.parse(self.path(generation, max(earlier)).read_text())
        return self.after(generation, lambda name: None if name == generation else committed(name))

    def save(self, generation: str, batch: int, progress: Progress) -> None:
        durable_write(self.path(generation, batch), progress.dump())
        self.path(generation, batch - KEEP).unlink(missing_ok=True)

    def lots(self, generation: str, batch: int) -> bytes:
        """What the batch divides its subjects by: drawn anew, unless its journal may be committed and a repeat must come to the same."""
        place = self.path(generation, batch).with_suffix(".lots")
        return bytes.fromhex(place.read_text()) if place.exists() else secrets.token_bytes(32)

    def keep_lots(self, generation: str, batch: int, drawn: bytes) -> None:
        durable_write(self.path(generation, batch).with_suffix(".lots"), drawn.hex())

    def forget_lots(self) -> None:
        """What is over is not repeated; a file of a generation that ended in the middle goes as well."""
        for place in self.folder.glob("*/*.lots"):
            place.unlink(missing_ok=True)
