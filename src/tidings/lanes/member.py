"""The small records a lane is made of. Times are seconds since 1970 as floats, rounded to the millisecond."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tidings.channels.call import STANDARD_SCHEDULE

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
    per_second: float = 0.0  # calls; 0 means no limit
    concurrency: int = 4
    schedule: tuple[float, ...] = STANDARD_SCHEDULE
    idempotent: bool = False  # a repeat with the same key has no second effect
    key_window_s: float | None = None  # how long the subscriber remembers a key; None means for good
    probe: bool = False  # the subscriber can be asked what became of a call
    window: int = 10_000  # unsettled deliveries held; at the bound the cursor stops
    aging_s: float = 60.0  # waiting this long is worth one priority tier
    timeout_s: float = 30.0
    breaker_after: int = 5  # consecutive failed calls
    breaker_cool_s: float = 10.0
    breaker_cool_max_s: float = 300.0


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
    due: float = 0.0
    limit: int = 0  # largest call it may travel in while a poison is isolated; 0 means the lane's own
    probing: bool = False
    doubted: bool = False  # some call may have had its effect without our knowing
    reference: str = ""
    call: int | None = None  # in flight: the call's sequence number

    @property
    def started(self) -> bool:
        return self.attempt > 0 or self.call is not None


@dataclass(frozen=True)
class Sent:
    """What a call knows of a member: enough to judge its outcome without the lane's state."""

    event_id: str
    offset: int
    semantics: Semantics
    attempt: int  # 1 for the first call
    tries: int
    first: float
    limit: int
    doubted: bool = False
    reference: str = ""
    change_type: str = ""


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
    probing: bool = False
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
