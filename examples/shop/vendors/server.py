"""The HTTP side: one loopback port, a path prefix per vendor, and everything that can go wrong on the way."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from .api import Answer, Request, Vendor, Verb
from .audiences import GOOGLE, META, TIKTOK
from .books import Books, Call, Item
from .faults import Bucket, Fault, Faults
from .hooks import CONCIERGE
from .messaging import KLAVIYO, MAILCHIMP, TWILIO
from .records import HUBSPOT, MIXPANEL, SEGMENT, WAREHOUSE, YOTPO

VENDORS: Mapping[str, Vendor] = {
    vendor.name: vendor
    for vendor in (
        HUBSPOT,
        KLAVIYO,
        MAILCHIMP,
        SEGMENT,
        META,
        GOOGLE,
        TIKTOK,
        YOTPO,
        MIXPANEL,
        WAREHOUSE,
        TWILIO,
        CONCIERGE,
    )
}
MAX_BODY = 20_000_000


@dataclass
class Simulator:
    """What all handlers share."""

    books: Books
    secrets: Mapping[str, str] = field(repr=False)
    faults: Faults
    rates: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    buckets: dict[str, Bucket] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        for vendor in VENDORS.values():
            per_second, burst = self.rates.get(vendor.name, (vendor.per_second, vendor.burst))
            if per_second:
                self.buckets[vendor.name] = Bucket(per_second, burst)

    def serve(self, request: Request) -> tuple[Answer, Fault | None]:
        """The answer, and the fault its delivery meets."""
        vendor = VENDORS[request.vendor]
        verb, request = _find(vendor, request)
        if not vendor.knows(request, self.secrets[vendor.name]):
            return self._no(vendor, verb, 401, "unauthorised"), None
        fault = self.faults.meet(vendor.name)
        if fault and fault.kind in ("down", "hang", "reset", "garbage"):
            status = 503 if fault.kind == "down" else 0
            return self._no(vendor, verb, status, fault.kind), fault
        if wait := self._wait(vendor.name):
            return self._throttled(vendor, verb, wait), None
        if verb is None:
            return self._no(vendor, verb, 404, "no_such_path"), None
        return self._do(vendor, verb, request, fault), fault

    def _wait(self, name: str) -> float:
        bucket = self.buckets.get(name)
        return bucket.take() if bucket else 0.0

    def _no(self, vendor: Vendor, verb: Verb | None, status: int, reason: str, items: int = 0) -> Answer:
        self.books.record(Call(vendor.name, verb.name if verb else "", status, items, reason))
        return Answer(status, {"error": reason})

    def _throttled(self, vendor: Vendor, verb: Verb | None, wait: float) -> Answer:
        whole = max(1, round(wait + 0.5))  # vendors speak in whole seconds
        told = float(whole) if vendor.throttle == "retry-after" else None
        status = 400 if vendor.throttle == "body" else 429
        self.books.record(Call(vendor.name, verb.name if verb else "", status, 0, "throttled", told))
        body = (
            {"error": {"code": 17, "message": "User request limit reached"}}
            if vendor.throttle == "body"
            else {"error": "throttled"}
        )
        return Answer(status, body, {"Retry-After": str(whole)} if told else {})

    def _do(self, vendor: Vendor, verb: Verb, request: Request, fault: Fault | None) -> Answer:
        try:
            items = verb.reads(request)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return self._no(vendor, verb, 400, "malformed")
        if len(items) > verb.many:
            return self._no(vendor, verb, verb.too_many, "too_many", len(items))
        if verb.needs_person and items and self.books.last_verb(vendor.name, items[0].subject) == "erase":
            return self._no(vendor, verb, 404, "not_found", len(items))
        if fault and fault.kind == "reject_item" and items and verb.tells:
            items = [replace(items[0], wrong="later"), *items[1:]]
        items = _all_or_none(vendor, items)
        if not verb.tells and any(each.wrong for each in items):
            return self._no(vendor, verb, 400, "bad_item", len(items))
        # The effect is on disk before the answer exists, so an answer that is lost is an effect that is not.
        outcomes = self.books.record(Call(vendor.name, verb.name, 200, len(items)), items, verb.repeat)
        return verb.says(request, items, outcomes, self.books)


def _all_or_none(vendor: Vendor, items: list[Item]) -> list[Item]:
    """At two vendors one bad row fails the call: then nothing of it may have happened."""
    bad = next((each.wrong for each in items if each.wrong), "")
    if vendor.name in ("mixpanel", "tiktok") and bad:
        return [replace(each, wrong=bad) for each in items]
    return items


def _find(vendor: Vendor, request: Request) -> tuple[Verb | None, Request]:
    for verb in vendor.verbs:
        groups = verb.fits(request.method, request.path)
        if groups is not None:
            return verb, replace(request, groups={name: unquote(value) for name, value in groups.items()})
    return None, request


class Handler(BaseHTTPRequestHandler):
    """One connection. Keeps it open between calls, as vendors do."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave in one piece; apart they wait 40 ms for each other
    disable_nagle_algorithm = True
    simulator: Simulator

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: paths hold addresses."""

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY:
            self.close_connection = True
            return self._answer(Answer(413, {"error": "too_large"}))
        body = self.rfile.read(length)
        parts = urlsplit(self.path)
        _, name, *rest = parts.path.split("/", 2)
        if name == "_":
            return self._answer(self._admin(rest[0] if rest else "", body))
        if name not in VENDORS:
            return self._answer(Answer(404, {"error": "no_such_vendor"}))
        headers = {key.lower(): value for key, value in self.headers.items()}
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        path = "/" + (rest[0] if rest else "")
        answer, fault = self.simulator.serve(Request(name, self.command, path, query, headers, body))
        self._deliver(answer, fault)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    def _admin(self, what: str, body: bytes) -> Answer:
        """For tests: look, and change what goes wrong while it runs."""
        if what == "faults" and self.command == "PUT":
            self.simulator.faults.replace(Fault.read(each) for each in json.loads(body))
            return Answer(204)
        return Answer(200, {"ok": True}) if what == "health" else Answer(404)

    def _deliver(self, answer: Answer, fault: Fault | None) -> None:
        kind = fault.kind if fault else ""
        if kind == "hang" and fault:
            self.simulator.stopping.wait(fault.seconds)
        if kind in ("hang", "reset", "lost_answer"):
            return self._reset()
        if kind == "garbage":
            return self._send(
                200, b"<html><body>We are doing maintenance.</body></html>", {"Content-Type": "text/html"}
            )
        self._answer(answer)

    def _answer(self, answer: Answer) -> None:
        body = b"" if answer.body is None or answer.status == 204 else json.dumps(answer.body).encode()
        self._send(answer.status, body, {"Content-Type": "application/json", **answer.headers})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()
        except OSError:
            self.close_connection = True  # the caller has gone; what happened, happened

    def _reset(self) -> None:
        """Close with RST, so that the caller learns nothing."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True  # reset on purpose, or by the caller


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, simulator: Simulator, port: int = 0) -> None:
        handler = type("BoundHandler", (Handler,), {"simulator": simulator})
        super().__init__(("127.0.0.1", port), handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up is everyday."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def announce(path: Path, server: Server) -> None:
    """Say where to call, in one piece."""
    told = {"url": server.url, "pid": os.getpid(), "vendors": {name: f"{server.url}/{name}" for name in VENDORS}}
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(told, indent=2))
    part.rename(path)
