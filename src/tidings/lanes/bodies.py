"""Request bodies of a stretch: an event is opened and rendered once, a request is put together once for all who may see as much,
and each subscriber's own names for people are set into it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tidings.errors import TidingsError
from tidings.lanes.cargo import Cargo
from tidings.seal.keyring import associated, open_payload
from tidings.stages.spelling import Pieces, Spelling


class Rendered:
    """Events as bytes, once per set of fields that some lane may not see. None where the sealed row does not open."""

    def __init__(self, rows: Cargo) -> None:
        self._rows, self._spelling = rows, Spelling()
        self._made: dict[tuple[int, tuple[str, ...]], Pieces | None] = {}

    def pieces(self, place: int, redact: tuple[str, ...]) -> Pieces | None:
        key = (place, redact)
        if key not in self._made:
            self._made[key] = self._render(self._rows[place], redact)
        return self._made[key]

    def _render(self, row: dict[str, Any], redact: tuple[str, ...]) -> Pieces | None:
        try:
            plain = open_payload(row["key"], associated("journal", row["event_id"], "payload"), row["payload"])
            return self._spelling.pieces(row, json.loads(plain), redact)
        except (TidingsError, ValueError, KeyError, TypeError):
            return None


class Body(NamedTuple):
    """A request before it is addressed: the bytes around two holes for each event, where its person is named."""

    ids: tuple[str, ...]
    tags: Sequence[bytes]
    around: list[bytes]

    @classmethod
    def of(cls, members: Iterable[tuple[str, bytes, Pieces]], batched: bool) -> Body:
        ids, tags, found = [], [], [b"[" if batched else b""]
        for event_id, tag, (before, between, after) in members:
            ids.append(event_id)
            tags.append(tag)
            found[-1] += before
            found += (b"", between, b"", after + b",")
        found[-1] = found[-1][:-1] + (b"]" if batched else b"")
        return cls(tuple(ids), tags, found)

    def to(self, names: Names) -> bytes:
        """Addressed to a subscriber, which has names of its own for people."""
        own = [names[tag] for tag in self.tags]
        whole = self.around.copy()
        whole[1::4] = whole[3::4] = own
        return b"".join(whole)


class Names(dict[bytes, bytes]):
    """What a subscriber may call each person, as `job.wire_subject` has it; the key is read once, a person's name made once."""

    def __init__(self, key: bytes) -> None:
        block = key.ljust(64, b"\0")
        self._inner, self._outer = (hashlib.sha256(bytes(byte ^ pad for byte in block)) for pad in (0x36, 0x5C))

    def __missing__(self, tag: bytes) -> bytes:
        first, second = self._inner.copy(), self._outer.copy()
        first.update(tag)
        second.update(first.digest())
        self[tag] = second.hexdigest()[:32].encode()
        return self[tag]
