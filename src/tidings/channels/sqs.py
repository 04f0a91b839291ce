"""Amazon SQS: the channel `sqs`.

Acknowledges: an entry of SendMessageBatch with its MessageId, after the digest in the answer matched what was sent.
Orders: a FIFO queue by MessageGroupId, which is the subject; a standard queue does not. Deduplicates: a FIFO queue by
MessageDeduplicationId, which is the event's id, for five minutes; a standard queue does not, and exactly-once is
refused for it. Dead letters: a queue's own redrive policy is about what its readers fail on; what we could not put
there stays with us.

What breaks its guarantee: a repeat after the five minutes (the lane makes none), a queue that was purged, and a
standard queue's own habit of handing a message out twice.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from tidings.channels.aws import Service, entry, opened, service_of
from tidings.channels.bulk import Bulk, BulkChannel
from tidings.channels.call import Capabilities, Outcome
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import Ready
from tidings.errors import Refused

GUARANTEE = Guarantee(
    title="Amazon SQS",
    ack="the entry's MessageId, with the digest of the body",
    strength="A2",
    order="FIFO queue: by subject (MessageGroupId); standard queue: none",
    dedup="FIFO queue: the event's id for five minutes; standard queue: none",
    breaks="a purge; a standard queue may hand a message out twice by itself",
    capabilities=Capabilities(idempotency_key=True),
    dead_letters="the queue's redrive policy is for its readers; ours stay with us",
    extra="aws",
)
_GROUP = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,./:;<=>?@\[\\\]^_`{|}~-]{1,128}")


def group_of(subject: str) -> str:
    """The subject where SQS and SNS take it as a name, else its digest."""
    return subject if _GROUP.fullmatch(subject) else hashlib.sha256(subject.encode()).hexdigest()


def numbered(number: int, one: Ready, body: str, fifo: bool) -> dict[str, Any]:
    """One entry of a batch of SQS or SNS, which call the body by different names."""
    said: dict[str, Any] = {"Id": str(number), body: one.body.decode()}
    if fifo:
        said |= {
            "MessageGroupId": group_of(one.member.subject),
            "MessageDeduplicationId": one.member.idempotency_key,
        }
    return said


def batch_of(service: Service, url: str, fifo: bool) -> Bulk:
    def send(ready: tuple[Ready, ...], deadline: float) -> list[Outcome]:
        entries = [numbered(number, one, "MessageBody", fifo) for number, one in enumerate(ready)]
        answer = service.ask("send_message_batch", deadline, QueueUrl=url, Entries=entries)
        found = {}
        for said in answer.get("Successful", ()):
            one = ready[int(said["Id"])]
            whole = said.get("MD5OfMessageBody") == hashlib.md5(one.body, usedforsecurity=False).hexdigest()
            found[one.member.event_id] = (
                Outcome(one.member.event_id, "acknowledged", "ok", "A2")
                if whole
                else Outcome(
                    one.member.event_id, "in_doubt", "digest_differs", detail="the queue has other bytes than ours"
                )
            )
        for said in answer.get("Failed", ()):
            one = ready[int(said["Id"])]
            found[one.member.event_id] = entry(one, str(said.get("Code", "")), bool(said.get("SenderFault")))
        return list(found.values())

    def look(deadline: float) -> None:
        service.ask("get_queue_attributes", deadline, QueueUrl=url, AttributeNames=["QueueArn"])

    return Bulk(10, 262_144, send, look, overhead=512)


def open_sink(opening: Opening) -> BulkChannel:
    sink, url = opening.manifest.sink, opening.variables["queue"]
    assert sink is not None
    if url.endswith(".fifo") != sink.dedup:
        expected = "a queue whose name ends in .fifo" if sink.dedup else "a standard queue"
        raise Refused("sink_place", "the other kind of queue", expected, "Name the manifest `sqs` or `sqs_fifo`.")
    return opened(batch_of(service_of("sqs", opening), url, sink.dedup), opening)
