"""DynamoDB Streams as a source: every change of a table's items, in order per item.

    table → its streams, oldest first → shards, parents first → records

A stream that was switched off and on again is a new one: the old one is read to its end first, as long as the service keeps it.
What it cannot see: items of before the stream was switched on, and changes older than a day.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidings.sources.aws import Account
from tidings.sources.shards import Page, Record, Shard, Sharded
from tidings.sources.stops import not_ready

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source

KEEPS_S = 24 * 3600  # the service's own limit
VIEWS = ("NEW_AND_OLD_IMAGES", "NEW_IMAGE")


@dataclass(frozen=True)
class Tables(Sharded):
    """The streams of some tables."""

    def verify(self) -> str:
        with self.account.asked():
            return ", ".join(self._stream_of(table) for table in self.names)

    def _stream_of(self, table: str) -> str:
        told = self.account.client("dynamodb").describe_table(TableName=table)["Table"]
        view = told.get("StreamSpecification", {})
        if not view.get("StreamEnabled") or view.get("StreamViewType") not in VIEWS:
            found = view.get("StreamViewType", "no stream") if view.get("StreamEnabled") else "no stream"
            raise not_ready(
                self.source,
                f"the table {table} has {found}",
                f"a stream with {VIEWS[0]}, or at least {VIEWS[1]}",
                f"aws dynamodb update-table --table-name {table}"
                f" --stream-specification StreamEnabled=true,StreamViewType={VIEWS[0]}",
            )
        return str(told["LatestStreamArn"])

    def keeps_s(self) -> int:
        return KEEPS_S

    def shards(self) -> list[Shard]:
        found: list[Shard] = []
        for table in self.names:
            before: list[Shard] = []
            for arn in self._streams(table):
                shards = list(self._shards_of(arn, before))
                before = shards or before
                found += shards
        return found

    def _streams(self, table: str) -> list[str]:
        arns, more = [], {"TableName": table}
        while True:
            told = self.account.client("dynamodbstreams").list_streams(**more)
            arns += [str(stream["StreamArn"]) for stream in told["Streams"]]
            if "LastEvaluatedStreamArn" not in told:
                return sorted(arns, key=_label)
            more["ExclusiveStartStreamArn"] = told["LastEvaluatedStreamArn"]

    def _shards_of(self, arn: str, before: list[Shard]) -> Iterator[Shard]:
        """A stream's shards; its first ones wait for the last ones of the stream before it."""
        parents = {parent for shard in before for parent in shard.parents}
        waits = tuple(shard.id for shard in before if shard.id not in parents)
        more = {"StreamArn": arn}
        while True:
            told = self.account.client("dynamodbstreams").describe_stream(**more)["StreamDescription"]
            for shard in told["Shards"]:
                parent = shard.get("ParentShardId")
                yield Shard(f"{arn}/{shard['ShardId']}", (f"{arn}/{parent}",) if parent else waits)
            if "LastEvaluatedShardId" not in told:
                return
            more["ExclusiveStartShardId"] = told["LastEvaluatedShardId"]

    def iterator(self, shard: str, after: str) -> str:
        arn, _, name = shard.rpartition("/")
        kind = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": after}
        where = kind if after else {"ShardIteratorType": "TRIM_HORIZON"}
        told = self.account.client("dynamodbstreams").get_shard_iterator(StreamArn=arn, ShardId=name, **where)
        return str(told["ShardIterator"])

    def page(self, shard: str, iterator: str) -> Page:
        told = self.account.client("dynamodbstreams").get_records(ShardIterator=iterator, Limit=1000)
        arn = shard.rpartition("/")[0]
        records = [_record(record, arn) for record in told["Records"]]
        return Page(records, told.get("NextShardIterator"), not records)

    def short(self, shard: str) -> str:
        return shard.partition(":table/")[2]


def _record(record: dict[str, Any], arn: str) -> Record:
    """The record as the service hands it to every other reader: times in seconds, binary values as base64, and the stream it is of."""
    change = record["dynamodb"]
    identity = {name[0].lower() + name[1:]: value for name, value in record.get("userIdentity", {}).items()}
    told = {**record, **({"userIdentity": identity} if identity else {}), "eventSourceARN": arn}
    micros = round(change["ApproximateCreationDateTime"].timestamp() * 1_000_000)
    return Record(change["SequenceNumber"], micros, json.dumps(told, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return int(value.astimezone(UTC).timestamp())
    return b64encode(value).decode()


def _label(arn: str) -> str:
    """When the stream was made: what the last part of its name says."""
    return arn.rpartition("/")[2]


def tap(settings: Settings, source: Source) -> Tables:
    """The streams of the tables that the source names."""
    secret = settings.secret(source.connection).reveal() if source.connection else ""
    return Tables(Account(source.name, secret), tuple(sorted(source.entities)), source.dialect)
