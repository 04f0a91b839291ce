"""What would be sent, shown: the same channel, the same round, a client that keeps requests and secrets by name.

Nothing leaves and no secret is read. Where a value, a token or a signature of a secret would stand, its name does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidings.channels import SubscriberLike, http_channel, webhook_channel
from tidings.channels.auth import Auth, merged, shown
from tidings.channels.call import Call, Member, Outcome
from tidings.channels.client import MAX_ANSWER_BYTES, Answer, Request
from tidings.channels.manifest import load_manifest
from tidings.channels.message_signatures import COVERED, content_digest
from tidings.contract import LIFE_CYCLE
from tidings.errors import Refused

NAMELESS = "the secret"


@dataclass(frozen=True)
class Rendered:
    """One event's requests in the order they would leave, and what becomes of it if each is taken."""

    event: str
    outcome: str
    requests: tuple[tuple[str, Request], ...]

    def as_data(self) -> dict[str, Any]:
        return {"event": self.event, "outcome": self.outcome, "requests": [_data(*one) for one in self.requests]}


@dataclass
class _Keeping:
    """A client that answers 200 and sends nothing."""

    kept: list[Request] = field(default_factory=list)

    def request(self, request: Request, timeout_s: float, cap: int = MAX_ANSWER_BYTES) -> Answer:
        self.kept.append(request)
        return Answer(200, {"webhook-allowed-origin": "*"}, b"")


def rehearsed(subscriber: SubscriberLike, member: Member, manifests: Path | None = None) -> Rendered:
    """The requests that `member` would become for this subscriber."""
    manifest = load_manifest(subscriber.manifest, manifests)
    auth, client = merged(manifest.auth, subscriber.auth), _Keeping()
    name = (subscriber.auth.secret if subscriber.auth else None) or NAMELESS
    call = Call(subscriber.name, (member,), 30.0)
    if manifest.webhook:
        channel = webhook_channel(subscriber, manifest, client)
        [outcome] = channel.send(call)
        how = (subscriber.signing_secret, channel.hook.signing)
        requests = [("webhook", _signed(shown(auth, one, name), *how)) for one in client.kept]
    elif manifest.channel == "http":
        kept, [outcome] = http_channel(subscriber, manifest, client, f"<{name}>").rehearse(call)
        requests = [(verb, shown(_placed(auth, subscriber.url or manifest.url), one, name)) for verb, one in kept]
    else:
        what = f"the channel {manifest.channel}, which makes no HTTP request"
        raise Refused("nothing_to_render", what, "http or webhook", "Read the event itself: it goes as CloudEvents.")
    return Rendered(member.event_id, _said(outcome), tuple(requests))


def member_of(envelope: Any) -> Member:
    """A CloudEvents dict as a lane would hand it over."""
    if not isinstance(envelope, dict) or not all(isinstance(envelope.get(one), str) for one in ("id", "type")):
        raise Refused("event_file", "something else", "CloudEvents with `id`, `type` and `data`", "Mend it.")
    return Member(
        event_id=envelope["id"],
        subject=str(envelope.get("subject", "")),
        change_type=change_type_of(envelope["type"]),
        sequence=str(envelope.get("sequence", "")),
        body=envelope,
        idempotency_key=envelope["id"],
        attempt=1,
    )


def change_type_of(event_type: str) -> str:
    """`tidings.email.changed` and `tidings.customer.delete` each name their change type; any other name is one itself."""
    words = event_type.split(".")
    if len(words) == 3 and words[0] == "tidings":
        return words[2] if words[2] in LIFE_CYCLE else words[1]
    return event_type


def _placed(auth: Auth, base: str) -> Auth:
    """A token server that is told as a path stands below the subscriber's own URL."""
    if not auth.token_url.startswith("/"):
        return auth
    return auth.model_copy(update={"token_url": base.rstrip("/") + auth.token_url})


def _signed(request: Request, secret: str | None, signing: str) -> Request:
    """With every header that a signature adds, and the secret's name where its work would stand."""
    if secret is None or request.method == "OPTIONS":
        return request
    headers = {**request.headers, "webhook-timestamp": "<now>"}
    if signing != "rfc9421":
        headers["webhook-signature"] = f"v1,<HMAC-SHA256 with {secret}>"
    if signing != "standard":
        covered = " ".join(f'"{name}"' for name in COVERED)
        headers["Content-Digest"] = content_digest(request.body)
        headers["Signature-Input"] = f't0=({covered});created=<now>;keyid="<of {secret}>";alg="<of {secret}>"'
        headers["Signature"] = f"t0=:<signature with {secret}>:"
    return replace(request, headers=headers)


def _said(outcome: Outcome) -> str:
    """In words: taken as strongly as its verbs acknowledge, or why nothing would be sent."""
    if outcome.result == "acknowledged":
        return f"acknowledged at {outcome.strength} if taken"
    return f"{outcome.result}: {outcome.code}" + (f" ({outcome.detail})" if outcome.detail else "")


def _data(verb: str, request: Request) -> dict[str, Any]:
    body: Any = request.body.decode()
    if "json" in request.headers.get("Content-Type", ""):
        body = json.loads(request.body)
    return {"verb": verb, "method": request.method, "url": request.url, "headers": dict(request.headers), "body": body}
