"""What a semantics promises, what it needs, and what an outcome means under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidings.channels.call import Capabilities, Outcome
from tidings.lanes.member import PlannedCall, Rules, Semantics, Sent, Verdict
from tidings.lanes.retry import after_failure, after_throttle

NEEDS = ("idempotency_key", "natural", "transaction", "probe")
SEMANTICS: tuple[Semantics, ...] = ("at-most-once", "at-least-once", "exactly-once")

# The call was never begun: nothing is counted, and even at-most-once may try again.
NOT_STARTED = "not_started"
# Not a member's fault: the door is shut for everybody, so the lane waits instead of emptying into the dead letters.
SHUT_DOOR = frozenset({401, 403, 410})


def lacking(semantics: str, capabilities: Capabilities) -> str:
    """Why this manifest cannot carry these semantics; empty when it can."""
    if semantics not in SEMANTICS:
        return f"semantics are one of {', '.join(SEMANTICS)}; found {semantics}"
    if semantics in capabilities.semantics:
        return ""
    return f"exactly-once needs one of {', '.join(NEEDS)}; this manifest declares none"


def needs_intent(semantics: Semantics) -> bool:
    """At-least-once may forget that it sent; the others must know before they send."""
    return semantics != "at-least-once"


def judge(rules: Rules, call: PlannedCall, outcomes: Sequence[Outcome], now: float) -> list[Verdict]:
    """One verdict per member, from what the call knew and what came back. Pure: the same on executor and driver."""
    found = {outcome.event_id: outcome for outcome in outcomes}
    results = [found.get(sent.event_id) or _lost(sent) for sent in call.members]
    # A call refused as a whole may hold one poison among good members: halve it until the poison is alone.
    whole = len(results) > 1 and all(outcome.result == "terminal" for outcome in results)
    share = len(results) // 2 if whole else 0
    return [_one(rules, call, sent, outcome, (share, now)) for sent, outcome in zip(call.members, results, strict=True)]


def _lost(sent: Sent) -> Outcome:
    return Outcome(sent.event_id, "in_doubt", "no_result", detail="the channel gave no outcome for this member")


def _one(rules: Rules, call: PlannedCall, sent: Sent, outcome: Outcome, how: tuple[int, float]) -> Verdict:
    share, now = how
    probing = call.kind == "probe"
    here = _here(sent, outcome, probing)
    if outcome.code == NOT_STARTED:
        made = sent.attempt - 1
        return replace(here, attempt=made, first=sent.first if made else None, due=now)
    if outcome.result == "acknowledged" or outcome.result == "refused":
        return replace(here, final=outcome.result)
    if outcome.result == "terminal" and outcome.status not in SHUT_DOOR:
        if probing and outcome.code == "absent":
            return replace(here, due=now, probing=False, doubted=False)
        if share and sent.semantics != "at-most-once":
            return replace(here, code="isolating", due=now, limit=share)
        return replace(here, final="dead_lettered")
    if sent.semantics == "at-most-once" and not (outcome.result == "transient" and not outcome.status):
        # It reached the subscriber: answered and not done, or not known. Either way it is not sent again.
        return replace(here, final="in_doubt" if outcome.result == "in_doubt" else "dead_lettered")
    return _once(rules, here, outcome, now) if sent.semantics == "exactly-once" else _again(rules, here, outcome, now)


def _here(sent: Sent, outcome: Outcome, probing: bool) -> Verdict:
    """The delivery where it stands after this call, before anything is decided."""
    return Verdict(
        event_id=sent.event_id,
        final=None,
        code=outcome.code,
        tries=sent.tries,
        attempt=sent.attempt,
        first=sent.first,
        limit=sent.limit,
        probing=probing,
        doubted=sent.doubted or outcome.result == "in_doubt",
        reference=outcome.reference or sent.reference,
    )


def _once(rules: Rules, here: Verdict, outcome: Outcome, now: float) -> Verdict:
    """Exactly-once: a doubt is resolved by a harmless repeat or by asking; otherwise a person decides."""
    if not here.doubted:
        return _again(rules, here, outcome, now)
    if rules.idempotent:
        again = _again(rules, replace(here, probing=False), outcome, now)
        if again.final is None and key_forgotten(rules, again.first, again.due):
            return replace(again, final="dead_lettered", code="in_doubt")
        return again
    if rules.probe:
        return _again(rules, replace(here, probing=True), outcome, now)
    return replace(here, final="dead_lettered", code="in_doubt")


def key_forgotten(rules: Rules, first: float | None, at: float) -> bool:
    """A repeat at that time may come after the subscriber forgot our key, so it could have a second effect."""
    return rules.key_window_s is not None and first is not None and at - first > rules.key_window_s


def _again(rules: Rules, here: Verdict, outcome: Outcome, now: float) -> Verdict:
    place = (here.event_id, here.attempt, here.tries, here.first if here.first is not None else now)
    named = outcome.retry_after
    if outcome.result == "throttled" and named is not None:
        due, tries = after_throttle(rules.schedule, place, named, now), here.tries
    else:
        due, tries = after_failure(rules.schedule, place, named, now), here.tries + 1
    if due is None:
        return replace(here, final="dead_lettered", code="in_doubt" if here.probing else "exhausted")
    return replace(here, due=due, tries=tries)
