"""Rigs of the channels whose acknowledgement comes later: a person who got a task or a mail, a subscriber that pulls."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from later import Answered, Desk
from rigs_http import Program
from sinks import Arrived, Rig, call, members, told

from tidings.api.access import Tokens

PLACES = 40  # subscribers that pull: the API must know them when it starts
PAGE = 20
PERSON = re.compile(r"^person: (.*)$", re.MULTILINE)
EVENT = re.compile(r"^event: (.*)$", re.MULTILINE)


@dataclass
class Clerk:
    """A person with an operator's folder: does what they are told, and says so with evidence."""

    desk: Desk
    noted: list[Arrived] = field(default_factory=list)
    done: set[str] = field(default_factory=set)

    def answers(self, events: list[str]) -> set[str]:
        new = list(dict.fromkeys(one for one in events if one not in self.done))
        if new:
            letter = self.desk.folder / "letter.txt"
            letter.write_text("It is done.")
            said = ("--reason", "done by hand", "--by", "a clerk", "--evidence", str(letter), "--strength", "A1")
            self.desk.verb("acknowledge", *new, "--subscriber", "people", *said)
            self.done |= set(new)
        return set(new)

    def tasks(self) -> list[str]:
        return [one["event"] for one in self.desk.verb("waiting", "--subscriber", "people")]


class ManualRig(Rig):
    manifest = "manual"
    stoppable = guarded = locked = leaves = False  # a list of tasks
    later = True

    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tidings-tasks-"))
        self._numbers = count(1)
        self._clerks: dict[str, Clerk] = {}

    def end(self) -> None:
        shutil.rmtree(self.folder)

    def connection(self, password: str) -> str:
        return ""

    def own(self, place: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def place(self) -> dict[str, Any]:
        name = f"place{next(self._numbers)}"
        self._clerks[name] = Clerk(Desk(self.folder / name, {"people": "manifest: manual"}, {}))
        return {"name": name}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        """The tasks as the clerk met them in the list."""
        return list(self._clerks[place["name"]].noted)

    def open(self, place: Mapping[str, Any], **own: Any) -> Any:
        clerk = self._clerks[place["name"]]

        def answers(_: float) -> set[str]:
            listed = clerk.tasks()
            clerk.noted += [Arrived(one, opened.subjects[one]) for one in listed]
            return clerk.answers(listed)

        opened = Answered(super().open(place, **own), clerk.desk, "people", answers)
        return opened

    def special(self, place: Mapping[str, Any], channel: Any) -> None:
        """A task stays in the list until the person answers, however often it is handed over."""
        clerk, idle = self._clerks[place["name"]], Answered(channel.channel, channel.desk, "people", lambda _: set())
        for _ in range(2):
            assert told(idle.send(call(*members(1, 2)))) == [("accepted", "awaiting_person")] * 2
            assert clerk.tasks() == [one.event_id for one in members(1, 2)]
        assert told(channel.send(call(*members(1, 2)))) == [("acknowledged", "ok")] * 2
        assert clerk.tasks() == []


class EmailRig(Program):
    manifest = "email"
    later = True

    def __init__(self) -> None:
        super().__init__()
        self._clerks: dict[str, Clerk] = {}

    def command(self) -> list[str]:
        return [str(Path(__file__).with_name("receivers.py")), "mail", str(self.port), str(self.folder)]

    def connection(self, password: str) -> str:
        return f"smtp://robot:{password}@127.0.0.1:{self.port}"

    def place(self) -> dict[str, Any]:
        place = {"from": "tidings@shop.example", "to": f"{self.fresh()}@shop.example"}
        lines = f"manifest: email\nconnection: file:mail.key\nvars: {{from: {place['from']}, to: {place['to']}}}"
        secrets = {"mail.key": self.connection(self.password)}
        self._clerks[place["to"]] = Clerk(Desk(self._box(place) / "desk", {"people": lines}, secrets))
        return place

    def _box(self, place: Mapping[str, Any]) -> Path:
        return self.folder / str(place["to"]).partition("@")[0]

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        """The mails in the person's box, as they came."""
        mails = [path.read_bytes() for path in sorted(self._box(place).glob("*.eml"))]
        texts = [message_from_bytes(mail, policy=policy.default).get_content() for mail in mails]  # type: ignore[attr-defined]
        return [Arrived(EVENT.findall(text)[0].strip(), PERSON.findall(text)[0].strip()) for text in texts]

    def open(self, place: Mapping[str, Any], **own: Any) -> Any:
        clerk = self._clerks[place["to"]]

        def answers(_: float) -> set[str]:
            open_ones = set(clerk.tasks())  # a mail whose answer was lost on our side is no task yet
            return clerk.answers([one.event_id for one in self.arrived(place) if one.event_id in open_ones])

        return Answered(super().open(place, **own), clerk.desk, "people", answers)

    def special(self, place: Mapping[str, Any], channel: Any) -> None:
        """The mail server's yes is not the person's: until they have spoken the delivery is open."""
        super().special(place, channel)
        idle = Answered(channel.channel, channel.desk, "people", lambda _: set())
        assert told(idle.send(call(*members(1, 2)))) == [("accepted", "awaiting_person")] * 2
        assert self._clerks[place["to"]].tasks() == [one.event_id for one in members(1, 2)]


class PullRig(Program):
    """`tidings serve`, and a subscriber that stores what it reads before it answers for it."""

    manifest = "pull"
    later = True
    guarded = False  # nobody is reached: the subscriber comes
    denied = frozenset({"readable"})  # who has no token does not read, and the delivery stays open

    def __init__(self) -> None:
        super().__init__()
        lines = {f"place{n}": "manifest: pull" for n in range(1, PLACES + 1)}
        self.desk = Desk(self.folder / "desk", lines, {})
        tokens = Tokens(self.desk.settings.data_path)
        self._tokens = {name: tokens.make(name)[0] for name in lines}
        self._stored: dict[str, list[Arrived]] = {name: [] for name in lines}

    def command(self) -> list[str]:
        return ["-m", "tidings.cli", "serve", "-C", str(self.desk.folder), "--port", str(self.port)]

    def place(self) -> dict[str, Any]:
        return {"name": self.fresh()}

    def own(self, place: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        return list(self._stored[place["name"]])

    def open(self, place: Mapping[str, Any], *, password: str | None = None, **own: Any) -> Any:
        name = place["name"]
        token = self._tokens[name] if password is None else password

        def answers(left_s: float) -> set[str]:
            taken: set[str] = set()
            with suppress(httpx.HTTPError), self._client(name, token, left_s) as client:
                self._read(client, name, opened, taken)
            return taken

        opened = Answered(super().open(place, **own), self.desk, name, answers)
        return opened

    def _client(self, name: str, token: str, left_s: float) -> httpx.Client:
        url, headers = f"http://127.0.0.1:{self.port}/v1/subscribers/{name}", {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=url, headers=headers, timeout=left_s, trust_env=False)

    def _read(self, client: httpx.Client, name: str, opened: Answered, taken: set[str]) -> None:
        """Page after page by the cursor: stored, then answered for."""
        cursor, people = "", self.desk.pseudonyms(name, set(opened.subjects.values()))
        while True:
            page = client.get("/events", params={"after": cursor, "limit": PAGE}).raise_for_status()
            events, cursor = page.json(), page.headers["Tidings-Cursor"]
            if not events:
                assert client.get("/events").raise_for_status().json() == [], "answered for, and still there to be read"
                return
            self._stored[name] += [Arrived(one["id"], people[one["subject"]], one) for one in events]
            acks = [{"id": one["id"], "status": "ok"} for one in events]
            results = client.post("/acks", json={"acks": acks}).raise_for_status().json()["results"]
            taken |= {one["id"] for one in results if one["result"] == "taken"}

    def special(self, place: Mapping[str, Any], channel: Any) -> None:
        """What is read and not answered for stays readable; a second answer changes nothing; another's token reads nothing."""
        super().special(place, channel)
        idle = Answered(channel.channel, self.desk, place["name"], lambda _: set())
        assert told(idle.send(call(*members(1, 2)))) == [("accepted", "readable")] * 2
        with self._client(place["name"], self._tokens[place["name"]], 10) as client:
            first, again = (client.get("/events").json() for _ in range(2))
            assert [one["data"] for one in first] == [one.body["data"] for one in members(1, 2)]
            assert first == again
            assert told(channel.send(call(*members(1, 2)))) == [("acknowledged", "ok")] * 2
            late = client.post("/acks", json={"acks": [{"id": first[0]["id"], "status": "failed"}]}).json()["results"]
            assert late == [{"id": first[0]["id"], "result": "already", "answer": "acknowledge"}]
        with self._client(place["name"], self._tokens[self.place()["name"]], 10) as stranger:
            assert stranger.get("/events").status_code == 403
        self.desk.take_up(place["name"])
        assert {one.result for one in channel.probe(call(*members(1, 2)))} == {"acknowledged"}


RIGS: list[type[Rig]] = [ManualRig, EmailRig, PullRig]
