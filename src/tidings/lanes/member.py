"""The small records a lane is made of. Times are seconds since 1970 as floats, rounded to the millisecond."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tidings.channels.call import STANDARD_SCHEDULE, Capabilities
from tidings.matters import Kind

FinalName = Literal["acknowledged", "refused", "superseded", "erased", "expired", "in_doubt", "dead_lettered"]
FINALS: tuple[FinalName, ...] = (
    "acknowledged",
    "refused",
    "superseded",
    "erased",
    "expired",
    "in_doubt",
    "dead_lettered",
)
Semantics = Literal["at-most-once", "at-least-once", "exactly-once"]


SLA_S = 900.0


class Feed(NamedTuple):
    """Where offsets are comparable: one source in one generation."""

    source: str
    generation: str

    def __str__(self) -> str:
        return f"{self.source}/{self.generation}"


@dataclass(frozen=True)
class Rules:
    """What a lane obeys: the subscriber's settings narrowed by its manifest."""

    name: str
    batch: int = 1
    batches: Mapping[str, int] = field(default_factory=dict)  # change type → members per call, where it differs
    capable: Capabilities = field(default_factory=Capabilities)
    capabilities: Mapping[str, Capabilities] = field(default_factory=dict)  # change type → where it differs
    key_window_s: float | None = None  # how long the subscriber remembers a key; None means for good
    per_second: float = 0.0  # calls; 0 means no limit
    concurrency: int = 4
    schedule: tuple[float, ...] = STANDARD_SCHEDULE
    window: int = 10_000  # unsettled deliveries held; at the bound the cursor stops
    aging_s: float = 60.0  # waiting this long is worth one priority tier
    timeout_s: float = 30.0
    breaker_after: int = 5  # consecutive failed calls
    breaker_cool_s: float = 10.0
    breaker_cool_max_s: float = 300.0
    breaker_window: int = 20  # of the last calls
    breaker_least: int = 10  # of them must be known before their share says anything
    breaker_share: float = 0.5  # of them failed: open, also when some were answered
    retry_share: float = 0.2  # of a lane's calls may be retries
    retry_floor: float = 1.0  # retries a second, whatever else is sent
    sla: Mapping[str, float] = field(default_factory=dict)  # change type → seconds to the acknowledgement
    notices: frozenset[str] = frozenset()  # change types that a weak acknowledgement (A0, A1) only announces
    poll_s: float = 30.0  # an accepted delivery is asked about after this long, then ever more seldom
    poll_max_s: float = 21_600.0
    patience_s: float = 2_592_000.0  # an accepted delivery that nobody answered for ends after this, or at its deadline
    most_awaiting: int = 100_000  # accepted deliveries without an answer; at the bound the cursor stops

    def sla_for(self, change_type: str) -> float:
        return self.sla.get(change_type, SLA_S)

    def largest_call(self, change_type: str) -> int:
        return self.batches.get(change_type, self.batch)

    def repeatable(self, change_type: str) -> bool:
        """A repeat with the same key has no second effect."""
        can = self.capabilities.get(change_type, self.capable)
        return can.idempotency_key or can.natural or can.transaction

    def askable(self, change_type: str) -> bool:
        """The subscriber can be asked what became of a call."""
        can = self.capabilities.get(change_type, self.capable)
        return can.probe or can.two_phase

    def holds(self, change_type: str) -> bool:
        """What was accepted has not happened yet: nothing of its subject may pass it."""
        return self.capabilities.get(change_type, self.capable).two_phase


@dataclass(slots=True)
class Delivery:
    """One obligation: this event to this subscriber, and how far it has come."""

    event_id: str
    subject: str
    feed: Feed
    offset: int
    change_type: str
    semantics: Semantics = "at-least-once"
    priority: int = 1
    since: float = 0.0
    deadline: float | None = None
    deferred: bool = False
    reopened: bool = False  # a dead letter sent again by an operator: outside the cursors
    tries: int = 0  # place in the schedule
    attempt: int = 0  # calls made
    first: float | None = None
    begun: int | None = None  # the first call recorded for it
    due: float = 0.0
    limit: int = 0  # largest call it may travel in while a poison is isolated; 0 means the lane's own
    doubted: bool = False  # some call may have had its effect without our knowing
    sent_in: int = 0  # the call that may have had its effect
    awaiting: bool = False  # accepted: the answer comes later
    reference: str = ""
    call: int | None = None  # in flight: the call's sequence number
    # When it was expected to be acknowledged, as it entered the lane; said anew after a restart, so no part of what it is.
    predicted: float | None = field(default=None, compare=False)

    @property
    def started(self) -> bool:
        return self.attempt > 0 or self.call is not None

    def asks(self, rules: Rules) -> bool:
        """The next call is a question: what became of it, or a doubt that a repeat could make worse."""
        if self.awaiting:
            return True
        once = self.doubted and self.semantics == "exactly-once"
        return once and not rules.repeatable(self.change_type) and rules.askable(self.change_type)


@dataclass(frozen=True)
class Sent:
    """What a call knows of a member: enough to judge its outcome without the lane's state."""

    event_id: str
    offset: int
    semantics: Semantics
    attempt: int  # 1 for the first call
    change_type: str = ""
    tries: int = 0
    first: float | None = None
    limit: int = 0
    doubted: bool = False
    sent_in: int = 0
    awaiting: bool = False
    reference: str = ""
    predicted: float | None = None


@dataclass(frozen=True)
class PlannedCall:
    """One call about to be made. `seq` orders the calls of a lane for ever."""

    lane: str
    seq: int
    feed: Feed
    kind: Literal["send", "probe"]
    members: tuple[Sent, ...]
    at: float
    intent: bool  # must be on disk before it is sent

    @property
    def id(self) -> str:
        return f"{self.lane}-{self.seq}"


@dataclass(frozen=True)
class Verdict:
    """What an outcome means for its delivery: an end, or when to go on."""

    event_id: str
    final: FinalName | None
    code: str
    due: float = 0.0
    tries: int = 0
    attempt: int = 0
    first: float | None = None
    limit: int = 0
    doubted: bool = False
    sent_in: int = 0
    awaiting: bool = False
    reference: str = ""


@dataclass(frozen=True)
class Final:
    """A delivery's end."""

    lane: str
    event_id: str
    feed: Feed
    offset: int
    final: FinalName
    code: str
    at: float
    reopened: bool = False


@dataclass
class Totals:
    """Counts since this process started, for reports only."""

    finals: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    incidents: dict[Kind, int] = field(default_factory=dict)
