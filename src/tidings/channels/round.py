"""One call on its way to a vendor: the requests it takes, paced, within one deadline, and what each member is told.

A `Rehearsal` is the same round up to the moment a request would leave; it is what `tidings try render` shows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tidings.channels.call import Member, Outcome
from tidings.channels.client import Answer, Fault, Request
from tidings.channels.mapping import Scope, Unusable, expressions_of
from tidings.channels.members import TAKEN, Held, by_item, count_invalid, followed
from tidings.channels.normalise import ABSENT, NORMALISER_VERSION
from tidings.channels.requests import Filled, Form, batches, build, encode, item_size
from tidings.channels.transcript import exchanged
from tidings.channels.verbs import Batch, Probe, Verb
from tidings.channels.verdict import decode, holds, status_in

if TYPE_CHECKING:
    from tidings.channels.http import HttpChannel
    from tidings.channels.manifest import Route

# What an acknowledgement of digests is recorded as: a removal only finds what was added under the same normal form.
HASHED = f"ok.normaliser-{NORMALISER_VERSION}"


class Round:
    """Sends. What the time did not suffice for says so and was not sent."""

    def __init__(self, channel: HttpChannel, deadline: float) -> None:
        self.channel, self.deadline, self.next_at = channel, deadline, 0.0
        self.held = Held()
        self.last: tuple[Request, Answer | Fault] | None = None  # the last request, without its credentials

    def route(self, route: Route, members: Sequence[Member]) -> list[Outcome]:
        """Every verb of the route in turn; a member goes on as long as the vendor takes it."""
        waiting, final = list(members), {}
        so_far: dict[str, Outcome] = {}
        for name in route.verbs:
            verb = self.channel.manifest.verbs[name]
            usable, outcomes = self._usable(verb, waiting, name in route.optional)
            outcomes += self._verb(name, verb, usable)
            self.held.note(waiting, outcomes)
            for outcome in outcomes:
                if outcome.result in TAKEN:
                    so_far[outcome.event_id] = _weaker(so_far.get(outcome.event_id), outcome)
                else:
                    final[outcome.event_id] = outcome
            waiting = [member for member in waiting if member.event_id not in final]
        for member in waiting:
            nothing = told(member, "refused", "missing_field", "the event has none of the fields this route needs")
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
                refused.append(told(member, "refused", "missing_field", f"the event has no {lacking}"))
        return usable, refused

    def _verb(self, name: str, verb: Verb, members: Sequence[Member]) -> list[Outcome]:
        if verb.batch is None:
            return [self.held.unless(member, partial(self._single, name, verb)) for member in members]
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
            outcomes = self._chunk(name, verb, free) if free else []
            self.held.note([one.member for one in free], outcomes)
            found += outcomes
        return found

    def _filled(self, batch: Batch, member: Member, most_bytes: int) -> Filled | Outcome:
        """The member's part of the body, or why it has none: one bad member must not fail the others."""
        item = replace(self.channel.scope, member=member).fill(batch.item)
        if item is ABSENT:
            return told(member, "refused", "missing_field", "none of the fields could be normalised")
        try:
            size = item_size(item)
        except (ValueError, TypeError, RecursionError):
            return told(member, "refused", "unrenderable", "the event cannot be written in the vendor's form")
        if size > most_bytes:
            return told(member, "refused", "too_large", f"{size} bytes alone; at most {most_bytes}")
        return Filled(member, item, size)

    def _single(self, name: str, verb: Verb, member: Member) -> Outcome:
        scope = replace(self.channel.scope, member=member)
        extra = {}
        if verb.idempotency == "header":
            extra[self.channel.manifest.idempotency_header] = member.idempotency_key
        form = Form(verb.method, verb.path, verb.query, {**verb.headers, **extra}, verb.encoding, verb.timeout_s, name)
        outcome, _ = self._judged(verb, self.exchange(form, scope, verb.body))
        return self._kept(replace(outcome, event_id=member.event_id), None, True)

    def _kept(self, outcome: Outcome, part: bytes | None, alone: bool) -> Outcome:
        """The outcome with what was said about this member, unless it was taken."""
        if outcome.result in TAKEN or outcome.exchange is not None or self.last is None:
            return outcome
        secret = self.channel.scope.secret
        return replace(outcome, exchange=exchanged(*self.last, body=part, alone=alone, secret=secret))

    def _chunk(self, name: str, verb: Verb, chunk: Sequence[Filled]) -> list[Outcome]:
        """One request for many members; each keeps its own part of what was said."""
        assert verb.batch is not None
        form = Form(verb.method, verb.path, encoding=verb.encoding)
        items = {one.member.event_id: one.item for one in chunk}
        found = []
        for outcome in self._together(name, verb, chunk):
            done = outcome.result in TAKEN or outcome.exchange is not None
            own = (verb.batch.at, [items[outcome.event_id]])
            part = b"" if done else encode(form, self.channel.scope, verb.body, own)
            found.append(self._kept(outcome, part, len(chunk) == 1))
        return found

    def _together(self, name: str, verb: Verb, chunk: Sequence[Filled]) -> list[Outcome]:
        form = Form(verb.method, verb.path, verb.query, verb.headers, verb.encoding, verb.timeout_s, name)
        assert verb.batch is not None
        items = (verb.batch.at, [one.item for one in chunk])
        outcome, body = self._judged(verb, self.exchange(form, self.channel.scope, verb.body, items))
        if outcome.result in TAKEN:
            return self._each(name, verb, chunk, (outcome, body))
        return [replace(outcome, event_id=one.member.event_id) for one in chunk]

    def _each(self, name: str, verb: Verb, chunk: Sequence[Filled], said: tuple[Outcome, Any]) -> list[Outcome]:
        """What a success says of each member; halved where only a count says that some of them are bad."""
        outcome, body = said
        members = [one.member for one in chunk]
        if body is ABSENT and (verb.items is not None or verb.counts is not None):
            unread = replace(outcome, result="in_doubt", code="answer_unreadable", strength="A0", reference="")
            return [replace(unread, event_id=member.event_id) for member in members]
        if verb.items is not None:
            return by_item(verb.items, members, self.channel.scope, said)
        if verb.counts and count_invalid(verb.counts, body) > 0:
            if len(chunk) == 1:
                invalid = replace(outcome, result="terminal", code="invalid_entry", strength="A0")
                return [replace(invalid, event_id=members[0].event_id)]
            half = len(chunk) // 2
            return self._chunk(name, verb, chunk[:half]) + self._chunk(name, verb, chunk[half:])
        return [replace(outcome, event_id=member.event_id) for member in members]

    def _judged(self, verb: Verb, found: Answer | Fault) -> tuple[Outcome, Any]:
        judge = self.channel.judge(verb)
        if isinstance(found, Fault):
            return judge.of_fault(found), ABSENT
        outcome = judge.of_answer(found, verb.success, verb.ack, self.channel.clock())
        if verb.hashes and (outcome.result, outcome.code) == ("acknowledged", "ok"):
            outcome = replace(outcome, code=HASHED)
        body = decode(found)
        return followed(verb, outcome, body), body

    def ask(self, member: Member) -> Outcome:
        """The answer of the verb's probe; anything but a clear answer leaves the member in doubt."""
        route = self.channel.route_of(member)
        verbs = [self.channel.manifest.verbs[name] for name in route.verbs] if route else []
        scope = replace(self.channel.scope, member=member, reference=member.reference)
        # What the member has nothing for was left out when it was sent.
        probe = next((verb.asks for verb in reversed(verbs) if verb.asks and not _lacking(verb, scope)), None)
        if probe is None:
            return told(member, "in_doubt", "no_probe", "the manifest has no status call for this verb")
        if any(scope.evaluate(text) in (ABSENT, None, "") for text in expressions_of("", probe.query)):
            return told(member, "in_doubt", "probe_unfilled", "the question would be about somebody else")
        found = self.exchange(Form(probe.method, probe.path, probe.query, {}, probe.encoding), scope, probe.body)
        if isinstance(found, Fault):
            return told(member, "in_doubt", f"probe_{found.code}", found.detail)
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
        channel, self.last = self.channel, None
        try:
            headers = {**channel.manifest.headers, **form.headers}
            request = build(replace(form, headers=headers), scope, channel.url, encode(form, scope, body, items))
            if items is None and len(request.body) > channel.limits.max_bytes:
                raise Unusable("too_large", f"{len(request.body)} bytes; at most {channel.limits.max_bytes}")
        except Unusable as reason:
            return Fault("refused", reason.code, reason.detail)
        except (ValueError, TypeError, RecursionError):
            return Fault("refused", "unrenderable", "the event cannot be written in the vendor's form")
        return self._leave(form, request)

    def _leave(self, form: Form, request: Request) -> Answer | Fault:
        left = self.deadline - time.monotonic()
        wait = max(self.next_at - time.monotonic(), 0.0)
        if wait >= left:
            return Fault("not_sent", "not_reached", "the call's time was over before its turn")
        if wait > 0:
            time.sleep(wait)
        full = self._windows(form.verb)
        if full:
            return full
        self.next_at = time.monotonic() + 1 / self.channel.limits.per_second
        found = self.channel.client.request(request, min(self.deadline - time.monotonic(), form.timeout_s))
        self.last = (request, found)
        return found

    def _windows(self, verb: str) -> Fault | None:
        """Wait for room in the verb's windows; a fault when it does not come in time."""
        for pace in self.channel.paces(verb):
            while (wait := pace.take(time.monotonic())) > 0:
                if time.monotonic() + wait >= self.deadline:
                    return Fault("paced", "window_full", "the vendor's window for this call is full", wait)
                time.sleep(wait)
        return None


class Rehearsal(Round):
    """Sends nothing: every request that would leave is kept, and counts as done."""

    def __init__(self, channel: HttpChannel) -> None:
        super().__init__(channel, float("inf"))
        self.kept: list[tuple[str, Request]] = []

    def _leave(self, form: Form, request: Request) -> Answer:
        self.kept.append((form.verb, request))
        return Answer(200, {}, b"")

    def _judged(self, verb: Verb, found: Answer | Fault) -> tuple[Outcome, Any]:
        if isinstance(found, Fault):
            return super()._judged(verb, found)
        return Outcome("", "acknowledged", "rehearsed", verb.ack), ABSENT

    def _each(self, name: str, verb: Verb, chunk: Sequence[Filled], said: tuple[Outcome, Any]) -> list[Outcome]:
        return [replace(said[0], event_id=one.member.event_id) for one in chunk]


def told(member: Member, result: Any, code: str, detail: str) -> Outcome:
    return Outcome(member.event_id, result, code, detail=detail)


def _weaker(before: Outcome | None, after: Outcome) -> Outcome:
    """What can be claimed of both: the later answer at the weaker strength, open as long as one of them is."""
    if before is None:
        return after
    both = replace(after, strength=min(before.strength, after.strength))
    still = before.result == "accepted" and after.result == "acknowledged"
    return replace(both, result="accepted", reference=before.reference) if still else both


def _lacking(verb: Verb, scope: Scope) -> str:
    """The names of what the verb needs and the member does not have; empty when it has all.

    An address or a number that has no normal form would leave a request about nobody, and its yes would be false.
    """

    def there(name: str) -> bool:
        return any(scope.evaluate(form) not in (ABSENT, None, "") for form in verb.forms.get(name, (name,)))

    missing = [name for name in verb.require if not there(name)]
    if missing:
        return ", ".join(missing)
    return "" if not verb.require_any or any(map(there, verb.require_any)) else " or ".join(verb.require_any)
