"""Where a request may go: which spellings of a URL are taken, and which addresses are refused.

The list is our own. Python's `is_global` lets several ranges through that lead back inside (6to4, NAT64, SRv6, …).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

BLOCKED: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local, cloud metadata
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relay
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # Teredo, ORCHID and other protocol assignments
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
    )
)
# Only this part of IPv6 is given out for the Internet; the rest is local, multicast, translation or not assigned.
GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")

_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
_URL = re.compile(r"[!#-;=?-Z_a-z~%\[\]]+")  # printable ASCII without space, quotes, angle brackets, \ ^ ` { | }


class BadTarget(ValueError):
    """A URL or address that is refused; `code` goes into the outcome."""

    def __init__(self, code: str, detail: str) -> None:
        self.code, self.detail = code, detail
        super().__init__(code, detail)


@dataclass(frozen=True)
class Target:
    """A URL in parts, each of which is what it looks like."""

    scheme: str
    host: str
    port: int
    path: str  # with its query

    @property
    def authority(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == {"http": 80, "https": 443}[self.scheme] else f"{name}:{self.port}"


@lru_cache(maxsize=256)  # a subscriber's address is the same with every request
def parse_target(url: str) -> Target:
    """The parts of a URL; every spelling that two readers could read differently is refused."""
    if not _URL.fullmatch(url):
        raise BadTarget("bad_url", "the URL holds a space, a control character or a letter outside ASCII")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadTarget("bad_url", "the URL's host or port cannot be read") from None
    bare = parts.netloc.lower().removesuffix("" if port is None else f":{parts.netloc.rsplit(':', 1)[-1]}")
    if "#" in url or bare not in (parts.hostname, f"[{parts.hostname}]"):
        raise BadTarget("bad_url", "the URL holds a user, a fragment or more than a host and a port")
    if parts.scheme not in ("http", "https") or not url.startswith(f"{parts.scheme}://"):
        raise BadTarget("bad_url", "the scheme is not http or https")
    host = _host(parts.netloc, parts.hostname or "")
    if port == 0:
        raise BadTarget("bad_url", "port 0")
    path = parts.path or "/"
    if any(part in (".", "..") for part in path.lower().replace("%2e", ".").split("/")):
        raise BadTarget("bad_url", "the path holds a dot segment")
    query = f"?{parts.query}" if parts.query else ""
    return Target(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), path + query)


def _host(netloc: str, host: str) -> str:
    if netloc.startswith("["):
        try:
            if "%" in host:
                raise ValueError
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            raise BadTarget("bad_url", "the IPv6 address cannot be read") from None
    if not _HOST.fullmatch(host):
        raise BadTarget("bad_url", "the host is not a plain name (no final dot, no empty label)")
    last = host.rsplit(".", 1)[-1]
    if last.isdigit() or last.startswith("0x"):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise BadTarget("bad_url", "a number that only some readers take for an address") from None
    return host


def canonical(text: str) -> Address:
    """An address with any IPv4 inside IPv6 brought to light."""
    address = ipaddress.ip_address(text.split("%", 1)[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def is_blocked(address: Address) -> bool:
    """Whether an address is anything but a public unicast one."""
    if isinstance(address, ipaddress.IPv6Address) and address not in GLOBAL_IPV6:
        return True
    return any(address.version == network.version and address in network for network in BLOCKED)


def is_allowed(address: Address, allow: Sequence[Network]) -> bool:
    """Whether the operator named a network that holds this address."""
    return any(address.version == network.version and address in network for network in allow)


def check_addresses(target: Target, found: Sequence[str], allow: Sequence[Network]) -> list[Address]:
    """Every answer must be fit to be reached, or none is: a name that also points inside is not to be trusted."""
    if not found:
        raise BadTarget("dns", "the name has no address")
    addresses = [canonical(text) for text in found[:32]]
    for address in addresses:
        inside = is_allowed(address, allow)
        if is_blocked(address) and not inside:
            raise BadTarget("blocked_address", "the host is a private, reserved or local address; see network.allow")
        if target.scheme == "http" and not inside:
            raise BadTarget("cleartext", "http:// is only taken inside network.allow; use https://")
        if target.port < 1024 and target.port not in (80, 443) and not inside:
            raise BadTarget("blocked_port", f"port {target.port} belongs to another service")
    return addresses
