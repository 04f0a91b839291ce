"""CloudEvents over HTTP, signed by Standard Webhooks: the channel `webhook`.

| answer | outcome |
|---|---|
| any 2xx | acknowledged, as strong as the manifest says (A2: taken under its id; A1 for an agent) |
| 3xx | transient (`redirect`): a redirect is never followed |
| 410 | terminal (`gone`): the subscription is over |
| 429; 503 with Retry-After | throttled, for that long (at most a day) |
| 408, 425, other 5xx | transient |
| other 4xx | terminal |
| no answer and no byte of the request left | transient |
| no answer and some did, or the answer broke off | in doubt |

What breaks its guarantee: an endpoint that answers 2xx before it has stored the event, or that ignores `Idempotency-Key`
and `webhook-id` (both are the event's and stay the same over attempts).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidings.channels.call import Call, Capabilities, Limits, Member, Outcome, all_members, in_order, never_raises
from tidings.channels.client import Client, Fault, Request
from tidings.channels.manifest import Hook, Success
from tidings.channels.members import Held
from tidings.channels.signing import sign
from tidings.channels.verdict import Judge
from tidings.stages import envelope

PING_TYPE = "tidings.ping"


@dataclass(frozen=True)
class WebhookChannel:
    """One endpoint. `headers` are its authentication, ready to send."""

    client: Client
    url: str
    hook: Hook
    limits: Limits
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    judge: Judge = field(default_factory=Judge, repr=False)
    clock: Callable[[], float] = time.time

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

    @never_raises
    def probe(self, call: Call) -> list[Outcome]:
        """A webhook cannot be asked."""
        return all_members(call, Outcome("", "in_doubt", "no_probe", detail="a webhook has no status call"))

    def ping(self) -> Outcome:
        """A signed event of the type `tidings.ping`, about nobody."""
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
            found += [replace(outcome, event_id=member.event_id) for member in good]
        return in_order(call, found)

    def _post(self, message_id: str, key: str, form: tuple[dict[str, str], bytes], deadline: float) -> Outcome:
        headers, body = form
        if len(body) > self.limits.max_bytes:
            return Outcome("", "refused", "too_large", detail=f"{len(body)} bytes; at most {self.limits.max_bytes}")
        left = deadline - time.monotonic()
        if left <= 0:
            return Outcome("", "transient", "not_reached", detail="the call's time was over before its turn")
        signed: Mapping[str, str] = {"webhook-id": message_id}
        if self.keys:
            signed = sign(self.keys, message_id, int(self.clock()), body)
        whole: dict[str, Any] = {**headers, **self.headers, **signed, "Idempotency-Key": f'"{key}"'}
        found = self.client.request(Request("POST", self.url, whole, body), left)
        if isinstance(found, Fault):
            return self.judge.of_fault(found)
        return self.judge.of_answer(found, Success(), self.hook.ack, self.clock())
