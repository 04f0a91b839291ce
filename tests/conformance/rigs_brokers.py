"""Rigs of Redis, NATS and RabbitMQ, over the servers that the captures are tested with."""

from __future__ import annotations

import json
import os
import signal
import time
from abc import abstractmethod
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from sinks import Arrived, Rig, call, event, family, member, members, told

from tidings.channels.call import Channel
from tidings.channels.rabbitmq import RabbitChannel

from broker_servers import Broker, NatsServer, RabbitServer, RedisServer  # isort: skip  (its folder is on the path by `sinks`)


class Served(Rig):
    """A rig over one of the servers of `broker_servers`."""

    def __init__(self) -> None:
        self.server = self.make()
        self._numbers = count(1)

    @abstractmethod
    def make(self) -> Broker:
        """The server, not started."""

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        assert self.server.process is not None
        pids = self.pids()
        for pid in reversed(pids):
            os.kill(pid, signal.SIGKILL)
        self.server.process.wait(60)
        while any(Path(f"/proc/{pid}").exists() for pid in pids):  # a large process needs a moment to be gone
            time.sleep(0.01)
        self.server.stop()

    def pids(self) -> list[int]:
        assert self.server.process is not None
        return family(self.server.process.pid)

    def end(self) -> None:
        self.server.end()

    def fresh(self) -> str:
        return f"place{next(self._numbers)}"


class RedisRig(Served):
    manifest = "redis_streams"
    missing = frozenset({"unknown_stream"})
    server: RedisServer

    def make(self) -> Broker:
        server = RedisServer()
        server.password = self.password
        return server

    def connection(self, password: str) -> str:
        return f"redis://:{password}@127.0.0.1:{self.server.port}/0"

    def place(self) -> dict[str, Any]:
        name = self.fresh()
        with self.server.client() as client:
            client.xgroup_create(name, "readers", mkstream=True)
        return {"stream": name}

    def nowhere(self) -> dict[str, Any]:
        return {"stream": "nowhere"}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        with self.server.client() as client:
            entries = client.xrange(place["stream"])
        return [event(json.loads(fields[b"value"])) for _, fields in entries]

    def special(self, place: Mapping[str, Any], channel: Channel) -> None:
        """The binary form; a replica that is not there leaves a doubt, which a repeat ends without a second entry."""
        binary = self.open({**place, "mode": "binary"})
        assert told(binary.send(call(member(1)))) == [("acknowledged", "ok")]
        with self.server.client() as client:
            ((_, fields),) = client.xrange(place["stream"])
            assert fields[b"ce_id"].decode() == member(1).event_id
            assert json.loads(fields[b"value"]) == member(1).body["data"]
            client.delete(place["stream"])
            client.xgroup_create(place["stream"], "readers", mkstream=True)
        careful = self.open({**place, "replicas": 1})
        assert told(careful.send(call(member(2), timeout=1))) == [("in_doubt", "not_replicated")]
        assert told(channel.send(call(member(2)))) == [("acknowledged", "ok")]
        assert [one.event_id for one in self.arrived(place)] == [member(2).event_id]
        with self.server.client() as client:
            client.set("a-string", "x")
        wrong = self.open({"stream": "a-string"})
        assert told(wrong.send(call(member(3)))) == [("transient", "not_a_stream")]
        for one in (binary, careful, wrong):
            one.close()


class NatsRig(Served):
    manifest = "nats"
    missing = frozenset({"unknown_stream"})
    server: NatsServer

    def make(self) -> Broker:
        server = NatsServer()
        server.password = self.password
        return server

    def connection(self, password: str) -> str:
        return f"nats://tidings:{password}@127.0.0.1:{self.server.port}"

    def place(self) -> dict[str, Any]:
        name = self.fresh()
        self.server.create(name, duplicate_window=3600)
        return {"stream": name, "subject": f"{name}.told"}

    def nowhere(self) -> dict[str, Any]:
        return {"stream": "nowhere", "subject": "nowhere.told"}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        async def read(js: Any) -> list[bytes]:
            last = (await js.stream_info(place["stream"])).state.last_seq
            return [(await js.get_msg(place["stream"], number)).data for number in range(1, last + 1)]

        return [event(json.loads(body)) for body in self.server.ask(read)]

    def special(self, place: Mapping[str, Any], channel: Channel) -> None:
        """A duplicate is said to be one; a stream that took over the subject gets nothing; a short memory is told; full is not gone."""
        assert told(channel.send(call(member(1)))) == [("acknowledged", "ok")]
        assert told(channel.send(call(member(1)))) == [("acknowledged", "duplicate")]
        other = self.open({**place, "stream": "another"})
        assert told(other.send(call(member(2)))) == [("transient", "wrong_stream")]
        self.server.create("forgetful", duplicate_window=60)
        short = self.open({"stream": "forgetful", "subject": "forgetful.told"})
        assert (short.ping().result, short.ping().code) == ("refused", "window_too_short")
        self.server.create("narrow", max_msgs=1, discard="new")
        full = self.open({"stream": "narrow", "subject": "narrow.told"})
        assert told(full.send(call(member(3), member(4, "subject-3")))) == [
            ("acknowledged", "ok"),
            ("throttled", "stream_full"),
        ]
        for one in (other, short, full):
            one.close()
        assert [one.event_id for one in self.arrived(place)] == [member(1).event_id]


class RabbitRig(Served):
    manifest = "rabbitmq"
    missing = frozenset({"unroutable", "not_found"})
    settling_s = 1.0  # the directory of quorum queues is written twice a second
    password = "guest"
    server: RabbitServer

    def make(self) -> Broker:
        self._taken: dict[str, list[Arrived]] = {}
        return RabbitServer()

    def connection(self, password: str) -> str:
        return f"amqp://guest:{password}@127.0.0.1:{self.server.amqp}/%2F"

    def place(self) -> dict[str, Any]:
        name = self.fresh()
        with self.server.channel() as channel:
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
        return {"routing_key": name}

    def nowhere(self) -> dict[str, Any]:
        return {"routing_key": "nowhere"}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        """Taken and kept: a message that is given back to a quorum queue loses its place in the order."""
        found = self._taken.setdefault(place["routing_key"], [])
        with self.server.channel() as channel:
            while (got := channel.basic_get(place["routing_key"], auto_ack=True))[0] is not None:
                found.append(event(json.loads(got[2])))
        return list(found)

    def special(self, place: Mapping[str, Any], channel: Channel) -> None:
        """Dead letters in the broker's own place; an exchange that is not there; a queue that takes no more."""
        queue = place["routing_key"]
        with self.server.channel() as admin:
            admin.exchange_declare("graves", "fanout", durable=True)
            admin.queue_declare("grave", durable=True)
            admin.queue_bind("grave", "graves")
            narrow = {"x-max-length": 1, "x-overflow": "reject-publish"}
            admin.queue_declare("narrow", durable=True, arguments=narrow)
        assert isinstance(channel, RabbitChannel)
        assert channel.bury(member(1), "gone").code == "no_dead_letter_exchange"
        burying = self.open({**place, "dead_letter_exchange": "graves"})
        assert isinstance(burying, RabbitChannel)
        assert burying.bury(member(1), "gone").result == "acknowledged"
        with self.server.channel() as admin:
            _, properties, body = admin.basic_get("grave", auto_ack=True)
        assert properties.headers["tidings-reason"] == "gone"
        assert json.loads(body)["id"] == member(1).event_id
        nowhere = self.open({"exchange": "no-such", "routing_key": queue})
        assert told(nowhere.send(call(*members(1, 2)))) == [("transient", "unknown_exchange")] * 2
        full = self.open({"routing_key": "narrow"})
        outcomes = full.send(call(member(1, "a"), member(2, "a"), member(3, "a"), member(4, "a")))
        assert told(outcomes)[0] == ("acknowledged", "ok")
        assert ("transient", "not_taken") in told(outcomes)
        assert told(outcomes)[-1] == ("transient", "held_behind")
        binary = self.open({**place, "mode": "binary"})
        assert told(binary.send(call(member(5)))) == [("acknowledged", "ok")]
        with self.server.channel() as admin:
            _, properties, body = admin.basic_get(queue, auto_ack=True)
        assert properties.headers["cloudEvents:id"] == properties.message_id == member(5).event_id
        for one in (burying, nowhere, full, binary):
            one.close()


RIGS: list[type[Rig]] = [RedisRig, NatsRig, RabbitRig]
