"""Retry schedule and what each outcome means under each semantics."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tidings.channels.call import STANDARD_SCHEDULE, Capabilities, Outcome
from tidings.lanes.member import Delivery, Feed, PlannedCall, Rules, Sent
from tidings.lanes.retry import JITTER, after_failure, after_throttle, jittered, window
from tidings.lanes.semantics import ABSENT, CRASHED, NOT_STARTED, judge, lacking

HOUR = 3600.0


KEYED, ASKED = Capabilities(idempotency_key=True), Capabilities(probe=True)


def one(semantics: str, outcome: Outcome, rules: Rules | None = None, **more: object) -> tuple[str | None, str, bool]:
    kind = "probe" if more.pop("probe", False) else "send"
    sent = Sent("e1", 1, semantics, **{"attempt": 1, "tries": 0, "first": 0.0, "limit": 0, **more})  # type: ignore[arg-type]
    rules = rules or Rules("lane")
    call = PlannedCall("lane", 1, Feed("s", "g"), kind, (sent,), 0.0, False)  # type: ignore[arg-type]
    _, (verdict,) = judge(rules, call, [outcome], 0.0, 10.0)
    after = Delivery("e1", "p1", Feed("s", "g"), 1, "", semantics, doubted=verdict.doubted)  # type: ignore[arg-type]
    return verdict.final, verdict.code, after.asks(rules)


def test_the_whole_schedule_is_ten_attempts_over_at_least_75_hours() -> None:
    now, tries, at = 0.0, 0, [0.0]
    while (due := after_failure(STANDARD_SCHEDULE, ("e1", tries + 1, tries, 0.0), None, now)) is not None:
        now, tries = due, tries + 1
        at.append(now)
    assert len(at) == 10
    gaps = [after - before for before, after in pairwise(at)]
    for gap, wanted in zip(gaps, STANDARD_SCHEDULE[1:], strict=True):
        assert wanted <= gap <= wanted * (1 + JITTER) + 0.001
    assert now >= 75 * HOUR + 35 * 60 + 5


def test_jitter_is_the_same_for_the_same_attempt_and_spreads_over_events() -> None:
    assert jittered(100.0, "e1", 3) == jittered(100.0, "e1", 3)
    spread = {round(jittered(100.0, f"e{n}", 1)) for n in range(200)}
    assert min(spread) >= 100
    assert max(spread) <= 110
    assert len(spread) > 8


@pytest.mark.parametrize(
    ("retry_after", "lowest", "highest"),
    [(None, 5.0, 5.5), (0.0, 5.0, 5.5), (-9.0, 5.0, 5.5), (60.0, 60.0, 60.0), (1e9, window(STANDARD_SCHEDULE), 1e6)],
)
def test_retry_after_is_honoured_beyond_the_schedule_and_within_the_window(
    retry_after: float | None, lowest: float, highest: float
) -> None:
    due = after_failure(STANDARD_SCHEDULE, ("e1", 1, 0, 0.0), retry_after, 0.0)
    assert due is not None
    assert lowest <= due <= highest


def test_a_throttle_without_sense_neither_spins_nor_lasts_for_ever() -> None:
    for wait in (None, 0.0, -5.0):
        due = after_throttle(STANDARD_SCHEDULE, ("e1", 1, 0, 0.0), wait, 0.0)
        assert due is not None
        assert due >= 5.0
    assert after_throttle(STANDARD_SCHEDULE, ("e1", 1, 0, 0.0), 5.0, window(STANDARD_SCHEDULE)) is None
    alone = after_throttle((0.0,), ("e1", 1, 0, 0.0), 5.0, 0.0)
    assert alone is None


REFUSED, ACKNOWLEDGED = Outcome("e1", "refused", "guard"), Outcome("e1", "acknowledged", "200", "A2", 200)
UNREACHED, ANSWERED = Outcome("e1", "transient", "connect"), Outcome("e1", "transient", "503", status=503)
DOUBT, THROTTLED = Outcome("e1", "in_doubt", "timeout"), Outcome("e1", "throttled", "429", status=429)
TERMINAL, UNSENT = Outcome("e1", "terminal", "400", status=400), Outcome("e1", "transient", NOT_STARTED)


@pytest.mark.parametrize(
    ("semantics", "outcome", "final"),
    [
        ("at-most-once", ACKNOWLEDGED, "acknowledged"),
        ("at-most-once", REFUSED, "refused"),
        ("at-most-once", UNREACHED, None),
        ("at-most-once", UNSENT, None),
        ("at-most-once", ANSWERED, "in_doubt"),
        ("at-most-once", THROTTLED, "dead_lettered"),
        ("at-most-once", TERMINAL, "dead_lettered"),
        ("at-most-once", DOUBT, "in_doubt"),
        ("at-least-once", ACKNOWLEDGED, "acknowledged"),
        ("at-least-once", REFUSED, "refused"),
        ("at-least-once", UNREACHED, None),
        ("at-least-once", ANSWERED, None),
        ("at-least-once", THROTTLED, None),
        ("at-least-once", DOUBT, None),
        ("at-least-once", TERMINAL, "dead_lettered"),
        ("exactly-once", ACKNOWLEDGED, "acknowledged"),
        ("exactly-once", UNREACHED, None),
        ("exactly-once", ANSWERED, "dead_lettered"),
        ("exactly-once", TERMINAL, "dead_lettered"),
        ("exactly-once", DOUBT, "dead_lettered"),
    ],
)
def test_what_an_outcome_means(semantics: str, outcome: Outcome, final: str | None) -> None:
    assert one(semantics, outcome)[0] == final


def test_exactly_once_resolves_a_doubt_by_what_the_manifest_offers() -> None:
    assert one("exactly-once", DOUBT) == ("dead_lettered", "in_doubt", False)
    assert one("exactly-once", DOUBT, Rules("l", capable=KEYED)) == (None, "timeout", False)
    assert one("exactly-once", DOUBT, Rules("l", capable=ASKED)) == (None, "timeout", True)
    forgetful = Rules("l", capable=KEYED, key_window_s=60.0)
    assert one("exactly-once", DOUBT, forgetful)[0] is None
    assert one("exactly-once", DOUBT, forgetful, tries=1) == ("dead_lettered", "in_doubt", False)
    assert one("exactly-once", ANSWERED, forgetful, tries=1, doubted=True) == ("dead_lettered", "in_doubt", False)


def test_a_probe_that_finds_nothing_sends_again_and_one_that_cannot_tell_asks_again() -> None:
    rules = Rules("l", capable=ASKED)
    absent = Outcome("e1", "transient", "probed", status=404)
    assert one("exactly-once", absent, rules, probe=True, doubted=True) == (None, ABSENT, False)
    assert one("exactly-once", DOUBT, rules, probe=True, doubted=True) == (None, "timeout", True)
    assert one("exactly-once", ACKNOWLEDGED, rules, probe=True, doubted=True)[0] == "acknowledged"
    assert one("exactly-once", DOUBT, rules, probe=True, doubted=True, tries=9) == ("dead_lettered", "in_doubt", True)


def test_a_call_that_was_not_begun_is_not_an_attempt() -> None:
    sent = Sent("e1", 1, "at-most-once", attempt=1, tries=0, first=3.0, limit=0)
    call = PlannedCall("lane", 1, Feed("s", "g"), "send", (sent,), 0.0, True)
    _, (verdict,) = judge(Rules("lane"), call, [UNSENT], 3.0, 10.0)
    assert (verdict.attempt, verdict.tries, verdict.first, verdict.due) == (0, 0, None, 10.0)


def test_a_stop_of_our_own_costs_no_try_and_waits_no_longer_each_time() -> None:
    rules = Rules("l", capable=KEYED)
    stopped = Outcome("e1", "in_doubt", CRASHED)
    sent = Sent("e1", 1, "exactly-once", attempt=1, tries=0, first=0.0, limit=0)
    for now in (0.0, 1000.0, 2000.0, 3000.0):
        call = PlannedCall("l", 1, Feed("s", "g"), "send", (sent,), 0.0, True)
        _, (verdict,) = judge(rules, call, [stopped], 0.0, now)
        assert (verdict.final, verdict.tries, verdict.doubted) == (None, 0, True)
        assert now + 5.0 <= verdict.due <= now + 5.6
        sent = replace(sent, attempt=verdict.attempt + 1, doubted=True)
    too_late = window(STANDARD_SCHEDULE) + 1.0
    _, (verdict,) = judge(rules, call, [stopped], 0.0, too_late)
    assert verdict.final == "dead_lettered"


def test_what_a_manifest_cannot_carry_is_said_in_one_sentence() -> None:
    none = Capabilities()
    assert lacking("at-most-once", none) == lacking("at-least-once", none) == ""
    assert lacking("exactly-once", none) == (
        "exactly-once needs one of idempotency_key, natural, transaction, two_phase, probe; this manifest declares none"
    )
    for name in ("idempotency_key", "natural", "transaction", "probe"):
        assert lacking("exactly-once", Capabilities(**{name: True})) == ""
    assert "twice" in lacking("twice", none)
