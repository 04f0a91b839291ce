"""When to try again: a jittered schedule, Retry-After, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

# Jitter only ever adds, so that the window is never shorter than the schedule promises.
JITTER = 0.1
SHORTEST_WAIT_S = 1.0


def jittered(delay: float, event_id: str, attempt: int) -> float:
    """The delay plus up to a tenth of it; the same event and attempt give the same answer for ever."""
    digest = blake2b(f"{event_id}/{attempt}".encode(), digest_size=8).digest()
    return delay * (1.0 + JITTER * int.from_bytes(digest, "big") / 2**64)


def window(schedule: Sequence[float]) -> float:
    """The longest a delivery is tried for, from its first attempt."""
    return sum(schedule) * (1.0 + JITTER)


def moment(seconds: float) -> float:
    """Milliseconds survive the table's timestamp type; anything finer would make a restart differ."""
    return round(seconds, 3)


def after_failure(
    schedule: Sequence[float], sent: tuple[str, int, int, float], retry_after: float | None, now: float
) -> float | None:
    """When to go on after a failed try, or None when the schedule is used up.

    `sent` is (event id, attempt, tries so far, first attempt). A Retry-After longer than the schedule's own wait is
    honoured as far as the window reaches.
    """
    event_id, attempt, tries, first = sent
    if tries + 1 >= len(schedule):
        return None
    due = now + jittered(schedule[tries + 1], event_id, attempt)
    if retry_after is not None:
        due = max(due, min(now + retry_after, first + window(schedule)))
    return moment(due)


def after_throttle(
    schedule: Sequence[float], sent: tuple[str, int, int, float], retry_after: float | None, now: float
) -> float | None:
    """When to go on after the subscriber asked for time, or after a stop of our own: no try is lost; it ends with the window."""
    event_id, attempt, _, first = sent
    end = first + window(schedule)
    if now >= end:
        return None
    floor = jittered(max(schedule[1] if len(schedule) > 1 else 0.0, SHORTEST_WAIT_S), event_id, attempt)
    return moment(min(now + max(retry_after or 0.0, floor), max(end, now + SHORTEST_WAIT_S)))
