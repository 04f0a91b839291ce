"""A real broker that restarts, forgets and is set up anew, and a reader that is killed: every record once, in order per subject, or a stop that says why."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from at_hand import unavailable
from checker import check
from kafka_server import Broker, broker, free_port
from pyspark.sql import SparkSession
from small import SUBSCRIBERS, Small, small

from tidings.errors import SourceStopped
from tidings.jars import KAFKA, fetched
from tidings.sources.kafka import Kafka
from tidings.sources.kafkaserver import Cluster, properties
from tidings.sources.tap import Place

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
TOPIC = "crm.public.customers"
AHEAD = 120  # deliveries that the connector is ahead of: a slow machine gets no endless backlog
PASSWORD = "a-password-nobody-may-see"
SOURCE = f"""\
kind: kafka
connection: file:crm.connection
streams: [{TOPIC}]
dialect: debezium_postgresql
entities: {{public.customers: customer}}
banner: shop
location: online
"""


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    with broker(PASSWORD) as one:
        if one is None:
            unavailable("Kafka's jars could not be fetched from Maven Central")
        assert one is not None
        yield one


def log_of(one: Broker, folder: Path, *names: str, connection: str = "") -> Kafka:
    cluster = Cluster("crm", properties(connection or one.connection), lambda: fetched(KAFKA))
    return Kafka(cluster, names, "auto", folder)


def at(log: Kafka, offsets: dict[str, dict[str, int]]) -> None:
    """As if a finished batch of the stream had come this far."""
    for part in ("offsets", "commits"):
        path = log.checkpoint / "stream" / part / "0"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"v1\n{{}}\n{json.dumps(offsets)}")


def stopped(log: Kafka) -> SourceStopped:
    with pytest.raises(SourceStopped) as caught:
        log.verified()
    said = str(caught.value)
    assert PASSWORD not in said
    assert "127.0.0.1" not in said
    return caught.value


def test_a_place_is_in_one_topic_and_no_record_is_passed_over(kafka: Broker, tmp_path: Path) -> None:
    kafka.create("places", 2)
    log = log_of(kafka, tmp_path, "places").verified()
    assert log.first() == log.latest(log.first()) == {"places": {"0": 0, "1": 0}}
    kafka.send("places", *[(b"k", str(n).encode()) for n in range(10)], partition=1)
    assert log.latest(log.first()) == {"places": {"0": 0, "1": 10}}
    assert Place(tmp_path / "stream").behind(log)

    at(log, {"places": {"0": 0, "1": 4}})
    kafka.purge("places", {1: 4})
    assert log.verified().verify() == f"places/{dict(log.ids)['places']}", "what was read may go"
    kafka.widen("places", 3)
    assert log.latest({"places": {"0": 0, "1": 4}}) == {"places": {"0": 0, "1": 10, "2": 0}}, "a new partition is read"

    kafka.purge("places", {1: 7})
    error = stopped(log)
    assert error.code == "source_not_ready"
    assert "the records 4 to 6 in partition 1 of places were removed before they were read" in error.found
    assert "Load a snapshot" in error.what_now

    at(log, {"places": {"0": 0, "1": 99, "2": 0}})
    error = stopped(log)
    assert error.code == "source_went_back"
    assert "ends at 10, before our place 99" in error.found

    at(log, {"places": {"0": 0, "1": 8, "2": 0}})
    kafka.delete("places")
    kafka.create("places", 3)
    kafka.send("places", *[(b"k", str(n).encode()) for n in range(20)], partition=1)
    error = stopped(log)
    assert error.code == "source_went_back", "its offsets alone would fit"
    assert "the topic places was deleted and made again" in error.found
    with pytest.raises(SourceStopped, match="made again"):
        log.still()
    assert "data/checkpoints" in error.what_now


def test_what_stands_in_the_way_is_told_apart(kafka: Broker, tmp_path: Path, spark: SparkSession) -> None:
    """Also beside a session whose JVM is another one and would be asked what our client's exceptions are."""
    assert spark.range(1).count() == 1
    kafka.create("told", 1)
    error = stopped(log_of(kafka, tmp_path, "told", "absent"))
    assert (error.code, error.found) == ("source_not_ready", "source crm: no topic absent")
    wrong = kafka.connection.replace(PASSWORD, "another")
    error = stopped(log_of(kafka, tmp_path, "told", connection=wrong))
    assert (error.code, error.found) == (
        "source_denied",
        "source crm: the brokers refuse us (SaslAuthenticationException)",
    )
    away = kafka.connection.replace(kafka.address, f"127.0.0.1:{free_port()}")
    error = stopped(log_of(kafka, tmp_path, "told", connection=away))
    assert (error.code, error.found) == ("source_unreachable", "source crm: TimeoutException")
    assert log_of(kafka, tmp_path, "told", connection=away).still() is False, "asked again with the next batch"
    error = stopped(log_of(kafka, tmp_path, "told", connection=f"{kafka.connection}security.protocol=NO_SUCH\n"))
    assert (error.code, error.expected) == ("source_not_ready", "a connection it can use")
    error = stopped(replace(log_of(kafka, tmp_path, "told"), names=("told",), checkpoint=elsewhere(tmp_path)))
    assert "our place is in the topic gone too" in error.found
    assert PASSWORD not in repr(log_of(kafka, tmp_path, "told"))


def elsewhere(folder: Path) -> Path:
    log = Kafka(Cluster("crm", {}, list), (), "auto", folder / "elsewhere")
    at(log, {"told": {"0": 0}, "gone": {"0": 3}})
    return log.checkpoint


def test_the_secret_is_an_address_or_what_kafkas_own_tools_take() -> None:
    assert properties("a:9092,b:9092\n") == {"bootstrap.servers": "a:9092,b:9092"}
    text = '# ours\nbootstrap.servers = a:9092\n\nsasl.jaas.config=x required \\\n  a="b";\ngroup.id=tools\n'
    assert properties(text) == {"bootstrap.servers": "a:9092", "sasl.jaas.config": 'x required a="b";'}


class Connector(threading.Thread):
    """Writes what a Debezium connector would, keyed by customer, while others restart; deletes are followed by tombstones."""

    def __init__(self, kafka: Broker, one: Small) -> None:
        super().__init__(daemon=True)
        self.kafka, self.one, self.stop, self.rounds = kafka, one, threading.Event(), 0
        self.sent: list[tuple[bytes, bytes | None]] = []

    def run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(self.kafka.client(**{"enable.idempotence": True, "log_level": 0}))
        while not self.stop.wait(0.3):
            if len(self.one.world.events) * len(SUBSCRIBERS) - len(self.one.arrivals()) > AHEAD:
                continue
            for key, value in self._round():
                producer.produce(TOPIC, key=key, value=value)
                self.sent.append((key, value))
            producer.poll(0)
        assert producer.flush(120) == 0

    def _round(self) -> Iterator[tuple[bytes, bytes | None]]:
        for line in self.one.world._crm(self.rounds)[:-1]:
            record = json.loads(line)
            key = json.dumps(record["key"]).encode()
            yield key, json.dumps(record["value"]).encode()
            if record["value"]["op"] == "d":
                yield key, None
        self.rounds += 1


def prepared(one: Small, kafka: Broker) -> None:
    (one.folder / "sources" / "crm.yaml").write_text(SOURCE)
    secret = one.folder / "secrets" / "crm.connection"
    secret.write_text(kafka.connection)
    secret.chmod(0o600)


def tidings(one: Small, *verb: str) -> tuple[str, int]:
    command = [sys.executable, "-m", "tidings.cli", *verb, "-C", str(one.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert PASSWORD not in done.stdout + done.stderr
    return done.stdout, done.returncode


@contextmanager
def running(one: Small) -> Iterator[subprocess.Popen[str]]:
    """`tidings run`, killed at the end."""
    process = one.start()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def more_arrives(one: Small, process: subprocess.Popen[str], within: float = 600) -> None:
    """Waits until a new batch was read and the subscribers heard of something new."""
    place = Place(one.data / "checkpoints" / "crm" / "stream")
    batch, heard, end = place.finished(), len(one.arrivals()), time.monotonic() + within
    while place.finished() <= batch or len(one.arrivals()) <= heard:
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < end, "nothing arrives"
        time.sleep(0.2)


def test_every_change_once_and_in_order(kafka: Broker, tmp_path: Path) -> None:
    with small(tmp_path, "crm") as one:
        prepared(one, kafka)
        kafka.create(TOPIC, 3)
        assert "connect crm: ready" in tidings(one, "check", "--connect")[0]
        connector = Connector(kafka, one)
        connector.start()
        draw = random.Random(7)
        with running(one) as process:
            more_arrives(one, process)
            time.sleep(draw.uniform(0, 4))
        early = connector.sent[:60]
        with running(one) as process:
            more_arrives(one, process)
            kafka.end()
            time.sleep(8)
            kafka.start()
            more_arrives(one, process)
            time.sleep(draw.uniform(0, 4))
        connector.stop.set()
        connector.join(120)
        kafka.send(TOPIC, *early)  # a connector that restarts tells old positions again
        kafka.send(TOPIC, (b'{"id": 1}', b'{"op": "u", '), (b'{"id": 1}', b"\xff\xfe"), (b"\xff", b'{"op": "u"}'))
        one.finish()
        assert check(one) == []
        codes = sorted(one.store.arrow("quarantine", ["code"])["code"].to_pylist())
        assert codes == ["invalid_utf8", "invalid_utf8", "truncated_json"]
        for path in one.folder.rglob("*"):
            if path.is_file() and path.parent.name != "secrets":
                assert PASSWORD.encode() not in path.read_bytes(), path
