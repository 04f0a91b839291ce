"""What a semantics promises, what it needs, and what an outcome means under it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tidings.channels.call import Capabilities, Outcome
from tidings.lanes.member import PlannedCall, Rules, Semantics, Sent, Verdict
from tidings.lanes.retry import SHORTEST_WAIT_S, after_failure, after_throttle, jittered, moment

NEEDS = ("idempotency_key", "natural", "transaction", "two_phase", "probe")
SEMANTICS: tuple[Semantics, ...] = ("at-most-once", "at-least-once", "exactly-once")

# Codes of our own, beside whatever a subscriber says.
NOT_STARTED = "lane.not_started"  # the call was never begun: not an attempt, and even at-most-once may try again
ISOLATING = "lane.isolating"  # refused as a whole: halved until the poison is alone
CRASHED = "lane.crashed"  # we stopped between the intent and its record
OURS = frozenset({NOT_STARTED, CRASHED})  # says nothing about the subscriber
NOTIFIED = "lane.notified"  # told, and nothing proves that it was done
UNANSWERED = "lane.unanswered"  # accepted, and no answer came in the time there was
ABSENT = "lane.absent"  # a probe found that it never happened
# Not a member's fault: the door is shut for everybody, so the lane waits instead of emptying into the dead letters.
SHUT_DOOR = frozenset({401, 403, 410})


def lacking(semantics: str, capabilities: Capabilities) -> str:
    """Why this manifest cannot carry these semantics; empty when it can."""
    if semantics not in SEMANTICS:
        return f"semantics are one of {', '.join(SEMANTICS)}; found {semantics}"
    if capabilities.two_phase and semantics != "exactly-once":
        return "a two-phase sink prepares before it commits, so it carries exactly-once and nothing less"
    if semantics in capabilities.semantics:
        return ""
    return f"exactly-once needs one of {', '.join(NEEDS)}; this manifest declares none"


def needs_intent(semantics: Semantics) -> bool:
    """At-least-once may forget that it sent; the others must know before they send."""
    return semantics != "at-least-once"


def sober(outcome: Outcome) -> Outcome:
    """A server's failure does not say that nothing happened; only a request that never left is plainly transient."""
    if outcome.result == "transient" and outcome.status >= 500:
        return replace(outcome, result="in_doubt")
    return outcome


def noticed(rules: Rules, sent: Sent, outcome: Outcome) -> Outcome:
    """An acknowledgement that proves nothing is no end for what must be proved: it is a notice, until a stronger word comes."""
    if outcome.result == "acknowledged" and outcome.strength <= "A1" and sent.change_type in rules.notices:
        return replace(outcome, result="accepted", code=NOTIFIED)
    return outcome


def judge(
    rules: Rules, call: PlannedCall, outcomes: Sequence[Outcome], started: float, now: float
) -> tuple[list[Outcome], list[Verdict]]:
    """One sober outcome and one verdict per member, in their order. Pure: the same on executor and driver."""
    found = {outcome.event_id: sober(outcome) for outcome in outcomes}
    results = [noticed(rules, sent, found.get(sent.event_id) or _lost(sent)) for sent in call.members]
    # A call refused as a whole may hold one poison among good members: halve it until the poison is alone.
    whole = call.kind == "send" and len(results) > 1 and all(outcome.result == "terminal" for outcome in results)
    share = len(results) // 2 if whole else 0
    verdicts = []
    for sent, outcome in zip(call.members, results, strict=True):
        dated = sent if sent.first is not None else replace(sent, first=started)
        verdicts.append(_one(rules, call, dated, outcome, (share, now)))
    return results, verdicts


def _lost(sent: Sent) -> Outcome:
    return Outcome(sent.event_id, "in_doubt", "lane.no_result", detail="the channel gave no outcome for this member")


def _one(rules: Rules, call: PlannedCall, sent: Sent, outcome: Outcome, how: tuple[int, float]) -> Verdict:
    share, now = how
    here = _here(call, sent, outcome)
    if outcome.code == NOT_STARTED:
        made = sent.attempt - 1
        return replace(
            here,
            attempt=made,
            first=sent.first if made else None,
            doubted=sent.doubted,
            awaiting=sent.awaiting,
            due=now,
        )
    if outcome.result == "acknowledged" or outcome.result == "refused":
        return replace(here, final=outcome.result)
    if outcome.result == "accepted" or (sent.awaiting and _unanswered(outcome)):
        return replace(here, awaiting=True, doubted=False, sent_in=0, due=_asked_again(rules, sent, outcome, now))
    if call.kind == "probe" and outcome.result == "transient":
        return _absent(rules, sent, here, outcome, now)
    if outcome.result == "terminal" and outcome.status not in SHUT_DOOR:
        if share and sent.semantics != "at-most-once":
            return replace(here, code=ISOLATING, due=now, limit=share)
        return replace(here, final="dead_lettered")
    never_left = not outcome.status and outcome.result in ("transient", "throttled")
    if sent.semantics == "at-most-once" and not never_left:
        # It reached the subscriber: answered and not done, or not known. Either way it is not sent again.
        return replace(here, final="in_doubt" if outcome.result == "in_doubt" else "dead_lettered")
    if sent.semantics == "exactly-once" and here.doubted:
        return _doubted(rules, sent, here, outcome, now)
    return _again(rules, here, outcome, now)


def _here(call: PlannedCall, sent: Sent, outcome: Outcome) -> Verdict:
    """The delivery where it stands after this call, before anything is decided."""
    return Verdict(
        event_id=sent.event_id,
        final=None,
        code=outcome.code,
        tries=sent.tries,
        attempt=sent.attempt,
        first=sent.first,
        limit=sent.limit,
        doubted=sent.doubted or outcome.result == "in_doubt",
        sent_in=sent.sent_in or (call.seq if outcome.result == "in_doubt" else 0),
        reference=outcome.reference or sent.reference,
    )


def _absent(rules: Rules, sent: Sent, here: Verdict, outcome: Outcome, now: float) -> Verdict:
    """The subscriber says that it never happened.

    A doubt is over and it is sent again. What was accepted and then failed is for a person: later events of its subject may have
    gone by since, and a repeat would overtake them. Only where it held its subject back is it sent again like any failure.
    """
    here = replace(here, doubted=False, sent_in=0, reference="")
    if not sent.awaiting:
        return replace(here, code=ABSENT, due=now)
    if not rules.holds(sent.change_type):
        return replace(here, final="dead_lettered")
    return _again(rules, here, outcome, now)


def _unanswered(outcome: Outcome) -> bool:
    """A question about an accepted delivery that nobody answered."""
    shut = outcome.result == "terminal" and outcome.status in SHUT_DOOR
    return outcome.result in ("in_doubt", "throttled") or shut


def _asked_again(rules: Rules, sent: Sent, outcome: Outcome, now: float) -> float:
    """When to ask about an accepted delivery: soon, then after half its age; never where nobody can be asked."""
    if not rules.askable(sent.change_type):
        return math.inf
    if rules.holds(sent.change_type) and not sent.awaiting:
        return moment(now)
    age = now - (sent.first if sent.first is not None else now)
    soon = SHORTEST_WAIT_S if rules.holds(sent.change_type) else rules.poll_s
    wait = min(max(soon, age / 2, outcome.retry_after or 0.0), rules.poll_max_s)
    return moment(now + jittered(wait, sent.event_id, sent.attempt))


def _doubted(rules: Rules, sent: Sent, here: Verdict, outcome: Outcome, now: float) -> Verdict:
    """Exactly-once: a doubt is resolved by a harmless repeat or by asking; otherwise a person decides."""
    again = _again(rules, here, outcome, now)
    if rules.repeatable(sent.change_type):
        late = again.final is None and key_forgotten(rules, again.first, again.due)
        return replace(again, final="dead_lettered", code="in_doubt") if late else again
    if rules.askable(sent.change_type):
        return again if again.final is None else replace(again, code="in_doubt")
    return replace(here, final="dead_lettered", code="in_doubt")


def key_forgotten(rules: Rules, first: float | None, at: float) -> bool:
    """A repeat at that time may come after the subscriber forgot our key, so it could have a second effect."""
    return rules.key_window_s is not None and first is not None and at - first > rules.key_window_s


def _again(rules: Rules, here: Verdict, outcome: Outcome, now: float) -> Verdict:
    place = (here.event_id, here.attempt, here.tries, here.first if here.first is not None else now)
    if outcome.result == "throttled" or outcome.code == CRASHED:  # neither is a failure of the subscriber
        due, tries = after_throttle(rules.schedule, place, outcome.retry_after, now), here.tries
    else:
        due, tries = after_failure(rules.schedule, place, outcome.retry_after, now), here.tries + 1
    if due is None:
        return replace(here, final="dead_lettered", code="exhausted")
    return replace(here, due=due, tries=tries)
