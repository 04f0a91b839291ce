"""The server under the routes: uvicorn with limits. Loopback unless told otherwise, and never in cleartext to the outside.

Why uvicorn and Starlette, and not the standard library's server: a stream per subscriber and readers that wait half a minute would hold
a thread each, and `http.server` says of itself that it is not for production. Both are small, well kept and typed, and parse with h11,
which takes no two readings of a request. What uvicorn lacks is a limit on how long a request's head may take; it is here.
"""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidings.api.app import Api, application
from tidings.errors import Refused

HEAD_S = 10.0
HEAD_BYTES = 16_384
CONNECTIONS = 500
MAIL_S = 5.0


class Strict(H11Protocol):
    """Closes a connection whose request head is not whole in time."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head = self.loop.call_later(HEAD_S, transport.close)

    def data_received(self, data: bytes) -> None:
        served = self.cycle
        super().data_received(data)
        if self.cycle is not served and self._head is not None:
            self._head.cancel()
            self._head = None
        elif self._head is None and (self.cycle is None or self.cycle.response_complete):
            self._head = self.loop.call_later(HEAD_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head is not None:
            self._head.cancel()
        super().connection_lost(exc)


@dataclass(frozen=True)
class Place:
    """Where the server listens. `behind` is the address of a proxy that ends TLS and is believed about its clients."""

    host: str = "127.0.0.1"
    port: int = 8085
    certificate: Path | None = None
    key: Path | None = None
    behind: str = ""

    def check(self) -> None:
        inside = self.host == "localhost" or _loopback(self.host)
        if not inside and not self.certificate and not self.behind:
            now = "Add --tls-cert and --tls-key, or --behind with the address of the proxy that ends TLS."
            raise Refused("cleartext_api", f"{self.host} without TLS", "a loopback address, or TLS", now)
        if (self.certificate is None) != (self.key is None):
            raise Refused("tls_files", "one of certificate and key", "both", "Name both files.")
        for file in (self.certificate, self.key):
            if file is not None and not file.is_file():
                raise Refused("tls_files", f"{file} is not a file", "a PEM file", "Name a file that is there.")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server(uvicorn.Server):
    """Tells the streams when it is over, so that they end in time."""

    def __init__(self, api: Api, place: Place) -> None:
        place.check()
        self.api = api
        self._mailing: asyncio.Task[None] | None = None
        given: dict[str, Any] = {
            "http": Strict,
            "ws": "none",
            "lifespan": "off",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "proxy_headers": bool(place.behind),
            "forwarded_allow_ips": place.behind or None,
            "limit_concurrency": CONNECTIONS,
            "h11_max_incomplete_event_size": HEAD_BYTES,
            "timeout_keep_alive": 5,
            "timeout_graceful_shutdown": 5,
            "ssl_certfile": str(place.certificate) if place.certificate else None,
            "ssl_keyfile": str(place.key) if place.key else None,
        }
        super().__init__(uvicorn.Config(application(api), host=place.host, port=place.port, **given))

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.api.proving is not None:
            self._mailing = asyncio.create_task(self.api.proving.mailing())
        if (asked := self.api.processor or self.api.business) is not None:
            self._calling = asyncio.create_task(asked.out.calling(self.api.stopping))

    async def shutdown(self, sockets: Any = None) -> None:
        self.api.stopping.set()
        if self._mailing is not None:
            await asyncio.wait([self._mailing], timeout=MAIL_S)  # a mail that is on its way is finished
        await super().shutdown(sockets)
