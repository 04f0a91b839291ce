"""A Kafka cluster we may ask: the client in the JVM is asked for topics and offsets; the connection is a secret and shows in no plan, log or error."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from tidings.errors import SourceStopped
from tidings.session import jvm

SERVERS = "bootstrap.servers"
# How records are read is not for the connection to say, though a file of properties often does.
OURS = ("auto.offset.reset", "enable.auto.commit", "group.id", "interceptor.classes", "isolation.level")
ANSWER_MS = 15_000
BELIEVE_S = 10.0  # a cluster that has just started may not know its topics yet
CLIENT = "org.apache.kafka.common.errors."
REFUSED = (f"{CLIENT}AuthenticationException", f"{CLIENT}AuthorizationException")
UNKNOWN = f"{CLIENT}UnknownTopicOrPartitionException"
RETRIABLE = f"{CLIENT}RetriableException"


def properties(connection: str) -> dict[str, str]:
    """The secret is `host:port,…`, or the properties that Kafka's own tools take, one `name=value` a line."""
    joined = re.sub(r"\\\r?\n[ \t]*", "", connection)  # a line that ends with \ goes on in the next
    lines = [line.strip() for line in joined.strip().splitlines()]
    lines = [line for line in lines if line and not line.startswith(("#", "!"))]
    if len(lines) == 1 and "=" not in lines[0]:
        return {SERVERS: lines[0]}
    pairs = [line.partition("=") for line in lines]
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip() not in OURS}


@dataclass(frozen=True)
class Topic:
    """One topic as it is now: an id that no other topic ever has, and for each partition the first and the next offset."""

    id: str
    first: Mapping[str, int]
    next: Mapping[str, int]


@dataclass
class Cluster:
    """Where a source's topics are."""

    source: str
    properties: Mapping[str, str] = field(repr=False)
    jars: Callable[[], Sequence[Path]] = field(repr=False)
    _open: tuple[Any, Any] | None = field(default=None, repr=False)

    def ids(self, names: Sequence[str]) -> dict[str, str]:
        """The id of each topic; a topic that is not there raises."""
        return {name: said.topicId().toString() for name, said in self._described(names).items()}

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """Each topic with its offsets; what lies in open transactions is not there yet."""
        end = time.monotonic() + BELIEVE_S
        while (found := self._topics(names, patient=time.monotonic() < end)) is None:
            time.sleep(0.5)
        return found

    def _topics(self, names: Sequence[str], *, patient: bool) -> dict[str, Topic] | None:
        """None: the cluster knows a new topic a moment before the broker that leads it does."""
        described = self._described(names)
        with self._asked() as (java, _):
            place = java.org.apache.kafka.common.TopicPartition
            places = [place(name, part.partition()) for name, said in described.items() for part in said.partitions()]
            spec = java.org.apache.kafka.clients.admin.OffsetSpec
            try:
                first, after = (self._offsets(places, each()) for each in (spec.earliest, spec.latest))
            except Py4JJavaError as error:
                if patient and UNKNOWN in _kinds(error.java_exception):
                    return None
                raise
        ids = {name: said.topicId().toString() for name, said in described.items()}
        return {name: Topic(ids[name], first.get(name, {}), after.get(name, {})) for name in names}

    def _offsets(self, places: list[Any], spec: Any) -> dict[str, dict[str, int]]:
        java, admin = self._client()
        committed = java.org.apache.kafka.common.IsolationLevel.READ_COMMITTED
        options = java.org.apache.kafka.clients.admin.ListOffsetsOptions(committed).timeoutMs(ANSWER_MS)
        answer = admin.listOffsets(dict.fromkeys(places, spec), options)
        found: dict[str, dict[str, int]] = {}
        for place in places:
            offset = answer.partitionResult(place).get().offset()
            found.setdefault(place.topic(), {})[str(place.partition())] = offset
        return found

    def _described(self, names: Sequence[str]) -> dict[str, Any]:
        end = time.monotonic() + BELIEVE_S
        while True:
            with self._asked() as (java, admin):
                options = java.org.apache.kafka.clients.admin.DescribeTopicsOptions().timeoutMs(ANSWER_MS)
                asked = admin.describeTopics(list(names), options).topicNameValues()
                found = {name: _unless_unknown(asked[name]) for name in names}
            lacking = [name for name, said in found.items() if said is None]
            if not lacking:
                return found
            if time.monotonic() > end:
                raise self.stopped(
                    f"no topic {', '.join(lacking)}",
                    "every topic of `streams:`",
                    "Create it, or mend the name. A topic that was deleted and is made again is another topic: move the source's"
                    " folder below data/checkpoints away then, and it is read from its start.",
                )
            time.sleep(0.5)

    def _client(self) -> tuple[Any, Any]:
        if self._open is None:
            java = jvm(self.jars())
            given = java.java.util.Properties()
            for name, value in self.properties.items():
                given.setProperty(name, value)
            given.setProperty("default.api.timeout.ms", str(ANSWER_MS))
            given.setProperty("request.timeout.ms", str(ANSWER_MS // 2))
            self._open = java, java.org.apache.kafka.clients.admin.Admin.create(given)
        return self._open

    @contextmanager
    def _asked(self) -> Iterator[tuple[Any, Any]]:
        """The client; what it raises is told by its class alone, because its words may hold the address or the user."""
        try:
            yield self._client()
        except Py4JJavaError as error:
            kinds = _kinds(error.java_exception)
            said = next((name.rpartition(".")[2] for name in kinds if name.startswith(CLIENT)), kinds[0])
            if any(kind in kinds for kind in REFUSED):
                what_now = (
                    "Mend the credentials behind the reference, or grant their user Describe and Read on the topics."
                )
                raise self.stopped(
                    f"the brokers refuse us ({said})", "a user that may read", what_now, "source_denied"
                ) from None
            if RETRIABLE in kinds:
                raise SourceStopped(
                    "source_unreachable",
                    f"source {self.source}: {said}",
                    "Kafka brokers that answer",
                    "Check that they run, and bootstrap.servers behind the reference.",
                ) from None
            what_now = "Check bootstrap.servers and the security properties behind the reference."
            raise self.stopped(f"Kafka's client says {said}", "a connection it can use", what_now) from None

    def stopped(self, found: str, expected: str, what_now: str, code: str = "source_not_ready") -> SourceStopped:
        return SourceStopped(code, f"source {self.source}: {found}", expected, what_now)


def _unless_unknown(future: Any) -> Any:
    try:
        return future.get()
    except Py4JJavaError as error:
        if UNKNOWN in _kinds(error.java_exception):
            return None
        raise


def _kinds(exception: Any) -> list[str]:
    """The classes of an exception and of what caused it, with the classes above them."""
    found = []
    while exception is not None:
        kind = exception.getClass()
        while kind is not None:
            found.append(str(kind.getName()))
            kind = kind.getSuperclass()
        exception = exception.getCause()
    return found
