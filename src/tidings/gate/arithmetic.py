"""A decision's deadlines, worked out step by step in sentences that a lawyer can follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tidings.errors import Refused
from tidings.gate.calendars import Place
from tidings.gate.clocks import Clock, due, local
from tidings.gate.moments import Moment
from tidings.gate.policy import Policy
from tidings.gate.reckoning import Reckoning, shown
from tidings.gate.rules import Verdict
from tidings.gate.statutes import Statute

REQUEST, EVENT = "request_time", "time"
# A promise of the operator's own is counted like a law that has no pause.
_OWN = Statute("", "", "", "the operator's own promise", "", "", "", ())


def reckoned(
    policy: Policy, clocks: Iterable[Clock], moments: Mapping[str, datetime], said: Iterable[Verdict] = ()
) -> list[dict[str, Any]]:
    """Each clock with the rules and laws that set it, its start, its end and the way from one to the other; the earliest end first."""
    setting = [verdict.rule for verdict in said if verdict.tightens]
    found = []
    for clock in clocks:
        rules = [rule for rule in setting if clock in rule.effect.clocks]
        laws = [policy.statutes[name] for rule in rules for name in rule.statutes if name in policy.statutes]
        cited = list(dict.fromkeys(law.id for law in laws if clock in law.clocks(clock.origin)) or [x.id for x in laws])
        start = _start(clock, moments)
        end = due(clock, start, policy.calendars) if start else None
        found.append(
            {
                "clock": str(clock),
                "rules": [rule.id for rule in rules],
                "statutes": cited,
                "starts": start.isoformat() if start else None,
                "due": end.isoformat() if end else None,
                "steps": list(_steps(policy, clock, start, [policy.statutes[name] for name in cited])),
            }
        )
    return sorted(found, key=lambda one: one["due"] or "~")


def _start(clock: Clock, moments: Mapping[str, datetime]) -> datetime | None:
    at = moments.get(EVENT) if clock.origin == "event" else moments.get(REQUEST, moments.get(EVENT))
    return at.astimezone(UTC) if at else None


def _steps(policy: Policy, clock: Clock, start: datetime | None, laws: list[Statute]) -> Iterator[str]:
    law = laws[0] if laws else _OWN
    yield f"{' and '.join(dict.fromkeys(each.citation for each in laws or [law]))}: {clock}."
    if start is None:
        yield "No start was given, so no date can be worked out; add `request_time` or `time`."
        return
    wall = local(start, clock.zone)
    yield f"The clock starts with the {clock.origin} at {shown(start)}, {wall:%Y-%m-%d %H:%M} in {clock.zone}."
    if not clock.in_force(wall.date()):
        until = f" until {clock.until}" if clock.until else ""
        yield f"The text holds for starts from {clock.since or 'the beginning'}{until}: it does not run here."
        return
    moment = Moment(start.isoformat(), start, wall, dated=False)
    reckoning = Reckoning(law, Place(clock.zone), moment, calendars=policy.calendars)
    try:
        last = reckoning.end(clock, tell=True)
    except Refused as refused:
        yield f"{refused.found}: {refused.what_now}"
        return
    yield from reckoning.steps
    yield f"Act by {shown(last)}."
