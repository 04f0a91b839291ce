"""Rigs of a vendor's API, of a webhook and of the channel that fails by seed; the first two end in programs of `receivers`."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from receivers import opened
from sinks import Around, Arrived, Rig, call, member, members, told

from tidings.channels.call import Call, Channel, Outcome
from tidings.channels.faulty import FaultyChannel

KIT = Path(__file__).parents[2] / "kit" / "src"


class Program(Rig):
    """A rig over a program in a process of its own, with a folder that outlives it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tidings-rig-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)

    @abstractmethod
    def command(self) -> list[str]:
        """How the program is started, after the interpreter."""

    def start(self) -> None:
        env = os.environ | {"SECRET": self.secret(self.password), "PYTHONPATH": os.pathsep.join([*sys.path, str(KIT)])}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([sys.executable, *self.command()], stdout=log, stderr=log, env=env)
        end = time.monotonic() + 60
        while True:
            assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
            assert time.monotonic() < end, "the program does not listen"
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
                return
            except OSError:
                time.sleep(0.02)

    def secret(self, password: str) -> str:
        """The password in the form that both ends take."""
        return password

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)

    def pids(self) -> list[int]:
        assert self.process is not None
        return [self.process.pid]

    def end(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def connection(self, password: str) -> str:
        return ""

    def fresh(self) -> str:
        name = f"place{next(self._numbers)}"
        (self.folder / name).mkdir()
        return name


class Posted(Program):
    """A place is a path of the program, and what it took a table."""

    missing = frozenset({"status_404"})
    denied = frozenset({"status_401"})

    def place(self) -> dict[str, Any]:
        return {"path": self.fresh()}

    def nowhere(self) -> dict[str, Any]:
        return {"path": "nowhere"}

    def url(self, place: Mapping[str, Any]) -> str:
        return f"http://127.0.0.1:{self.port}/{place['path']}"

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        with closing(opened(self.folder / place["path"])) as db:
            rows = db.execute("SELECT id, subject, body FROM took ORDER BY n").fetchall()
        return [Arrived(event_id, subject, json.loads(body)) for event_id, subject, body in rows]


class HttpRig(Posted):
    manifest = "warehouse_http"

    def command(self) -> list[str]:
        return [str(Path(__file__).with_name("receivers.py")), "loader", str(self.port), str(self.folder)]

    def own(self, place: Mapping[str, Any]) -> dict[str, Any]:
        return {"url": self.url(place), "auth": {"kind": "bearer", "secret": "file:api.key"}}

    def special(self, place: Mapping[str, Any], channel: Channel) -> None:
        """What arrives is the whole event; one request carries all of a call, and another verb's failure is nobody else's."""
        super().special(place, channel)
        assert told(channel.send(call(*members(1, 3)))) == [("acknowledged", "ok")] * 3
        assert [one.body for one in self.arrived(place)] == [one.body for one in members(1, 3)]


class WebhookRig(Posted):
    """The kit checks the signature, drops what it had, and hands on the rest."""

    manifest = "webhook"
    password = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

    def command(self) -> list[str]:
        return [str(Path(__file__).with_name("receivers.py")), "hook", str(self.port), str(self.folder)]

    def secret(self, password: str) -> str:
        other = base64.b64encode(hashlib.sha256(password.encode()).digest()).decode()
        return f"whsec_{password if password == self.password else other}"

    def connection(self, password: str) -> str:
        return self.secret(password)

    def own(self, place: Mapping[str, Any]) -> dict[str, Any]:
        said = {name: value for name, value in place.items() if name != "path"}
        return {"url": self.url(place), "signing_secret": "file:server.key", "vars": said}

    def special(self, place: Mapping[str, Any], channel: Channel) -> None:
        """Every form and every signature is understood by the kit; an event that comes too late changes nothing."""
        super().special(place, channel)
        forms = [{"mode": "binary"}, {"mode": "batched"}, {"signing": "rfc9421"}, {"signing": "both"}]
        for number, form in enumerate(forms, 1):
            one = self.open({**place, **form})
            assert told(one.send(call(*members(10 * number, 3)))) == [("acknowledged", "ok")] * 3
            one.close()
        expected = [one.event_id for number in (10, 20, 30, 40) for one in members(number, 3)]
        assert [one.event_id for one in self.arrived(place)] == expected
        assert told(channel.send(call(member(1)))) == [("acknowledged", "ok")]
        assert len(self.arrived(place)) == len(expected), "member 1 is older than what its subject has had"


class Watched(Around):
    """A channel that keeps what took effect in itself; of whom, it does not know."""

    def __init__(self, channel: FaultyChannel) -> None:
        super().__init__(channel)
        self.effects, self.subjects = channel.effects, dict[str, str]()

    def send(self, call: Call) -> list[Outcome]:
        self.subjects |= {one.event_id: one.subject for one in call.members}
        return self.channel.send(call)


class FaultyRig(Rig):
    manifest = "faulty"
    stoppable = guarded = locked = leaves = remembers = False  # a part of this process's memory

    def start(self) -> None:
        self._opened: dict[str, list[Watched]] = {}
        self._numbers = count(1)

    def end(self) -> None:
        """There is no server."""

    def connection(self, password: str) -> str:
        return ""

    def own(self, place: Mapping[str, Any]) -> dict[str, Any]:
        return {"vars": dict(place)}

    def place(self) -> dict[str, Any]:
        return {"seed": str(next(self._numbers))}

    def open(self, place: Mapping[str, Any], **own: Any) -> Any:
        channel = super().open(place, **own)
        assert isinstance(channel, FaultyChannel)
        found = Watched(channel)
        self._opened.setdefault(place["seed"], []).append(found)
        return found

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        return [
            Arrived(event_id, one.subjects[event_id])
            for one in self._opened.get(place["seed"], [])
            for event_id in one.effects.elements()
        ]

    def special(self, place: Mapping[str, Any], channel: Channel) -> None:
        """The dials are kept to, a seed can be had again, and an effect whose answer was lost is not had twice."""
        super().special(place, channel)
        dials = {"transient": "0.2", "throttled": "0.1", "lost_ack": "0.2", "terminal": "0.1"}
        first, again = self.open({**place, **dials}), self.open({**place, **dials})
        those = members(1, 400)
        results = [one.result for one in first.send(call(*those))]
        assert results == [one.result for one in again.send(call(*those))]
        shares = {name: results.count(name) / 400 for name in set(results)}
        assert shares.keys() == {"transient", "throttled", "in_doubt", "terminal", "acknowledged"}
        assert 0.12 < shares["in_doubt"] < 0.28
        assert 0.3 < shares["acknowledged"] < 0.5
        lost = [one for one, result in zip(those, results, strict=True) if result == "in_doubt"]
        first.send(call(*(replace(one, attempt=2) for one in lost)))
        assert {first.effects[one.event_id] for one in lost} == {1}


RIGS: list[type[Rig]] = [HttpRig, WebhookRig, FaultyRig]
