"""The subscriber comes for its events: the channel `pull`.

Nothing is sent. A delivery is *accepted* at once, which makes it readable over the API (docs/api.md) and leaves it open until the
subscriber says what became of it: `POST …/acks`, or a signed callback. Events of one person become readable in their order, so a
reader that applies them as the cursor gives them applies them in order; one that stays unanswered holds nobody up.

What breaks its guarantee: a subscriber that acknowledges before it has stored the event, that reads with two readers at once, or that
lets somebody else have its token.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidings.channels.call import Call, Capabilities, Limits, Outcome, all_members, in_order, never_raises
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import written

CAPABILITIES = Capabilities(natural=True)  # offering twice is offering once: it is the same open delivery
GUARANTEE = Guarantee(
    title="Pull: cursor API and Server-Sent Events",
    ack="the subscriber's own answer per event, under its token",
    strength="A3",
    order="per person, in the order of the cursor; an event long unanswered may be given again, under its id",
    dedup="by the event's id: it stays readable until it is answered for, and an answer counts once",
    breaks="an answer given before the event is stored; two readers at once; a token in other hands",
    capabilities=CAPABILITIES,
    extra="api",
)


@dataclass(frozen=True)
class PullChannel:
    """Says of every member that it may be read."""

    limits: Limits

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @never_raises
    def send(self, call: Call) -> list[Outcome]:
        """What no page of the API could hold would keep all that stands behind it from being read."""
        good, found = written(call.members, "structured", self.limits.max_bytes)
        return in_order(call, [*found, *(one.outcome("accepted", "readable") for one in good)])

    @never_raises
    def probe(self, call: Call) -> list[Outcome]:
        """Still readable: only the subscriber can say more."""
        return all_members(call, Outcome("", "accepted", "readable"))

    def ping(self) -> Outcome:
        """There is nobody to reach."""
        return Outcome("ping", "acknowledged", "ok")

    def close(self) -> None:
        """There is nothing to close."""


def open_sink(opening: Opening) -> PullChannel:
    return PullChannel(opening.limits)
