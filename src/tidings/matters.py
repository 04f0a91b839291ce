"""What a person can be told about: every kind of alert, how severe it is and what to do. Each has a page in docs/runbooks.

A condition is open as long as it holds. An incident has happened and stays open for a day after the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "order_violation",
    "schema_incompatible",
    "deadline_at_risk",
    "deadline_missed",
    "silent_source",
    "source_stopped",
    "exactly_once_breach",
    "dead_letters",
    "backpressure",
    "breaker_open",
    "documentation",
    "rights_breach",
    "rights_at_risk",
    "rights_stuck",
    "capsule_overdue",
]
Severity = Literal["P0", "P1", "P2", "P3", "P4"]
KINDS: tuple[Kind, ...] = get_args(Kind)
HOUR = 3600.0
DAY = 24 * HOUR
# How soon somebody must answer; documentation is due at the next review.
ANSWER_WITHIN: Mapping[Severity, float | None] = {"P0": 0.0, "P1": 72 * HOUR, "P2": 7 * DAY, "P3": 30 * DAY, "P4": None}


@dataclass(frozen=True)
class Matter:
    severity: Severity
    title: str
    advice: str
    incident: bool = False


MATTERS: Mapping[Kind, Matter] = {
    "order_violation": Matter(
        "P0",
        "Two events of one subject were acknowledged in the wrong order",
        "Pause the lane with `tidings lanes pause`, then see the runbook.",
        incident=True,
    ),
    "schema_incompatible": Matter(
        "P1",
        "A source sends what its contract does not describe",
        "See `tidings report capture` and `tidings quarantine`; mend the contract or the producer, and let it send again.",
        incident=True,
    ),
    "deadline_at_risk": Matter(
        "P1",
        "A deadline is at risk",
        "See `tidings report sla`; a lane behind its deadline needs a rate, a mended subscriber or a decision.",
    ),
    "deadline_missed": Matter(
        "P1",
        "A deadline was missed",
        "See `tidings report sla`; what is late is still sent, and who asks must be told.",
    ),
    "silent_source": Matter(
        "P1",
        "A source has gone silent",
        "See `tidings status`; is the producer running, and does it still write to the same place?",
    ),
    "source_stopped": Matter(
        "P1",
        "A source has stopped",
        "See what `tidings run` said and docs/errors.md; it does not go on without a person.",
        incident=True,
    ),
    "exactly_once_breach": Matter(
        "P2",
        "What was to happen once may have happened twice, or not at all",
        "See `tidings dead-letters list --code in_doubt`; ask the subscriber, then retry or approve.",
        incident=True,
    ),
    "dead_letters": Matter(
        "P2",
        "Deliveries were given up",
        "See `tidings dead-letters list`; each can be sent again or closed with a reason.",
        incident=True,
    ),
    "backpressure": Matter(
        "P3",
        "A lane takes nothing new because too much waits in it",
        "See `tidings lanes`; nothing is lost, the lane's cursor stands still until the subscriber catches up.",
    ),
    "breaker_open": Matter(
        "P3",
        "A subscriber is not answering",
        "See `tidings lanes`; deliveries wait and go on by themselves when it answers again.",
    ),
    "documentation": Matter(
        "P4", "A subscriber is not documented", "Add what is missing to its file under subscribers/."
    ),
    "rights_breach": Matter(
        "P0",
        "A person's request is past what the law allows",
        "See `tidings rights clocks`; finish it, tell the person, and tell your privacy office.",
    ),
    "rights_at_risk": Matter(
        "P1",
        "A person's request uses up its time",
        "See `tidings rights clocks`; finish it, or extend it with a reason while the first window is open.",
    ),
    "rights_stuck": Matter(
        "P2",
        "A person's request stands still",
        "See `tidings rights clocks --stuck`; it waits for a person or for a part of this system.",
    ),
    "capsule_overdue": Matter(
        "P1",
        "A recipient has not answered for an erasure within the capsule's age",
        "See `tidings rights clocks`; mend the recipient, or have two people approve the exception.",
    ),
}


def runbook(kind: Kind, base: str) -> str:
    """Where the page of a kind is."""
    return f"{base.rstrip('/')}/{kind.replace('_', '-')}.md"
