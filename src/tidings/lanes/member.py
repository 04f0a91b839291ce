"""The small records a lane is made of. Times are seconds since 1970 as floats, rounded to the millisecond."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tidings.channels.call import STANDARD_SCHEDULE, Capabilities

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

    def largest_call(self, change_type: str) -> int:
        return self.batches.get(change_type, self.batch)

    def repeatable(self, change_type: str) -> bool:
        """A repeat with the same key has no second effect."""
        can = self.capabilities.get(change_type, self.capable)
        return can.idempotency_key or can.natural or can.transaction

    def askable(self, change_type: str) -> bool:
        """The subscriber can be asked what became of a call."""
        return self.capabilities.get(change_type, self.capable).probe


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
    reference: str = ""
    call: int | None = None  # in flight: the call's sequence number

    @property
    def started(self) -> bool:
        return self.attempt > 0 or self.call is not None

    def asks(self, rules: Rules) -> bool:
        """The next call is a question: a doubt that a repeat could make worse."""
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
    reference: str = ""


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
class Pace:
    """Soft state, learned again after a restart: tokens, and a pause the subscriber asked for."""

    tokens: float = 0.0
    filled: float | None = None
    factor: float = 1.0
    hold: float = 0.0


@dataclass
class Totals:
    """Counts since this process started, for reports only."""

    finals: dict[str, int] = field(default_factory=dict)
    calls: int = 0
