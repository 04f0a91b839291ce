"""Amazon Kinesis Data Streams: the channel `kinesis`.

Acknowledges: a record of PutRecords with its SequenceNumber; the service has it in three places by then. Orders: by
subject, which is the partition key; one request is made after the other and a subject is in each at most once,
because PutRecords itself may take a later record and leave out an earlier one. Deduplicates: not at all, so
exactly-once is refused; readers drop by the event's id.

What breaks its guarantee: a repeat after a doubt is a second record, and records leave the stream after its retention
period.
"""

from __future__ import annotations

from tidings.channels.aws import Service, entry, opened, service_of
from tidings.channels.bulk import Bulk, BulkChannel
from tidings.channels.call import Outcome
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import Ready

GUARANTEE = Guarantee(
    title="Amazon Kinesis Data Streams",
    ack="the record's SequenceNumber",
    strength="A2",
    order="by subject (partition key)",
    dedup="none; readers drop by the event's id",
    breaks="a repeat after a doubt is a second record; records leave after the retention period",
    extra="aws",
)


def batch_of(service: Service, stream: str) -> Bulk:
    place = {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}

    def send(ready: tuple[Ready, ...], deadline: float) -> list[Outcome]:
        records = [{"Data": one.body, "PartitionKey": one.member.subject} for one in ready]
        answer = service.ask("put_records", deadline, Records=records, **place)
        found = []
        # One result for each record, in their order.
        for one, said in zip(ready, answer.get("Records", ()), strict=False):
            if said.get("SequenceNumber"):
                found.append(Outcome(one.member.event_id, "acknowledged", "ok", "A2"))
            else:
                found.append(entry(one, str(said.get("ErrorCode", "")), False))
        return found

    def look(deadline: float) -> None:
        service.ask("describe_stream_summary", deadline, **place)

    return Bulk(500, 5_000_000, send, look, overhead=256)


def open_sink(opening: Opening) -> BulkChannel:
    return opened(batch_of(service_of("kinesis", opening), opening.variables["stream"]), opening)
