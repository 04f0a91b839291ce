"""Redis, RabbitMQ and NATS from Debian, on loopback and free ports, each with a folder of its own; started, stopped, started again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pika
import redis
from at_hand import unavailable

if TYPE_CHECKING:
    from nats.js import JetStreamContext

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def program(name: str, package: str = "") -> str:
    """The path of a server; installed from Debian when that is possible and it is missing."""
    if not shutil.which(name) and os.geteuid() == 0 and shutil.which("apt-get"):
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        wait = ["-o", "DPkg::Lock::Timeout=300"]
        subprocess.run(["apt-get", *wait, "update", "-q"], check=False, timeout=300, env=env, **QUIET)
        install = ["apt-get", *wait, "install", "-qy", "--no-install-recommends", package or name]
        subprocess.run(install, check=False, timeout=900, env=env, **QUIET)
    found = shutil.which(name)
    if not found:
        unavailable(f"{name} is not installed, and Debian's could not be")
    assert found is not None
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Broker(ABC):
    """One server with its folder: what it holds outlives `stop` and `start`."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="tidings-broker-")))
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """How it is started."""

    def environment(self) -> dict[str, str]:
        return {}

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is, as a source's connection says it."""

    @abstractmethod
    def create(self, stream: str) -> None:
        """An empty stream."""

    @abstractmethod
    def delete(self, stream: str) -> None:
        """The stream and all that is in it."""

    @abstractmethod
    def write(self, stream: str, *values: bytes) -> None:
        """In this order, and durable when this returns."""

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=2):
            return True

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            env = os.environ | self.environment()
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, cwd=self.folder, env=env)
        self.wait(self.ready)

    def wait(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + 180
        while True:
            assert self.process is not None
            assert self.process.poll() is None, self.said()
            with suppress(OSError):
                if ready():
                    return
            assert time.monotonic() < end, self.said()
            time.sleep(0.1)

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
            self.process = None

    def end(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisServer(Broker):
    password = "sesame"

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        kept = ["--appendonly", "yes", "--appendfsync", "no", "--save", "", "--requirepass", self.password]
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return [program("redis-server"), *where, *kept]

    def ready(self) -> bool:
        try:
            with redis.Redis.from_url(self.url) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    def create(self, stream: str) -> None:
        """The source's `install` makes it."""

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def delete(self, stream: str) -> None:
        with self.client() as client:
            client.delete(stream)

    def write(self, stream: str, *values: bytes) -> None:
        with self.client() as client:
            for value in values:
                client.xadd(stream, {"key": '{"id": 1}', "value": value})


class NatsServer(Broker):
    password = "sesame"

    @property
    def url(self) -> str:
        return f"nats://tidings:{self.password}@127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        where = ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder / "store")]
        return [program("nats-server"), *where, "--user", "tidings", "--pass", self.password]

    def ask(self, work: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
        async def asked() -> Any:
            connection = await nats.connect(self.url)
            try:
                return await work(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(asked())

    def create(self, stream: str, **limits: Any) -> None:
        self.ask(lambda js: js.add_stream(name=stream, subjects=[f"{stream}.>"], **limits))

    def delete(self, stream: str) -> None:
        self.ask(lambda js: js.delete_stream(stream))

    def write(self, stream: str, *values: bytes) -> None:
        async def written(js: JetStreamContext) -> None:
            for value in values:
                await js.publish(f"{stream}.told", value)

        self.ask(written)


@dataclass
class RabbitServer(Broker):
    """A node, and the port mapper it starts when there is none: on a port of its own, so that it is ours to end."""

    amqp: int = field(default_factory=free_port)
    distribution: int = field(default_factory=free_port)
    mapper: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"rabbitmq-stream://guest:guest@127.0.0.1:{self.port}/%2F"

    @property
    def amqp_url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.amqp}/%2F"

    def command(self) -> list[str]:
        # Debian's wrapper asks for its own user; the program behind it runs as anybody.
        program("rabbitmq-server")
        found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
        if not found:
            unavailable("rabbitmq-server is not where Debian puts it")
        return [str(found[-1])]

    def environment(self) -> dict[str, str]:
        here = self.folder
        (here / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        (here / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.amqp}\nstream.listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"stream.advertised_host = 127.0.0.1\nstream.advertised_port = {self.port}\nlog.file = false\nlog.console = true\n"
        )
        own = {"RABBITMQ_MNESIA_BASE": "mnesia", "RABBITMQ_LOG_BASE": "logs", "RABBITMQ_CONFIG_FILE": "rabbitmq.conf"}
        own |= {"RABBITMQ_ENABLED_PLUGINS_FILE": "enabled_plugins", "RABBITMQ_CONF_ENV_FILE": "no-env"}
        ports = {"RABBITMQ_DIST_PORT": self.distribution, "ERL_EPMD_PORT": self.mapper}
        return (
            {name: str(here / path) for name, path in own.items()}
            | {name: str(port) for name, port in ports.items()}
            | {"HOME": str(here), "RABBITMQ_NODENAME": f"tidings{self.port}@localhost", "ERL_EPMD_ADDRESS": "127.0.0.1"}
        )

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.amqp), timeout=2):
            return super().ready()

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """AMQP 0.9.1, as most who write to a RabbitMQ speak it; each message is confirmed."""
        with pika.BlockingConnection(pika.URLParameters(self.amqp_url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel

    def create(self, stream: str, **limits: Any) -> None:
        with self.channel() as channel:
            arguments = {"x-queue-type": "stream"} | {name.replace("_", "-"): value for name, value in limits.items()}
            channel.queue_declare(stream, durable=True, arguments=arguments)

    def delete(self, stream: str) -> None:
        with self.channel() as channel:
            channel.queue_delete(stream)

    def write(self, stream: str, *values: bytes) -> None:
        with self.channel() as channel:
            for value in values:
                channel.basic_publish("", stream, value, pika.BasicProperties(headers={"kind": "told"}))

    def stop(self) -> None:
        super().stop()
        for one in Path("/proc").glob("[0-9]*"):  # the mapper is nobody's child: known by the port it was given
            with suppress(OSError):
                if one.joinpath("comm").read_text().strip() == "epmd" and self._is_ours(one):
                    os.kill(int(one.name), signal.SIGTERM)

    def _is_ours(self, process: Path) -> bool:
        return f"ERL_EPMD_PORT={self.mapper}".encode() in process.joinpath("environ").read_bytes().split(b"\0")
