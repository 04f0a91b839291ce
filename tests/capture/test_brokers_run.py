"""Three brokers feed one operator at once; it is killed twice and a broker restarts: every message once, in order, and nothing else."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from checker import check, history_of, wrong_so_far
from small import CONTRACT, Expected, Small, World, small

from tests.capture.broker_servers import Broker, NatsServer, RabbitServer, RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
SOURCE = """\
kind: {kind}
connection: file:{name}.connection
streams: [{name}]
dialect: {dialect}
entities: {{{table}: {contract}}}
banner: shop
location: online
"""
# A log with an order of its own, webhooks with ids, calls with ids: name → kind, dialect, table, contract, server
SOURCES: dict[str, tuple[str, str, str, str, type[Broker]]] = {
    "crm": ("redis", "debezium_postgresql", "public.customers", "customer", RedisServer),
    "shop": ("rabbitmq", "shopify", "customers", "shopper", RabbitServer),
    "site": ("nats", "segment", "users", "visitor", NatsServer),
}


class Producer(threading.Thread):
    """Writes rounds of its own subjects to one broker, as many as it is told; `held` keeps it from writing."""

    def __init__(self, name: str, broker: Broker, drop: Path) -> None:
        super().__init__(daemon=True)
        self.source, self.broker, self.world = name, broker, World(drop)
        self.held, self.told, self.stop = threading.Lock(), threading.Semaphore(0), threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                if self.told.acquire(timeout=0.2):
                    with self.held:
                        self.round()
                    time.sleep(0.5)
        except BaseException as error:
            self.failure = error

    def round(self) -> None:
        number, self.world.rounds = self.world.rounds, self.world.rounds + 1
        if isinstance(self.broker, RedisServer):
            self.records(self.broker, self.world._crm(number))
        else:
            self.broker.write(self.source, *self.messages(number))

    def records(self, broker: RedisServer, lines: list[str]) -> None:
        """As Debezium Server writes them: key and value as fields of an entry; the last line is broken."""
        with broker.client() as client:
            for record in map(json.loads, lines[:-1]):
                client.xadd(self.source, {part: json.dumps(record[part]) for part in ("key", "value")})
            client.xadd(self.source, {"key": '{"id": 1}', "value": '{"op"'})

    def messages(self, number: int) -> list[bytes]:
        if self.source == "shop":
            hooks = [self.world._hook(who, number == 0).encode() for who in (7, 8, 9)]
            return [*hooks, hooks[0]]  # webhooks come twice
        return [self.identify(who, number == 0) for who in (21, 22)]

    def identify(self, who: int, first: bool) -> bytes:
        self.world.serial += 1
        mail, now = f"v{who}.{self.world.serial}@example.com", datetime.now(UTC).isoformat(timespec="milliseconds")
        self.world.events.append(Expected("site", who, "insert" if first else "email", mail))
        call = {"type": "identify", "userId": str(who), "messageId": f"api-{self.world.serial}", "timestamp": now}
        return json.dumps(call | {"traits": {"email": mail}}).encode()


@contextmanager
def running(drop: Path) -> Iterator[dict[str, Producer]]:
    brokers = {name: server() for name, (*_, server) in SOURCES.items()}
    producers = {name: Producer(name, broker, drop) for name, broker in brokers.items()}
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda broker: broker.start(), brokers.values()))
        for name, broker in brokers.items():
            broker.create(name)
        yield producers
    finally:
        for producer in producers.values():
            producer.stop.set()
        for broker in brokers.values():
            broker.end()


def tidings(one: Small, *verb: str) -> tuple[str, int]:
    command = [sys.executable, "-m", "tidings.cli", *verb, "-C", str(one.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout, done.returncode


def prepared(one: Small, producers: dict[str, Producer]) -> None:
    (one.folder / "entities" / "visitor.yaml").write_text(CONTRACT.replace("key: [id]", "key: [userId]"))
    for name, (kind, dialect, table, contract, _) in SOURCES.items():
        text = SOURCE.format(kind=kind, name=name, dialect=dialect, table=table, contract=contract)
        (one.folder / "sources" / f"{name}.yaml").write_text(text)
        secret = one.folder / "secrets" / f"{name}.connection"
        secret.write_text(producers[name].broker.url)
        secret.chmod(0o600)
    said, code = tidings(one, "check", "--connect")
    assert code != 0
    assert "Run `tidings source install crm`" in said
    assert "XGROUP CREATE crm tidings_crm" in tidings(one, "source", "install", "crm")[0]
    assert tidings(one, "source", "install", "shop")[1] == 0
    ready = tidings(one, "check", "--connect")[0]
    assert all(f"connect {name}: ready" in ready for name in SOURCES), ready


def journalled(one: Small) -> dict[str, int]:
    rows = (
        one.store.arrow("journal", ["source"])["source"].to_pylist() if one.store.version("journal") is not None else []
    )
    return {name: rows.count(name) for name in SOURCES}


def until(true: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < end, "nothing comes"
        time.sleep(0.2)


def more(producers: dict[str, Producer], rounds: int) -> None:
    for producer in producers.values():
        producer.told.release(rounds)


def grown(one: Small) -> Callable[[], bool]:
    """Has every source told something since?"""
    before = journalled(one)
    return lambda: all(count > before[name] for name, count in journalled(one).items())


@contextmanager
def killed(one: Small) -> Iterator[subprocess.Popen[str]]:
    """A run that ends by SIGKILL, whatever becomes of the test."""
    process = one.start()
    try:
        yield process
        assert process.poll() is None, process.communicate()[1][-3000:]
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    one.remember_heads()


def test_every_message_of_three_brokers_once_and_in_order(tmp_path: Path) -> None:
    draw = random.Random(11)
    with small(tmp_path, "crm") as one, running(tmp_path / "drop") as producers:
        prepared(one, producers)
        for producer in producers.values():
            producer.start()
        more(producers, 6)
        crm = producers["crm"]
        with killed(one) as process:
            until(grown(one), process)
            time.sleep(draw.uniform(0, 3))
        more(producers, 5)
        with killed(one) as process:
            until(grown(one), process)
            with crm.held:
                crm.broker.stop()
                time.sleep(2)
                crm.broker.start()
            more(producers, 4)
            until(grown(one), process)
            time.sleep(draw.uniform(0, 3))
        for producer in producers.values():
            producer.stop.set()
            producer.join(30)
            assert producer.failure is None
            one.world.events += producer.world.events
        assert wrong_so_far(history_of(one)) == []
        code, said = one.run(timeout=900)
        assert code == 0, said
        assert check(one) == []
        codes = one.store.arrow("quarantine", ["code"])["code"].to_pylist()
        assert codes == ["truncated_json"] * crm.world.rounds
