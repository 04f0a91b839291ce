"""What the one suite for sinks needs of a sink: a real server, a fresh place in it, and what has arrived there.

A rig is one class: how its server starts, stops, dies and freezes, and how a reader of that system reads. Add it to RIGS of a
`rigs_*.py` file and every test of `test_sinks.py` runs on it. What a sink cannot do it says in a class attribute, and the test
that asks for it then checks that the channel does not claim it either.
"""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))

from tidings.channels import DIGEST_KEY, open_channel
from tidings.channels.call import Call, Capabilities, Channel, Limits, Member, Outcome
from tidings.channels.manifest import Manifest, shipped_manifest
from tidings.shapes import NetworkRules, Subscriber
from tidings.stages.envelope import render

LOOPBACK = ("127.0.0.0/8", "::1/128")


@dataclass(frozen=True)
class Arrived:
    """One effect, as a reader of the system sees it."""

    event_id: str
    subject: str
    body: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


class Rig(ABC):
    """One server for all tests of a manifest. What it holds outlives `stop` and `kill`."""

    manifest: ClassVar[str]
    password: ClassVar[str] = "sesame-7f31"  # must not be found in anything that is shown
    missing: ClassVar[frozenset[str]] = frozenset()  # codes for a place that is not there; empty: every place is
    stoppable: ClassVar[bool] = True  # there is a process to stop, kill and freeze
    guarded: ClassVar[bool] = True  # it is reached over the network, so that the guard has a say
    locked: ClassVar[bool] = True  # a wrong password is turned away
    denied: ClassVar[frozenset[str]] = frozenset({"unauthorised"})  # and what that is called
    settling_s: ClassVar[float] = 0.0  # until a place that was just made outlives a kill of the server
    later: ClassVar[bool] = False  # the channel's yes is only `accepted`; whoever it was for answers afterwards
    leaves: ClassVar[bool] = True  # bytes leave, so that there is what is too large or cannot be written
    remembers: ClassVar[bool] = True  # a repeat is recognised after the channel was closed and opened again

    @abstractmethod
    def start(self) -> None:
        """Start, or start again with what it held. `unavailable(…)` when it cannot be had."""

    def stop(self) -> None:
        """An orderly stop."""
        raise NotImplementedError

    def kill(self) -> None:
        """SIGKILL."""
        raise NotImplementedError

    def pids(self) -> list[int]:
        """Every process of the server, for `freeze`."""
        return []

    @abstractmethod
    def end(self) -> None:
        """Stop and leave nothing."""

    def freeze(self) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGCONT)

    @abstractmethod
    def connection(self, password: str) -> str:
        """What an operator puts into the secret."""

    @abstractmethod
    def place(self) -> dict[str, Any]:
        """The vars of a fresh topic, queue, stream or table."""

    def nowhere(self) -> dict[str, Any]:
        """The vars of one that does not exist."""
        return {}

    @abstractmethod
    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        """All that is there, in the order in which a reader meets it."""

    def special(self, place: Mapping[str, Any], channel: Channel) -> None:
        """Assert what this sink alone has; the channel is open at the place, and nothing has been sent."""
        assert channel.capabilities == self.described.capabilities()

    def own(self, place: Mapping[str, Any]) -> dict[str, Any]:
        """What a subscriber of this kind says of where it is: vars and connection; or url, auth, signing_secret."""
        return {"vars": dict(place), "connection": "file:server.key"}

    @property
    def described(self) -> Manifest:
        return shipped_manifest(self.manifest)

    def open(
        self, place: Mapping[str, Any], *, password: str | None = None, allow: tuple[str, ...] = LOOPBACK
    ) -> Channel:
        said = {"manifest": self.manifest, "name": "someone", "role": "service", "region": "US"}
        subscriber = Subscriber.model_validate({**said, **self.own(place)})
        secret = self.connection(self.password if password is None else password)
        secrets = {"file:server.key": secret, "file:api.key": password or self.password, DIGEST_KEY: "00" * 32}
        return open_channel(subscriber, secrets, NetworkRules(allow=allow))


class Around:
    """A channel and what a lane, a reader or a person does around it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def __repr__(self) -> str:
        return repr(self.channel)

    @property
    def limits(self) -> Limits:
        return self.channel.limits

    @property
    def capabilities(self) -> Capabilities:
        return self.channel.capabilities

    def send(self, call: Call) -> list[Outcome]:
        return self.channel.send(call)

    def probe(self, call: Call) -> list[Outcome]:
        return self.channel.probe(call)

    def ping(self) -> Outcome:
        return self.channel.ping()

    def close(self) -> None:
        self.channel.close()


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += family(int(child))
    return found


def member(number: int, subject: str = "", *, sent_in: int = 0, **data: Any) -> Member:
    """One event; the same number is the same event."""
    event_id = f"0190a1b2-c3d4-7e5f-8a9b-{number:012x}"
    subject = subject or f"subject-{number % 4}"
    row = {"event_id": event_id, "change_type": "email", "entity": "customer", "source": "crm", "tenant": "shop"}
    images = {"before": None, "after": {"email": f"jörg{number}@example.com"}, "changed": ["email"]}
    body = render({**row, "offset": number}, subject, {"key": {"id": 1}, **images, **data})
    return Member(event_id, subject, "email", f"{number:020d}", body, event_id, 1, sent_in=sent_in)


def members(first: int, count: int) -> tuple[Member, ...]:
    return tuple(member(number) for number in range(first, first + count))


def call(*those: Member, number: int = 1, timeout: float = 20.0) -> Call:
    return Call("someone", those, timeout, number)


def told(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    return [(one.result, one.code) for one in outcomes]


def event(body: Mapping[str, Any]) -> Arrived:
    """What a reader knows of a CloudEvent in the structured form."""
    return Arrived(body["id"], body["subject"], dict(body))
