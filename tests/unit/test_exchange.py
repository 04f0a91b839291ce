"""Answers byte by byte over a real socket pair: what is read, what is refused, and when a connection is used again."""

from __future__ import annotations

import socket
import ssl
import time

import httpcore
import pytest

from tidings.channels.addresses import parse_target
from tidings.channels.exchange import Connection, Connections
from tidings.channels.wire import Exchange, Guard, Wire

TARGET = parse_target("http://127.0.0.1:9/hook")


class Ends(Connections):
    """Connections that lead to sockets of the test's own."""

    def __init__(self, most: int = 4) -> None:
        self.exchange = Exchange()
        self.exchange.deadline = time.monotonic() + 5
        self.far: list[socket.socket] = []
        super().__init__(
            Guard((), lambda *_: [], self.exchange), ssl.create_default_context(), self.exchange, most, 1.0
        )

    def _new(self, target: object) -> Connection:
        near, far = socket.socketpair()
        self.far.append(far)
        return Connection(Wire(near, self.exchange))

    def told(self, answer: bytes) -> tuple[int, bytes]:
        """The answer to one request; the far end says it when a connection to it was made or kept."""
        kept = [one for held in self._idle.values() for _, one in held]
        if not kept:
            connection = self._new(TARGET)
            self._idle[TARGET.scheme, TARGET.host, TARGET.port] = [(time.monotonic() + 1, connection)]
        real = Connection.write

        def write(connection: Connection, data: bytes) -> None:
            real(connection, data)
            if data == b"body":
                self.far[-1].sendall(answer)

        try:
            Connection.write = write  # type: ignore[method-assign]
            response = self.send(TARGET, b"POST /hook HTTP/1.1\r\n\r\n", b"body")
        finally:
            Connection.write = real  # type: ignore[method-assign]
        try:
            return response.status, b"".join(response.iter_stream())
        finally:
            response.close()

    def done(self) -> int:
        """How many connections there were."""
        self.close()
        for far in self.far:
            far.close()
        return len(self.far)


GOOD = {
    "a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
    "the same length twice": (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\ncontent-length: 3\r\n\r\nabc", b"abc"),
    "nothing": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=1\r\nab\r\n1\r\nc\r\n0\r\nA: b\r\n\r\n",
        b"abc",
    ),
    "an interim answer": (b"HTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 200\r\nContent-Length: 1\r\n\r\na", b"a"),
}


@pytest.mark.parametrize("case", GOOD)
def test_an_answer_that_was_read_to_its_end_leaves_the_connection_for_the_next(case: str) -> None:
    answer, body = GOOD[case]
    ends = Ends()
    for _ in range(3):
        assert ends.told(answer)[1] == body
    assert ends.done() == 1


@pytest.mark.parametrize("header", [b"Connection: close\r\n", b"connection: Upgrade, CLOSE\r\n"])
def test_a_connection_that_is_to_be_closed_is_not_used_again(header: bytes) -> None:
    ends = Ends()
    for _ in range(2):
        assert ends.told(b"HTTP/1.1 200 OK\r\n" + header + b"Content-Length: 1\r\n\r\na") == (200, b"a")
    assert ends.done() == 2


def test_what_comes_after_the_answer_belongs_to_no_request() -> None:
    ends = Ends()
    for _ in range(2):
        assert ends.told(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 500 No\r\n\r\n") == (200, b"a")
    assert ends.done() == 2


REFUSED = {
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a signed length": b"HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "a chunk without a size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk that is longer than it says": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    "a header folded over two lines": b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
    "a space before the colon": b"HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\nabc",
    "a bare carriage return": b"HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching\r\n\r\n",
    "no HTTP": b"SSH-2.0-x\r\n\r\n",
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_answer_that_can_be_read_in_two_ways_is_none(case: str) -> None:
    ends = Ends(most=1)
    for _ in range(2):  # the place in the pool is free again
        with pytest.raises(httpcore.RemoteProtocolError):
            ends.told(REFUSED[case])
    assert ends.done() == 2


def test_whoever_finds_every_connection_in_use_waits_no_longer_than_its_time() -> None:
    ends = Ends(most=1)
    ends._free.acquire()
    ends.exchange.deadline = time.monotonic() + 0.05
    with pytest.raises(httpcore.PoolTimeout):
        ends.told(GOOD["nothing"][0])
    ends.done()
