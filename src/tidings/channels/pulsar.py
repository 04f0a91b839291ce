"""Apache Pulsar: the channel `pulsar`.

Acknowledges: the send receipt, given when a quorum of bookies has the message. Orders: the topic, per key (the subject's
pseudonym); one event per subject is on its way at a time. Deduplicates: the producer has the lane's own name, so that the broker lets
nobody else write as this lane, and with deduplication switched on in the namespace it drops what the client repeats by
itself after a lost connection. A repeat of ours is a new message: sequence numbers must rise, and a lane does not send in the
order of one counter. So exactly-once is refused.

What breaks its guarantee: deduplication switched off (the client's own repeats then show), a retention or time to live that ends before a
reader comes. The addresses that a cluster hands out in its look-ups are not seen by us; only the first one is checked.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from tidings.channels.call import Call, Capabilities, Channel, Outcome
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import LineChannel, NotReached, Ready, in_waves, left, rest
from tidings.channels.reach import reachable

GUARANTEE = Guarantee(
    title="Apache Pulsar",
    ack="the send receipt: a quorum of bookies has it",
    strength="A3",
    order="the topic, per key; the key is the subject's pseudonym",
    dedup="the client's own repeats, by producer name and sequence id, where the namespace has it on; none of ours",
    breaks="deduplication switched off; retention or a time to live that ends before a reader comes",
    capabilities=Capabilities(),
    extra="pulsar",
)
# The client's word for why → our code; nothing was stored by any of them.
CODES = {
    "TopicNotFound": "unknown_topic",
    "NotFound": "unknown_topic",
    "AuthenticationError": "unauthorised",
    "AuthorizationError": "not_permitted",
    "ProducerBusy": "producer_busy",
    "ProducerFenced": "producer_busy",
    "TopicTerminated": "topic_terminated",
    "ProducerBlockedQuotaExceededError": "quota_exceeded",
    "ProducerBlockedQuotaExceededException": "quota_exceeded",
    "ConnectError": "not_connected",
    "ConnectTimeout": "not_connected",
}


def open_sink(opening: Opening) -> Channel:
    import pulsar  # noqa: F401

    own = opening.manifest.sink
    assert own is not None
    mode = opening.variables.get("mode", own.mode)
    return LineChannel(lambda deadline: _Line(opening, deadline), opening.limits, GUARANTEE.capabilities, mode)


class _Line:
    def __init__(self, opening: Opening, deadline: float) -> None:
        import pulsar

        place = urlsplit(opening.connection.strip())
        if place.scheme not in ("pulsar", "pulsar+ssl") or not place.hostname:
            raise NotReached("bad_connection", "the connection is no pulsar:// or pulsar+ssl:// URL", "refused")
        port = place.port or (6650 if place.scheme == "pulsar" else 6651)
        address = reachable(place.hostname, port, opening.network)
        # A certificate is checked against the name, so that an encrypted connection may look it up again.
        host = place.hostname if place.scheme == "pulsar+ssl" else f"[{address}]" if ":" in address else address
        token = unquote(place.password or place.username or "")
        wait = max(1, int(left(deadline)))
        self._quiet = True  # every message that was sent has been answered
        self._client: Any = pulsar.Client(
            f"{place.scheme}://{host}:{port}",
            authentication=pulsar.AuthenticationToken(token) if token else None,
            operation_timeout_seconds=wait,
            connection_timeout_ms=wait * 1000,
            tls_validate_hostname=True,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),  # outcomes say it
        )
        try:
            self._producer = self._client.create_producer(
                opening.variables["topic"],
                producer_name=opening.variables["producer_name"] or f"tidings-{opening.name}",
                send_timeout_millis=0,  # the deadline is ours; the client must not drop one and go on with the next
                max_pending_messages=0,
            )
        except pulsar.PulsarException as error:
            self._client.close()
            detail = f"the broker did not open a producer: {type(error).__name__}"
            raise NotReached(_code(error) or "not_connected", detail) from None

    def publish(self, ready: Sequence[Ready], call: Call, deadline: float) -> list[Outcome]:
        return in_waves(ready, lambda wave: self._wave(wave, deadline))

    def _wave(self, wave: list[Ready], deadline: float) -> list[Outcome]:
        left(deadline)
        self._quiet = False
        told: dict[str, Any] = {}
        all_in = threading.Event()

        def note(one: Ready, result: Any) -> None:
            told[one.member.event_id] = result
            if len(told) == len(wave):
                all_in.set()

        for one in wave:
            headers = {"content-type": one.content_type, "id": one.member.idempotency_key}
            headers |= {f"ce_{name}": value for name, value in one.attributes.items()}
            self._producer.send_async(
                one.body,
                partial(_heard, note, one),
                properties=headers,
                partition_key=one.member.subject,
            )
        self._quiet = all_in.wait(rest(deadline))
        return [_outcome(one, told.get(one.member.event_id)) for one in wave]

    def ping(self, deadline: float) -> None:
        if not self._producer.is_connected():
            raise NotReached("not_connected", "the broker does not answer")

    def close(self) -> None:
        """`close` waits for what is on its way, so only where nothing is; it then takes as long as the broker's last word.

        `shutdown` waits for nothing but keeps Python's lock: a callback that is just returning could never end, nor its thread.
        """
        self._client.close() if self._quiet and self._producer.is_connected() else self._client.shutdown()


def _heard(note: Callable[[Ready, Any], None], one: Ready, result: Any, _: Any) -> None:
    note(one, result)


def _code(error: Any) -> str:
    return CODES.get(type(error).__name__, "") or CODES.get(getattr(error, "name", ""), "")


def _outcome(one: Ready, result: Any) -> Outcome:
    import pulsar

    if result == pulsar.Result.Ok:
        return one.outcome("acknowledged", "ok", strength="A3")
    if result == pulsar.Result.MessageTooBig:
        return one.outcome("terminal", "too_large", "the broker takes no message of this size")
    if result is not None and (code := _code(result)):
        return one.outcome("transient", code, "the broker did not take it")
    return one.outcome("in_doubt", "no_answer", "no receipt came")
