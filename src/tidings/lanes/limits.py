"""A lane's rules from the operator's folder: the subscriber's settings, narrowed by its manifest."""

from __future__ import annotations

from tidings.channels import narrowed
from tidings.channels.manifest import Hook, Manifest, load_manifest
from tidings.lanes.member import Rules
from tidings.settings import Settings
from tidings.shapes import Subscriber

ERASURES = frozenset({"delete", "erasure"})  # who was told is not yet who has done it
MOST = 1_000  # members of one call, whatever a vendor allows: a call is the unit of doubt


def manifest_of(settings: Settings, subscriber: Subscriber) -> Manifest:
    """The manifest as this subscriber uses it: a webhook's form is the operator's choice."""
    manifest = load_manifest(subscriber.manifest, settings.manifests_path)
    if manifest.webhook is None or "mode" not in subscriber.vars:
        return manifest
    hook = Hook.model_validate({**manifest.webhook.model_dump(), "mode": str(subscriber.vars["mode"])})
    return manifest.model_copy(update={"webhook": hook})


def rules_of(settings: Settings, subscriber: Subscriber) -> Rules:
    manifest = manifest_of(settings, subscriber)
    limits = narrowed(manifest.limits_for_lane, subscriber.rate)
    types = settings.change_types
    return Rules(
        name=subscriber.name,
        batches={kind: min(_largest(manifest, kind), subscriber.rate.batch or MOST) for kind in types},
        capable=manifest.capabilities(),
        capabilities={} if manifest.webhook or manifest.sink else {kind: manifest.capabilities(kind) for kind in types},
        per_second=limits.per_second,
        concurrency=limits.concurrency,
        schedule=tuple(limits.schedule),
        sla={kind: subscriber.sla_for(kind) for kind in types},
        notices=frozenset(types) & ERASURES,
        key_window_s=_window(manifest),
        timeout_s=max((verb.timeout_s for verb in manifest.verbs.values()), default=30.0),
    )


def _window(manifest: Manifest) -> float | None:
    """How long a repeat is recognised: as long as the most forgetful of its verbs."""
    if manifest.sink:
        return manifest.sink.key_window_s
    return min((verb.key_window_s for verb in manifest.verbs.values() if verb.key_window_s), default=None)


def _largest(manifest: Manifest, change_type: str) -> int:
    """Members per call. Where a vendor takes one record per request a call is one request, so that rate and order are ours."""
    if manifest.webhook:
        return manifest.webhook.batch if manifest.webhook.mode == "batched" else 1
    if manifest.sink:
        return manifest.sink.batch
    verbs = manifest.routed(change_type)
    return min((verb.batch.max if verb.batch else 1 for verb in verbs), default=1)
