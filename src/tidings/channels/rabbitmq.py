"""RabbitMQ: the channel `rabbitmq`, AMQP 0.9.1.

Acknowledges: a publisher confirm of a persistent, mandatory message. From a quorum queue it means that a majority has it on disk;
from a classic durable queue that this one server has. A message that no queue takes comes back before its confirm and is
`unroutable`, so that a binding that is missing is no silent loss. Orders: the queue, while it has one consumer and nothing is
requeued; one event per subject is on its way at a time. Deduplicates: nothing; `message_id` is the event's id and the same at every
attempt, for a consumer that keeps ids. A dead letter of ours can also be published to the broker's own exchange for them
(`vars.dead_letter_exchange`).

What breaks its guarantee: a queue that is not durable, an exchange that also routes elsewhere, a queue length limit that drops
the oldest (set `x-overflow: reject-publish` to be told instead), a message time to live.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tidings.channels.call import Call, Capabilities, Channel, Member, Outcome, Result
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import LOST, LineChannel, NotReached, Ready, in_waves, left, written
from tidings.channels.reach import reachable

GUARANTEE = Guarantee(
    title="RabbitMQ",
    ack="a publisher confirm: on disk at a majority of a quorum queue's servers",
    strength="A3",
    order="the queue, while it has one consumer and nothing is requeued",
    dedup="none; `message_id` stays the same at every attempt",
    breaks="a queue that is not durable; a length limit that drops the oldest; a message time to live",
    capabilities=Capabilities(),
    dead_letters="`vars.dead_letter_exchange`, with the reason as the header `tidings-reason`",
    extra="rabbitmq",
)
BURY_S = 15.0
CLOSE_S = 1.0
# What the server said when it closed the channel or the connection → our code.
REPLIES = {311: "too_large", 403: "not_permitted", 404: "not_found", 406: "precondition_failed", 530: "not_allowed"}
# Of these nothing that was not yet confirmed can have been routed.
NOTHING_DONE: dict[str, tuple[Result, str]] = {
    "not_found": ("transient", "unknown_exchange"),
    "not_permitted": ("transient", "not_permitted"),
    "too_large": ("terminal", "too_large"),
    "precondition_failed": ("terminal", "precondition_failed"),
}


def open_sink(opening: Opening) -> Channel:
    import pika  # noqa: F401

    logging.getLogger("pika").setLevel(logging.CRITICAL)  # outcomes say it; a log could say whom it was about
    own = opening.manifest.sink
    assert own is not None
    mode = opening.variables.get("mode", own.mode)
    grave = opening.variables["dead_letter_exchange"]
    return RabbitChannel(
        lambda deadline: _Line(opening, deadline), opening.limits, GUARANTEE.capabilities, mode, grave=grave
    )


class RabbitChannel(LineChannel):
    """A channel whose broker has a place for dead letters of its own."""

    def __init__(self, *given: Any, grave: str = "") -> None:
        super().__init__(*given)
        self._grave = grave

    def bury(self, member: Member, reason: str) -> Outcome:
        """Publish a dead letter to the broker's own exchange for them."""
        if not self._grave:
            return Outcome(member.event_id, "refused", "no_dead_letter_exchange", detail="vars.dead_letter_exchange")
        good, found = written([member], self.mode, self.limits.max_bytes)
        if not good:
            return found[0]
        deadline = time.monotonic() + BURY_S
        told = self._with_line(deadline, lambda line: line.publish_to(self._grave, "", good, reason, deadline))
        return replace(told, event_id=member.event_id) if isinstance(told, Outcome) else told[0]


class _Line:
    """The client's own loop runs in the caller's thread, for as long as something is waited for."""

    def __init__(self, opening: Opening, deadline: float) -> None:
        import pika

        try:
            given = pika.URLParameters(opening.connection)
        except Exception:  # the client says it in many ways, some of which repeat the password
            raise NotReached("bad_connection", "the connection is no amqp:// or amqps:// URL", "refused") from None
        self._exchange, self._key = opening.variables["exchange"], opening.variables["routing_key"]
        # A certificate is checked against the name that `ssl_options` keeps, so the address can be pinned.
        given.host = reachable(given.host, given.port, opening.network)
        given.socket_timeout = given.stack_timeout = left(deadline)
        given.connection_attempts, given.retry_delay = 1, 0
        self._last = 0  # number of the message published last; confirms speak of these
        self._waiting, self._refused, self._returned = set[int](), set[int](), set[str]()
        self._gone = ""  # why the connection or the channel ended
        self._channel: Any = None
        self._connection = pika.SelectConnection(given, self._opened, self._ended, self._ended)
        self._until(lambda: self._channel is not None, deadline)
        if self._channel is None:
            self.close()
            raise NotReached(self._gone or "not_connected", "the server did not open a channel")

    def publish(self, ready: Sequence[Ready], call: Call, deadline: float) -> list[Outcome]:
        return self.publish_to(self._exchange, self._key, ready, "", deadline)

    def publish_to(
        self, exchange: str, key: str, ready: Sequence[Ready], reason: str, deadline: float
    ) -> list[Outcome]:
        self._alive()
        return in_waves(ready, lambda wave: self._wave((exchange, key, reason), wave, deadline))

    def _wave(self, where: tuple[str, str, str], wave: list[Ready], deadline: float) -> list[Outcome]:
        left(deadline)
        if self._gone:
            raise NotReached(self._gone, "the server closed the channel")
        exchange, key, reason = where
        numbers = {}
        for one in wave:
            self._last += 1
            numbers[self._last] = one
            self._waiting.add(self._last)
            self._channel.basic_publish(exchange, key, one.body, _properties(one, reason), mandatory=True)
        self._until(lambda: not self._waiting, deadline)
        return [self._outcome(number, one) for number, one in numbers.items()]

    def _outcome(self, number: int, one: Ready) -> Outcome:
        if one.member.event_id in self._returned:
            self._returned.discard(one.member.event_id)
            return one.outcome("transient", "unroutable", "no queue takes it")
        if number in self._waiting and self._gone in NOTHING_DONE:
            return one.outcome(*NOTHING_DONE[self._gone], "the server closed the channel")
        if number in self._waiting:
            return one.outcome("in_doubt", self._gone or "no_answer", "no confirm came")
        if number in self._refused:
            return one.outcome("transient", "not_taken", "the queue did not take it")
        return one.outcome("acknowledged", "ok", strength="A3")

    def ping(self, deadline: float) -> None:
        self._alive()
        known: list[Any] = []

        def answered(frame: Any) -> None:
            known.append(frame)
            self._connection.ioloop.stop()

        if self._exchange:
            self._channel.exchange_declare(self._exchange, passive=True, callback=answered)
        else:
            self._channel.queue_declare(self._key, passive=True, callback=answered)
        self._until(lambda: bool(known), deadline)
        if not known:
            raise NotReached(self._gone or "no_answer", "the server does not know the exchange or the queue")

    def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()
            self._until(lambda: self._connection.is_closed, time.monotonic() + CLOSE_S, whole=True)
        transport = getattr(self._connection, "_transport", None)
        if transport is not None and not self._connection.is_closed:  # of a server that does not answer a farewell
            transport.abort()
            self._until(lambda: self._connection.is_closed, time.monotonic() + CLOSE_S, whole=True)
        self._connection.ioloop.close()

    def _alive(self) -> None:
        """What the server said while nobody listened: perhaps that it has closed the connection."""
        self._until(lambda: False, time.monotonic() + 0.001)
        if self._gone:
            raise NotReached(LOST, "the server had closed the connection")

    def _until(self, done: Callable[[], bool], deadline: float, *, whole: bool = False) -> None:
        """Run the client's loop until then; also until the connection is gone, unless the `whole` time is wanted."""
        loop = self._connection.ioloop
        while not done() and not (self._gone and not whole) and time.monotonic() < deadline:
            timer = loop.call_later(max(0.0, deadline - time.monotonic()), loop.stop)
            loop.start()
            loop.remove_timeout(timer)

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._ready)

    def _ready(self, channel: Any) -> None:
        def confirming(_: Any) -> None:
            self._channel = channel
            self._connection.ioloop.stop()

        channel.add_on_close_callback(self._ended)
        channel.add_on_return_callback(lambda _c, _m, properties, _b: self._returned.add(properties.message_id))
        channel.confirm_delivery(self._confirmed, callback=confirming)

    def _confirmed(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        those = {number for number in self._waiting if number == tag or (frame.method.multiple and number < tag)}
        self._waiting -= those
        if frame.method.NAME == "Basic.Nack":
            self._refused |= those
        self._connection.ioloop.stop()

    def _ended(self, _: Any, error: Any) -> None:
        self._gone = self._gone or _code(error)
        self._connection.ioloop.stop()


def _properties(one: Ready, reason: str) -> Any:
    import pika

    headers: dict[str, Any] = {f"cloudEvents:{name}": value for name, value in one.attributes.items()}
    if reason:
        headers["tidings-reason"] = reason
    return pika.BasicProperties(
        content_type=one.content_type,
        delivery_mode=2,
        message_id=one.member.idempotency_key,
        correlation_id=one.member.subject,
        headers=headers,
    )


def _code(error: Any) -> str:
    """Our word for why it ended; the client wraps what the server said in several ways."""
    seen = [error]
    for one in seen:
        seen += [*getattr(one, "exceptions", ()), *([one.exception] if hasattr(one, "exception") else [])]
    for one in seen:
        if "uthentication" in type(one).__name__:
            return "unauthorised"
        if (found := REPLIES.get(getattr(one, "reply_code", 0))) is not None:
            return found
    return "connection_closed" if hasattr(error, "reply_code") else "not_connected"
