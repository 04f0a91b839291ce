"""A small operator: two sources that tell only part of what was, three subscribers with three promises, input in rounds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from warm import WarmJvm

from tidings.settings import Settings, load
from tidings.store import Store

SUBSCRIBERS = {"least": "at-least-once", "once": "exactly-once", "most": "at-most-once"}
OPERATOR = """\
tenant: small
banners: [{id: shop, locations: [{id: online}]}]
jurisdiction: US-CA
master_key: file:master.key
network: {allow: [127.0.0.0/8]}
run: {slots: 3}
"""
CONTRACT = """\
kind: customer
version: "1"
key: [id]
identifiers: {email: email}
fields:
  email: {type: email, class: personal}
  tier: {type: tier}
"""
CRM = """\
kind: files
path: drop/crm
dialect: debezium_postgresql
entities: {public.customers: customer}
banner: shop
location: online
after: archive
"""
SHOP = """\
kind: files
path: drop/shop
dialect: shopify
entities: {customers: shopper}
banner: shop
location: online
after: keep
"""
SOURCES = {"crm": CRM, "shop": SHOP}
# Short runs never repay the second compiler.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -Xlog:disable"


@dataclass(frozen=True)
class Expected:
    """One event the world must learn of; `marker` is the address the image holds, and no two events of a type share one."""

    source: str
    who: int
    change_type: str
    marker: str


@dataclass
class World:
    """Writes rounds and remembers what they must lead to, per subject in this order."""

    drop: Path
    sources: tuple[str, ...] = ("crm", "shop")
    rounds: int = 0
    serial: int = 0
    events: list[Expected] = field(default_factory=list)
    broken: int = 0
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    def round(self) -> None:
        number, self.rounds = self.rounds, self.rounds + 1
        if "crm" in self.sources:
            self.publish("crm", self._crm(number))
        if "shop" in self.sources:
            hooks = [self._hook(who, number == 0) for who in (7, 8)]
            self.publish("shop", [*hooks, hooks[0]])

    def _crm(self, number: int) -> list[str]:
        """One new person, changes of old ones with and without a row before, somebody leaves, one line is broken."""
        new = 100 + number
        lines = [self._act(who, "c") for who in ((1, 2, new) if number == 0 else (new,))]
        lines += [self._act(1, "u", before=False), self._act(2, "u"), self._act(new, "u", before=False)]
        if number:
            lines.append(self._act(new - 1, "u", before=False, tier=True))
        if number > 1:
            lines.append(self._act(new - 2, "d"))
        self.broken += 1
        return [*lines, '{"topic": "crm.public.customers", "value": {"op"']

    def publish(self, source: str, lines: list[str]) -> Path:
        folder = self.drop / source
        folder.mkdir(parents=True, exist_ok=True)
        name = f"round-{len(self.files):04d}.jsonl"
        hidden = folder / f".{name}.part"
        hidden.write_text("\n".join(lines) + "\n")
        hidden.rename(folder / name)
        keep = self.drop.parent / "written" / source
        keep.mkdir(parents=True, exist_ok=True)
        (keep / name).write_text("\n".join(lines) + "\n")
        self.files.append(keep / name)
        return folder / name

    def _act(self, who: int, op: str, *, before: bool = True, tier: bool = False) -> str:
        self.serial += 1
        old = self.rows.get(who)
        mail = f"c{who}.{self.serial}@example.com"
        new = None
        if op != "d":
            new = {"id": who, "email": mail, "tier": "gold" if tier else old["tier"] if old else "basic"}
        kinds = {"c": ["insert"], "u": ["email", *(["tier"] if tier else [])], "d": ["delete"]}[op]
        marker = new["email"] if new else (old or {})["email"]
        self.events += [Expected("crm", who, kind, marker) for kind in kinds]
        if new is None:
            del self.rows[who]
        else:
            self.rows[who] = new
        lsn, micros = 10_000_000 + self.serial * 8, time.time_ns() // 1000
        source = {
            "version": "3.1.2.Final", "connector": "postgresql", "name": "crm", "ts_ms": micros // 1000, "snapshot": "false",
            "db": "crm", "sequence": f'["{lsn - 8}", "{lsn}"]', "ts_us": micros, "ts_ns": micros * 1000, "schema": "public",
            "table": "customers", "txId": 500 + self.serial, "lsn": lsn, "xmin": None,
        }  # fmt: skip
        value = {"before": old if before else None, "after": new, "source": source, "transaction": None, "op": op}
        return json.dumps({"topic": "crm.public.customers", "key": {"id": who}, "value": value})

    def _hook(self, who: int, first: bool) -> str:
        self.serial += 1
        mail, now = f"s{who}.{self.serial}@example.com", datetime.now(UTC)
        self.events.append(Expected("shop", who, "insert" if first else "email", mail))
        headers = {
            "X-Shopify-Topic": "customers/create" if first else "customers/update",
            "X-Shopify-Shop-Domain": "small.myshopify.com",
            "X-Shopify-Event-Id": f"event-{self.serial}",
            "X-Shopify-Triggered-At": now.isoformat(),
        }
        return json.dumps({"headers": headers, "body": {"id": who, "email": mail, "updated_at": now.isoformat()}})


@dataclass
class Small:
    """The operator's folder, the subscribers' book and the world that feeds it."""

    folder: Path
    world: World
    book: Path
    jvm: WarmJvm | None = None
    heads: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def settings(self) -> Settings:
        return load(self.folder)

    @property
    def store(self) -> Store:
        return Store(self.data / "tables")

    def arrivals(self) -> list[dict[str, Any]]:
        """What the subscribers were told, in the order they were."""
        return [json.loads(line) for line in self.book.read_text().splitlines()] if self.book.exists() else []

    def remember_heads(self) -> None:
        """Keep every head that is published now: a later ledger must still contain it."""
        self.heads += [
            (str(p.parent.relative_to(self.data / "ledger")), p.read_bytes())
            for p in self.data.glob("ledger/**/checkpoint")
        ]

    def start(self, *more: str, crash_at: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tidings.cli", "run", "-C", str(self.folder), *more]
        env = os.environ | {"TIDINGS_CRASH_AT": crash_at, "JAVA_TOOL_OPTIONS": QUICK_JVM, "TIDINGS_DRIVER_MEMORY": "1g"}
        if self.jvm is not None:
            env |= self.jvm.free()
        return subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
        )

    def run(self, crash_at: str = "", timeout: float = 600) -> tuple[int, str]:
        """`tidings run --until-idle`; the exit code and the end of what it said."""
        process = self.start("--until-idle", crash_at=crash_at)
        try:
            said = process.communicate(timeout=timeout)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"not idle in {timeout} s: {process.communicate()[1][-2000:]}") from None
        return process.returncode, said[-3000:]

    def killed_at(self, point: str) -> None:
        """Die at a named point, and prove that it was there."""
        code, said = self.run(crash_at=f"{point}:1")
        assert code != 0, f"the run never came to {point}"
        assert code == -signal.SIGKILL, f"{point}: ended with {code}: {said}"
        self.remember_heads()

    def finish(self) -> None:
        code, said = self.run()
        assert code == 0, said


def operator(folder: Path, url: str, sources: tuple[str, ...]) -> None:
    """The folder of a small operator whose subscribers live at `url`."""
    files = {
        "tidings.yaml": OPERATOR,
        "entities/customer.yaml": CONTRACT,
        "entities/shopper.yaml": CONTRACT,
        **{f"sources/{name}.yaml": SOURCES[name] for name in sources},
        "policy/own.yaml": "version: '1'\nrules: []\n",
        "secrets/master.key": "5a" * 32,
    }
    for name, semantics in SUBSCRIBERS.items():
        lines = f"manifest: webhook\nurl: {url}/{name}\nrole: service\nregion: US\ndpa: true\n"
        files[f"subscribers/{name}.yaml"] = lines + f"semantics: {{default: {semantics}}}\n"
    for label, text in files.items():
        path = folder / label
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "secrets/master.key").chmod(0o600)
    for source in sources:
        (folder / "drop" / source).mkdir(parents=True, exist_ok=True)


@contextmanager
def small(folder: Path, *sources: str, jvm: WarmJvm | None = None) -> Iterator[Small]:
    """A small operator with its subscribers at work; they outlive every crash of ours."""
    sources = sources or tuple(SOURCES)
    folder.mkdir(parents=True, exist_ok=True)
    book, announce = folder / "book.jsonl", folder / "url"
    place = Path(__file__).parent / "receiver.py"
    receiver = subprocess.Popen([sys.executable, str(place), str(book), str(announce)])
    try:
        end = time.monotonic() + 30
        while not announce.exists():
            assert time.monotonic() < end, "the receiver does not start"
            time.sleep(0.02)
        operator(folder / "operator", announce.read_text(), sources)
        yield Small(folder / "operator", World(folder / "operator" / "drop", sources), book, jvm)
    finally:
        receiver.kill()
        receiver.wait()
