"""The sockets under the guarded client: one look-up, checked, and a connection to that very address.

Nothing between the check and the connect looks a name up again, so there is nothing to rebind. Every wait is cut to what
is left of the request's whole time, and what was written is counted, since only that tells "not sent" from "in doubt".
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpcore

from tidings.channels.addresses import BadTarget, Network, Target, canonical, check_addresses

COALESCE_BYTES = 65_536
Resolver = Callable[[str, int], Sequence[str]]


class Exchange(threading.local):
    """The request this thread is making: when it must be over, where it goes, how many bytes of it have left."""

    deadline: float = 0.0
    target: Target | None = None
    written: int = 0

    def left(self) -> float:
        return self.deadline - time.monotonic()


class Refusal(httpcore.ConnectError):
    """The guard said no; the request was never made."""

    def __init__(self, reason: BadTarget) -> None:
        self.reason = reason
        super().__init__(reason.code)


class NoAnswer(httpcore.ConnectError):
    """The name could not be looked up."""


def system_resolver(host: str, port: int) -> Sequence[str]:
    """Every address the system knows for a name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def resolve_within(resolver: Resolver, host: str, port: int, seconds: float) -> Sequence[str]:
    """A look-up that cannot outlast the request; the system's own has no time limit."""
    try:
        return [str(canonical(host))]
    except ValueError:
        pass
    answers: queue.Queue[Sequence[str] | None] = queue.Queue(maxsize=1)

    def look_up() -> None:
        try:
            answers.put(resolver(host, port))
        except Exception:  # any failure of a resolver is the same to us: no answer
            answers.put(None)

    threading.Thread(target=look_up, daemon=True).start()
    try:
        found = answers.get(timeout=max(0.001, seconds))
    except queue.Empty:
        raise httpcore.ConnectTimeout("dns") from None
    if found is None:
        raise NoAnswer("dns")
    return found


class Wire(httpcore.NetworkStream):
    """One connection. Reads and writes belong to the exchange of the thread that makes them."""

    def __init__(self, sock: socket.socket, exchange: Exchange) -> None:
        self._sock, self._exchange = sock, exchange
        self._waiting = bytearray()

    def _arm(self, late: type[Exception]) -> None:
        left = self._exchange.left()
        if left <= 0:
            raise late("deadline")
        self._sock.settimeout(left)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        # A peer that closed early may still have answered: what it said counts more than that we could not finish.
        with contextlib.suppress(httpcore.WriteError):
            self._flush()
        self._arm(httpcore.ReadTimeout)
        try:
            return self._sock.recv(max_bytes)
        except TimeoutError:
            raise httpcore.ReadTimeout("deadline") from None
        except OSError as error:
            raise httpcore.ReadError(type(error).__name__) from None

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Head and body of a small request leave in one packet, at the first read."""
        self._waiting += buffer
        if len(self._waiting) > COALESCE_BYTES:
            self._flush()

    def _flush(self) -> None:
        view, self._waiting = memoryview(bytes(self._waiting)), bytearray()
        while view:
            self._arm(httpcore.WriteTimeout)
            try:
                count = self._sock.send(view)
            except TimeoutError:
                raise httpcore.WriteTimeout("deadline") from None
            except OSError as error:
                raise httpcore.WriteError(type(error).__name__) from None
            self._exchange.written += count
            view = view[count:]

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        self._arm(httpcore.ConnectTimeout)
        try:
            return Wire(ssl_context.wrap_socket(self._sock, server_hostname=server_hostname), self._exchange)
        except TimeoutError:
            self.close()
            raise httpcore.ConnectTimeout("tls") from None
        except OSError as error:
            self.close()
            raise httpcore.ConnectError(f"tls {type(error).__name__}") from None

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            return bool(poll.poll(0))
        if info == "ssl_object":
            return self._sock if isinstance(self._sock, ssl.SSLSocket) else None
        return None


class Guard(httpcore.NetworkBackend):
    """The only way a connection comes to be."""

    def __init__(self, allow: Sequence[Network], resolver: Resolver, exchange: Exchange) -> None:
        self._allow, self._resolver, self._exchange = tuple(allow), resolver, exchange

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        target = self._exchange.target
        assert target is not None
        assert (target.host, target.port) == (host, port)
        found = resolve_within(self._resolver, host, port, self._exchange.left())
        try:
            addresses = check_addresses(target, found, self._allow)
        except BadTarget as reason:
            raise NoAnswer("dns") if reason.code == "dns" else Refusal(reason) from None
        return self._first_that_answers([str(address) for address in addresses], port)

    def _first_that_answers(self, addresses: list[str], port: int) -> Wire:
        for index, address in enumerate(addresses):
            left = self._exchange.left()
            if left <= 0:
                raise httpcore.ConnectTimeout("deadline")
            # An address that does not answer may not eat the time of those after it.
            share = left / (len(addresses) - index)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(share)
                sock.connect((address, port))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return Wire(sock, self._exchange)
            except OSError as error:
                sock.close()
                last = error
        if isinstance(last, TimeoutError):
            raise httpcore.ConnectTimeout("connect")
        raise httpcore.ConnectError(type(last).__name__)
