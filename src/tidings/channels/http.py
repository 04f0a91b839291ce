"""A vendor's API, spoken as its manifest describes it: the channel `http`.

Members are grouped so that each request is one verb, and so that two events of one subject never swap places. A verb that
failed for a subject holds back that subject's later members. What breaks its guarantee is in each manifest's notes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tidings.channels.auth import Asks
from tidings.channels.call import Call, Capabilities, Limits, Member, Outcome, in_order, never_raises
from tidings.channels.client import Answer, Request
from tidings.channels.kinds import Guarantee
from tidings.channels.manifest import Manifest, Route
from tidings.channels.mapping import Scope
from tidings.channels.normalise import ABSENT
from tidings.channels.pace import Pace
from tidings.channels.requests import Form
from tidings.channels.round import Rehearsal, Round, told
from tidings.channels.verbs import Verb
from tidings.channels.verdict import Judge

PING_TIMEOUT_S = 15.0
GUARANTEE = Guarantee(
    title="A vendor's HTTP API, as its manifest describes it",
    ack="what the manifest calls a success: status, body and the word on each member",
    strength="A3",
    order="per subject: one verb a request, and a failed member holds its subject's later ones back",
    dedup="as each verb declares: naturally idempotent, our key in a header or a field, or none",
    breaks="a vendor that answers otherwise than its manifest says; the notes of each manifest name what is known",
    capabilities=Capabilities(idempotency_key=True, natural=True, probe=True),
)


@dataclass
class _Group:
    """Members that take the same verbs together."""

    route: Route
    members: list[Member] = field(default_factory=list)


@dataclass(frozen=True)
class HttpChannel:
    """One subscriber of one manifest. The client shows its secret with every request."""

    manifest: Manifest
    client: Asks = field(repr=False)
    url: str
    limits: Limits
    scope: Scope = field(repr=False)
    digest_key: bytes = field(default=b"", repr=False)
    clock: Callable[[], float] = time.time

    @property
    def capabilities(self) -> Capabilities:
        return self.manifest.capabilities()

    @never_raises
    def send(self, call: Call) -> list[Outcome]:
        return self._through(call, Round(self, time.monotonic() + call.timeout_s))

    @never_raises
    def probe(self, call: Call) -> list[Outcome]:
        round_ = Round(self, time.monotonic() + call.timeout_s)
        return in_order(call, [round_.ask(member) for member in call.members])

    def rehearse(self, call: Call) -> tuple[list[tuple[str, Request]], list[Outcome]]:
        """The requests that `send` would make, by verb, and what is known of the members before any of them leaves."""
        rehearsal = Rehearsal(self)
        outcomes = self._through(call, rehearsal)
        return rehearsal.kept, outcomes

    def _through(self, call: Call, round_: Round) -> list[Outcome]:
        groups, found = self._groups(call.members)
        for group in groups:
            found += round_.route(group.route, group.members)
        return in_order(call, found)

    def ping(self) -> Outcome:
        ping = self.manifest.ping
        if ping is None:
            return Outcome("ping", "refused", "no_ping", detail="the manifest has no harmless call")
        round_ = Round(self, time.monotonic() + PING_TIMEOUT_S)
        form = Form(ping.method, ping.path, ping.query, {}, ping.encoding)
        found = round_.exchange(form, self.scope, ping.body)
        judge = self.judge(None)
        if not isinstance(found, Answer):
            return replace(judge.of_fault(found), event_id="ping")
        return replace(judge.of_answer(found, ping.success, "A0", self.clock()), event_id="ping")

    def close(self) -> None:
        """Connections belong to the client, which others share."""

    def judge(self, verb: Verb | None) -> Judge:
        own, manifest = verb.failures if verb else (), self.manifest
        return Judge((*own, *manifest.failures), manifest.retry_after, self.digest_key, manifest.retry_after_form)

    def paces(self, verb: str) -> tuple[Pace, ...]:
        """The windows a request of this verb must find room in: the account's and the verb's own."""
        return self._paces.get(verb, self._paces[""])

    @cached_property
    def _paces(self) -> Mapping[str, tuple[Pace, ...]]:
        # Requests are spaced by the steady rate already, so that the account's window of a second keeps itself.
        account = Pace([span for span in self.manifest.limits.spans if span[1] > 1])
        own = {name: (account, Pace(verb.limits.spans)) for name, verb in self.manifest.verbs.items()}
        return {"": (account,), **own}

    def route_of(self, member: Member) -> Route | None:
        """The first route that fits the member."""
        scope = replace(self.scope, member=member)
        for route in self.manifest.routes:
            if route.takes(member.change_type) and all(
                _is(scope.value(name), wanted) for name, wanted in route.when.items()
            ):
                return route
        return None

    def _groups(self, members: Sequence[Member]) -> tuple[list[_Group], list[Outcome]]:
        """Groups in an order that keeps each subject's events in theirs; and outcomes for what has no route."""
        groups: list[_Group] = []
        last: dict[str, int] = {}  # the last group that holds the subject
        refused = []
        for member in members:
            route = self.route_of(member)
            if route is None or not route.verbs:
                detail = f"the manifest {self.manifest.name} has no verb for {member.change_type}"
                refused.append(told(member, "refused", "no_verb", detail))
                continue
            floor = last.get(member.subject, 0)
            same = (at for at in range(len(groups) - 1, floor - 1, -1) if groups[at].route is route)
            place = next(same, len(groups))
            if place == len(groups):
                groups.append(_Group(route))
            groups[place].members.append(member)
            last[member.subject] = place
        return groups, refused


def _is(value: Any, wanted: Any) -> bool:
    """`wanted` is one value or a list; null stands for a value that is not there."""
    present = None if value is ABSENT else value
    return present in wanted if isinstance(wanted, list) else present == wanted
