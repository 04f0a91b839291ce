"""Apache Kafka: the channel `kafka`, by fenced transactions.

One transaction per call: its messages, and with them the call's number, committed as the offset of a consumer group that is named
like the transactional id and that nobody reads with. Acknowledges: the commit of the transaction, after acks=all. Orders: the
partition; the key is the subject's pseudonym, spread as Java's own client spreads it. Deduplicates: nothing by itself; instead a
doubt can be settled. `probe` begins anew under the same transactional id, which fences whoever was there before and ends its
open transaction, and then reads which calls were committed: the call happened, or it never did and never will.

What breaks its guarantee: readers without isolation.level=read_committed, a topic that got more partitions (order of a subject across that
moment), min.insync.replicas below 2, unclean leader election, offsets.retention.minutes shorter than the retry schedule or a
deleted group (a call that was committed then looks as if it never was), a second lane under the same transactional id. Brokers that a
cluster names are checked like the first ones; the client looks their names up by itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tidings.channels.call import Call, Capabilities, Channel, Outcome
from tidings.channels.kafkawire import Committed, Wire, code_of, properties_of, quiet
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import LOST, LineChannel, NotReached, Ready, left, rest

GUARANTEE = Guarantee(
    title="Apache Kafka",
    ack="the commit of a transaction, after acks=all",
    strength="A3",
    order="the partition; the key is the subject's pseudonym",
    dedup="none; a doubt is settled by fencing and reading the committed call number",
    breaks="readers without read_committed; more partitions; a deleted or expired group; a shared transactional id",
    capabilities=Capabilities(probe=True),
    extra="kafka",
)
TRANSACTION_MS = 60_000


def open_sink(opening: Opening) -> Channel:
    import confluent_kafka  # noqa: F401

    own = opening.manifest.sink
    assert own is not None
    mode = opening.variables.get("mode", own.mode)
    return LineChannel(lambda deadline: _Line(opening, deadline), opening.limits, GUARANTEE.capabilities, mode)


class _Line:
    """A producer that holds the transactional id, and the numbers that were committed under it."""

    def __init__(self, opening: Opening, deadline: float) -> None:
        self._topic = opening.variables["topic"]
        self._id = opening.variables["transactional_id"] or f"tidings-{opening.name}"
        self._network = opening.network
        self._properties = properties_of(opening.connection)
        self._wire = self._connected(deadline)
        self._group: Any = None
        self._done: Committed | None = None  # not known before the transactional id is taken
        self._served = False

    def _connected(self, deadline: float) -> Wire:
        own = {"transactional.id": self._id, "transaction.timeout.ms": TRANSACTION_MS}
        wire = Wire(self._properties, own, self._topic, self._network)
        wire.connected(deadline)
        return wire

    def _taken(self, deadline: float) -> Committed:
        """Fence whoever held the transactional id before, and learn what they committed. A ping alone does not do it."""
        from confluent_kafka import KafkaException

        try:
            self._wire.producer.init_transactions(left(deadline))
            return self._read(deadline)
        except KafkaException as error:
            raise NotReached(code_of(error), "the transactional id could not be taken") from None

    def _read(self, deadline: float) -> Committed:
        from confluent_kafka import Consumer

        reading = {"group.id": self._id, "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._group = Consumer({**self._properties, **reading, "log_level": 0}, logger=quiet())
        (found,) = self._group.committed([self._place()], timeout=left(deadline))
        if found.error is not None:
            raise NotReached(code_of(found.error), "the group of committed calls cannot be read")
        return Committed.read(found.metadata if found.offset >= 0 else "")

    def _place(self, number: int = 0, text: str = "") -> Any:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._topic, 0, number, text) if text else TopicPartition(self._topic, 0)

    def publish(self, ready: Sequence[Ready], call: Call, deadline: float) -> list[Outcome]:
        from confluent_kafka import KafkaException

        self._done = self._done or self._taken(deadline)
        producer, done = self._wire.producer, self._done.plus(call.number)
        try:
            producer.begin_transaction()
            failed = self._produced(self._wire, ready, deadline)
            if failed == "too_large":  # the broker refuses a batch as a whole: alone in its call the large one is found
                producer.abort_transaction(rest(deadline))
                return [one.outcome("terminal", failed, "the topic takes no message of this size") for one in ready]
            if failed:
                raise self._undone(failed)
            group = self._group.consumer_group_metadata()
            producer.send_offsets_to_transaction([self._place(call.number, str(done))], group, left(deadline))
        except KafkaException as error:
            raise self._undone(code_of(error)) from None
        doubt = self._commit(producer, deadline)
        if doubt:
            detail = "whether the transaction was committed is not known"
            return [one.outcome("in_doubt", doubt, detail) for one in ready]
        self._done, self._served = done, True
        return [one.outcome("acknowledged", "ok", strength="A3", reference=str(call.number)) for one in ready]

    def _produced(self, wire: Wire, ready: Sequence[Ready], deadline: float) -> str:
        """Empty when the brokers have all of it; otherwise why not."""
        wrong: list[str] = []

        def told(error: Any, _: Any) -> None:
            wrong.extend([] if error is None else [code_of(error)])

        for one in ready:
            wire.produce(one, told)
        if failed := wire.flushed(left(deadline)):
            return failed
        return "too_large" if "too_large" in wrong else "".join(wrong[:1])

    def _undone(self, code: str) -> NotReached:
        """Nothing was committed. On a line that has served before the reason may be a fence, so that a new one is worth a try."""
        return NotReached(LOST if self._served else code, "the transaction was not committed")

    def _commit(self, producer: Any, deadline: float) -> str:
        """Empty when the commit is known; NotReached when it is known not to be; else the code of the doubt."""
        from confluent_kafka import KafkaException

        while True:
            try:
                producer.commit_transaction(rest(deadline))
                return ""
            except KafkaException as error:
                said = error.args[0]
                if said.txn_requires_abort():
                    raise self._undone(code_of(error)) from None
                if said.fatal() or not said.retriable() or time.monotonic() >= deadline:
                    return code_of(error)

    def ask(self, call: Call, deadline: float) -> list[Outcome]:
        if self._done is not None:  # somebody else may have held the id since
            self._wire = self._connected(deadline)
        self._done = self._taken(deadline)
        return [_told(member.event_id, member.sent_in, self._done) for member in call.members]

    def ping(self, deadline: float) -> None:
        self._wire.connected(deadline)

    def close(self) -> None:
        self._group = None
        self._wire.close()


def _told(event_id: str, number: int, done: Committed) -> Outcome:
    if not number or number < done.floor:
        return Outcome(event_id, "in_doubt", "forgotten", detail="the group does not reach back to that call")
    if number in done:
        return Outcome(event_id, "acknowledged", "probed", "A3", reference=str(number))
    return Outcome(event_id, "transient", "never_committed", detail="the call's transaction was not committed")
