"""What every channel over Kafka's wire shares: the connection as a secret, the producer, our words for its errors, committed calls."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidings.channels.line import LOST, NotReached, Ready, left
from tidings.channels.reach import reachable

SERVERS = "bootstrap.servers"
# What a connection may say. How messages are written is ours to say.
TAKEN = re.compile(
    r"bootstrap\.servers|security\.protocol|sasl\.(mechanisms?|username|password)|ssl\.[a-z.]+|client\.id"
)
LOGIN = re.compile(r'(username|password)="((?:[^"\\]|\\.)*)"')
OURS: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",  # as Java's own client, so that topics of both can be joined
    "log_level": 0,
    "reconnect.backoff.max.ms": 500,
}
FORGET = 2_000  # letters of the group's metadata; a broker takes 4,096 bytes unless told otherwise


@dataclass(frozen=True)
class Committed:
    """The numbers of the calls that were committed, as ranges; below `floor` nothing is known any more."""

    ranges: tuple[tuple[int, int], ...] = ()
    floor: int = 0

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.ranges)

    def plus(self, number: int) -> Committed:
        """With one more, which is larger than all of them: numbers of a lane only rise."""
        if not number or number in self:
            return self
        ranges = list(self.ranges)
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges = sorted([*ranges, (number, number)])
        made = Committed(tuple(ranges), self.floor)
        while len(str(made)) > FORGET:
            made = Committed(made.ranges[1:], made.ranges[0][1] + 1)
        return made

    def __str__(self) -> str:
        told = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)
        return f"{self.floor}:{told}"

    @classmethod
    def read(cls, text: str | None) -> Committed:
        if not text:
            return cls()
        floor, _, told = text.partition(":")
        pairs = [part.partition("-") for part in told.split(",") if part]
        return cls(tuple((int(first), int(last or first)) for first, _, last in pairs), int(floor))


def properties_of(connection: str) -> dict[str, Any]:
    """`host:port,…`, or properties as Kafka's own tools take them, one `name=value` a line."""
    from tidings.sources.kafkaserver import properties

    given = properties(connection)
    login = dict(LOGIN.findall(given.get("sasl.jaas.config", "")))
    found: dict[str, Any] = {name: value for name, value in given.items() if TAKEN.fullmatch(name)}
    found |= {f"sasl.{name}": re.sub(r"\\(.)", r"\1", value) for name, value in login.items()}
    places = found.get(SERVERS, "").split(",")
    if not all(re.fullmatch(r"\s*[^:\s]+:\d+\s*|\s*\[[0-9a-f:]+\]:\d+\s*", place) for place in places):
        raise NotReached("bad_connection", "bootstrap.servers is no list of host:port", "refused")
    return found


class Wire:
    """A producer of one topic, connected: the cluster answers, may be reached at every address it names, and has the topic."""

    def __init__(self, given: Mapping[str, Any], own: Mapping[str, Any], topic: str, network: Sequence[str]) -> None:
        from confluent_kafka import KafkaException, Producer

        for place in given[SERVERS].split(","):
            host, _, port = place.strip().rpartition(":")
            reachable(host.strip("[]"), int(port), network)
        self.topic, self._given, self._network = topic, given, network
        try:
            self.producer: Any = Producer({**given, **OURS, **own}, logger=quiet())
        except (KafkaException, ValueError):
            raise NotReached("bad_connection", "the client does not take these properties", "refused") from None

    def connected(self, deadline: float) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient

        said: list[Any] = []
        own: dict[str, Any] = {**self._given, "error_cb": said.append, "log_level": 0}
        asking = AdminClient(own, logger=quiet())
        while True:
            try:
                found = asking.list_topics(self.topic, timeout=min(1.0, left(deadline)))
                break
            except KafkaException as error:
                asking.poll(0)
                codes = [code_of(error), *map(code_of, said)]
                if "unauthorised" in codes or time.monotonic() >= deadline - 0.1:
                    code = "unauthorised" if "unauthorised" in codes else codes[0]
                    raise NotReached(code, "the cluster does not answer") from None
        for broker in found.brokers.values():
            reachable(str(broker.host), int(broker.port), self._network)
        wrong = found.topics[self.topic].error
        if wrong is not None and wrong.code() != KafkaError.LEADER_NOT_AVAILABLE:
            raise NotReached(code_of(wrong), "the topic cannot be written to")

    def produce(self, one: Ready, told: Callable[[Any, Any], None]) -> None:
        """By the CloudEvents Kafka binding; the subject's pseudonym is the key."""
        headers = [("content-type", one.content_type.encode())]
        headers += [(f"ce_{name}", value.encode()) for name, value in one.attributes.items()]
        key = one.member.subject.encode()
        self.producer.produce(self.topic, key=key, value=one.body, headers=headers, on_delivery=told)

    def flushed(self, seconds: float) -> str:
        """Empty when every message has its report; otherwise why not."""
        try:
            return "not_delivered" if self.producer.flush(seconds) > 0 else ""
        except:  # noqa: E722  a fence is raised as a KafkaError, which is no exception and which no other clause catches
            if isinstance(sys.exc_info()[1], (KeyboardInterrupt, SystemExit)):
                raise
            return LOST

    def close(self) -> None:
        """Let go of it. Its own `close` waits for a broker that may never answer; an open transaction ends at the next beginning."""
        self.producer = None


def quiet() -> logging.Logger:
    """Outcomes say what is wrong; the client would say it again on the terminal."""
    found = logging.getLogger("tidings.kafka")
    found.setLevel(logging.CRITICAL + 1)
    return found


def code_of(error: Any) -> str:
    """Our code for what the client says."""
    from confluent_kafka import KafkaError, KafkaException

    said = error.args[0] if isinstance(error, KafkaException) else error
    words = {
        KafkaError.UNKNOWN_TOPIC_OR_PART: "unknown_topic",
        KafkaError._UNKNOWN_TOPIC: "unknown_topic",
        KafkaError._UNKNOWN_PARTITION: "unknown_topic",
        KafkaError.TOPIC_AUTHORIZATION_FAILED: "not_permitted",
        KafkaError.GROUP_AUTHORIZATION_FAILED: "not_permitted",
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "not_permitted",
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: "not_permitted",
        KafkaError.SASL_AUTHENTICATION_FAILED: "unauthorised",
        KafkaError._AUTHENTICATION: "unauthorised",
        KafkaError.MSG_SIZE_TOO_LARGE: "too_large",
        KafkaError.RECORD_LIST_TOO_LARGE: "too_large",
        KafkaError._FENCED: LOST,
        KafkaError._FATAL: LOST,  # and what is thrown out of its queue then
        KafkaError._PURGE_QUEUE: LOST,
        KafkaError.PRODUCER_FENCED: LOST,
        KafkaError.INVALID_PRODUCER_EPOCH: LOST,
        KafkaError._TRANSPORT: "not_connected",
        KafkaError._ALL_BROKERS_DOWN: "not_connected",
        KafkaError._TIMED_OUT: "no_answer",
    }
    return words.get(said.code(), f"kafka_{said.name().lower().lstrip('_')}")
