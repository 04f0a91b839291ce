"""An operator with subscribers that come for their events, a journal, what their lanes offered, and the API on loopback."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import Journal, operator

from tidings.api.app import Api
from tidings.api.server import Place, Server
from tidings.channels.call import Outcome
from tidings.lanes import attempts
from tidings.lanes.member import Feed, PlannedCall, Rules, Sent
from tidings.lanes.semantics import judge
from tidings.settings import Settings, load
from tidings.store import Store

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BY = attempts.Stamp("tidings/shop", "pull", "pull:alpha")
BATCH = 2**24
NAMES = ("alpha", "beta")


@dataclass
class Shop:
    """`alpha` and `beta` pull; both have a signing secret for callbacks."""

    folder: Path
    settings: Settings
    store: Store
    journal: Journal
    seq: dict[str, int] = field(default_factory=dict)
    top: dict[str, int] = field(default_factory=dict)
    commits: int = 0

    def happens(self, *people: str, to: str = "alpha", **more: Any) -> list[str]:
        """Events about these people that are owed to one subscriber and offered by its lane."""
        number = self.journal.number
        ids = self.journal.batch([(who, {to: "allow"}) for who in people], **more)
        self.offered(to, [(event_id, number * BATCH + index) for index, event_id in enumerate(ids)])
        return ids

    def offered(
        self, lane: str, events: Sequence[tuple[str, int]], result: str = "accepted", code: str = "readable"
    ) -> None:
        """A call of the lane in which every member had this outcome."""
        self.seq[lane] = seq = self.seq.get(lane, 0) + 1
        members = tuple(Sent(event_id, offset, "at-least-once", 1, "email") for event_id, offset in events)
        call = PlannedCall(lane, seq, Feed("crm", "g1"), "send", members, time.time(), False)
        outcomes = [
            Outcome(event_id, result, code, "A2" if result == "acknowledged" else "A0") for event_id, _ in events
        ]  # type: ignore[arg-type]
        now = time.time()
        row = attempts.made_row(Rules(lane), call, judge(Rules(lane), call, outcomes, now, now), (now, now), BY)
        folder = self.store.fresh("attempts")
        attempts.write([row], folder)
        self.commits += 1
        top = max([offset for _, offset in events], default=0)
        said = {f"lane/{lane}": seq, f"lane/{lane}/crm/g1": max(top, self.top.get(lane, 0))}
        self.top[lane] = said[f"lane/{lane}/crm/g1"]
        self.store.commit("attempts", folder, app="lanes", version=self.commits, cursors=said)

    def settings_again(self) -> Settings:
        return load(self.folder)


def shop(folder: Path) -> Shop:
    operator(folder, {"hook": "http://127.0.0.1:1/hook"})
    for name in NAMES:
        text = "manifest: pull\nrole: service\nregion: US\ndpa: true\nsigning_secret: file:hook.key\n"
        (folder / f"subscribers/{name}.yaml").write_text(text)
    (folder / "secrets/hook.key").write_text(SECRET)
    (folder / "secrets/hook.key").chmod(0o600)
    settings = load(folder)
    store = Store(settings.data_path / "tables")
    return Shop(folder, settings, store, Journal(settings, store))


@dataclass
class Served:
    api: Api
    url: str
    client: httpx.Client

    def ask(self, method: str, path: str, token: str = "", **given: Any) -> httpx.Response:
        headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **given.pop("headers", {})}
        return self.client.request(method, self.url + path, headers=headers, **given)


@contextmanager
def serving(settings: Settings, **given: Any) -> Iterator[Served]:
    """The real server on a free port."""
    api = Api(settings, **given)
    sock = socket.create_server(("127.0.0.1", 0))
    server = Server(api, Place())
    thread = threading.Thread(target=asyncio.run, args=(server.serve([sock]),), daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        with httpx.Client(timeout=40, trust_env=False) as client:
            yield Served(api, f"http://127.0.0.1:{sock.getsockname()[1]}", client)
    finally:
        server.should_exit = True
        thread.join(20)
        sock.close()
