"""A channel over one connection to a server: opened when it is first needed, dropped after any doubt, its address checked anew.

A file of a broker brings the connection (`Line`); this brings what is the same for all of them: one call at a time within its
deadline, events written as CloudEvents, what is too large or cannot be written refused before anything leaves, nothing raised.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tidings.channels.addresses import BadTarget
from tidings.channels.call import (
    Call,
    Capabilities,
    Limits,
    Member,
    Outcome,
    Result,
    all_members,
    in_order,
    never_raises,
)
from tidings.channels.members import Held
from tidings.stages import envelope

PING_S = 15.0
LOST = "connection_lost"
NO_PROBE = Outcome("", "in_doubt", "no_probe", detail="this channel cannot be asked")


class NotReached(Exception):
    """Nothing of it has had an effect: why, as a code and in words of our own."""

    def __init__(self, code: str, detail: str, result: Result = "transient") -> None:
        self.outcome = Outcome("", result, code, detail=detail)
        super().__init__(code)


@dataclass(frozen=True)
class Ready:
    """A member as it will travel: in binary form the attributes stand beside the data."""

    member: Member
    attributes: dict[str, str] = field(repr=False)
    content_type: str
    body: bytes = field(repr=False)

    def outcome(self, result: Result, code: str, detail: str = "", **more: Any) -> Outcome:
        return Outcome(self.member.event_id, result, code, detail=detail, **more)


class Line(Protocol):
    """One connection. What it raises as NotReached had no effect; anything else it raises is a doubt."""

    def publish(self, ready: Sequence[Ready], call: Call, deadline: float) -> list[Outcome]: ...

    def ping(self, deadline: float) -> None: ...

    def close(self) -> None: ...


class Asked(Line, Protocol):
    """A connection that can tell what became of a call."""

    def ask(self, call: Call, deadline: float) -> list[Outcome]: ...


@dataclass
class LineChannel:
    """`connect` is given the deadline; BadTarget and NotReached are the only ways it may fail that are no doubt."""

    connect: Callable[[float], Line] = field(repr=False)
    limits: Limits
    capabilities: Capabilities
    mode: str = "structured"
    _line: Any = field(default=None, repr=False)
    _turn: Any = field(default_factory=threading.Lock, repr=False)
    _closed: bool = False

    @never_raises
    def send(self, call: Call) -> list[Outcome]:
        deadline = time.monotonic() + call.timeout_s
        good, found = written(call.members, self.mode, self.limits.max_bytes)
        if good:
            told = self._with_line(deadline, lambda line: line.publish(good, call, deadline))
            found += (
                [replace(told, event_id=one.member.event_id) for one in good] if isinstance(told, Outcome) else told
            )
        return in_order(call, found)

    @never_raises
    def probe(self, call: Call) -> list[Outcome]:
        if not self.capabilities.probe:
            return all_members(call, NO_PROBE)
        deadline = time.monotonic() + call.timeout_s
        told = self._with_line(deadline, lambda line: line.ask(call, deadline))
        if isinstance(told, Outcome):  # not reached is no answer
            return all_members(call, replace(told, result="in_doubt", code=f"probe_{told.code}"))
        return in_order(call, told)

    def ping(self) -> Outcome:
        deadline = time.monotonic() + PING_S
        told = self._with_line(deadline, lambda line: line.ping(deadline))
        return replace(told, event_id="ping") if isinstance(told, Outcome) else Outcome("ping", "acknowledged", "ok")

    def close(self) -> None:
        with self._turn:
            self._closed = True
            self._drop()

    def _with_line(self, deadline: float, work: Callable[[Any], Any]) -> Any:
        """What the work returns, or one outcome that holds for every member."""
        if not self._turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return Outcome("", "transient", "not_reached", detail="the call's time was over before its turn")
        try:
            if self._closed:
                return Outcome("", "transient", "closed", detail="the channel is closed")
            told = self._worked(deadline, work)
            if isinstance(told, list) and any(outcome.result in ("in_doubt", "transient") for outcome in told):
                self._drop()
            return told
        except BadTarget as error:
            self._drop()
            return Outcome("", "transient" if error.code == "dns" else "refused", error.code, detail=error.detail)
        except NotReached as error:
            self._drop()
            return error.outcome
        except Exception as error:  # the text may hold personal data or a password, its kind does not
            self._drop()
            return Outcome("", "in_doubt", "channel_error", detail=f"a {type(error).__name__} in the middle of a call")
        finally:
            self._turn.release()

    def _worked(self, deadline: float, work: Callable[[Any], Any]) -> Any:
        """On the connection there is, or on a new one when that turns out to have been lost while it was idle."""
        idle = self._line is not None
        if not idle:
            self._line = self.connect(deadline)
        try:
            return work(self._line)
        except NotReached as error:
            if not idle or error.outcome.code != LOST:
                raise
        self._drop()
        self._line = self.connect(deadline)
        return work(self._line)

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            try:
                line.close()
            except Exception:  # a connection that cannot even be closed is gone
                return


def written(members: Sequence[Member], mode: str, most_bytes: int) -> tuple[list[Ready], list[Outcome]]:
    """Members as they travel, and outcomes for those that cannot."""
    good: list[Ready] = []
    found: list[Outcome] = []
    for member in members:
        try:
            ready = _form(member, mode)
        except (ValueError, TypeError, RecursionError):
            found.append(Outcome(member.event_id, "refused", "unrenderable", detail="the event is not JSON"))
            continue
        size = len(ready.body) + sum(len(name) + len(value.encode()) for name, value in ready.attributes.items())
        if size > most_bytes:
            detail = f"{size} bytes; at most {most_bytes}"
            found.append(Outcome(member.event_id, "refused", "too_large", detail=detail))
        else:
            good.append(ready)
    return good, found


def _form(member: Member, mode: str) -> Ready:
    if mode == "binary":
        kept = {name: str(value) for name, value in member.body.items() if name not in ("data", "datacontenttype")}
        headers, body = envelope.binary(member.body)
        return Ready(member, kept, headers["Content-Type"], body)
    _, body = envelope.structured(member.body)
    return Ready(member, {}, f"{envelope.JSON_TYPE}; charset=utf-8", body)


def in_waves(ready: Sequence[Ready], send: Callable[[list[Ready]], list[Outcome]]) -> list[Outcome]:
    """Many at once, and yet no subject's next event before the one in front of it is safe: a wave holds one event per subject."""
    waves: list[list[Ready]] = []
    depth: Counter[str] = Counter()
    for one in ready:
        place = depth[one.member.subject]
        depth[one.member.subject] += 1
        waves += [[]] if place == len(waves) else []
        waves[place].append(one)
    held, found = Held(), list[Outcome]()
    broken: Outcome | None = None
    for number, wave in enumerate(waves):
        free = [one for one in wave if one.member.subject not in held]
        found += [held.behind(one.member) for one in wave if one.member.subject in held]
        if broken is not None:
            found += [replace(broken, event_id=one.member.event_id) for one in free]
            continue
        try:
            told = send(free) if free else []
        except NotReached as error:
            if number == 0:
                raise
            broken = error.outcome
            told = [replace(broken, event_id=one.member.event_id) for one in free]
        held.note([one.member for one in free], told)
        found += told
    return found


def rest(deadline: float) -> float:
    """Seconds to wait for an answer to what has left."""
    return max(0.01, deadline - time.monotonic())


def left(deadline: float) -> float:
    """Seconds until then, before anything has left; NotReached when there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise NotReached("not_reached", "the call's time was over before anything was sent")
    return seconds
