"""A decision's deadlines, worked out step by step in sentences that a lawyer can follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tidings.gate.clocks import Clock, due
from tidings.gate.policy import Policy
from tidings.gate.rules import Verdict

REQUEST, EVENT = "request_time", "time"


def reckoned(
    policy: Policy, clocks: Iterable[Clock], moments: Mapping[str, datetime], said: Iterable[Verdict] = ()
) -> list[dict[str, Any]]:
    """Each clock with the rules and laws that set it, its start, its end and the way from one to the other; the earliest end first."""
    setting = [verdict.rule for verdict in said if verdict.tightens]
    found = []
    for clock in clocks:
        rules = [rule for rule in setting if clock in rule.effect.clocks]
        laws = [policy.statutes[name] for rule in rules for name in rule.statutes if name in policy.statutes]
        cited = [law for law in laws if clock in law.clocks(clock.origin)] or laws
        start = _start(clock, moments)
        end = due(clock, start) if start else None
        found.append(
            {
                "clock": str(clock),
                "rules": [rule.id for rule in rules],
                "statutes": list(dict.fromkeys(law.id for law in cited)),
                "starts": start.isoformat() if start else None,
                "due": end.isoformat() if end else None,
                "steps": list(_steps(clock, start, end, " and ".join(dict.fromkeys(law.citation for law in cited)))),
            }
        )
    return sorted(found, key=lambda one: one["due"] or "~")


def _start(clock: Clock, moments: Mapping[str, datetime]) -> datetime | None:
    at = moments.get(EVENT) if clock.origin == "event" else moments.get(REQUEST, moments.get(EVENT))
    return at.astimezone(UTC) if at else None


def _steps(clock: Clock, start: datetime | None, end: datetime | None, citation: str) -> Iterator[str]:
    by = f"{citation}: " if citation else "the operator's own promise: "
    yield f"{by}{clock}."
    if start is None:
        yield "No start was given, so no date can be worked out; add `request_time` or `time`."
        return
    yield f"The clock starts with the {clock.origin} at {_moment(start)}."
    if end is None:
        until = f" until {clock.until}" if clock.until else ""
        yield f"The text holds for starts from {clock.since or 'the beginning'}{until}: it does not run here."
        return
    if clock.unit in ("seconds", "minutes", "hours"):
        yield f"It runs through nights, weekends and holidays and ends at {_moment(end)}."
        return
    yield f"The day of the start is not counted; the first day is {start.date().fromordinal(start.date().toordinal() + 1)}."
    if clock.unit == "months":
        yield "Months are calendar months: the same-numbered day, or the last day of a shorter month."
    if clock.unit == "business_days":
        yield f"Saturdays, Sundays and the holidays of the calendar {clock.calendar} are not counted."
    if clock.roll:
        yield f"An end on a free day of the calendar {clock.calendar} moves to the next working day."
    yield f"The last day is {end.date()} (a {end:%A}); the latest moment here is {_moment(end)}."


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
