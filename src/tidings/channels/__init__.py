"""How bytes leave. `open_channel` is the only way to get a channel; what goes in and out is in `call`."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, get_args

from tidings.channels.call import Channel, Limits
from tidings.channels.client import Client, shared_client
from tidings.channels.http import HttpChannel
from tidings.channels.manifest import Auth, Hook, Manifest, Mode, load_manifest
from tidings.channels.mapping import Scope
from tidings.channels.signing import decode_secrets
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
    if not url:
        raise _wrong(subscriber, "url", "nothing", "the address of the endpoint", "Add `url:`.")
    secret = _secret(subscriber, secrets, "auth.secret", subscriber.auth.secret if subscriber.auth else None)
    headers = auth_headers(merged_auth(manifest, subscriber.auth), secret)
    digest_key = bytes.fromhex(secrets.get(DIGEST_KEY, ""))
    if manifest.webhook:
        manifest = manifest.model_copy(update={"webhook": _hook(subscriber, manifest.webhook, variables)})
    limits = narrowed(manifest.limits_for_lane, subscriber.rate)
    client = client or shared_client(tuple(network.allow))
    if manifest.webhook:
        signing = _secret(subscriber, secrets, "signing_secret", subscriber.signing_secret)
        keys = decode_secrets(signing) if signing else ()
        judge = Judge(manifest.failures, manifest.retry_after, digest_key)
        return WebhookChannel(client, url, manifest.webhook, limits, headers, keys, judge)
    scope = Scope(None, variables, manifest.fields, secret if manifest.auth.kind == "body" else "")
    return HttpChannel(manifest, client, url, limits, scope, headers, digest_key)


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


def merged_auth(manifest: Manifest, own: Any) -> Auth:
    """The manifest says how a secret is shown; the operator may say otherwise by naming another kind."""
    if own is None or manifest.auth.kind == "body":
        return manifest.auth
    header = own.header or (manifest.auth.header if own.kind == manifest.auth.kind else "Authorization")
    if own.kind == manifest.auth.kind:
        return manifest.auth.model_copy(update={"header": header})
    return Auth(kind=own.kind, header=header, user=getattr(own, "user", None))


def auth_headers(auth: Auth, secret: str) -> dict[str, str]:
    """The header that shows the secret, if any."""
    if auth.kind in ("none", "body") or not secret:
        return {}
    if auth.kind == "bearer":
        return {"Authorization": f"Bearer {secret}"}
    if auth.kind == "header":
        return {auth.header: f"{auth.prefix}{secret}"}
    pair = secret
    if auth.user is not None:
        pair = f"{auth.user}:{secret}"
    elif auth.password is not None:
        pair = f"{secret}:{auth.password}"
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


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
    mode = variables.get("mode", hook.mode)
    if mode not in get_args(Mode):
        raise _wrong(subscriber, "vars.mode", repr(mode), f"one of {', '.join(get_args(Mode))}", "Mend `vars:`.")
    return hook.model_copy(update={"mode": mode})


def _secret(subscriber: SubscriberLike, secrets: Mapping[str, str], path: str, reference: str | None) -> str:
    if reference is not None and reference not in secrets:
        raise _wrong(subscriber, path, "a secret nobody resolved", "its value among the secrets", "Resolve it first.")
    return secrets[reference] if reference else ""


def _wrong(subscriber: SubscriberLike, path: str, found: str, expected: str, now: str) -> ConfigurationError:
    file = f"subscribers/{subscriber.name}.yaml"
    return ConfigurationError([Problem(file, 0, path, "subscriber_settings", found, expected, now)])
