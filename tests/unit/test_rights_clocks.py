"""Clocks of requests by the statutes of the catalogue: several laws at once, starts, extensions, pauses, appeals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache

import pytest

from tidings.gate.loading import catalogue_statutes
from tidings.rights import extensions
from tidings.rights.asks import KINDS, Word
from tidings.rights.book import Request, Step
from tidings.rights.clocks import PROMISE, Laws, clocks_of, due_of, shown, taxonomy
from tidings.rights.drafts import Draft

START = datetime(2026, 11, 16, 17, 0, tzinfo=UTC)


@cache
def laws(*traits: str) -> Laws:
    statutes, problems = catalogue_statutes()
    assert not problems
    return Laws(statutes, home="US-TX", traits=frozenset(traits))


def request(
    kind: str, place: str, *steps: tuple[str, str, datetime], opened: datetime = START, regulation: str = ""
) -> Request:
    made = Request("r1", kind, "cli", opened, jurisdiction=place, regulation=regulation)
    for number, (what, state, at) in enumerate((("received", "received", opened), *steps), 1):
        made.steps.append(Step(number, what, state, at, "tidings", "", {}))
        made.state = state
    return made


def ends(made: Request, now: datetime = START) -> dict[str, str]:
    return {one.statute: (shown(one.due) or "")[:10] for one in clocks_of(made, laws(), now)}


@pytest.mark.parametrize(
    ("kind", "place", "opened", "expected"),
    [
        ("erasure", "US-CA", START, {"us-ca-ccpa-delete": "2026-12-31", "us-ca-ccpa-ack": "2026-12-02"}),
        ("erasure", "US-FL", START, {"us-fl-delete": "2026-12-31", "us-fl-completion": "2027-01-15"}),
        ("erasure", "EU", datetime(2027, 1, 31, 9, tzinfo=UTC), {"eu-gdpr-erase": "2027-03-01", "eu-gdpr-refusal": "2027-03-01"}),
        ("opt_out_sale", "US-CA", START, {"us-ca-ccpa-optout-sale": "2026-12-09"}),
        ("access", "CA-QC", START, {"ca-qc-access": "2026-12-16", "ca-pipeda-access": "2026-12-16"}),
        ("access", "BR", START, {"br-lgpd-access": "2026-12-01"}),
        ("access", "US-IA", START, {"us-ia-access": "2027-02-14"}),
        ("appeal", "US-CO", START, {"us-co-appeal": "2026-12-31"}),
        ("opt_in", "DE", START, {PROMISE: "2026-12-16"}),
        ("erasure", "JP", START, {PROMISE: "2026-12-16"}),
    ],
)  # fmt: skip
def test_the_laws_of_a_place_each_run_their_own_clock(
    kind: str, place: str, opened: datetime, expected: dict[str, str]
) -> None:
    assert ends(request(kind, place, opened=opened)) == expected


def test_two_places_run_both_laws_and_the_shorter_is_when_it_is_due() -> None:
    both = request("erasure", "DE", regulation="ccpa")
    found = ends(both)
    assert {"eu-gdpr-erase", "us-ca-ccpa-delete", "us-ca-ccpa-ack"} <= set(found)
    assert found["eu-gdpr-erase"] == "2026-12-16" == (shown(due_of(both, laws(), START)) or "")[:10]
    assert set(ends(request("erasure", "DE", regulation="GDPR"))) == {"eu-gdpr-erase", "eu-gdpr-refusal"}


def test_who_does_not_say_where_they_live_lives_where_the_operator_says() -> None:
    assert set(ends(request("erasure", ""))) == {"us-tx-delete"}


def test_a_law_that_was_not_in_force_at_the_start_does_not_run() -> None:
    assert set(ends(request("erasure", "US-OK"))) == {PROMISE}
    later = datetime(2027, 2, 1, 12, tzinfo=UTC)
    assert set(ends(request("erasure", "US-OK", opened=later), later)) == {"us-ok-delete"}


def test_laws_of_a_line_of_business_bind_only_it() -> None:
    made = request("access", "US-CA")
    assert "us-hipaa-access" not in ends(made)
    health = {one.statute for one in clocks_of(made, laws("health"), START)}
    assert {"us-hipaa-access", "us-ca-ccpa-know"} <= health


def test_an_opt_out_of_one_channel_starts_that_channels_clock() -> None:
    texts = request("opt_out", "US-CA")
    texts.details["scope"] = "sms"
    assert set(ends(texts)) == {"us-tcpa-revoke-sms"}
    assert {"us-canspam-optout", "us-tcpa-revoke-sms", "us-tcpa-dnc-company"} <= set(ends(request("opt_out", "US-CA")))


def test_in_britain_the_clock_starts_when_identity_was_supplied_and_in_california_at_receipt() -> None:
    supplied = START + timedelta(days=10)
    steps = (("verifying", "verifying", START + timedelta(hours=1)), ("verified", "review", supplied))
    british, american = request("access", "GB", *steps), request("access", "US-CA", *steps)
    assert clocks_of(british, laws(), supplied)[0].start == supplied
    assert {one.start for one in clocks_of(american, laws(), supplied)} == {START}


def test_each_clock_tells_its_arithmetic_its_part_and_its_source() -> None:
    for place in ("US-CA", "DE", "GB", "US-FL", "BR", "IN"):
        for clock in clocks_of(request("access", place), laws(), START):
            assert clock.steps
            assert clock.source
            assert clock.confidence
            assert clock.due is None or (clock.part is not None and clock.start < clock.part < clock.due)


def test_every_kind_has_its_triggers_and_every_trigger_exists() -> None:
    known = {statute.trigger for statute in laws().statutes.values()}
    assert set(KINDS) | {"incident"} == set(taxonomy()["kinds"])
    assert {one for many in taxonomy()["kinds"].values() for one in many} <= known
    assert set(taxonomy()["duties"]) <= known


def said(made: Request, action: str, at: datetime, reason: str = "Many systems.") -> Draft:
    return extensions.answer(made, Word("r1", action, "ana", reason), laws(), at)


def test_an_extension_counts_from_its_letter_and_not_without_it() -> None:
    asked = START + timedelta(days=20)
    made = request("erasure", "DE", ("verified", "working", START))
    assert said(made, "extend", asked).what == "extension_asked"
    assert ends(made, asked)["eu-gdpr-erase"] == "2026-12-16"
    assert extensions.took_effect(made, laws(), asked) is None
    made.steps.append(Step(9, "letter:extension", "working", asked + timedelta(days=1), "tidings", "", {}))
    assert ends(made, asked)["eu-gdpr-erase"] == "2027-02-16"
    assert ends(made, asked)["eu-gdpr-refusal"] == "2026-12-16", "a refusal is told within the first month all the same"
    effect = extensions.took_effect(made, laws(), asked)
    assert effect is not None
    assert effect.what == "extended"
    assert (shown(effect.due) or "")[:10] == "2027-02-16"


def test_a_letter_after_the_first_window_extends_nothing_and_says_so() -> None:
    late = START + timedelta(days=40)
    made = request("erasure", "DE", ("letter:extension", "working", late))
    assert ends(made, late)["eu-gdpr-erase"] == "2026-12-16"
    effect = extensions.took_effect(made, laws(), late)
    assert effect is not None
    assert effect.what == "extension_lapsed"


@pytest.mark.parametrize(
    ("made", "day", "reason", "why"),
    [
        (request("erasure", "DE"), 40, "Many systems.", "The first window ended"),
        (request("erasure", "DE"), 5, " ", "needs a reason"),
        (request("erasure", "DE", ("extension_asked", "working", START)), 5, "Again.", "once"),
        (request("erasure", "CA-QC"), 5, "Many systems.", "None of the laws"),
        (request("erasure", "DE", ("fulfilled", "fulfilled", START)), 5, "Late.", "has ended"),
    ],
)
def test_an_extension_that_no_law_allows_is_declined_with_the_reason(
    made: Request, day: int, reason: str, why: str
) -> None:
    found = said(made, "extend", START + timedelta(days=day), reason)
    assert found.what == "declined"
    assert why in found.reason


def test_florida_gives_fifteen_days_more_and_an_appeal_has_an_extension_of_its_own() -> None:
    sent = ("letter:extension", "working", START + timedelta(days=3))
    assert ends(request("erasure", "US-FL", sent))["us-fl-delete"] == "2027-01-15"
    assert ends(request("appeal", "US-CO", sent))["us-co-appeal"] == "2027-03-01"


def test_a_pause_moves_the_end_where_the_text_stops_the_clock_and_nowhere_else() -> None:
    pause = (("paused", "review", START + timedelta(days=5)), ("resumed", "review", START + timedelta(days=12)))
    assert ends(request("access", "GB"))["gb-ukgdpr-access"] == "2026-12-16"
    assert ends(request("access", "GB", *pause))["gb-ukgdpr-access"] == "2026-12-23"
    assert ends(request("access", "DE", *pause))["eu-gdpr-access"] == "2026-12-16"
    assert said(request("access", "DE"), "pause", START).what == "declined"
    assert said(request("access", "GB"), "resume", START).what == "declined"
    assert said(request("access", "GB"), "pause", START).what == "paused"
    assert said(request("access", "GB", pause[0]), "pause", START).what == "declined"
    found = said(request("access", "GB", pause[0]), "resume", START + timedelta(days=12))
    assert found.what == "resumed"
    assert (shown(found.due) or "")[:10] == "2026-12-23"
