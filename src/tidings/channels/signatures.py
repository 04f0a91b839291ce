"""Schemes that sign each request: a keyed digest of whatever the receiver wants signed, and AWS signature version 4.

What breaks them: a clock that is minutes off, since receivers refuse old dates.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import ClassVar
from urllib.parse import quote, urlsplit

from tidings.channels.addresses import BadTarget, parse_target
from tidings.channels.auth import Auth, Fixed
from tidings.channels.client import Request

_HOLE = re.compile(r"\{(method|path|query|body|user|timestamp|date)\}")


@dataclass(frozen=True)
class Hmac(Fixed):
    """A digest of the manifest's text about the request, in a header of its choice."""

    auth: Auth
    user: str
    key: str = field(repr=False)
    clock: Callable[[], float] = time.time

    def sign(self, request: Request, timeout_s: float) -> Request:
        now = self.clock()
        text = self._filled(self.auth.signs, request, now)
        mac = hmac.new(self.key.encode(), text, self.auth.algorithm).digest()
        digest = mac.hex() if self.auth.encoding == "hex" else base64.b64encode(mac).decode()
        beside = {name: self._filled(text, request, now).decode() for name, text in self.auth.headers.items()}
        return replace(request, headers={**request.headers, **beside, self.auth.header: f"{self.auth.prefix}{digest}"})

    def _filled(self, text: str, request: Request, now: float) -> bytes:
        parts = urlsplit(request.url)
        values = {
            "method": request.method.encode(),
            "path": (parts.path or "/").encode(),  # what the receiver sees
            "query": parts.query.encode(),
            "body": request.body,
            "user": self.user.encode(),
            "timestamp": str(int(now)).encode(),
            "date": datetime.fromtimestamp(int(now), UTC).strftime("%Y%m%dT%H%M%SZ").encode(),
        }
        pieces = _HOLE.split(text)
        return b"".join(values[piece] if at % 2 else piece.encode() for at, piece in enumerate(pieces))


@dataclass(frozen=True)
class SigV4(Fixed):
    """AWS signature version 4 over method, path, query, host, date, content type and body."""

    user: str
    key: str = field(repr=False)
    token: str = field(repr=False)
    region: str
    service: str
    clock: Callable[[], float] = time.time
    ALGORITHM: ClassVar[str] = "AWS4-HMAC-SHA256"

    def sign(self, request: Request, timeout_s: float) -> Request:
        stamp = datetime.fromtimestamp(int(self.clock()), UTC).strftime("%Y%m%dT%H%M%SZ")
        try:
            host = parse_target(request.url).authority
        except BadTarget:
            return request  # the guarded client refuses it and says why
        headers = {**request.headers, "X-Amz-Date": stamp}
        if self.token:
            headers["X-Amz-Security-Token"] = self.token
        signed = {"host": host} | {
            name.lower(): value
            for name, value in headers.items()
            if name.lower() == "content-type" or name.lower().startswith("x-amz-")
        }
        names = ";".join(sorted(signed))
        scope = f"{stamp[:8]}/{self.region}/{self.service}/aws4_request"
        digest = hashlib.sha256(self._canonical(request, signed, names).encode()).hexdigest()
        text = f"{self.ALGORITHM}\n{stamp}\n{scope}\n{digest}"
        signature = hmac.new(self._key(stamp[:8]), text.encode(), hashlib.sha256).hexdigest()
        said = f"{self.ALGORITHM} Credential={self.user}/{scope}, SignedHeaders={names}, Signature={signature}"
        return replace(request, headers={**headers, "Authorization": said})

    def _canonical(self, request: Request, signed: dict[str, str], names: str) -> str:
        parts = urlsplit(request.url)
        pairs = sorted(piece.partition("=")[::2] for piece in parts.query.split("&") if piece)
        lines = [f"{name}:{' '.join(signed[name].split())}" for name in sorted(signed)]
        body = hashlib.sha256(request.body).hexdigest()
        path = quote(parts.path or "/", safe="/~")
        query = "&".join(f"{name}={value}" for name, value in pairs)
        return "\n".join([request.method, path, query, *lines, "", names, body])

    def _key(self, day: str) -> bytes:
        key = f"AWS4{self.key}".encode()
        for part in (day, self.region, self.service, "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key
