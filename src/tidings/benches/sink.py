"""The other end of a delivery bench: an HTTP endpoint in a process of its own that counts what it is told.

`/ok/NAME` answers 200 at once. `/become/NAME/KIND` changes that: `hang` never answers, `busy` answers 429, `drip` sends its answer
byte by byte, `ok` is as before.
`/report` says per NAME how many events came, came twice, or came behind a later one of their subject; offsets make that cheap.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

FIRST = 2**40  # offsets of a made journal begin here, so that a byte per event is enough to know it again
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_BUSY = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n"
_SUBJECT, _SEQUENCE = b'"subject":"', b'"sequence":"'
DRIP_S = 0.5


class Seen:
    """What one subscriber was told."""

    def __init__(self) -> None:
        self.requests = self.events = self.duplicates = self.out_of_order = 0
        self._known, self._early = bytearray(), set[int]()
        self._last: dict[bytes, int] = {}

    def take(self, body: bytes) -> None:
        self.requests += 1
        for part in body.split(_SUBJECT)[1:]:
            at = part.find(_SEQUENCE) + len(_SEQUENCE)
            subject, offset = part[:32], int(part[at : at + 20])
            self.events += 1
            self.duplicates += self._twice(offset)
            self.out_of_order += self._last.get(subject, -1) > offset
            self._last[subject] = offset

    def _twice(self, offset: int) -> bool:
        place = offset - FIRST
        if place < 0:
            known = offset in self._early
            self._early.add(offset)
            return known
        if place >= len(self._known):
            self._known.extend(bytes(place + 1_000_000 - len(self._known)))
        known, self._known[place] = bool(self._known[place]), 1
        return known

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("requests", "events", "duplicates", "out_of_order")}


class _Connection(asyncio.Protocol):
    def __init__(self, seen: dict[str, Seen], kinds: dict[str, str]) -> None:
        self._seen, self._kinds, self._held, self._need = seen, kinds, bytearray(), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._out = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while len(self._held) >= self._need:
            end = self._held.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._held[:end])
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._need = end + 4 + int(length or 0)
            if len(self._held) < self._need:
                return
            body = bytes(self._held[end + 4 : self._need])
            del self._held[: self._need]
            self._need = 0
            self._answer(head.split(b" ", 2)[1].decode(), body)

    def _answer(self, path: str, body: bytes) -> None:
        _, what, *rest = path.split("/")
        if what == "report":
            said = json.dumps({name: seen.as_dict() for name, seen in self._seen.items()}).encode()
            self._out.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said) + said)
            return
        if what == "become":
            self._kinds[rest[0]] = rest[1]
        kind = self._kinds.get(rest[0], "ok") if what == "ok" else "ok"
        if kind == "busy":
            self._out.write(_BUSY)
        elif kind == "drip":
            asyncio.get_running_loop().create_task(self._drip())
        elif kind == "ok":
            if what == "ok":
                self._seen.setdefault(rest[0], Seen()).take(body)
            self._out.write(_OK)

    async def _drip(self) -> None:
        for place in range(len(_OK)):
            self._out.write(_OK[place : place + 1])
            await asyncio.sleep(DRIP_S)


async def _serve() -> None:
    seen: dict[str, Seen] = {}
    kinds: dict[str, str] = {}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(seen, kinds), "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the bench lets go of the other end


@contextmanager
def sink() -> Iterator[str]:
    """A running sink's address; it ends with the block, or with the process that started it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidings.benches.sink"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin
    assert process.stdout
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait(timeout=10)
        process.stdout.close()


def become(url: str, name: str, kind: str) -> None:
    """From now on this subscriber is healthy no more, or healthy again."""
    with urlopen(f"{url}/become/{name}/{kind}", timeout=60):  # noqa: S310
        pass


def reported(url: str) -> dict[str, dict[str, int]]:
    with urlopen(f"{url}/report", timeout=60) as answer:  # noqa: S310 (our own process on loopback)
        found: dict[str, Any] = json.load(answer)
    return found


if __name__ == "__main__":
    asyncio.run(_serve())
