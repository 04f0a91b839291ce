"""A table, a stream and a queue written to at once, and a reader that is killed: every change once, in order, and nothing else."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from checker import history_of
from emulators import Endpoint, dynamodb_local, moto
from small import Small, World, small

from tidings.sources.tap import Place

pytestmark = [pytest.mark.spark, pytest.mark.timeout(2400)]
COMMON = "connection: file:{name}.connection\nbanner: shop\nlocation: online\n"
SOURCES = {
    "table": "kind: dynamodb\nentities: {customers: customer}\n",
    "stream": "kind: kinesis\nstreams: [crm]\ndialect: debezium_postgresql\nentities: {public.customers: customer}\n",
    "queue": "kind: sqs\nstreams: [hooks.fifo]\ndialect: shopify\nentities: {customers: shopper}\n",
}
PEOPLE = 12


class Writer(threading.Thread):
    """Changes of a few customers; remembers what the service took."""

    def __init__(self, write: Callable[[int, int, str], None], first: int) -> None:
        super().__init__(daemon=True)
        self.write, self.first, self.stop = write, first, threading.Event()
        self.told: list[tuple[int, str, str]] = []
        self.failed: list[BaseException] = []

    def run(self) -> None:
        draw, serial, known = random.Random(self.first), 0, set[int]()
        while not self.stop.is_set():
            serial += 1
            who, mail = self.first + draw.randrange(PEOPLE), f"c{self.first}.{serial}@example.com"
            try:
                self.write(serial, who, mail)
            except BaseException as error:
                self.failed.append(error)
                return
            self.told.append((who, "email" if who in known else "insert", mail))
            known.add(who)
            time.sleep(draw.uniform(0.4, 1.6))


def table_writer(endpoint: Endpoint) -> Callable[[int, int, str], None]:
    client = endpoint.client("dynamodb")
    client.create_table(
        TableName="customers",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )

    def write(serial: int, who: int, mail: str) -> None:
        client.put_item(
            TableName="customers", Item={"id": {"N": str(who)}, "email": {"S": mail}, "tier": {"S": "basic"}}
        )

    return write


def stream_writer(endpoint: Endpoint, folder: Path) -> Callable[[int, int, str], None]:
    client = endpoint.client("kinesis")
    client.create_stream(StreamName="crm", ShardCount=2)
    world = World(folder, ("crm",))

    def write(serial: int, who: int, mail: str) -> None:
        message = json.loads(world._act(who, "u" if who in world.rows else "c"))
        value = message["value"]
        value["after"]["email"] = mail
        world.rows[who] = value["after"]
        client.put_record(StreamName="crm", PartitionKey=str(who), Data=json.dumps(value).encode())
        if serial == 15:
            shard = client.list_shards(StreamName="crm")["Shards"][0]
            ends = [int(shard["HashKeyRange"][f"{side}HashKey"]) for side in ("Starting", "Ending")]
            client.split_shard(StreamName="crm", ShardToSplit=shard["ShardId"], NewStartingHashKey=str(sum(ends) // 2))

    return write


def queue_writer(endpoint: Endpoint, folder: Path) -> Callable[[int, int, str], None]:
    client = endpoint.client("sqs")
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "VisibilityTimeout": "5"}
    url = client.create_queue(QueueName="hooks.fifo", Attributes=attributes)["QueueUrl"]
    world, known = World(folder, ("shop",)), set[int]()

    def write(serial: int, who: int, mail: str) -> None:
        message = json.loads(world._hook(who, first=who not in known))
        message["body"]["email"] = mail
        known.add(who)
        client.send_message(QueueUrl=url, MessageBody=json.dumps(message), MessageGroupId=str(who))

    return write


def prepared(one: Small, connections: dict[str, str]) -> None:
    (one.folder / "sources" / "crm.yaml").unlink()
    for name, text in SOURCES.items():
        (one.folder / "sources" / f"{name}.yaml").write_text(text + COMMON.format(name=name))
        secret = one.folder / "secrets" / f"{name}.connection"
        secret.write_text(connections[name])
        secret.chmod(0o600)


def test_every_change_once_and_in_order(tmp_path: Path) -> None:
    with small(tmp_path, "crm") as one, dynamodb_local() as local, moto() as other:
        prepared(one, {"table": local.connection, "stream": other.connection, "queue": other.connection})
        writers = {
            "table": Writer(table_writer(local), 1000),
            "stream": Writer(stream_writer(other, tmp_path / "w1"), 2000),
            "queue": Writer(queue_writer(other, tmp_path / "w2"), 3000),
        }
        for writer in writers.values():
            writer.start()
        one.killed_at("inbox.synced")  # kept by us, and the queue does not know
        for _ in range(2):
            killed_at_work(one)
        for writer in writers.values():
            writer.stop.set()
            writer.join(30)
            assert not writer.failed
        code, said = one.run(timeout=1200)
        assert code == 0, said
        judged(one, {name: writer.told for name, writer in writers.items()})
        assert list((one.data / "inbox" / "queue").glob("*.parquet")) == [], "what is journalled leaves the inbox"


def killed_at_work(one: Small) -> None:
    """Dies at some moment after it finished a few more batches, however slow the machine is."""
    done = batches(one)
    process = one.start()
    end = time.monotonic() + 900
    try:
        while batches(one) < done + 3:
            assert process.poll() is None, process.communicate()[1][-3000:]
            assert time.monotonic() < end, "too few batches in 900 s"
            time.sleep(0.2)
        time.sleep(random.uniform(0, 3))
    finally:
        process.kill()
        process.communicate()


def batches(one: Small) -> int:
    return sum(Place(one.data / "checkpoints" / name / "stream").finished() + 1 for name in SOURCES)


def judged(one: Small, told: dict[str, list[tuple[int, str, str]]]) -> None:
    history = history_of(one)
    found = [event.what for event in history.journal]
    assert len(found) == len(set(found)), "a change came twice"
    wanted = {(source, kind, mail) for source, rows in told.items() for _, kind, mail in rows}
    assert wanted - set(found) == set(), "changes are missing"
    assert set(found) - wanted == set(), "changes that nobody made"
    ended = {(event, to) for (event, to), end in history.finals.items() if end == "acknowledged"}
    promised = [(event.event_id, to) for event in history.journal for to in ("least", "once")]
    assert [one for one in promised if one not in ended] == [], "journalled and not delivered"
    # Who is told at most once may miss what was under way when we died; nobody may be told in another order.
    known = {event.event_id: event.marker for event in history.journal}
    turn = {mail: (who, n) for rows in told.values() for n, (who, _, mail) in enumerate(rows)}
    met: dict[tuple[str, str], list[str]] = defaultdict(list)
    for arrival in history.arrivals:
        if (mail := known[arrival.event_id]) not in met[arrival.subscriber, arrival.subject]:
            met[arrival.subscriber, arrival.subject].append(mail)
    assert {to: mails for to, mails in met.items() if mails != sorted(mails, key=lambda mail: turn[mail])} == {}
