"""What was read from a place that may look different tomorrow, kept until the journal holds it: sealed, durable, then forgotten.

    fetch ─put→ segment (named after the offset it begins at) ─read, as often as asked→ journal ─commit→ forget

The first segment that begins at an offset is the one: whoever comes second gets the end of the first. Offsets and segments hold no key
and no value in clear. What breaks the guarantee: the loss of the disk between a read and the journal's commit.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidings import durable
from tidings.errors import SourceStopped
from tidings.seal.cards import mask_text
from tidings.seal.keyring import associated, open_payload, seal_payload
from tidings.sources.tap import Offset, Taken

FIRST: Offset = {"number": 0, "place": ""}


@dataclass(frozen=True)
class Spool:
    """A folder of segments, and the keys they are sealed with."""

    source: str
    folder: Path
    keys: tuple[bytes, bytes] = field(repr=False)

    def end(self, start: Offset) -> Offset | None:
        """Where the segment that begins here ends; None when there is none."""
        try:
            with self._path(start).open("rb") as segment:
                return dict(json.loads(segment.readline()))
        except FileNotFoundError:
            return None

    def put(self, start: Offset, place: Any, messages: Sequence[Taken]) -> Offset:
        """Keep these messages and the place after them; when this returns they survive a power cut."""
        durable.make_folder(self.folder, 0o700)
        number = start["number"] + 1
        end = {"number": number, "place": self._sealed("place", place), "messages": len(messages)}
        rows = [message._replace(body=mask_text(message.body)[0]) for message in messages]
        temporary = self.folder / f".{durable.unique()}.new"
        head = json.dumps(end, sort_keys=True).encode() + b"\n"
        temporary.write_bytes(head + bytes.fromhex(self._sealed(self._path(start).name, rows)))
        durable.sync_file(temporary)
        try:
            os.link(temporary, self._path(start))
            durable.sync_folder(self.folder)
        except FileExistsError:
            end = self.end(start) or end
        finally:
            temporary.unlink()
        return end

    def read(self, start: Offset, end: Offset) -> list[Taken]:
        path = self._path(start)
        if self.end(start) != end:
            raise SourceStopped(
                "spool_missing",
                f"source {self.source}: what was read after place {start['number']} is not on the disk",
                "the segment that was written there",
                "Move the source's checkpoint folder away and run: everything is read again, and what came before is recognised.",
            )
        sealed = path.read_bytes().split(b"\n", 1)[1]
        return [Taken(*row) for row in self._opened(path.name, sealed)]

    def forget(self, end: Offset) -> None:
        """Remove every segment up to this place."""
        for path in self.folder.glob("*.sealed"):
            with path.open("rb") as segment:
                done = json.loads(segment.readline())["number"] <= end["number"]
            if done:
                path.unlink()

    def place(self, offset: Offset) -> Any:
        """The place an offset stands for; None at the very beginning."""
        return self._opened("place", bytes.fromhex(offset["place"])) if offset["place"] else None

    def name(self, start: Offset) -> str:
        """The name of the segment that begins here."""
        return hashlib.sha256(json.dumps(start, sort_keys=True).encode()).hexdigest()[:32]

    def _path(self, start: Offset) -> Path:
        return self.folder / f"{self.name(start)}.sealed"

    def _sealed(self, name: str, value: Any) -> str:
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return seal_payload(text, *self.keys, associated("spool", name, self.source)).hex()

    def _opened(self, name: str, sealed: bytes) -> Any:
        return json.loads(open_payload(self.keys[0], associated("spool", name, self.source), sealed))
