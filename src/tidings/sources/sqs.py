"""SQS queues as a source: received, made durable in the inbox, deleted from the queue.

A message's id is its place, and the time it was sent is its arrival, so one that is delivered twice is recognised. FIFO queues keep
the order of each group, because a group's next message is not handed out before the last one was deleted. What it cannot see: the
order of a standard queue, and messages that another reader of the queue deleted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tidings.sources.aws import Account, key_of
from tidings.sources.inbox import Named
from tidings.sources.pump import Queue, Received
from tidings.sources.record import record_body

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source

AT_ONCE = 10  # the service's own limit
MOST = 2_000  # messages of one look: one segment of the inbox
LOOK_S = 2.0  # how long a look takes at most; far less than a message stays hidden
WAIT_S = 2  # how long the service waits for a message to come: a look without waiting may miss what is there


@dataclass(frozen=True)
class Queues(Queue):
    """Some queues of one account."""

    account: Account
    names: tuple[str, ...]
    dialect: str = "auto"

    @property
    def source(self) -> str:
        return self.account.source

    def verify(self) -> str:
        with self.account.asked():
            client = self.account.client("sqs")
            arns = [
                client.get_queue_attributes(QueueUrl=url_of(self.account, name), AttributeNames=["QueueArn"])
                for name in self.names
            ]
            return ", ".join(str(told["Attributes"]["QueueArn"]) for told in arns)

    def receive(self) -> list[Received]:
        found: list[Received] = []
        with self.account.asked():
            for name in self.names:
                end = time.monotonic() + LOOK_S
                while len(found) < MOST and time.monotonic() < end:
                    more = self._some(name, wait=0 if found else WAIT_S)
                    found += more
                    if not more:
                        break
        return found

    def _some(self, name: str, wait: int) -> list[Received]:
        told = self.account.client("sqs").receive_message(
            QueueUrl=url_of(self.account, name),
            MaxNumberOfMessages=AT_ONCE,
            WaitTimeSeconds=wait,
            MessageSystemAttributeNames=["SentTimestamp", "MessageGroupId"],
            MessageAttributeNames=["All"],
        )
        return [self._received(name, message) for message in told.get("Messages", [])]

    def _received(self, name: str, message: Mapping[str, Any]) -> Received:
        about = message["Attributes"]
        group, sent = about.get("MessageGroupId"), int(about["SentTimestamp"])
        said = message.get("MessageAttributes", {})
        headers = {key: one["StringValue"] for key, one in said.items() if "StringValue" in one}
        value = message["Body"].encode()
        body = record_body(self.dialect, name, key_of(group or ""), value, timestamp_ms=sent, headers=headers)
        return Received(
            Named(body, f"{name}/{message['MessageId']}", sent * 1000),
            (name, message["MessageId"], message["ReceiptHandle"]),
        )

    def forget(self, received: Sequence[Received]) -> None:
        """What the queue does not delete it hands out again, and we recognise it."""
        for name in self.names:
            mine = [one.receipt for one in received if one.receipt[0] == name]
            for at in range(0, len(mine), AT_ONCE):
                entries = [{"Id": str(n), "ReceiptHandle": one[2]} for n, one in enumerate(mine[at : at + AT_ONCE])]
                with self.account.asked():
                    url = url_of(self.account, name)
                    self.account.client("sqs").delete_message_batch(QueueUrl=url, Entries=entries)


@cache
def url_of(account: Account, name: str) -> str:
    """A queue's address, asked for once."""
    return str(account.client("sqs").get_queue_url(QueueName=name)["QueueUrl"])


def queue(settings: Settings, source: Source) -> Queues:
    """The queues that the source names."""
    secret = settings.secret(source.connection).reveal() if source.connection else ""
    return Queues(Account(source.name, secret), tuple(source.streams or ()), source.dialect)
