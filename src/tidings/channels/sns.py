"""Amazon SNS: the channel `sns`.

Acknowledges: an entry of PublishBatch with its MessageId. Orders: a FIFO topic by MessageGroupId, which is the
subject; a standard topic does not. Deduplicates: a FIFO topic by the event's id for five minutes; a standard topic
does not.

What breaks its guarantee: who has subscribed. A topic without subscribers takes everything and keeps nothing, and
what happens behind it (a filter, a failed endpoint) is not seen from here; give each subscription a dead-letter queue
of its own.
"""

from __future__ import annotations

from tidings.channels.aws import Service, entry, opened, service_of
from tidings.channels.bulk import Bulk, BulkChannel
from tidings.channels.call import Capabilities, Outcome
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import Ready
from tidings.channels.sqs import numbered
from tidings.errors import Refused

GUARANTEE = Guarantee(
    title="Amazon SNS",
    ack="the entry's MessageId: the topic took it",
    strength="A2",
    order="FIFO topic: by subject (MessageGroupId); standard topic: none",
    dedup="FIFO topic: the event's id for five minutes; standard topic: none",
    breaks="a topic nobody subscribed to keeps nothing; what a subscription's filter or endpoint does is not seen",
    capabilities=Capabilities(idempotency_key=True),
    dead_letters="a subscription's redrive policy is its own; ours stay with us",
    extra="aws",
)


def batch_of(service: Service, topic: str, fifo: bool) -> Bulk:
    def send(ready: tuple[Ready, ...], deadline: float) -> list[Outcome]:
        entries = [numbered(number, one, "Message", fifo) for number, one in enumerate(ready)]
        answer = service.ask("publish_batch", deadline, TopicArn=topic, PublishBatchRequestEntries=entries)
        found = []
        for said in answer.get("Successful", ()):
            found.append(Outcome(ready[int(said["Id"])].member.event_id, "acknowledged", "ok", "A2"))
        for said in answer.get("Failed", ()):
            found.append(entry(ready[int(said["Id"])], str(said.get("Code", "")), bool(said.get("SenderFault"))))
        return found

    def look(deadline: float) -> None:
        service.ask("get_topic_attributes", deadline, TopicArn=topic)

    return Bulk(10, 262_144, send, look, overhead=512)


def open_sink(opening: Opening) -> BulkChannel:
    sink, topic = opening.manifest.sink, opening.variables["topic"]
    assert sink is not None
    if topic.endswith(".fifo") != sink.dedup:
        expected = "a topic whose name ends in .fifo" if sink.dedup else "a standard topic"
        raise Refused("sink_place", "the other kind of topic", expected, "Name the manifest `sns` or `sns_fifo`.")
    return opened(batch_of(service_of("sns", opening), topic, sink.dedup), opening)
