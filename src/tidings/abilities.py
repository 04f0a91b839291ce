"""What a subscriber's manifest can do, per change type: how strong its acknowledgement is, and whether it takes a change once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidings.errors import ConfigurationError

if TYPE_CHECKING:
    from tidings.settings import Settings


@dataclass(frozen=True)
class Abilities:
    acks: dict[str, str]
    once: tuple[str, ...]
    rate: float | None


def abilities(settings: Settings, name: str) -> Abilities:
    """Nothing for a manifest that cannot be read: the folder's own check says what is wrong with it."""
    from tidings.channels.manifest import load_manifest

    subscriber = settings.subscribers[name]
    try:
        manifest = load_manifest(subscriber.manifest, settings.manifests_path)
    except ConfigurationError:
        return Abilities({}, (), subscriber.rate.per_second)
    types = sorted({kind for contract in settings.entities.values() for kind in contract.event_types})
    return Abilities(
        acks={kind: manifest.strength(kind) for kind in types},
        once=tuple(kind for kind in types if "exactly-once" in manifest.capabilities(kind).semantics),
        rate=subscriber.rate.per_second or manifest.limits.steady,
    )
