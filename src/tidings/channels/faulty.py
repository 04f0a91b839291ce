"""A channel built to fail: delivery is tested and shown with it. It keeps in memory what took effect.

By script, for tests of one event after the other:

    FaultyChannel({"a": ["transient", "in_doubt*", "acknowledged"]})

Each attempt of an event takes the next word of its script; after the last one it goes on with `otherwise`. A `*` means that
the effect happens although the answer says otherwise: the acknowledgement that was lost on the way.

By seed, as a subscriber with the manifest `faulty`: its vars are the shares of attempts that fail in each way. What becomes of an
attempt depends on the seed, the event and the attempt's number alone, so that a run can be had again.

What breaks its guarantee: it is its guarantee. What took effect is forgotten when it is closed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import cast, get_args

from tidings.channels.call import Call, Capabilities, Channel, Limits, Member, Outcome, Result
from tidings.channels.kinds import Guarantee, Opening
from tidings.errors import Refused

_RESULTS = get_args(Result)
DIALS = {
    "transient": "transient",
    "throttled": "throttled",
    "in_doubt": "in_doubt",
    "lost_ack": "in_doubt*",
    "terminal": "terminal",
}
GUARANTEE = Guarantee(
    title="Fails by seed",
    ack="none: it is for tests and shows",
    strength="A3",
    order="as it was called",
    dedup="by the event's id, for as long as the channel is open",
    breaks="whatever its dials say",
    capabilities=Capabilities(idempotency_key=True, probe=True),
)


def open_sink(opening: Opening) -> Channel:
    shares = {name: _share(name, opening.variables[name]) for name in DIALS}
    if sum(shares.values()) > 1:
        found = f"shares that add up to {sum(shares.values()):g}"
        raise Refused("faulty_dials", found, "at most 1 in all", "Mend `vars:` of the subscriber.")
    return FaultyChannel(limits=opening.limits, seed=opening.variables["seed"], shares=shares)


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise Refused("faulty_dials", f"{name}: {text!r}", "a share from 0 to 1", "Mend `vars:` of the subscriber.")
    return share


@dataclass
class FaultyChannel:
    """`effects` counts what the subscriber did per event; `seen` is every call's members in the order they came."""

    script: Mapping[str, Sequence[str]] = field(default_factory=dict)
    otherwise: str = "acknowledged"
    limits: Limits = field(default_factory=Limits)
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(idempotency_key=True, probe=True))
    delay_s: float = 0.0
    retry_after: float | None = None
    seed: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)  # dial → share of attempts, by seed
    effects: Counter[str] = field(default_factory=Counter)
    seen: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._step: Counter[str] = Counter()
        for word in [self.otherwise, *(word for words in self.script.values() for word in words)]:
            if word.removesuffix("*") not in _RESULTS:
                raise ValueError(f"{word!r} is not one of {', '.join(_RESULTS)}")

    def send(self, call: Call) -> list[Outcome]:
        if self.delay_s:
            time.sleep(self.delay_s)
        with self._lock:
            self.seen.append(tuple(member.event_id for member in call.members))
            return [self._one(member) for member in call.members]

    def probe(self, call: Call) -> list[Outcome]:
        """Tells the truth about effects, if the channel says that it can be asked."""
        return [self._told(member) for member in call.members]

    def ping(self) -> Outcome:
        return Outcome("ping", "acknowledged", "ok")

    def close(self) -> None:
        """There is nothing to close."""

    def _one(self, member: Member) -> Outcome:
        word = self._drawn(member) if self.shares else self._scripted(member)
        result = cast(Result, word.removesuffix("*"))
        known = self.capabilities.idempotency_key or self.capabilities.natural
        if (result == "acknowledged" or word.endswith("*")) and not (known and self.effects[member.event_id]):
            self.effects[member.event_id] += 1
        wait = self.retry_after if result == "throttled" else None
        return Outcome(
            member.event_id, result, "scripted", "A3" if result == "acknowledged" else "A0", retry_after=wait
        )

    def _scripted(self, member: Member) -> str:
        words = self.script.get(member.event_id, ())
        step = self._step[member.event_id]
        self._step[member.event_id] += 1
        return words[step] if step < len(words) else self.otherwise

    def _drawn(self, member: Member) -> str:
        digest = blake2b(f"{self.seed}/{member.event_id}/{member.attempt}".encode(), digest_size=8).digest()
        drawn = int.from_bytes(digest, "big") / 2**64
        for name, share in self.shares.items():
            if drawn < share:
                return DIALS[name]
            drawn -= share
        return self.otherwise

    def _told(self, member: Member) -> Outcome:
        if not self.capabilities.probe:
            return Outcome(member.event_id, "in_doubt", "no_probe")
        done = self.effects[member.event_id] > 0
        return Outcome(member.event_id, "acknowledged" if done else "transient", "probed", "A3" if done else "A0")
