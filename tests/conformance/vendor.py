"""A server on loopback that answers as a manifest says its vendor does, or fails as it is told to."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tidings.channels.manifest import Manifest
from tidings.channels.mapping import dig
from tidings.channels.verbs import Check, Ping, Verb

LINGER_0 = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # closing sends a reset
Reply = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True)
class Received:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Vendor:
    """`behave` is asked for every request: a reply, or None after it has done to the socket what it wanted.

    What is asked for a token is in `asked` and gets one, unless `tokens` says otherwise.
    """

    behave: Callable[[Received, socket.socket], Reply | None]
    received: list[Received] = field(default_factory=list)
    asked: list[Received] = field(default_factory=list)
    tokens: Callable[[int], Reply] = lambda number: token_reply(f"token-{number}")
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def token_reply(text: str, life: Any = 3600) -> Reply:
    return 200, {}, json.dumps({"access_token": text, "expires_in": life}).encode()


@contextlib.contextmanager
def serving(behave: Callable[[Received, socket.socket], Reply | None]) -> Iterator[Vendor]:
    vendor = Vendor(behave)
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets = [listener]
    vendor.port = listener.getsockname()[1]

    def connection(sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock, sock.makefile("rb") as stream:
            while (request := _read(stream)) is not None:
                if request.path.endswith("/token"):
                    vendor.asked.append(request)
                    reply: Reply | None = vendor.tokens(len(vendor.asked))
                else:
                    vendor.received.append(request)
                    reply = vendor.behave(request, sock)
                if reply is None:
                    return
                status, headers, body = reply
                head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                sock.sendall(f"HTTP/1.1 {status} X\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                open_sockets.append(sock)
                threading.Thread(target=connection, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield vendor
    finally:
        for sock in open_sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        listener.close()


def _read(stream: Any) -> Received | None:
    line = stream.readline().decode().split()
    if len(line) != 3:
        return None
    headers = {}
    while (header := stream.readline().decode().strip()) != "":
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    return Received(line[0], line[1], headers, stream.read(int(headers.get("content-length", "0"))))


def hang(request: Received, sock: socket.socket) -> None:
    time.sleep(3)


def reset(request: Received, sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)


def trickle(request: Received, sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
    for _ in range(60):
        sock.sendall(b"x")
        time.sleep(0.05)


def success_then_reset(request: Received, sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")
    time.sleep(0.05)
    reset(request, sock)


def always(status: int, headers: dict[str, str] | None = None, body: bytes = b"{}") -> Callable[..., Reply]:
    return lambda request, sock: (status, headers or {}, body)


def honest(manifest: Manifest) -> Callable[[Received, socket.socket], Reply]:
    """What the manifest calls success, for whichever of its verbs is asked for."""

    def behave(request: Received, sock: socket.socket) -> Reply:
        if manifest.webhook:
            return 204, {}, b""
        verb = next((one for one in [*manifest.verbs.values(), manifest.ping] if one and _fits(one, request)), None)
        if verb is None:
            return 404, {}, b'{"error":"no such verb"}'
        return _success(verb, request)

    return behave


def _fits(verb: Verb | Ping, request: Received) -> bool:
    pattern = "".join(
        "[^/]+" if part.startswith("{") else re.escape(part) for part in re.split(r"(\{[^}]*\})", verb.path)
    )
    action = (verb.body or {}).get("action") if isinstance(verb.body, dict) else None
    same = action is None or f'"action":"{action}"'.encode() in request.body
    return verb.method == request.method and re.fullmatch(pattern, request.path) is not None and same


def _success(verb: Verb | Ping, request: Received) -> Reply:
    status = verb.success.status[0]
    body: Any = {}
    for check in verb.success.body:
        put(body, check.path, _value(check))
    if isinstance(verb, Verb):
        if verb.job:
            put(body, verb.job, "job-1")
        if verb.items and verb.items.style == "all":
            body = _every_item(verb, request, body)
        if verb.counts:
            put(body, verb.counts.invalid, 0)
    code = status if isinstance(status, int) else 200
    return code, {"Content-Type": "application/json"}, b"" if code == 204 else json.dumps(body).encode()


def _every_item(verb: Verb, request: Received, body: Any) -> Any:
    """One good result for each member: by its place in the request, or by the name it was given."""
    assert verb.items
    assert verb.batch
    if verb.items.match == "index":
        results: list[Any] = [{"success": True, "errors": []} for _ in dig(request.json, verb.batch.at)]
    else:
        sent = [json.loads(text) for text in parse_qs(request.body.decode())[verb.batch.at]]
        results = [{verb.items.match: one[verb.items.match], "error_code": 0} for one in sent]
    if not verb.items.at:
        return results
    put(body, verb.items.at, results)
    return body


def _value(check: Check) -> Any:
    if check.empty:
        return None
    return check.equals if "equals" in check.model_fields_set else (check.among[0] if check.among else "x")


def put(body: Any, path: str, value: Any) -> None:
    *steps, last = path.split(".")
    for step in steps:
        body = body.setdefault(step, {})
    body[last] = value
