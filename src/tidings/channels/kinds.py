"""The channels there are, one file each, and what each of them promises in words and in capabilities.

A channel's file declares `GUARANTEE`; docs/channels.md shows it. A file is imported when its channel is first used, and its
vendor's package only when a channel is opened, so that nobody needs what nobody uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidings.channels.call import Capabilities, Channel, Limits, Strength
from tidings.errors import Refused

if TYPE_CHECKING:
    from tidings.channels.client import Client
    from tidings.channels.manifest import Manifest
    from tidings.channels.signing import Signer

# The channel of a manifest → the file that speaks it.
KINDS: dict[str, str] = {
    "http": "tidings.channels.http",
    "webhook": "tidings.channels.webhook",
    "faulty": "tidings.channels.faulty",
    "pull": "tidings.channels.pull",
    "kafka": "tidings.channels.kafka",
    "eventhubs": "tidings.channels.eventhubs",
    "redis_streams": "tidings.channels.redis_streams",
    "rabbitmq": "tidings.channels.rabbitmq",
    "nats": "tidings.channels.nats",
    "pulsar": "tidings.channels.pulsar",
    "sql": "tidings.channels.sql",
    "twophase": "tidings.channels.twophase",
    "delta": "tidings.channels.delta",
    "sqs": "tidings.channels.sqs",
    "sns": "tidings.channels.sns",
    "kinesis": "tidings.channels.kinesis",
    "eventbridge": "tidings.channels.eventbridge",
    "pubsub": "tidings.channels.pubsub",
    "email": "tidings.channels.email",
    "manual": "tidings.channels.manual",
}


@dataclass(frozen=True)
class Guarantee:
    """What a channel promises and what breaks it; every word of it is shown in the documentation."""

    title: str
    ack: str  # what an acknowledgement is made of
    strength: Strength  # the strongest one it can give
    order: str
    dedup: str
    breaks: str  # what the other side can do, or be set to, that breaks the promise
    capabilities: Capabilities = field(default_factory=Capabilities)
    dead_letters: str = "ours alone"
    extra: str = ""  # the extra of the package that brings the vendor's client


@dataclass(frozen=True)
class Opening:
    """Everything a channel is opened with. Secrets are values here; none of them is ever shown."""

    name: str  # the subscriber's
    manifest: Manifest
    variables: Mapping[str, str]
    limits: Limits
    network: Sequence[str]  # networks.allow
    client: Client
    url: str = ""
    connection: str = field(default="", repr=False)  # where a server is, with user and password
    secret: str = field(default="", repr=False)  # auth.secret
    signing: tuple[Signer, ...] = field(default=(), repr=False)
    digest_key: bytes = field(default=b"", repr=False)


def guarantee(channel: str) -> Guarantee:
    """What a channel of this name promises."""
    found: Guarantee = _module(channel).GUARANTEE
    return found


def open_kind(channel: str, opening: Opening) -> Channel:
    """A channel from its file's `open_sink`; a package that is missing is named."""
    try:
        found: Channel = _module(channel).open_sink(opening)
    except ImportError as missing:
        extra = guarantee(channel).extra or channel
        found_words = f"no package {missing.name or 'of its client'}"
        raise Refused(
            "channel_package", found_words, f"what {channel} needs", f"pip install 'tidings[{extra}]'"
        ) from None
    return found


def table() -> list[str]:
    """Every channel's promise as a table: docs/channels.md shows these lines."""
    lines = [
        "| channel | acknowledged by | at most | order | a repeat | exactly-once | what breaks it | dead letters |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in KINDS:
        own = guarantee(name)
        can = [
            word
            for word in ("idempotency_key", "natural", "transaction", "two_phase", "probe")
            if getattr(own.capabilities, word)
        ]
        once = f"by {', '.join(can)}" if can else "refused"
        parts = [f"`{name}`", own.ack, own.strength, own.order, own.dedup, once, own.breaks, own.dead_letters]
        lines.append(f"| {' | '.join(parts)} |")
    return lines


def _module(channel: str) -> Any:
    return import_module(KINDS[channel])
