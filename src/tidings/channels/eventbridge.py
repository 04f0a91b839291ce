"""Amazon EventBridge: the channel `eventbridge`. The CloudEvents document is the `Detail`, its type the `DetailType`.

Acknowledges: an entry of PutEvents with its EventId: the bus took it. Orders: not at all. Deduplicates: not at all,
so exactly-once is refused; targets drop by the event's id and order by `subjectseq`, both in the document.

What breaks its guarantee: rules. An event that no rule matches is gone, and what happens behind a rule is not seen
from here; give each target a dead-letter queue of its own. An entry is at most 256 KB.
"""

from __future__ import annotations

from tidings.channels.aws import Service, entry, opened, service_of
from tidings.channels.bulk import Bulk, BulkChannel
from tidings.channels.call import Outcome
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import Ready

GUARANTEE = Guarantee(
    title="Amazon EventBridge",
    ack="the entry's EventId: the bus took it",
    strength="A2",
    order="none; order by `subjectseq`",
    dedup="none; targets drop by the event's id",
    breaks="an event that no rule matches is gone; what happens behind a rule is not seen",
    dead_letters="a target's own queue is for its rule; ours stay with us",
    extra="aws",
)


def batch_of(service: Service, bus: str, source: str) -> Bulk:
    def send(ready: tuple[Ready, ...], deadline: float) -> list[Outcome]:
        entries = [
            {
                "Source": source,
                "DetailType": str(one.member.body.get("type", one.member.change_type))[:128],
                "Detail": one.body.decode(),
                "EventBusName": bus,
            }
            for one in ready
        ]
        answer = service.ask("put_events", deadline, Entries=entries)
        found = []
        for one, said in zip(ready, answer.get("Entries", ()), strict=False):
            if said.get("EventId"):
                found.append(Outcome(one.member.event_id, "acknowledged", "ok", "A2"))
            else:
                code = str(said.get("ErrorCode", ""))
                found.append(entry(one, code, code not in ("InternalFailure", "InternalException", "")))
        return found

    def look(deadline: float) -> None:
        service.ask("describe_event_bus", deadline, Name=bus)

    return Bulk(10, 262_144, send, look, overhead=1024)


def open_sink(opening: Opening) -> BulkChannel:
    return opened(
        batch_of(service_of("events", opening), opening.variables["bus"], opening.variables["source"]), opening
    )
