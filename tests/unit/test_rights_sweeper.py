"""The sweeper over random requests and moments: nothing is told twice, nothing that is not final is forgotten."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from test_rights_clocks import START, laws, request

from tidings.matters import MATTERS
from tidings.rights.asks import KINDS
from tidings.rights.book import FINAL, STATES, Part, Request, Step
from tidings.rights.clocks import clocks_of
from tidings.rights.drafts import Draft
from tidings.rights.sweeper import PATIENCE, causes, met, sweep

OPEN = [state for state in STATES if state not in FINAL]
PLACES = ("US-CA", "US-FL", "DE", "GB", "BR", "CA-QC", "JP", "US-IA", "")
WHATS = ("letter:receipt", "letter:extension", "letter:completion", "paused", "resumed", "verified", "committed")


def written(made: Request, drafts: list[Draft], at: datetime) -> None:
    """As the desk commits them."""
    for draft in drafts:
        number = made.steps[-1].number + 1
        made.steps.append(Step(number, draft.what, made.state, at, draft.actor, draft.reason, dict(draft.details)))


def whats(drafts: list[Draft]) -> list[str]:
    return [f"{one.what}:{one.details.get('level', '')}".rstrip(":") for one in drafts]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    made = request(draw(st.sampled_from(sorted(KINDS))), draw(st.sampled_from(PLACES)))
    at = START
    for _ in range(draw(st.integers(0, 5))):
        at += timedelta(hours=draw(st.integers(0, 400)))
        state = draw(st.sampled_from(OPEN))
        what = draw(st.sampled_from((*WHATS, state)))
        made.steps.append(Step(made.steps[-1].number + 1, what, state, at, "tidings", "", {}))
        made.state = state
    for name in draw(st.sets(st.sampled_from(("crm", "ads", "room")))):
        made.parts[name] = Part(name, "lane", "e1", b"", b"", None, draw(st.sampled_from(("open", "acknowledged"))))
    return made


@settings(max_examples=60, deadline=None)
@given(requests(), st.lists(st.integers(0, 3_000), min_size=1, max_size=12))
def test_nothing_is_told_twice_and_levels_only_rise(made: Request, hours: list[int]) -> None:
    told: Counter[tuple[str, str, str, str, str, str]] = Counter()
    levels: dict[tuple[str, str], int] = {}
    for hour in sorted(hours):
        now = made.steps[-1].at + timedelta(0) if hour == 0 else max(START + timedelta(hours=hour), made.steps[-1].at)
        drafts = sweep([made], laws(), now)
        assert drafts == sweep([made], laws(), now)
        for one in drafts:
            said = one.details
            names = ("clock", "window", "level", "since", "recipient")
            told[(one.what, *(said.get(name, "") for name in names))] += 1  # type: ignore[index]
            if one.what == "escalated":
                key = (said["clock"], said["window"])
                assert int(said["level"]) > levels.get(key, 0)
                levels[key] = int(said["level"])
        written(made, drafts, now)
        assert sweep([made], laws(), now) == []
    assert max(told.values(), default=1) == 1


@settings(max_examples=60, deadline=None)
@given(requests())
def test_no_state_that_is_not_final_is_invisible(made: Request) -> None:
    """A year on, every clock that is unmet is breached on record, and whatever stands still is told."""
    now = made.steps[-1].at + timedelta(days=400)
    written(made, sweep([made], laws(), now), now)
    breached = {step.details["clock"] for step in made.happened("breached")}
    unmet = {one.statute for one in clocks_of(made, laws(), now) if one.due and now > one.due and not met(made, one)}
    assert unmet <= breached
    assert unmet or made.happened("stuck")
    silent = {part.recipient for part in made.parts.values() if part.state == "open" and made.happened("committed")}
    assert silent == {step.details["recipient"] for step in made.happened("capsule_overdue")}
    kinds = {kind for kind, _, _ in causes([made], laws(), now)}
    assert kinds
    assert kinds <= set(MATTERS)


def test_every_open_state_has_its_patience() -> None:
    assert set(PATIENCE) == set(OPEN)


def test_a_request_is_escalated_at_each_level_and_breached_once() -> None:
    made = request("erasure", "US-TX", ("accepted", "working", START))
    seen: list[str] = []
    for hour in range(0, 24 * 60, 6):
        now = START + timedelta(hours=hour)
        drafts = sweep([made], laws(), now)
        seen += whats(drafts)
        written(made, drafts, now)
    assert seen == ["stuck", "escalated:50", "escalated:75", "escalated:90", "breached"]


def test_after_a_long_silence_only_the_highest_level_is_told() -> None:
    made = request("erasure", "US-TX", ("accepted", "working", START + timedelta(days=42)))
    assert whats(sweep([made], laws(), START + timedelta(days=43))) == ["escalated:90"]


def test_an_extension_opens_a_window_of_its_own() -> None:
    made = request("erasure", "US-TX", ("accepted", "working", START + timedelta(days=41)))
    now = START + timedelta(days=42)
    written(made, sweep([made], laws(), now), now)
    written(made, [Draft("r1", "letter:extension")], now)
    assert sweep([made], laws(), now) == []
    assert whats(sweep([made], laws(), START + timedelta(days=46))) == ["escalated:50"]


def test_an_unconfirmed_receipt_breaches_in_california_though_the_answer_has_time() -> None:
    made = request("erasure", "US-CA", ("accepted", "working", START + timedelta(days=16)))
    found = sweep([made], laws(), START + timedelta(days=17))
    assert [(one.what, one.details["clock"]) for one in found] == [("breached", "us-ca-ccpa-ack")]
    made.steps.insert(1, Step(2, "letter:receipt", "received", START, "tidings", "", {}))
    assert sweep([made], laws(), START + timedelta(days=17)) == []


def test_a_refused_request_is_watched_until_its_letter_is_out() -> None:
    made = request("erasure", "DE", ("refused", "refused", START + timedelta(days=1)))
    late = START + timedelta(days=60)
    assert [(one.what, one.details["clock"]) for one in sweep([made], laws(), late)] == [
        ("breached", "eu-gdpr-refusal")
    ]
    written(made, [Draft("r1", "letter:refusal")], START + timedelta(days=2))
    assert sweep([made], laws(), late) == []


def test_an_alert_holds_while_its_cause_does() -> None:
    made = request("erasure", "US-TX", ("accepted", "working", START))
    late = START + timedelta(days=50)
    written(made, sweep([made], laws(), late), late)
    assert [kind for kind, _, _ in causes([made], laws(), late)] == ["rights_breach", "rights_stuck"]
    made.steps.append(Step(99, "fulfilled", "fulfilled", late, "tidings", "", {}))
    made.steps.append(Step(100, "letter:completion", "fulfilled", late, "tidings", "", {}))
    made.state = "fulfilled"
    assert causes([made], laws(), datetime.now(UTC)) == []
