"""Services that take many records in a request: how members are cut into requests and kept in order.

Where a request may fail for one record and not for the next, a subject is in it once at most; and a subject whose
record failed is held for the rest of the call. A request that is refused as a whole for what is in it is made again
for each record alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tidings.channels.call import Call, Capabilities, Limits, Outcome, all_members, in_order, never_raises
from tidings.channels.line import NO_PROBE, PING_S, Ready, written
from tidings.channels.members import Held


class Refusal(Exception):
    """Why a request has no answer that speaks of its records: one outcome for all of them."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(outcome.code)


@dataclass(frozen=True)
class Bulk:
    """How a service takes records. `send` and `look` are given a deadline, answer or raise Refusal."""

    most: int  # records of a request
    most_bytes: int
    send: Callable[[tuple[Ready, ...], float], list[Outcome]] = field(repr=False)
    look: Callable[[float], object] = field(repr=False)
    overhead: int = 0  # bytes that count beside a record's body
    whole: bool = False  # a request is taken as a whole or not at all


@dataclass(frozen=True)
class BulkChannel:
    bulk: Bulk
    limits: Limits
    capabilities: Capabilities
    mode: str = "structured"

    @never_raises
    def send(self, call: Call) -> list[Outcome]:
        deadline = time.monotonic() + call.timeout_s
        room = min(self.limits.max_bytes, self.bulk.most_bytes - self.bulk.overhead)
        good, found = written(call.members, self.mode, room)
        held = Held()
        for request in requests(good, self.bulk):
            free = tuple(one for one in request if one.member.subject not in held)
            found += [held.behind(one.member) for one in request if one.member.subject in held]
            outcomes = self._request(free, deadline) if free else []
            held.note([one.member for one in free], outcomes)
            found += outcomes
        return in_order(call, found)

    @never_raises
    def probe(self, call: Call) -> list[Outcome]:
        """None of these services can be asked for a record by its id."""
        return all_members(call, NO_PROBE)

    def ping(self) -> Outcome:
        try:
            self.bulk.look(time.monotonic() + PING_S)
        except Refusal as refusal:
            return replace(refusal.outcome, event_id="ping")
        except Exception as error:
            return Outcome("ping", "transient", "channel_error", detail=type(error).__name__)
        return Outcome("ping", "acknowledged", "ok")

    def close(self) -> None:
        """Connections belong to the client, which others share."""

    def _request(self, ready: tuple[Ready, ...], deadline: float) -> list[Outcome]:
        if time.monotonic() >= deadline:
            late = "the call's time was over before its turn"
            return [one.outcome("transient", "not_reached", late) for one in ready]
        try:
            return self.bulk.send(ready, deadline)
        except Refusal as refusal:
            told = refusal.outcome
        if told.result == "terminal" and len(ready) > 1:
            alone = {one.member.event_id: one for one in ready}
            held = Held()
            return [
                held.unless(one.member, lambda member: self._request((alone[member.event_id],), deadline)[0])
                for one in ready
            ]
        return [replace(told, event_id=one.member.event_id) for one in ready]


def requests(ready: Sequence[Ready], bulk: Bulk) -> list[list[Ready]]:
    """Requests in an order that keeps each subject's events in theirs."""
    found: list[list[Ready]] = []
    sizes: list[int] = []
    after: dict[str, int] = {}  # subject → the first request that may take its next event
    open_from = 0  # every request before is full
    for one in ready:
        size = len(one.body) + bulk.overhead
        place = max(after.get(one.member.subject, 0), open_from)
        while place < len(found) and (len(found[place]) >= bulk.most or sizes[place] + size > bulk.most_bytes):
            place += 1
        if place == len(found):
            found.append([])
            sizes.append(0)
        found[place].append(one)
        sizes[place] += size
        after[one.member.subject] = place if bulk.whole else place + 1
        while open_from < len(found) and len(found[open_from]) >= bulk.most:
            open_from += 1
    return found
