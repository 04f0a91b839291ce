"""Google Cloud Pub/Sub over its REST interface: the channel `pubsub`.

Acknowledges: the messages' ids in the answer to `publish`, which takes a request as a whole or not at all. Orders: by
subject, which is the ordering key, for subscriptions that ask for order. Deduplicates: not at all, so exactly-once is
refused; a subscription with exactly-once delivery is about its own acknowledgements, not about a repeat of ours.
Readers drop by the event's id. Dead letters: a subscription's own topic is for what its readers fail on; what we
could not publish stays with us.

What breaks its guarantee: a topic without subscriptions keeps nothing unless it retains; publishing to one topic
through endpoints of several regions loses the order.

The secret is a service account's key file (JSON) or a bearer token.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tidings.channels.auth import Asks, Auth, Signing, Unfit, scheme_of
from tidings.channels.bulk import Bulk, BulkChannel, Refusal
from tidings.channels.call import Outcome
from tidings.channels.client import Answer, Request
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import Ready
from tidings.channels.verbs import Success
from tidings.channels.verdict import Judge
from tidings.errors import Refused

GUARANTEE = Guarantee(
    title="Google Cloud Pub/Sub",
    ack="the message's id",
    strength="A2",
    order="by subject (ordering key), for subscriptions that ask for order",
    dedup="none; readers drop by the event's id",
    breaks="a topic without subscriptions keeps nothing; endpoints of several regions lose the order",
    dead_letters="a subscription's own topic is for its readers; ours stay with us",
)
SCOPE = "https://www.googleapis.com/auth/pubsub"
LONGEST_KEY = 1024
# Wrong for everybody until somebody mends it, so nobody's event is to blame.
SHUT = {401: "unauthorised", 403: "unauthorised", 404: "no_such_place"}
_TOPIC = re.compile(r"projects/[a-z0-9:.-]{1,128}/topics/[A-Za-z][A-Za-z0-9._~+%-]{2,254}")


def batch_of(client: Asks, url: str, judge: Judge) -> Bulk:
    def send(ready: tuple[Ready, ...], deadline: float) -> list[Outcome]:
        body = json.dumps({"messages": [_message(one) for one in ready]}).encode()
        request = Request("POST", f"{url}:publish", {"Content-Type": "application/json"}, body)
        answer, outcome = _asked(client, request, deadline, judge)
        ids = _ids(answer)
        if len(ids) != len(ready):
            raise Refusal(Outcome("", "in_doubt", "answer_unreadable", status=answer.status, detail="not one id each"))
        return [replace(outcome, event_id=one.member.event_id) for one in ready]

    def look(deadline: float) -> None:
        _asked(client, Request("GET", url), deadline, judge)

    # Base64 makes four bytes of three; a request is at most 10 MB.
    return Bulk(1000, 7_000_000, send, look, overhead=1024, whole=True)


def _asked(client: Asks, request: Request, deadline: float, judge: Judge) -> tuple[Answer, Outcome]:
    found = client.request(request, max(0.01, deadline - time.monotonic()))
    if not isinstance(found, Answer):
        raise Refusal(judge.of_fault(found))
    outcome = judge.of_answer(found, Success(), "A2", time.time())
    if found.status in SHUT:
        raise Refusal(Outcome("", "transient", SHUT[found.status], detail=f"status {found.status}"))
    if outcome.result != "acknowledged":
        raise Refusal(outcome)
    return found, outcome


def _message(one: Ready) -> dict[str, Any]:
    """By the CloudEvents binding: attributes beside the data in binary form, else the whole event as data."""
    attributes = {f"ce-{name}": value for name, value in one.attributes.items()}
    data = base64.b64encode(one.body).decode()
    key = one.member.subject.encode()[:LONGEST_KEY].decode(errors="ignore")
    return {"data": data, "attributes": {**attributes, "content-type": one.content_type}, "orderingKey": key}


def _ids(answer: Answer) -> Sequence[str]:
    try:
        said = json.loads(answer.body).get("messageIds")
    except (ValueError, AttributeError, RecursionError):
        return ()
    return said if isinstance(said, list) and all(isinstance(one, str) and one for one in said) else ()


def open_sink(opening: Opening) -> BulkChannel:
    topic, sink = opening.variables["topic"], opening.manifest.sink
    assert sink is not None
    if not _TOPIC.fullmatch(topic):
        raise Refused("sink_place", repr(topic), "projects/PROJECT/topics/TOPIC", "Mend `vars.topic`.")
    kind: Any = "google" if opening.secret.lstrip().startswith("{") else "bearer"
    try:
        scheme = scheme_of(Auth(kind=kind, scope=SCOPE), opening.secret, opening.client, opening.url)
    except Unfit as reason:
        raise Refused("sink_connection", "a secret of another form", reason.expected, "Mend `auth.secret`.") from None
    url = f"{opening.url.rstrip('/')}/v1/{topic}"
    bulk = batch_of(Signing(opening.client, scheme), url, Judge(digest_key=opening.digest_key))
    return BulkChannel(bulk, opening.limits, opening.manifest.capabilities(), sink.mode)
