"""The one HTTP client. Everything that leaves by HTTP leaves through here: calls, probes, pings and alerts.

It refuses addresses inside (except `network.allow`), odd spellings, cleartext to the outside, redirects, proxies from the
environment, header injection, answers that grow past a cap when decompressed, and any exchange that outlasts its time.
A request ends as an Answer or as a Fault; nothing is raised.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import httpcore
import httpx

from tidings.channels.addresses import BadTarget, Target, parse_target
from tidings.channels.exchange import Connections, Response
from tidings.channels.wire import Exchange, Guard, NoAnswer, Refusal, Resolver, system_resolver

MAX_ANSWER_BYTES = 1_000_000
KEEPALIVE_S = 4.0  # shorter than the five seconds many servers keep an idle connection
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass(frozen=True)
class Request:
    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Answer:
    """What came back, whole unless `cut` says that it went past the cap."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    cut: bool = False


FaultKind = Literal["refused", "not_sent", "in_doubt", "shut", "paced"]


@dataclass(frozen=True)
class Fault:
    """Why there is no answer. `refused`: we would not; `not_sent`: no byte of it left; `in_doubt`: some did.

    `shut`: what we would have shown is not taken; `paced`: the vendor's window is full for another `wait` seconds.
    """

    kind: FaultKind
    code: str
    detail: str
    wait: float | None = None


class Client:
    """Thread-safe; keeps connections. One per process and set of allowed networks is enough."""

    def __init__(
        self,
        allow: Sequence[str] = (),
        *,
        resolver: Resolver = system_resolver,
        tls: ssl.SSLContext | None = None,
        connections: int = 64,
    ) -> None:
        self._exchange = Exchange()
        guard = Guard([ipaddress.ip_network(text) for text in allow], resolver, self._exchange)
        # Its own trust store and nothing from the environment: SSL_CERT_FILE or a proxy there must not steer us.
        context = tls or httpx.create_ssl_context(trust_env=False)
        self._pool = Connections(guard, context, self._exchange, connections, KEEPALIVE_S)

    def request(self, request: Request, timeout_s: float, cap: int = MAX_ANSWER_BYTES) -> Answer | Fault:
        """One exchange within `timeout_s` seconds, from the look-up of the name to the last byte."""
        try:
            target, head = self._prepare(request)
        except BadTarget as reason:
            return Fault("refused", reason.code, reason.detail)
        exchange = self._exchange
        exchange.deadline, exchange.written, exchange.target = time.monotonic() + timeout_s, 0, target
        try:
            return _read(self._pool.send(target, head, request.body), cap)
        except Refusal as refusal:
            return Fault("refused", refusal.reason.code, refusal.reason.detail)
        except NoAnswer:
            return Fault("not_sent", "dns", "the name has no address")
        except Exception as error:
            return _fault(error, exchange.written)

    def _prepare(self, request: Request) -> tuple[Target, bytes]:
        target = parse_target(request.url)
        if request.method not in _METHODS:
            raise BadTarget("bad_method", "a method that is not in the list")
        headers = {
            "Host": target.authority,
            "Accept-Encoding": "identity",
            "User-Agent": "tidings/1",
            **request.headers,
        }
        if request.body or request.method in ("POST", "PUT", "PATCH"):
            headers["Content-Length"] = str(len(request.body))
        for name, value in headers.items():
            if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
                raise BadTarget("bad_header", "a header holds a line break or another character it may not")
        lines = [f"{request.method} {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return target, ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")

    def close(self) -> None:
        self._pool.close()


def _read(response: Response, cap: int) -> Answer | Fault:
    """The whole answer up to the cap; closing early drops the connection."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    try:
        inflate = _inflater(headers.get("content-encoding", "identity").strip().lower())
        body, cut = bytearray(), False
        for chunk in response.iter_stream():
            room = cap + 1 - len(body)
            body += inflate.decompress(chunk, room) if inflate else chunk[:room]
            if len(body) > cap:
                del body[cap:]
                cut = True
                break
    finally:
        response.close()
    return Answer(response.status, headers, bytes(body), cut)


def _inflater(encoding: str) -> zlib._Decompress | None:
    if encoding in ("identity", ""):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, told by the header
    raise zlib.error("unknown encoding")


def _fault(error: Exception, written: int) -> Fault:
    """Our own words for what went wrong; a library's text may repeat what it was given."""
    sent: FaultKind = "in_doubt" if written else "not_sent"
    if isinstance(error, httpcore.PoolTimeout):
        return Fault("not_sent", "no_connection_free", "every connection was busy")
    if isinstance(error, httpcore.TimeoutException):
        return Fault(sent, "timeout", "the time for this call was over")
    if isinstance(error, httpcore.ConnectError):
        tls = str(error).startswith("tls")
        return Fault("not_sent", "tls" if tls else "connect", "no TLS session" if tls else "no connection")
    if isinstance(error, zlib.error):
        return Fault(sent, "bad_encoding", "the answer could not be decompressed")
    if isinstance(error, httpcore.ProtocolError):
        return Fault(sent, "protocol", "the answer is not HTTP")
    if isinstance(error, httpcore.NetworkError):
        return Fault(sent, "reset", "the connection broke")
    return Fault(sent, "client", f"an unexpected {type(error).__name__}")


_shared: dict[tuple[str, ...], Client] = {}
_lock = threading.Lock()


def shared_client(allow: Sequence[str]) -> Client:
    """The process's client for these allowed networks, so that connections outlive a call."""
    key = tuple(sorted(allow))
    with _lock:
        if key not in _shared:
            _shared[key] = Client(key)
        return _shared[key]
