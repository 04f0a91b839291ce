"""A vendor's API, spoken as its manifest describes it: the channel `http`.

Members are grouped so that each request is one verb, and so that two events of one subject never swap places. A verb that
failed for a subject holds back that subject's later members. What breaks its guarantee is in each manifest's notes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tidings.channels.call import Call, Capabilities, Limits, Member, Outcome, in_order, never_raises
from tidings.channels.client import Answer, Client, Fault, Request
from tidings.channels.manifest import Batch, Manifest, Probe, Route, Verb
from tidings.channels.mapping import Scope, Unusable
from tidings.channels.members import Held, by_item, count_invalid, followed
from tidings.channels.normalise import ABSENT
from tidings.channels.requests import Filled, Form, batches, build, encode, item_size
from tidings.channels.verdict import Judge, decode, holds, status_in

PING_TIMEOUT_S = 15.0


@dataclass
class _Group:
    """Members that take the same verbs together."""

    route: Route
    members: list[Member] = field(default_factory=list)


@dataclass(frozen=True)
class HttpChannel:
    """One subscriber of one manifest. `headers` are its authentication, ready to send."""

    manifest: Manifest
    client: Client
    url: str
    limits: Limits
    scope: Scope = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    digest_key: bytes = field(default=b"", repr=False)
    clock: Callable[[], float] = time.time

    @property
    def capabilities(self) -> Capabilities:
        return self.manifest.capabilities()

    @never_raises
    def send(self, call: Call) -> list[Outcome]:
        run = _Run(self, time.monotonic() + call.timeout_s)
        groups, found = self._groups(call.members)
        for group in groups:
            found += run.route(group.route, group.members)
        return in_order(call, found)

    @never_raises
    def probe(self, call: Call) -> list[Outcome]:
        run = _Run(self, time.monotonic() + call.timeout_s)
        return in_order(call, [run.ask(member) for member in call.members])

    def ping(self) -> Outcome:
        ping = self.manifest.ping
        if ping is None:
            return Outcome("ping", "refused", "no_ping", detail="the manifest has no harmless call")
        run = _Run(self, time.monotonic() + PING_TIMEOUT_S)
        form = Form(ping.method, ping.path, ping.query, {}, ping.encoding)
        found = run.exchange(form, self.scope, ping.body)
        judge = self.judge(None)
        if not isinstance(found, Answer):
            return replace(judge.of_fault(found), event_id="ping")
        return replace(judge.of_answer(found, ping.success, "A0", self.clock()), event_id="ping")

    def close(self) -> None:
        """Connections belong to the client, which others share."""

    def judge(self, verb: Verb | None) -> Judge:
        own = verb.failures if verb else ()
        return Judge((*own, *self.manifest.failures), self.manifest.retry_after, self.digest_key)

    def route_of(self, member: Member) -> Route | None:
        """The first route that fits the member."""
        scope = replace(self.scope, member=member)
        for route in self.manifest.routes:
            fits = member.change_type in route.types or "*" in route.types
            if fits and all(_is(scope.value(name), wanted) for name, wanted in route.when.items()):
                return route
        return None

    def _groups(self, members: Sequence[Member]) -> tuple[list[_Group], list[Outcome]]:
        """Groups in an order that keeps each subject's events in theirs; and outcomes for what has no route."""
        groups: list[_Group] = []
        last: dict[str, int] = {}  # the last group that holds the subject
        refused = []
        for member in members:
            route = self.route_of(member)
            if route is None:
                detail = f"the manifest {self.manifest.name} has no verb for {member.change_type}"
                refused.append(_outcome(member, "refused", "no_verb", detail))
                continue
            floor = last.get(member.subject, 0)
            same = (at for at in range(len(groups) - 1, floor - 1, -1) if groups[at].route is route)
            place = next(same, len(groups))
            if place == len(groups):
                groups.append(_Group(route))
            groups[place].members.append(member)
            last[member.subject] = place
        return groups, refused


class _Run:
    """One call on its way: the requests it takes, paced, within one deadline."""

    def __init__(self, channel: HttpChannel, deadline: float) -> None:
        self.channel, self.deadline, self.next_at = channel, deadline, 0.0
        self.held = Held()

    def route(self, route: Route, members: Sequence[Member]) -> list[Outcome]:
        """Every verb of the route in turn; a member goes on as long as it is acknowledged."""
        waiting, final = list(members), {}
        so_far: dict[str, Outcome] = {}
        for name in route.verbs:
            verb = self.channel.manifest.verbs[name]
            usable, outcomes = self._usable(verb, waiting, name in route.optional)
            outcomes += self._verb(verb, usable)
            self.held.note(waiting, outcomes)
            for outcome in outcomes:
                if outcome.result == "acknowledged":
                    so_far[outcome.event_id] = _weaker(so_far.get(outcome.event_id), outcome)
                else:
                    final[outcome.event_id] = outcome
            waiting = [member for member in waiting if member.event_id not in final]
        for member in waiting:
            nothing = _outcome(member, "refused", "missing_field", "the event has none of the fields this route needs")
            final[member.event_id] = so_far.get(member.event_id, nothing)
        return list(final.values())

    def _usable(self, verb: Verb, members: Sequence[Member], optional: bool) -> tuple[list[Member], list[Outcome]]:
        """Members that have what the verb needs. Of the others an optional verb says nothing."""
        usable, refused = [], []
        for member in members:
            lacking = _lacking(verb, replace(self.channel.scope, member=member))
            if not lacking:
                usable.append(member)
            elif not optional:
                refused.append(_outcome(member, "refused", "missing_field", f"the event has no {lacking}"))
        return usable, refused

    def _verb(self, verb: Verb, members: Sequence[Member]) -> list[Outcome]:
        if verb.batch is None:
            return [self.held.unless(member, partial(self._single, verb)) for member in members]
        most_bytes = min(verb.batch.max_bytes, self.channel.limits.max_bytes)
        found: list[Outcome] = []
        filled: list[Filled] = []
        for member in members:
            ready = self._filled(verb.batch, member, most_bytes)
            if isinstance(ready, Filled):
                filled.append(ready)
            else:
                found.append(ready)
        for chunk in batches(filled, verb.batch, most_bytes):
            free = [one for one in chunk if one.member.subject not in self.held]
            found += [self.held.behind(one.member) for one in chunk if one.member.subject in self.held]
            outcomes = self._chunk(verb, free) if free else []
            self.held.note([one.member for one in free], outcomes)
            found += outcomes
        return found

    def _filled(self, batch: Batch, member: Member, most_bytes: int) -> Filled | Outcome:
        """The member's part of the body, or why it has none: one bad member must not fail the others."""
        item = replace(self.channel.scope, member=member).fill(batch.item)
        if item is ABSENT:
            return _outcome(member, "refused", "missing_field", "none of the fields could be normalised")
        try:
            size = item_size(item)
        except (ValueError, TypeError, RecursionError):
            return _outcome(member, "refused", "unrenderable", "the event cannot be written in the vendor's form")
        if size > most_bytes:
            return _outcome(member, "refused", "too_large", f"{size} bytes alone; at most {most_bytes}")
        return Filled(member, item, size)

    def _single(self, verb: Verb, member: Member) -> Outcome:
        scope = replace(self.channel.scope, member=member)
        extra = {}
        if verb.idempotency == "header":
            extra[self.channel.manifest.idempotency_header] = member.idempotency_key
        form = Form(verb.method, verb.path, verb.query, {**verb.headers, **extra}, verb.encoding, verb.timeout_s)
        outcome, body = self._judged(verb, self.exchange(form, scope, verb.body))
        return replace(followed(verb, outcome, body), event_id=member.event_id)

    def _chunk(self, verb: Verb, chunk: Sequence[Filled]) -> list[Outcome]:
        """One request for many members; halved where only a count says that some of them are bad."""
        members = [one.member for one in chunk]
        form = Form(verb.method, verb.path, verb.query, verb.headers, verb.encoding, verb.timeout_s)
        assert verb.batch is not None
        items = (verb.batch.at, [one.item for one in chunk])
        outcome, body = self._judged(verb, self.exchange(form, self.channel.scope, verb.body, items))
        outcome = followed(verb, outcome, body)
        if outcome.result == "acknowledged" and verb.items is not None:
            if body is ABSENT:
                unread = replace(outcome, result="in_doubt", code="answer_unreadable", strength="A0", reference="")
                return [replace(unread, event_id=member.event_id) for member in members]
            return by_item(verb.items, members, self.channel.scope, (outcome, body))
        if outcome.result == "acknowledged" and verb.counts and count_invalid(verb.counts, body) > 0:
            if len(chunk) == 1:
                invalid = replace(outcome, result="terminal", code="invalid_entry", strength="A0")
                return [replace(invalid, event_id=members[0].event_id)]
            half = len(chunk) // 2
            return self._chunk(verb, chunk[:half]) + self._chunk(verb, chunk[half:])
        return [replace(outcome, event_id=member.event_id) for member in members]

    def _judged(self, verb: Verb, found: Answer | Fault) -> tuple[Outcome, Any]:
        judge = self.channel.judge(verb)
        if isinstance(found, Fault):
            return judge.of_fault(found), ABSENT
        return judge.of_answer(found, verb.success, verb.ack, self.channel.clock()), decode(found)

    def ask(self, member: Member) -> Outcome:
        """The answer of the verb's probe; anything but a clear answer leaves the member in doubt."""
        route = self.channel.route_of(member)
        verbs = [self.channel.manifest.verbs[name] for name in route.verbs] if route else []
        probe = next((verb.probe for verb in reversed(verbs) if verb.probe), None)
        if probe is None:
            return _outcome(member, "in_doubt", "no_probe", "the manifest has no status call for this verb")
        scope = replace(self.channel.scope, member=member, reference=member.reference)
        found = self.exchange(Form(probe.method, probe.path, probe.query), scope, None)
        if isinstance(found, Fault):
            return _outcome(member, "in_doubt", f"probe_{found.code}", found.detail)
        return replace(self._probed(probe, found), event_id=member.event_id, reference=member.reference)

    def _probed(self, probe: Probe, answer: Answer) -> Outcome:
        body, digest = decode(answer), self.channel.judge(None).digest(answer)
        for rule in probe.rules:
            if status_in(answer.status, rule.status or ("2xx",)) and holds(rule, body):
                strength = probe.strength if rule.result == "acknowledged" else "A0"
                return Outcome("", rule.result, rule.code or "probed", strength, answer.status, digest=digest)
        return Outcome("", "in_doubt", "pending", status=answer.status, digest=digest)

    def exchange(
        self, form: Form, scope: Scope, body: Any, items: tuple[str, list[Any]] | None = None
    ) -> Answer | Fault:
        """One paced request; a value that may not travel ends it before it starts."""
        channel = self.channel
        try:
            headers = {**channel.manifest.headers, **form.headers}
            request = build(replace(form, headers=headers), scope, channel.url, encode(form, scope, body, items))
            if items is None and len(request.body) > channel.limits.max_bytes:
                raise Unusable("too_large", f"{len(request.body)} bytes; at most {channel.limits.max_bytes}")
        except Unusable as reason:
            return Fault("refused", reason.code, reason.detail)
        except (ValueError, TypeError, RecursionError):
            return Fault("refused", "unrenderable", "the event cannot be written in the vendor's form")
        wait = self.next_at - time.monotonic()
        if time.monotonic() + max(wait, 0) >= self.deadline:
            return Fault("not_sent", "not_reached", "the call's time was over before its turn")
        if wait > 0:
            time.sleep(wait)
        self.next_at = time.monotonic() + 1 / channel.limits.per_second
        left = min(self.deadline - time.monotonic(), form.timeout_s)
        return channel.client.request(
            Request(request.method, request.url, {**request.headers, **channel.headers}, request.body), left
        )


def _outcome(member: Member, result: Any, code: str, detail: str) -> Outcome:
    return Outcome(member.event_id, result, code, detail=detail)


def _weaker(before: Outcome | None, after: Outcome) -> Outcome:
    """What can be claimed of both: the later answer at the weaker strength."""
    return after if before is None else replace(after, strength=min(before.strength, after.strength))


def _is(value: Any, wanted: Any) -> bool:
    """`wanted` is one value or a list; null stands for a value that is not there."""
    present = None if value is ABSENT else value
    return present in wanted if isinstance(wanted, list) else present == wanted


def _lacking(verb: Verb, scope: Scope) -> str:
    """The names of what the verb needs and the member does not have; empty when it has all."""

    def there(name: str) -> bool:
        return scope.value(name) not in (ABSENT, None, "")

    missing = [name for name in verb.require if not there(name)]
    if missing:
        return ", ".join(missing)
    return "" if not verb.require_any or any(map(there, verb.require_any)) else " or ".join(verb.require_any)
