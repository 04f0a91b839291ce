"""Shards, queues and the accounts they live in, without Spark: what is read, what is read again, and what stops with which remedy."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from emulators import Endpoint, dynamodb_local, moto

from tidings.errors import Refused, SourceStopped
from tidings.seal.keyring import Keyring, associated, open_payload
from tidings.sources import shards
from tidings.sources.aws import Account, parts_of
from tidings.sources.dynamodb import Tables
from tidings.sources.kinesis import Streams
from tidings.sources.pump import Pump
from tidings.sources.sqs import Queues
from tidings.sources.tap import Offset, Taken

STREAM = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}


@pytest.fixture(scope="module")
def dynamodb() -> Iterator[Endpoint]:
    with dynamodb_local() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def aws() -> Iterator[Endpoint]:
    with moto() as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(shards, "LIST_EVERY_S", -1.0)


def table(endpoint: Endpoint, stream: dict[str, Any] | None = STREAM) -> str:
    name = f"t{uuid.uuid4().hex[:8]}"
    endpoint.client("dynamodb").create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
        BillingMode="PAY_PER_REQUEST",
        **({"StreamSpecification": stream} if stream else {}),
    )
    return name


def put(endpoint: Endpoint, name: str, who: int, **more: dict[str, Any]) -> None:
    endpoint.client("dynamodb").put_item(TableName=name, Item={"id": {"N": str(who)}, **more})


def followed(tap: shards.Sharded, start: Offset, looks: int = 6) -> tuple[list[Taken], Offset]:
    """What comes in as many looks; each range read twice gives the same."""
    found: list[Taken] = []
    for _ in range(looks):
        end = tap.latest(start)
        once = list(tap.read(start, end))
        assert list(tap.read(start, end)) == once
        found, start = found + once, end
    return found, start


def stops(tap: Any, code: str, *args: Any) -> SourceStopped:
    with pytest.raises(SourceStopped) as stopped:
        tap(*args)
    assert stopped.value.code == code
    return stopped.value


def test_a_tables_changes(dynamodb: Endpoint) -> None:
    name = table(dynamodb)
    tap = Tables(Account("crm", dynamodb.connection), (name,), "dynamodb_streams")
    assert name in tap.verify()
    put(dynamodb, name, 1, email={"S": "jo\u00e9@example.com"}, raw={"B": b"\x00\xff"}, score={"N": "1.50"})
    put(dynamodb, name, 1, email={"S": "new@example.com"})
    dynamodb.client("dynamodb").delete_item(TableName=name, Key={"id": {"N": "1"}})
    found, end = followed(tap, tap.first())
    told = [json.loads(one.body) for one in found]
    assert [one["eventName"] for one in told] == ["INSERT", "MODIFY", "REMOVE"]
    assert told[0]["dynamodb"]["NewImage"]["raw"] == {"B": "AP8="}
    assert told[1]["dynamodb"]["OldImage"]["email"] == {"S": "jo\u00e9@example.com"}
    assert isinstance(told[0]["dynamodb"]["ApproximateCreationDateTime"], int)
    assert f":table/{name}/stream/" in told[0]["eventSourceARN"]
    assert len({one.place for one in found}) == 3
    assert [one.rank for one in found] == sorted(one.rank for one in found)
    assert tap.size(tap.first(), end) == sum(len(one.body) for one in found)
    assert tap.latest(end) == end


def test_a_stream_that_was_switched_on_anew_follows_the_old_one(dynamodb: Endpoint) -> None:
    name = table(dynamodb)
    tap, client = Tables(Account("crm", dynamodb.connection), (name,)), dynamodb.client("dynamodb")
    put(dynamodb, name, 1)
    client.update_table(TableName=name, StreamSpecification={"StreamEnabled": False})
    assert "no stream" in stops(tap.verify, "source_not_ready").found
    put(dynamodb, name, 2)
    time.sleep(1.1)  # a stream's name is the time it was made
    client.update_table(TableName=name, StreamSpecification=STREAM)
    put(dynamodb, name, 3)
    found, _ = followed(tap, tap.first())
    told = [json.loads(one.body) for one in found]
    assert [one["dynamodb"]["Keys"]["id"]["N"] for one in told] == ["1", "3"]
    assert told[0]["eventSourceARN"] != told[1]["eventSourceARN"]


def test_a_place_that_is_gone_or_old_stops_with_the_remedy(dynamodb: Endpoint) -> None:
    name = table(dynamodb)
    tap = Tables(Account("crm", dynamodb.connection), (name,))
    put(dynamodb, name, 1)
    _, end = followed(tap, tap.first())
    late = {**end, "seen": end["seen"] - 25 * 3600}
    assert "checkpoint folder" in stops(tap.latest, "source_purged", late).what_now
    other = {**end, "shards": {f"{place}-older": at for place, at in end["shards"].items()}}
    assert "was not read to its end" in stops(tap.latest, "source_purged", other).found
    more = {**end, "shards": {place: [at[0] + "9", at[1] + 1, at[2], True] for place, at in end["shards"].items()}}
    shards.PATIENCE_S, before = 1.0, shards.PATIENCE_S
    try:
        assert "no longer kept" in stops(lambda: list(tap.read(end, more)), "source_purged").found
    finally:
        shards.PATIENCE_S = before
    quiet = {**end, "seen": end["seen"] - 2 * 3600}
    assert tap.latest(quiet)["seen"] > end["seen"] - 60, "the place of a quiet stream is renewed"


def test_views_without_images_are_refused(dynamodb: Endpoint) -> None:
    name = table(dynamodb, {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"})
    stopped = stops(Tables(Account("crm", dynamodb.connection), (name,)).verify, "source_not_ready")
    assert "KEYS_ONLY" in stopped.found
    assert "update-table" in stopped.what_now


def test_children_come_after_their_parents(aws: Endpoint) -> None:
    client = aws.client("kinesis")
    client.create_stream(StreamName="orders", ShardCount=2)
    tap = Streams(Account("shop", aws.connection), ("orders",), "debezium_postgresql")
    assert tap.verify().startswith("orders@")

    def write(first: int) -> None:
        for n in range(first, first + 40):
            client.put_record(
                StreamName="orders", PartitionKey=json.dumps({"id": n % 10}), Data=json.dumps({"n": n}).encode()
            )

    write(0)
    before, place = followed(tap, tap.first(), looks=2)
    write(40)
    halves = client.list_shards(StreamName="orders")["Shards"]
    middle = (int(halves[0]["HashKeyRange"]["EndingHashKey"]) + int(halves[0]["HashKeyRange"]["StartingHashKey"])) // 2
    client.split_shard(StreamName="orders", ShardToSplit=halves[0]["ShardId"], NewStartingHashKey=str(middle))
    write(80)
    after, place = followed(tap, place)
    found = [json.loads(one.body) for one in before + after]
    assert len({one.place for one in before + after}) == len(found) == 120
    for key in range(10):
        mine = [one["value"]["n"] for one in found if one["key"] == {"id": key}]
        assert mine == sorted(mine)
    assert found[0]["topic"] == "orders"
    assert tap.latest(place) == place


def test_a_stream_made_anew_is_not_read_on_in_silence(aws: Endpoint) -> None:
    client = aws.client("kinesis")
    client.create_stream(StreamName="again", ShardCount=1)
    tap = Streams(Account("shop", aws.connection), ("again",))
    client.put_record(StreamName="again", PartitionKey="k", Data=b"\xff\xfe not text")
    found, place = followed(tap, tap.first())
    with pytest.raises(json.JSONDecodeError):
        json.loads(found[0].body)
    client.delete_stream(StreamName="again")
    stops(tap.verify, "source_not_ready")
    time.sleep(1.1)
    client.create_stream(StreamName="again", ShardCount=1)
    assert "made anew" in stops(tap.latest, "source_purged", place).found
    client.put_record(StreamName="again", PartitionKey="k", Data=b"{}")
    new, _ = followed(tap, tap.first())
    assert new[0].place != found[0].place
    assert stops(tap.latest, "source_purged", {**tap.latest(tap.first()), "seen": 1}).code


def test_a_message_is_durable_before_its_queue_forgets_it(aws: Endpoint, tmp_path: Path) -> None:
    client = aws.client("sqs")
    url = client.create_queue(
        QueueName="hooks.fifo",
        Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true", "VisibilityTimeout": "2"},
    )["QueueUrl"]
    for n in range(25):
        client.send_message(QueueUrl=url, MessageBody=json.dumps({"n": n}), MessageGroupId=f"g{n % 2}")
    queue, keyring = Queues(Account("hooks", aws.connection), ("hooks.fifo",), "shopify"), Keyring(b"\x07" * 32)
    assert queue.verify().endswith(":hooks.fifo")
    first = queue.receive()  # and dies before it is kept
    assert [json.loads(one.message.body)["n"] for one in first] == list(range(10))
    time.sleep(2.2)
    pump = Pump(queue, tmp_path / "inbox", keyring)
    end = time.monotonic() + 30
    while not pump.dry and time.monotonic() < end:
        pump.step()
    rows = [row for path in sorted((tmp_path / "inbox").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    key = keyring.derive("inbox")
    told = [
        (row["place"], json.loads(open_payload(key, associated("inbox", row["place"], "body"), row["sealed"])))
        for row in rows
    ]
    # The emulator hands out in another order what becomes visible again; what comes for the first time must stay in order.
    again = {one.message.place for one in first}
    fresh = [one["n"] for place, one in told if place not in again]
    assert [n for n in fresh if n % 2] == [11, 13, 15, 17, 19, 21, 23]
    assert [n for n in fresh if not n % 2] == [10, 12, 14, 16, 18, 20, 22, 24]
    assert sorted(one["n"] for _, one in told) == list(range(25))
    assert {one.message.place for one in first} <= {place for place, _ in told}, "the same name each time"
    assert {one.message.micros for one in first} <= {round(row["arrived"].timestamp() * 1_000_000) for row in rows}
    assert pump.waiting(), "what is in the inbox is not in the journal"
    pump.retire([path.name for path in (tmp_path / "inbox").iterdir()])
    assert not pump.waiting()
    stops(replace(queue, names=("no-such-queue",)).receive, "source_not_ready")


def test_a_server_that_is_gone_is_asked_again() -> None:
    with moto() as endpoint:
        endpoint.client("sqs").create_queue(QueueName="q")
        pump = Pump(Queues(Account("q", endpoint.connection), ("q",)), endpoint.folder, Keyring(b"\x07" * 32))
        endpoint.stop()
        pump.step()
        assert pump.trouble is not None
        assert pump.trouble.code == "source_unreachable"
        assert pump.waiting()
        assert "hush" not in str(pump.trouble) + repr(pump)
        endpoint.start()
        endpoint.client("sqs").create_queue(QueueName="q")
        pump.step()
        assert pump.trouble is None


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("ExpiredTokenException", "source_denied"),
        ("AccessDeniedException", "source_denied"),
        ("TrimmedDataAccessException", "source_purged"),
        ("ResourceNotFoundException", "source_not_ready"),
        ("ProvisionedThroughputExceededException", "source_unreachable"),
        ("InternalServerError", "source_unreachable"),
    ],
)
def test_what_a_service_says_is_told_apart(code: str, wanted: str) -> None:
    assert Account("crm").stopped(code).code == wanted


def test_connections() -> None:
    told = {"region_name": "eu-west-1", "endpoint_url": "https://host:8000"}
    keys = {"aws_access_key_id": "ME", "aws_secret_access_key": "a/b"}
    assert parts_of("https://ME:a%2Fb@host:8000/?region=eu-west-1") == told | keys
    assert parts_of('{"region": "eu-west-1"}') == {"region_name": "eu-west-1"}
    for wrong in ('{"regions": "x"}', "hunter2", '{"region": 1}', "{"):
        with pytest.raises(Refused) as refused:
            parts_of(wrong)
        assert "hunter2" not in str(refused.value)
