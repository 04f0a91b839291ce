"""How bytes leave. `open_channel` is the only way to get a channel; what goes in and out is in `call`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, get_args

from tidings.channels.auth import Asks, Signing, Unfit, merged, scheme_of
from tidings.channels.call import Channel, Limits
from tidings.channels.client import Client, shared_client
from tidings.channels.handshake import ORIGIN
from tidings.channels.http import HttpChannel
from tidings.channels.kinds import Opening, open_kind
from tidings.channels.manifest import Answers, Hook, Manifest, Mode, SignedBy, load_manifest
from tidings.channels.mapping import Scope
from tidings.channels.signing import Signer, decode_secrets
from tidings.channels.verdict import Judge
from tidings.channels.webhook import WebhookChannel
from tidings.errors import ConfigurationError, Problem

# Where in `secrets` the key of response digests stands, in hexadecimal; without it outcomes carry no digest.
DIGEST_KEY = "derived:digest"


class SubscriberLike(Protocol):
    """What a channel needs to know of a subscriber; `tidings.shapes.Subscriber` is one."""

    @property
    def name(self) -> str: ...
    @property
    def manifest(self) -> str: ...
    @property
    def url(self) -> str | None: ...
    @property
    def auth(self) -> Any: ...
    @property
    def signing_secret(self) -> str | None: ...
    @property
    def connection(self) -> str | None: ...
    @property
    def vars(self) -> Mapping[str, Any]: ...
    @property
    def rate(self) -> Any: ...


class NetworkLike(Protocol):
    @property
    def allow(self) -> Sequence[str]: ...


def open_channel(
    subscriber: SubscriberLike,
    secrets: Mapping[str, str],
    network: NetworkLike,
    *,
    manifests: Path | None = None,
    client: Client | None = None,
) -> Channel:
    """The channel of a subscriber. `secrets` maps references (`file:hook.key`) to values, and DIGEST_KEY to a key."""
    manifest = load_manifest(subscriber.manifest, manifests)
    variables = _variables(subscriber, manifest)
    url = subscriber.url or manifest.url
    if not url and manifest.sink is None:
        raise _wrong(subscriber, "url", "nothing", "the address of the endpoint", "Add `url:`.")
    secret = _secret(subscriber, secrets, "auth.secret", subscriber.auth.secret if subscriber.auth else None)
    signing = _secret(subscriber, secrets, "signing_secret", subscriber.signing_secret)
    keys = decode_secrets(signing) if signing else ()
    digest_key = bytes.fromhex(secrets.get(DIGEST_KEY, ""))
    client = client or shared_client(tuple(network.allow))
    if manifest.sink:
        opening = Opening(
            name=subscriber.name,
            manifest=manifest,
            variables=variables,
            limits=narrowed(manifest.limits_for_lane, subscriber.rate),
            network=tuple(network.allow),
            client=client,
            url=url,
            connection=_secret(subscriber, secrets, "connection", subscriber.connection),
            secret=secret,
            signing=keys,
            digest_key=digest_key,
        )
        return open_kind(manifest.channel, opening)
    try:
        scheme = scheme_of(merged(manifest.auth, subscriber.auth), secret, client, url)
    except Unfit as reason:
        raise _wrong(subscriber, "auth.secret", "a secret of another form", reason.expected, "Mend it.") from None
    if manifest.webhook:
        return webhook_channel(subscriber, manifest, Signing(client, scheme), keys, digest_key)
    return http_channel(subscriber, manifest, Signing(client, scheme), secret, digest_key)


def http_channel(
    subscriber: SubscriberLike, manifest: Manifest, client: Asks, secret: str = "", digest_key: bytes = b""
) -> HttpChannel:
    """A vendor's API through a client that shows the secret; only a scheme of kind `body` has it in the templates too."""
    shown = secret if manifest.auth.kind == "body" else ""
    scope = Scope(None, _variables(subscriber, manifest), manifest.fields, shown)
    limits = narrowed(manifest.limits_for_lane, subscriber.rate)
    return HttpChannel(manifest, client, subscriber.url or manifest.url, limits, scope, digest_key)


def webhook_channel(
    subscriber: SubscriberLike, manifest: Manifest, client: Asks, keys: tuple[Signer, ...] = (), digest_key: bytes = b""
) -> WebhookChannel:
    """An endpoint through a client that shows the secret, if it has one."""
    assert manifest.webhook is not None
    hook = _hook(subscriber, manifest.webhook, _variables(subscriber, manifest))
    limits = narrowed(manifest.model_copy(update={"webhook": hook}).limits_for_lane, subscriber.rate)
    judge = Judge(manifest.failures, manifest.retry_after, digest_key, manifest.retry_after_form)
    return WebhookChannel(client, subscriber.url or manifest.url, hook, limits, keys, judge)


def narrowed(limits: Limits, rate: Any) -> Limits:
    """The manifest's limits, or the operator's where those are smaller."""
    if rate is None:
        return limits
    return Limits(
        min(limits.max_batch, rate.batch or limits.max_batch),
        min(limits.per_second, rate.per_second or limits.per_second),
        min(limits.concurrency, rate.concurrency or limits.concurrency),
        limits.max_bytes,
        limits.schedule,
    )


def _variables(subscriber: SubscriberLike, manifest: Manifest) -> dict[str, str]:
    given = {name: str(value) for name, value in subscriber.vars.items()}
    known = {name for name in given if name in manifest.vars or name.startswith("field_")}
    unknown, missing = sorted(set(given) - known), [n for n, d in manifest.vars.items() if d is None and n not in given]
    if unknown or missing:
        expected = f"a value for each of {', '.join(sorted(manifest.vars))}" if manifest.vars else "no vars"
        found = f"no {', '.join(missing)}" if missing else f"unknown {', '.join(unknown)}"
        raise _wrong(subscriber, "vars", found, expected, "Mend `vars:`.")
    return {**{name: text for name, text in manifest.vars.items() if text is not None}, **given}


def _hook(subscriber: SubscriberLike, hook: Hook, variables: Mapping[str, str]) -> Hook:
    """The manifest's way with a webhook, as the subscriber's `vars` change it."""
    said = {name: variables.get(name, getattr(hook, name)) for name in ("mode", "signing", "answers", "handshake")}
    for name, kind in (("mode", Mode), ("signing", SignedBy), ("answers", Answers)):
        known = get_args(kind)
        if said[name] not in known:
            expected = f"one of {', '.join(known)}"
            raise _wrong(subscriber, f"vars.{name}", repr(said[name]), expected, "Mend `vars:`.")
    if (said["signing"], said["answers"]) != ("standard", "response") and not subscriber.signing_secret:
        raise _wrong(subscriber, "signing_secret", "nothing", "a secret to sign with", "Add `signing_secret:`.")
    if said["handshake"] and not ORIGIN.fullmatch(said["handshake"]):
        raise _wrong(
            subscriber, "vars.handshake", "another text", "a DNS name, such as events.shop.example", "Mend it."
        )
    return hook.model_copy(update=said)


def _secret(subscriber: SubscriberLike, secrets: Mapping[str, str], path: str, reference: str | None) -> str:
    if reference is not None and reference not in secrets:
        raise _wrong(subscriber, path, "a secret nobody resolved", "its value among the secrets", "Resolve it first.")
    return secrets[reference] if reference else ""


def _wrong(subscriber: SubscriberLike, path: str, found: str, expected: str, now: str) -> ConfigurationError:
    file = f"subscribers/{subscriber.name}.yaml"
    return ConfigurationError([Problem(file, 0, path, "subscriber_settings", found, expected, now)])
