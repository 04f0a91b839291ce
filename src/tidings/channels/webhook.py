"""CloudEvents over HTTP, signed by Standard Webhooks: the channel `webhook`.

| answer | outcome |
|---|---|
| any 2xx | acknowledged, as strong as the manifest says (A2: taken under its id; A1 for an agent); with `vars.answers: callback` accepted, until a signed callback says more |
| 3xx | transient (`redirect`): a redirect is never followed |
| 410 | terminal (`gone`): the subscription is over |
| 429; 503 with Retry-After | throttled, for that long (at most a day) |
| 408, 425, other 5xx | transient; not before the Retry-After of a 5xx |
| other 4xx | terminal |
| no answer and no byte of the request left | transient |
| no answer and some did, or the answer broke off | in doubt |

With `vars.signing` a request is signed by Standard Webhooks, by RFC 9421 or by both; with `vars.handshake` the endpoint is asked
for leave first (`handshake`).

What breaks its guarantee: an endpoint that answers 2xx before it has stored the event, or that ignores `Idempotency-Key`
and `webhook-id` (both are the event's and stay the same over attempts).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tidings.channels.addresses import BadTarget, parse_target
from tidings.channels.auth import Asks
from tidings.channels.call import Call, Capabilities, Limits, Member, Outcome, all_members, in_order, never_raises
from tidings.channels.client import Fault, Request
from tidings.channels.handshake import Door
from tidings.channels.kinds import Guarantee
from tidings.channels.manifest import Hook
from tidings.channels.members import TAKEN, Held
from tidings.channels.message_signatures import Message, sign_message
from tidings.channels.signing import Signer, sign
from tidings.channels.transcript import exchanged
from tidings.channels.verbs import Success
from tidings.channels.verdict import Judge
from tidings.stages import envelope

PING_TYPE = "tidings.ping"
GUARANTEE = Guarantee(
    title="A webhook",
    ack="any 2xx: taken under its `webhook-id` (A2); or a signed callback for each event (A4)",
    strength="A4",
    order="per subject: a later event waits until the one before it is through",
    dedup="`webhook-id` and `Idempotency-Key` stay the same at every attempt",
    breaks="an endpoint that says 2xx before it has stored the event, or that forgets ids",
    capabilities=Capabilities(idempotency_key=True),
)


@dataclass(frozen=True)
class WebhookChannel:
    """One endpoint. The client shows its secret, if it has one beside the signature."""

    client: Asks = field(repr=False)
    url: str
    hook: Hook
    limits: Limits
    keys: tuple[Signer, ...] = field(default=(), repr=False)
    judge: Judge = field(default_factory=Judge, repr=False)
    clock: Callable[[], float] = time.time
    door: Door | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        if self.hook.handshake:
            door = Door(self.client, self.url, self.hook.handshake, self.limits.per_second)
            object.__setattr__(self, "door", door)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(idempotency_key=self.hook.idempotency == "header")

    @never_raises
    def send(self, call: Call) -> list[Outcome]:
        deadline = time.monotonic() + call.timeout_s
        if self.hook.mode == "batched":
            return self._batch(call, deadline)
        held = Held()
        return [held.unless(member, lambda one: self._one(one, deadline)) for member in call.members]

    def post(self, ids: Sequence[str], body: bytes, timeout_s: float) -> Outcome:
        """One request of these events, already rendered in this endpoint's own form; what it means for all of them."""
        try:
            kind = envelope.BATCH_TYPE if self.hook.mode == "batched" else envelope.JSON_TYPE
            form = ({"Content-Type": f"{kind}; charset=utf-8"}, body)
            outcome = self._post(ids[0], ids[0], form, time.monotonic() + timeout_s)
        except Exception as error:  # as in never_raises
            return Outcome("", "in_doubt", "channel_error", detail=f"a {type(error).__name__} of ours")
        return _halved(outcome) if len(ids) > 1 else outcome

    @never_raises
    def probe(self, call: Call) -> list[Outcome]:
        """A webhook cannot be asked."""
        return all_members(call, Outcome("", "in_doubt", "no_probe", detail="a webhook has no status call"))

    def ping(self) -> Outcome:
        """A signed event of the type `tidings.ping`, about nobody; first the endpoint's leave, where it is asked for."""
        if self.door is not None and (leave := self.door.ask(15)).result != "acknowledged":
            return replace(leave, event_id="ping")
        body = {"specversion": "1.0", "id": "ping", "source": "/tidings", "type": PING_TYPE, "data": {}}
        return self._one(Member("ping", "", PING_TYPE, "", body, "ping", 1), time.monotonic() + 15)

    def close(self) -> None:
        """Connections belong to the client, which others share."""

    def _one(self, member: Member, deadline: float) -> Outcome:
        form = envelope.binary if self.hook.mode == "binary" else envelope.structured
        try:
            headers, body = form(member.body)
        except (ValueError, TypeError):
            return Outcome(member.event_id, "refused", "unrenderable", detail="the event is not JSON")
        outcome = self._post(member.event_id, member.idempotency_key, (headers, body), deadline)
        return replace(outcome, event_id=member.event_id)

    def _batch(self, call: Call, deadline: float) -> list[Outcome]:
        """One request for all that can be written; what cannot does not take the others along."""
        good, found = [], []
        for member in call.members:
            try:
                envelope.structured(member.body)
                good.append(member)
            except (ValueError, TypeError):
                found.append(Outcome(member.event_id, "refused", "unrenderable", detail="the event is not JSON"))
        if good:
            # The first member names the batch; members are deduplicated by their own ids inside it.
            form = envelope.batched([member.body for member in good])
            outcome = self._post(good[0].event_id, good[0].idempotency_key, form, deadline)
            outcome = _halved(outcome) if len(good) > 1 else outcome
            found += [self._part(outcome, member, len(good) == 1) for member in good]
        return in_order(call, found)

    def _part(self, outcome: Outcome, member: Member, alone: bool) -> Outcome:
        """The outcome of a batch for one member, which keeps nothing of the others."""
        if alone or outcome.exchange is None:
            return replace(outcome, event_id=member.event_id)
        own = replace(outcome.exchange, body=envelope.batched([member.body])[1], answer=b"")
        return replace(outcome, event_id=member.event_id, exchange=own)

    def _post(self, message_id: str, key: str, form: tuple[dict[str, str], bytes], deadline: float) -> Outcome:
        headers, body = form
        if len(body) > self.limits.max_bytes:
            return Outcome("", "refused", "too_large", detail=f"{len(body)} bytes; at most {self.limits.max_bytes}")
        left = deadline - time.monotonic()
        if left <= 0:
            return Outcome("", "transient", "not_reached", detail="the call's time was over before its turn")
        if self.door is not None and (shut := self.door.pass_through(left)) is not None:
            return shut
        whole = {**headers, "Idempotency-Key": f'"{key}"', **self._signed(message_id, body)}
        request = Request("POST", self.url, whole, body)
        found = self.client.request(request, deadline - time.monotonic())
        if isinstance(found, Fault):
            outcome = self.judge.of_fault(found)
        else:
            outcome = self.judge.of_answer(found, Success(), self.hook.ack, self.clock())
        if self.hook.answers == "callback" and outcome.result == "acknowledged":
            return replace(outcome, result="accepted", strength="A0")
        return outcome if outcome.result in TAKEN else replace(outcome, exchange=exchanged(request, found))

    def _signed(self, message_id: str, body: bytes) -> dict[str, str]:
        """The headers that say who sent this, and when."""
        said = {"webhook-id": message_id}
        if self.door is not None:
            said["WebHook-Request-Origin"] = self.door.origin
        if not self.keys:
            return said
        made, now = self.hook.signing, int(self.clock())
        said |= sign(self.keys, message_id, now, body)
        if made == "rfc9421":
            del said["webhook-signature"]
        if made != "standard":
            with contextlib.suppress(BadTarget):  # the client refuses such an address with the same words
                place = parse_target(self.url)
                target = f"{place.scheme}://{place.authority}{place.path}"
                said |= sign_message(self.keys, Message("POST", target, said, body), now)
        return said


def _halved(outcome: Outcome) -> Outcome:
    """A batch that is too large says nothing about its members: refused for good as a whole, it is halved until it fits."""
    return replace(outcome, result="terminal") if outcome.code == "too_large" else outcome
