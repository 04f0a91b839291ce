"""A task for a person: the channel `manual`. Nothing leaves; the delivery is the task, listed until somebody answers.

Acknowledges: a person, with evidence, by `tidings` or the console; until then the delivery is *accepted* (A1) and its
deadline runs. Orders: the list, by deadline. Deduplicates: a task is the event, so handing it over twice is handing
it over once.

What breaks its guarantee: the person.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidings.channels.call import Call, Capabilities, Limits, Outcome, all_members, never_raises
from tidings.channels.kinds import Guarantee, Opening

GUARANTEE = Guarantee(
    title="A task for a person",
    ack="a person's word, with evidence",
    strength="A1",
    order="by deadline",
    dedup="a task is the event",
    breaks="the person",
    capabilities=Capabilities(natural=True),
)
WAITING = Outcome("", "accepted", "awaiting_person", "A1", detail="a person has to do this and say so")


@dataclass(frozen=True)
class ManualChannel:
    limits: Limits

    @property
    def capabilities(self) -> Capabilities:
        return GUARANTEE.capabilities

    @never_raises
    def send(self, call: Call) -> list[Outcome]:
        return all_members(call, WAITING)

    @never_raises
    def probe(self, call: Call) -> list[Outcome]:
        """Only the person knows."""
        return all_members(call, WAITING)

    def ping(self) -> Outcome:
        return Outcome("ping", "acknowledged", "ok")

    def close(self) -> None:
        """There is nothing to close."""


def open_sink(opening: Opening) -> ManualChannel:
    return ManualChannel(opening.limits)
