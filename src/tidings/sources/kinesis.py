"""Kinesis Data Streams as a source: the records of every shard, in order per partition key, also over a resharding.

What it cannot see: records older than the stream's retention, and those that a producer's library packed together (they are refused
one by one, as messages that are no text).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidings.sources.aws import Account, key_of
from tidings.sources.record import record_body
from tidings.sources.shards import Page, Record, Shard, Sharded
from tidings.sources.stops import not_ready

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source


@dataclass(frozen=True)
class Streams(Sharded):
    """Some streams of one account. A stream that was deleted and made again has other shards, because their names hold when it was made."""

    def verify(self) -> str:
        with self.account.asked():
            for name in self.names:
                if (status := self._summary(name)["StreamStatus"]) not in ("ACTIVE", "UPDATING"):
                    found = f"the stream {name} is {status}"
                    raise not_ready(self.source, found, "a stream that is ACTIVE", "Wait until it is, or make it.")
            return ", ".join(self._origin(name) for name in self.names)

    def _summary(self, name: str) -> dict[str, str]:
        told = self.account.client("kinesis").describe_stream_summary(StreamName=name)
        return dict(told["StreamDescriptionSummary"])

    def _origin(self, name: str) -> str:
        made = self._summary(name)["StreamCreationTimestamp"]
        return f"{name}@{round(made.timestamp())}"  # type: ignore[attr-defined]

    def keeps_s(self) -> int:
        hours = min(int(self._summary(name)["RetentionPeriodHours"]) for name in self.names)
        return hours * 3600

    def shards(self) -> list[Shard]:
        return [shard for name in self.names for shard in self._shards_of(name)]

    def _shards_of(self, name: str) -> list[Shard]:
        origin, found, more = self._origin(name), [], {"StreamName": name}
        while True:
            told = self.account.client("kinesis").list_shards(**more)
            for shard in told["Shards"]:
                parents = [shard.get("ParentShardId"), shard.get("AdjacentParentShardId")]
                above = tuple(f"{origin}/{parent}" for parent in parents if parent)
                found.append(Shard(f"{origin}/{shard['ShardId']}", above))
            if "NextToken" not in told:
                return found
            more = {"NextToken": told["NextToken"]}

    def iterator(self, shard: str, after: str) -> str:
        origin, _, name = shard.rpartition("/")
        kind = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": after}
        where = kind if after else {"ShardIteratorType": "TRIM_HORIZON"}
        stream = origin.rpartition("@")[0]
        told = self.account.client("kinesis").get_shard_iterator(StreamName=stream, ShardId=name, **where)
        return str(told["ShardIterator"])

    def page(self, shard: str, iterator: str) -> Page:
        told = self.account.client("kinesis").get_records(ShardIterator=iterator, Limit=2_000)
        stream = shard.rpartition("/")[0].rpartition("@")[0]
        records = []
        for one in told["Records"]:
            micros = round(one["ApproximateArrivalTimestamp"].timestamp() * 1_000_000)
            key = key_of(one["PartitionKey"])
            body = record_body(self.dialect, stream, key, one["Data"], timestamp_ms=micros // 1000, headers={})
            records.append(Record(one["SequenceNumber"], micros, body))
        return Page(records, told.get("NextShardIterator"), told.get("MillisBehindLatest", 0) == 0)


def tap(settings: Settings, source: Source) -> Streams:
    """The streams that the source names."""
    secret = settings.secret(source.connection).reveal() if source.connection else ""
    return Streams(Account(source.name, secret), tuple(source.streams or ()), source.dialect)
