"""Rigs of Kafka, Event Hubs and Pulsar. Their servers are JVMs."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Any

import pulsar_server
from sinks import Arrived, Rig, call, event, family, member, told

from tidings.channels.call import Channel, Member
from tidings.channels.eventhubs import login

import kafka_server  # isort: skip  (its folder is put on the path by `sinks`)
from at_hand import unavailable  # isort: skip


class KafkaRig(Rig):
    manifest = "kafka"
    missing = frozenset({"unknown_topic"})

    def __init__(self) -> None:
        self._numbers = count(1)
        self._whole = ExitStack()
        self.server: Any = None

    def start(self) -> None:
        if self.server is None:
            self.server = self._whole.enter_context(kafka_server.broker(self.password))
            if self.server is None:
                unavailable("no Kafka broker: its jars could not be had from Maven Central")
            self._warm()
        else:
            self.server.start()

    def _warm(self) -> None:
        """A broker makes its own topics for transactions and groups at the first of each, which takes its time."""
        from confluent_kafka import Consumer, Producer, TopicPartition

        topic = str(self.place()["topic"])
        worker = Producer(self.server.client(**{"transactional.id": "warm", "log_level": 0}))
        worker.init_transactions(120)
        reader = Consumer(self.server.client(**{"group.id": "warm", "log_level": 0}))
        reader.committed([TopicPartition(topic, 0)], timeout=120)
        reader.close()

    def stop(self) -> None:
        self.server.end()

    def kill(self) -> None:
        self.server.end(kill=True)

    def pids(self) -> list[int]:
        return [self.server.process.pid]

    def end(self) -> None:
        self._whole.close()

    def connection(self, password: str) -> str:
        return str(replace(self.server, password=password).connection)

    def place(self) -> dict[str, Any]:
        name = f"place{next(self._numbers)}"
        self.server.create(name)
        return {"topic": name, "transactional_id": name}

    def nowhere(self) -> dict[str, Any]:
        return {"topic": "nowhere"}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        """What is committed. A commit is answered before every partition has its marker, so a reader that stops too early looks again."""
        found = self._read(place)
        while True:
            time.sleep(1)
            again = self._read(place)
            if len(again) == len(found):
                return found
            found = again

    def _read(self, place: Mapping[str, Any]) -> list[Arrived]:
        from confluent_kafka import Consumer, TopicPartition

        own = {"group.id": "a-reader", "isolation.level": "read_committed", "enable.partition.eof": True}
        reader = Consumer(self.server.client(**own, **{"auto.offset.reset": "earliest", "log_level": 0}))
        found, open_ends = [], {0, 1, 2}
        reader.assign([TopicPartition(self.topic(place), one, 0) for one in open_ends])
        try:
            while open_ends:
                message = reader.poll(20)
                assert message is not None, "the reader gets nothing"
                if message.error():
                    open_ends.discard(message.partition())
                else:
                    found.append(event(json.loads(message.value())))
        finally:
            reader.close()
        return found

    def topic(self, place: Mapping[str, Any]) -> str:
        return str(place["topic"])

    def special(self, place: Mapping[str, Any], channel: Channel) -> None:
        """Two workers take turns under one id; what one of them left open never happened; a size only the broker refuses."""
        first, second = self.open(place), self.open(place)
        assert told(first.send(call(member(1), number=1))) == [("acknowledged", "ok")]
        assert told(second.send(call(member(2), number=2))) == [("acknowledged", "ok")]
        assert told(first.send(call(member(3), number=3))) == [("acknowledged", "ok")]
        left = self._left_open(place, member(4))
        asked = [replace(member(n), sent_in=n) for n in (1, 2, 3, 4)]
        assert [one.result for one in second.probe(call(*asked, number=5))] == ["acknowledged"] * 3 + ["transient"]
        assert sorted(one.event_id for one in self.arrived(place)) == [member(n).event_id for n in (1, 2, 3)]
        del left
        self.server.create("narrow", **{"max.message.bytes": "2000"})
        narrow = self.open({"topic": "narrow", "transactional_id": "narrow"})
        large = member(7, changed=["x" * 3000])
        assert set(told(narrow.send(call(member(6), large, number=1)))) == {("terminal", "too_large")}
        assert told(narrow.send(call(member(6), number=2))) == [("acknowledged", "ok")]
        binary = self.open({**place, "mode": "binary"})
        assert told(binary.send(call(member(8), number=9))) == [("acknowledged", "ok")]
        for one in (first, second, narrow, binary):
            one.close()

    def _left_open(self, place: Mapping[str, Any], one: Member) -> Any:
        """A worker that died in the middle of its transaction."""
        from confluent_kafka import Producer

        worker = Producer(self.server.client(**{"transactional.id": place["transactional_id"], "log_level": 0}))
        worker.init_transactions(20)
        worker.begin_transaction()
        worker.produce(self.topic(place), key=one.subject, value=json.dumps(one.body))
        assert worker.flush(20) == 0
        return worker


class EventHubsRig(KafkaRig):
    """The wire alone: a Kafka broker whose one user and password are those of a connection string."""

    manifest = "eventhubs"
    password = "c2VzYW1lLTdmMzE="

    def start(self) -> None:
        if self.server is None:
            self.port = kafka_server.free_port()
            said = self._string(self.password)
            self.server = self._whole.enter_context(kafka_server.broker(said, "$ConnectionString", self.port))
            if self.server is None:
                unavailable("no Kafka broker: its jars could not be had from Maven Central")
        else:
            self.server.start()

    def _string(self, password: str) -> str:
        where = f"Endpoint=sb://127.0.0.1:{self.port}/;SharedAccessKeyName=send"
        return f"{where};SharedAccessKey={password};UseDevelopmentEmulator=true"

    def connection(self, password: str) -> str:
        return self._string(password)

    def place(self) -> dict[str, Any]:
        return {"hub": super().place()["topic"]}

    def nowhere(self) -> dict[str, Any]:
        return {"hub": "nowhere"}

    def special(self, place: Mapping[str, Any], channel: Channel) -> None:
        """The hub may be named by the connection string itself."""
        given, hub = login(
            "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b=;EntityPath=told"
        )
        assert (given["bootstrap.servers"], given["security.protocol"], hub) == (
            "shop.servicebus.windows.net:9093",
            "SASL_SSL",
            "told",
        )

    def topic(self, place: Mapping[str, Any]) -> str:
        return str(place["hub"])


class PulsarRig(Rig):
    manifest = "pulsar"
    denied = frozenset({"unauthorised", "not_connected"})  # the broker hangs up, and its client says no more
    missing = frozenset({"unknown_topic"})

    def __init__(self) -> None:
        self._numbers = count(1)
        self.server: Any = None

    def start(self) -> None:
        if self.server is None:
            program = pulsar_server.distribution()
            if program is None:
                unavailable("no Pulsar: its distribution could not be had from Maven Central")
            self.server = pulsar_server.PulsarServer(program)
            self.password = self.server.token
        self.server.start()

    def stop(self) -> None:
        self.server.end()

    def kill(self) -> None:
        self.server.end(kill=True)

    def pids(self) -> list[int]:
        return family(self.server.process.pid)

    def end(self) -> None:
        if self.server is not None:
            self.server.end(kill=True)
            shutil.rmtree(self.server.folder, ignore_errors=True)

    def connection(self, password: str) -> str:
        return f"pulsar://:{password}@127.0.0.1:{self.server.port}"

    def place(self) -> dict[str, Any]:
        name = f"place{next(self._numbers)}"
        self.server.create(name)
        return {"topic": name}

    def nowhere(self) -> dict[str, Any]:
        return {"topic": "nowhere"}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        import pulsar

        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        login = pulsar.AuthenticationToken(self.server.token)
        client = pulsar.Client(f"pulsar://127.0.0.1:{self.server.port}", login, logger=quiet)
        try:
            reader, found = client.create_reader(place["topic"], pulsar.MessageId.earliest), []
            while reader.has_message_available():
                found.append(event(json.loads(reader.read_next(20_000).data())))
        finally:
            client.close()
        return found

    def special(self, place: Mapping[str, Any], channel: Channel) -> None:
        """Nobody else writes under the lane's name while it is connected."""
        assert told(channel.send(call(member(1)))) == [("acknowledged", "ok")]
        second = self.open(place)
        assert told(second.send(call(member(2), timeout=5))) == [("transient", "producer_busy")]
        channel.close()
        assert told(second.send(call(member(2)))) == [("acknowledged", "ok")]
        second.close()


RIGS: list[type[Rig]] = [KafkaRig, EventHubsRig, PulsarRig]
