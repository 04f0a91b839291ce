"""Running counts stay small whatever arrives, and survive being written down."""

from __future__ import annotations

from tidings.progress import Marks, Progress
from tidings.seen import HOUR, LAGS, NAMES, OTHERS, Lag, Seen, keys_of

MINUTE = 60_000


def test_counts_add_up() -> None:
    some = Seen(tables={"a": 1}, codes={"x": 2}, first=5, last=9, dialects=["maxwell"])
    more = Seen(tables={"a": 2, "b": 1}, codes={"y": 1}, first=3, last=7, dialects=["canal"])
    both = Seen().plus(some).plus(more)
    assert both.tables == {"a": 3, "b": 1}
    assert both.codes == {"x": 2, "y": 1}
    assert (both.first, both.last, both.dialects) == (3, 9, ["canal", "maxwell"])


def test_many_names_are_counted_together_and_none_is_lost() -> None:
    seen = Seen()
    for batch in range(5):
        seen = seen.plus(Seen(unmapped={f"t{batch}_{n}": 1 for n in range(NAMES)} | {"often": 10}))
    assert len(seen.unmapped) == NAMES
    assert sum(seen.unmapped.values()) == 5 * (NAMES + 10)
    assert seen.unmapped["often"] == 50
    assert seen.unmapped[OTHERS] > 0


def test_only_the_last_hour_and_the_last_batches_are_remembered() -> None:
    seen = Seen()
    for minute in range(1, 200):
        seen = seen.plus(Seen(minutes={str(minute): 2}, last=minute * MINUTE, lags=[Lag(1, minute, minute)]))
    assert sum(seen.minutes.values()) == 2 * HOUR
    assert [lag.p50 for lag in seen.lags] == list(range(200 - LAGS, 200))


def test_what_is_no_name_is_not_kept() -> None:
    assert keys_of(["email", "jo@example.com", "+1 415", "a b", "9", "Custom__c", "/BIC/X"]) == [
        "/BIC/X",
        "Custom__c",
        "email",
    ]


def test_progress_keeps_it_and_reads_a_file_from_before() -> None:
    seen = Seen(tables={"a": 1}, fields={"a": ["x"]}, lags=[Lag(1, 2, 3)], first=1, last=2)
    progress = Progress(Marks(), {"events": 1}, "", seen)
    assert Progress.parse(progress.dump()) == progress
    older = '{"marks": {"high": {}, "hlc": [0, 0], "lamport": 0}, "totals": {}, "newest": ""}'
    assert Progress.parse(older).seen == Seen()
