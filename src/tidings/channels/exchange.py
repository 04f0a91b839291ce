"""One HTTP/1.1 exchange at a time over guarded connections that are kept: written by hand because a request costs what this costs.

Strict in what it takes for an answer: a head of bounded size with lines that cannot be read in two ways, a length that is a length,
chunks, or everything until the end. A connection is used again only after an answer that was read to its end and did not forbid it.
"""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Iterator

import httpcore

from tidings.channels.addresses import Target
from tidings.channels.wire import Exchange, Guard

MAX_HEAD_BYTES = 65_536
MAX_LINE_BYTES = 4_096
MAX_INTERIM = 1_000  # answers such as 103 before the one that counts; their time is that of the request
READ_BYTES = 65_536
_END = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_HEADER = re.compile(rb"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_Key = tuple[str, str, int]


def _wrong(what: str) -> httpcore.RemoteProtocolError:
    return httpcore.RemoteProtocolError(what)


class Connection:
    """A stream and what was read from it beyond the answer so far."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream, self._held = stream, bytearray()

    def usable(self) -> bool:
        """Nothing was said on it since; a closed one reads as something."""
        return not self._held and not self._stream.get_extra_info("is_readable")

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def close(self) -> None:
        self._stream.close()

    def _more(self) -> bool:
        data = self._stream.read(READ_BYTES)
        self._held += data
        return bool(data)

    def until(self, end: re.Pattern[bytes], most: int) -> bytes:
        """What stands before the end, which is taken away with it."""
        while not (found := end.search(self._held)):
            if len(self._held) > most or not self._more():
                raise _wrong("no end")
        if found.start() > most:
            raise _wrong("too long")
        taken = bytes(self._held[: found.start()])
        del self._held[: found.end()]
        return taken

    def exactly(self, size: int) -> Iterator[bytes]:
        while size > 0:
            if not self._held and not self._more():
                raise _wrong("cut off")
            taken = bytes(self._held[:size])
            del self._held[: len(taken)]
            size -= len(taken)
            yield taken

    def rest(self) -> Iterator[bytes]:
        while self._held or self._more():
            taken, self._held = bytes(self._held), bytearray()
            yield taken

    def chunks(self) -> Iterator[bytes]:
        line = re.compile(rb"\r?\n")
        while True:
            found = _SIZE.fullmatch(self.until(line, MAX_LINE_BYTES))
            if not found:
                raise _wrong("no chunk")
            size = int(found[1], 16)
            if not size:
                break
            yield from self.exactly(size)
            if self.until(line, MAX_LINE_BYTES):
                raise _wrong("no end of chunk")
        for _ in range(100):
            if not self.until(line, MAX_LINE_BYTES):
                return
        raise _wrong("trailers without end")


class Response:
    """Status and headers; the body is read once, by whoever wants it."""

    def __init__(self, pool: Connections, key: _Key, connection: Connection) -> None:
        self._pool, self._key, self._connection = pool, key, connection
        self._whole = False
        for _ in range(MAX_INTERIM):
            self._read_head()
            if self.status >= 200:
                return
        raise _wrong("interim answers without end")

    def _read_head(self) -> None:
        first, *lines = re.split(rb"\r?\n", self._connection.until(_END, MAX_HEAD_BYTES))
        status = _STATUS.fullmatch(first)
        if not status or status[2] == b"101":
            raise _wrong("no status")
        self.status, self._newer = int(status[2]), status[1] == b"1"
        self.headers: list[tuple[bytes, bytes]] = []
        for line in lines:
            header = _HEADER.fullmatch(line)
            if not header:
                raise _wrong("no header")
            self.headers.append((header[1], header[2]))

    def _said(self, name: bytes) -> set[bytes]:
        return {value.strip().lower() for key, value in self.headers if key.lower() == name}

    def iter_stream(self) -> Iterator[bytes]:
        coding, lengths = self._said(b"transfer-encoding"), self._said(b"content-length")
        keep = self._newer and not any(b"close" in value for value in self._said(b"connection"))
        if self.status in (204, 304):
            pass
        elif coding:
            if coding != {b"chunked"} or not self._newer:
                raise _wrong("another coding")
            yield from self._connection.chunks()
        elif lengths:
            if len(lengths) > 1 or not _LENGTH.fullmatch(length := lengths.pop()):
                raise _wrong("no length")
            yield from self._connection.exactly(int(length))
        else:
            keep = False
            yield from self._connection.rest()
        self._whole = keep

    def close(self) -> None:
        self._pool.give_back(self._key, self._connection, self._whole)


class Connections:
    """Kept by address. Safe for threads; `most` are in use at once, and whoever comes then waits its own time for one."""

    def __init__(self, guard: Guard, tls: ssl.SSLContext, exchange: Exchange, most: int, keep_s: float) -> None:
        tls.set_alpn_protocols(["http/1.1"])
        self._guard, self._tls, self._exchange, self._keep_s = guard, tls, exchange, keep_s
        self._free, self._lock = threading.BoundedSemaphore(most), threading.Lock()
        self._idle: dict[_Key, list[tuple[float, Connection]]] = {}

    def send(self, target: Target, head: bytes, body: bytes) -> Response:
        """The request, and the answer's head. `close` the answer in every case."""
        key = (target.scheme, target.host, target.port)
        if not self._free.acquire(timeout=max(0.001, self._exchange.left())):
            raise httpcore.PoolTimeout("no connection")
        connection: Connection | None = None
        try:
            connection = self._kept(key) or self._new(target)
            connection.write(head)
            connection.write(body)
            return Response(self, key, connection)
        except BaseException:
            if connection is not None:
                connection.close()
            self._free.release()
            raise

    def give_back(self, key: _Key, connection: Connection, whole: bool) -> None:
        self._free.release()
        if not whole or not connection.usable():
            connection.close()
            return
        with self._lock:
            self._idle.setdefault(key, []).append((time.monotonic() + self._keep_s, connection))

    def _kept(self, key: _Key) -> Connection | None:
        now = time.monotonic()
        with self._lock:
            for other, kept in list(self._idle.items()):
                while kept and kept[0][0] < now:
                    kept.pop(0)[1].close()
                if not kept:
                    del self._idle[other]
            found = [self._idle[key].pop()[1]] if key in self._idle else []
        for connection in found:
            if connection.usable():
                return connection
            connection.close()
        return None

    def _new(self, target: Target) -> Connection:
        stream = self._guard.connect_tcp(target.host, target.port)
        if target.scheme == "https":
            stream = stream.start_tls(self._tls, server_hostname=target.host)
        return Connection(stream)

    def close(self) -> None:
        with self._lock:
            for kept in self._idle.values():
                for _, connection in kept:
                    connection.close()
            self._idle = {}
