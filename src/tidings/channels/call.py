"""What a lane hands to a channel, and what comes back: one outcome per member, always."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Literal, Protocol, runtime_checkable

from tidings.channels.transcript import Transcript

Result = Literal["acknowledged", "accepted", "refused", "transient", "throttled", "terminal", "in_doubt"]
Strength = Literal["A0", "A1", "A2", "A3", "A4"]

# Standard Webhooks' example schedule: ten attempts over 75 h 35 min 5 s; a manifest may say otherwise.
STANDARD_SCHEDULE: tuple[float, ...] = (0, 5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)


@dataclass(frozen=True)
class Member:
    """One event on its way to one subscriber. `body` is the CloudEvents dict; `subject` is the wire pseudonym."""

    event_id: str
    subject: str
    change_type: str
    sequence: str
    body: dict[str, Any] = field(repr=False)
    idempotency_key: str
    attempt: int
    reference: str = ""  # the job id an earlier outcome returned, for probe
    sent_in: int = 0  # for probe: the number of the call that may have had its effect
    withheld: tuple[str, ...] = ()  # fields that this subscriber may not see; they are not in the body


@dataclass(frozen=True)
class Call:
    """Members for one subscriber and the whole time they have. A channel may make several requests of it."""

    subscriber: str
    members: tuple[Member, ...]
    timeout_s: float
    number: int = 0  # rises with every call of a lane, also over restarts: what a fence or a transaction is named by


@dataclass(frozen=True)
class Outcome:
    """What became of one member.

    acknowledged  the subscriber said yes, as strongly as `strength` says
    accepted      the subscriber took it and says later what became of it: asked by `probe`, or told by a callback, a pull or a person
    refused       we did not send: the guard or the manifest forbids it (a retry cannot help until settings change)
    transient     it failed before it can have had an effect; try again
    throttled     the subscriber asked for time; `retry_after` seconds, or None for our own schedule
    terminal      the subscriber said no for good
    in_doubt      the request left and no answer came back: it may have had its effect
    """

    event_id: str
    result: Result
    code: str
    strength: Strength = "A0"
    status: int = 0
    retry_after: float | None = None
    detail: str = ""  # never personal data: our own words, or a code of the subscriber's
    digest: str = ""  # keyed digest of the answer; empty when no digest key was given
    reference: str = ""  # the subscriber's job id, to be asked about later
    # What was said and answered, where it was not acknowledged and the channel can tell.
    exchange: Transcript | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Limits:
    """The most a subscriber may be given; a lane may give less."""

    max_batch: int = 1
    per_second: float = 10.0
    concurrency: int = 4
    max_bytes: int = 1_000_000
    schedule: tuple[float, ...] = STANDARD_SCHEDULE


@dataclass(frozen=True)
class Capabilities:
    """What makes a repeat harmless at this subscriber. None of them: exactly-once is refused."""

    idempotency_key: bool = False  # the subscriber remembers our key
    natural: bool = False  # doing it twice is doing it once
    probe: bool = False  # the subscriber can be asked what became of it
    transaction: bool = False  # effect and key are committed together
    two_phase: bool = False  # `send` prepares and is accepted, `probe` commits; the subject waits in between

    @property
    def semantics(self) -> frozenset[str]:
        """Which delivery semantics can be promised."""
        always = {"at-most-once", "at-least-once"}
        once = self.idempotency_key or self.natural or self.probe or self.transaction or self.two_phase
        return frozenset(always | {"exactly-once"} if once else always)


class Channel(Protocol):
    """How bytes leave. Safe to call from several threads; nothing here raises for a member or for the network."""

    @property
    def limits(self) -> Limits: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def send(self, call: Call) -> list[Outcome]:
        """One outcome per member, in the members' order."""
        ...

    def probe(self, call: Call) -> list[Outcome]:
        """Ask what became of members that are in doubt or queued; in_doubt where the subscriber cannot tell."""
        ...

    def ping(self) -> Outcome:
        """One harmless authenticated call, for `check --connect`."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Buries(Protocol):
    """A channel whose other side has a place of its own for dead letters."""

    def bury(self, member: Member, reason: str) -> Outcome:
        """Leave a copy there; what is not set up is refused."""
        ...


def never_raises(send: Callable[[Any, Call], list[Outcome]]) -> Callable[[Any, Call], list[Outcome]]:
    """A fault of our own must not stop a lane either. Something may have been sent by then, so all is in doubt."""

    @wraps(send)
    def guarded(channel: Any, call: Call) -> list[Outcome]:
        try:
            return send(channel, call)
        except Exception as error:  # the text may hold personal data, its kind does not
            return all_members(
                call, Outcome("", "in_doubt", "channel_error", detail=f"a {type(error).__name__} of ours")
            )

    return guarded


def all_members(call: Call, outcome: Outcome) -> list[Outcome]:
    """The same outcome for every member of the call."""
    return [replace(outcome, event_id=member.event_id) for member in call.members]


def in_order(call: Call, found: Sequence[Outcome]) -> list[Outcome]:
    """Outcomes in the members' order; a member nobody answered for is in doubt, never forgotten."""
    by_id = {outcome.event_id: outcome for outcome in found}
    lost = Outcome("", "in_doubt", "no_result", detail="the subscriber's answer does not mention this member")
    return [by_id.get(member.event_id) or replace(lost, event_id=member.event_id) for member in call.members]
