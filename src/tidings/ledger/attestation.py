"""Typed builders for the entries made in Python: acknowledged, settled, and what people and operators did.

The fields and their checks are in `vocabulary`; *decided* is computed natively where the journal row is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, cast

from tidings.ledger.merkle import inclusion_path, leaf_hash, nodes_of, root_of
from tidings.ledger.vocabulary import Value, canonical, encode_entry, refused

MAX_LISTED = 400

Member = tuple[str, str]


def member_leaf(member: Member) -> bytes:
    """What stands for one (event id, outcome) in a call's tree."""
    return canonical(list(member))


def _sorted_members(members: Iterable[Member]) -> list[Member]:
    ordered = sorted(members, key=member_leaf)
    _each_once(ordered)
    return ordered


def _each_once(members: Sequence[Member]) -> None:
    if len({event for event, _ in members}) != len(members):
        raise refused("members", "an event that comes twice in one call", "each event once")


def members_root(members: Iterable[Member]) -> bytes:
    listed = list(members)
    _each_once(listed)
    return root_of(map(leaf_hash, sorted(map(member_leaf, listed))))


@dataclass(frozen=True)
class Membership:
    """One member's place in a call's tree; the others stay hidden behind their hashes."""

    member: Member
    index: int
    size: int
    path: tuple[bytes, ...]


def membership(members: Iterable[Member], event_id: str) -> Membership:
    ordered = _sorted_members(members)
    index = next((i for i, (event, _) in enumerate(ordered) if event == event_id), None)
    if index is None:
        raise refused("members", "a call without this event", "the call's own members")
    node = nodes_of([leaf_hash(member_leaf(m)) for m in ordered])
    path = inclusion_path(index, len(ordered), node)
    return Membership(ordered[index], index, len(ordered), tuple(path))


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """An entry under construction; `encode` is its canonical form, absent fields left out."""

    KIND: ClassVar[str]
    attestor: str
    timestamp: str

    def encode(self) -> bytes:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return encode_entry({"kind": self.KIND, **{name: value for name, value in values.items() if value is not None}})


@dataclass(frozen=True, kw_only=True)
class Acknowledged(_Entry):
    """One call and what came back, over all its members."""

    KIND = "acknowledged"
    count: int
    outcomes: Mapping[str, int]
    members_root: str
    subscriber: str
    destination: str
    ack_strength: str
    retry_policy: Value
    idempotency_fingerprint: str
    attempt: int | None = None
    call: str | None = None
    channel: str | None = None
    lane: str | None = None
    semantics: str | None = None
    response_digest: str | None = None
    policy_version: str | None = None

    @classmethod
    def of(cls, members: Iterable[Member], **rest: Any) -> Acknowledged:
        """Count, totals and root are the members' own."""
        listed = list(members)
        totals = dict(Counter(outcome for _, outcome in listed))
        return cls(count=len(listed), outcomes=totals, members_root=members_root(listed).hex(), **rest)


@dataclass(frozen=True)
class Ack:
    """How one pair of an event ended, for the settled entry."""

    subscriber: str
    outcome: str
    ack_strength: str

    def as_dict(self) -> dict[str, str]:
        return {"ack_strength": self.ack_strength, "outcome": self.outcome, "subscriber": self.subscriber}


@dataclass(frozen=True, kw_only=True)
class Settled(_Entry):
    """Every pair of an event is final. Beyond MAX_LISTED subscribers the set is its root: an entry has an end."""

    KIND = "settled"
    event_id: str
    count: int
    subscriber_ack_set: Sequence[Mapping[str, str]] | None = None
    subscriber_ack_root: str | None = None

    @classmethod
    def of(cls, event_id: str, acks: Iterable[Ack], attestor: str, timestamp: str) -> Settled:
        listed = sorted((ack.as_dict() for ack in acks), key=lambda ack: canonical(cast(Value, ack)))
        made = partial(cls, event_id=event_id, count=len(listed), attestor=attestor, timestamp=timestamp)
        if len(listed) <= MAX_LISTED:
            return made(subscriber_ack_set=listed)
        return made(subscriber_ack_root=root_of(leaf_hash(canonical(cast(Value, ack))) for ack in listed).hex())


@dataclass(frozen=True, kw_only=True)
class LanePaused(_Entry):
    KIND = "lane_paused"
    lane: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class LaneResumed(_Entry):
    KIND = "lane_resumed"
    lane: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PolicyChanged(_Entry):
    KIND = "policy_changed"
    policy_version: str
    previous_version: str
    policy_digest: str
    reason: str
    bundles: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class QuarantineReleased(_Entry):
    """Quarantined messages that were let through again; members are (place, outcome)."""

    KIND = "quarantine_released"
    source: str
    count: int
    members_root: str
    reason: str

    @classmethod
    def of(cls, members: Iterable[Member], **rest: Any) -> QuarantineReleased:
        listed = list(members)
        return cls(count=len(listed), members_root=members_root(listed).hex(), **rest)


@dataclass(frozen=True, kw_only=True)
class RightsTransition(_Entry):
    """A person's request moved from one state to the next."""

    KIND = "rights_transition"
    request: str
    right: str
    state: str
    previous_state: str
    subject_identifier: str | None = None
    deadline: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Replayed(_Entry):
    KIND = "replayed"
    subscriber: str
    range: str
    count: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class ExceptionApproved(_Entry):
    """A person answers for a delivery that will not happen."""

    KIND = "exception_approved"
    event_id: str
    subscriber: str
    approver: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class LetterExpired(_Entry):
    """A dead letter that nobody answered for within its time."""

    KIND = "letter_expired"
    event_id: str
    subscriber: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ConflictResolved(_Entry):
    """A person said whether a change that was held for two masters' dispute goes out."""

    KIND = "conflict_resolved"
    event_id: str
    outcome: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Reviewed(_Entry):
    """A person looked at an event that a rule holds for a review and released or refused it."""

    KIND = "reviewed"
    event_id: str
    outcome: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Erased(_Entry):
    """The keys of a subject are gone; `subject_identifier` is what the entry may still say about it."""

    KIND = "erased"
    subject_identifier: str
    basis: str
    generation: int
    keys_destroyed: int
    request: str | None = None


@dataclass(frozen=True, kw_only=True)
class Expired(_Entry):
    """Records whose time is over, attested before they go. `members_root` is over one root per file, each over its sorted ids."""

    KIND = "expired"
    record_class: str
    records: str
    goes: str
    count: int
    files: int
    range: str
    keep_until: str
    duty: str
    members_root: str
    policy_version: str
    feeds: Mapping[str, Value] | None = None
    replaces: int | None = None


@dataclass(frozen=True, kw_only=True)
class KeysRotated(_Entry):
    """Every key of every person is wrapped under a new version of the key-encryption key; `count` keys in `files` files."""

    KIND = "keys_rotated"
    version: int
    previous: int
    count: int
    files: int
