"""A channel built to fail. Delivery is tested with it: it does what its script says and remembers what took effect.

    FaultyChannel({"a": ["transient", "in_doubt*", "acknowledged"]})

Each attempt of an event takes the next word of its script; after the last one it goes on with `otherwise`. A `*` means that
the effect happens although the answer says otherwise: the acknowledgement that was lost on the way.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast, get_args

from tidings.channels.call import Call, Capabilities, Limits, Member, Outcome, Result

_RESULTS = get_args(Result)


@dataclass
class FaultyChannel:
    """`effects` counts what the subscriber did per event; `seen` is every call's members in the order they came."""

    script: Mapping[str, Sequence[str]] = field(default_factory=dict)
    otherwise: str = "acknowledged"
    limits: Limits = field(default_factory=Limits)
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(idempotency_key=True, probe=True))
    delay_s: float = 0.0
    retry_after: float | None = None
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
        words = self.script.get(member.event_id, ())
        step = self._step[member.event_id]
        self._step[member.event_id] += 1
        word = words[step] if step < len(words) else self.otherwise
        result = cast(Result, word.removesuffix("*"))
        known = self.capabilities.idempotency_key or self.capabilities.natural
        if (result == "acknowledged" or word.endswith("*")) and not (known and self.effects[member.event_id]):
            self.effects[member.event_id] += 1
        wait = self.retry_after if result == "throttled" else None
        return Outcome(
            member.event_id, result, "scripted", "A3" if result == "acknowledged" else "A0", retry_after=wait
        )

    def _told(self, member: Member) -> Outcome:
        if not self.capabilities.probe:
            return Outcome(member.event_id, "in_doubt", "no_probe")
        done = self.effects[member.event_id] > 0
        return Outcome(member.event_id, "acknowledged" if done else "transient", "probed", "A3" if done else "A0")
