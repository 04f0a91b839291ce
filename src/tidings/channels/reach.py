"""Where a channel that is no HTTP may connect to: the same list of addresses as the guarded client, checked before a socket opens.

What breaks its guarantee: a server that hands out other addresses than the one it was reached by (a Kafka broker's advertised
listeners); those are the operator's own word, and are checked when the channel can see them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from tidings.channels.addresses import BadTarget, Target, check_addresses
from tidings.channels.wire import Resolver, resolve_within, system_resolver

LOOK_UP_S = 5.0


def reachable(host: str, port: int, allow: Sequence[str], resolver: Resolver = system_resolver) -> str:
    """An address of this host that may be connected to; BadTarget says why not. Connect to the address, not to the name."""
    try:
        found = resolve_within(resolver, host, port, LOOK_UP_S)
    except Exception:
        raise BadTarget("dns", "the name has no address") from None
    networks = [ipaddress.ip_network(text) for text in allow]
    # Brokers have ports of their own and TLS or none by their own settings, so only the addresses are compared.
    target = Target("https", host, max(port, 1024), "/")
    return str(check_addresses(target, found, networks)[0])
