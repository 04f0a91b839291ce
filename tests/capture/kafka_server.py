"""A real broker in KRaft mode: its jars from Maven Central by the Ivy that PySpark brings, loopback, free ports, a folder of its own."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

VERSION = "4.3.1"
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=CLIENTS://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=CLIENTS://127.0.0.1:{port}
listener.security.protocol.map=CLIENTS:{protocol},CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENTS
controller.listener.names=CONTROLLER
log.dirs={folder}/log
num.network.threads=1
num.io.threads=2
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""
# One user, whose password must not be found anywhere but in the secret.
SASL = """\
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.clients.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username="{user}" password="{password}" user_{user}="{password}";
"""


def broker_jars() -> list[Path] | None:
    """The broker and all it needs; None when it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidings-tests"
    target = cache / f"kafka-{VERSION}"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        jars = Path(pyspark.__file__).parent / "jars"
        programs = [*jars.glob("ivy-*.jar"), *jars.glob("commons-cli-*.jar")]
        with tempfile.TemporaryDirectory(dir=cache) as fresh:
            pattern = f"{fresh}/lib/[artifact]-[revision](-[classifier]).[ext]"
            command = [
                "java",
                "-cp",
                os.pathsep.join(map(str, programs)),
                "org.apache.ivy.Main",
                "-cache",
                f"{fresh}/ivy",
            ]
            command += [
                "-dependency",
                "org.apache.kafka",
                "kafka_2.13",
                VERSION,
                "-confs",
                "default",
                "-types",
                "jar",
                "bundle",
            ]
            done = subprocess.run([*command, "-retrieve", pattern], capture_output=True, check=False, timeout=600)
            if done.returncode != 0:
                return None
            Path(fresh, "lib").rename(target)
    return sorted(target.glob("*.jar"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Broker:
    """A broker that can be ended and started again on the same port with the same log."""

    folder: Path
    classpath: str
    port: int
    password: str = ""
    user: str = "tidings"
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connection(self) -> str:
        """What an operator puts into the secret."""
        if not self.password:
            return self.address
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        return (
            f"bootstrap.servers={self.address}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={login} username="{self.user}" password="{self.password}";\n'
        )

    def client(self, **more: Any) -> dict[str, Any]:
        """The same for the Python client."""
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": self.user}
        own = {"bootstrap.servers": self.address, **more}
        return own | login | {"sasl.password": self.password} if self.password else own

    def prepare(self) -> None:
        protocol = "SASL_PLAINTEXT" if self.password else "PLAINTEXT"
        text = PROPERTIES.format(port=self.port, controller=free_port(), folder=self.folder, protocol=protocol)
        text += SASL.format(user=self.user, password=self.password) if self.password else ""
        (self.folder / "server.properties").write_text(text)
        cluster = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:].rstrip(
            "="
        )  # a dash first is an option
        self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", "server.properties").wait(120)

    def start(self) -> None:
        self.process = self._java("kafka.Kafka", "server.properties")
        end = time.monotonic() + 120
        while not self._answers():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.2)

    def end(self, *, kill: bool = False) -> None:
        if self.process is not None:
            self.process.kill() if kill else self.process.terminate()
            self.process.wait(120)
            self.process = None

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")[-3000:]

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException

        try:
            self.admin().list_topics(timeout=2)
        except KafkaException:
            return False
        return True

    def _java(self, *command: str) -> subprocess.Popen[bytes]:
        heap = ["-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        with (self.folder / "said").open("ab") as said:
            return subprocess.Popen(
                ["java", *heap, "-cp", self.classpath, *command], stdout=said, stderr=said, cwd=self.folder
            )

    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.client(**{"log_level": 0}))

    def create(self, topic: str, partitions: int = 3, **config: str) -> None:
        from confluent_kafka.admin import NewTopic

        admin = self.admin()
        admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)

    def delete(self, topic: str) -> None:
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(30)
        end = time.monotonic() + 30
        while topic in admin.list_topics(timeout=10).topics:
            assert time.monotonic() < end, "the topic does not go"
            time.sleep(0.1)

    def widen(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import NewPartitions

        admin = self.admin()
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    def purge(self, topic: str, before: dict[int, int]) -> None:
        """What retention does, now: records before these offsets are gone."""
        from confluent_kafka import TopicPartition

        admin = self.admin()
        places = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        for future in admin.delete_records(places).values():
            future.result(30)

    def send(self, topic: str, *records: tuple[Any, ...], partition: int | None = None) -> None:
        """(key, value) or (key, value, headers), each acknowledged when this returns."""
        from confluent_kafka import Producer

        wrong: list[Any] = []
        producer = Producer(self.client(**{"enable.idempotence": True}))
        more = {} if partition is None else {"partition": partition}
        for key, value, *headers in records:
            given = {"key": key, "value": value, "on_delivery": lambda error, _: error and wrong.append(error), **more}
            producer.produce(topic, **given, **({"headers": headers[0]} if headers else {}))
        assert producer.flush(60) == 0
        assert wrong == []


@contextmanager
def broker(password: str = "", user: str = "tidings", port: int = 0) -> Iterator[Broker | None]:
    """A running broker; None when it cannot be had."""
    jars = broker_jars()
    if jars is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="tidings-kafka-"))
    one = Broker(folder, os.pathsep.join(map(str, jars)), port or free_port(), password, user)
    try:
        one.prepare()
        one.start()
        yield one
    finally:
        one.end(kill=True)
        shutil.rmtree(folder, ignore_errors=True)
