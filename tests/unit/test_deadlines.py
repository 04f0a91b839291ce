"""`tidings try deadline`: published dates end to end, steps that say how, and refusals that say why."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tidings.errors import ConfigurationError, Refused, TidingsError
from tidings.gate.deadlines import Asked, deadline
from tidings.gate.loading import catalogue_statutes, examine_policy
from tidings.gate.moments import Pause, counted_pause
from tidings.settings import load
from tidings.verbs import try_deadline
from tidings.verbs.init import write

STATUTES, _ = catalogue_statutes()


def ask(name: str, received: str, **more: Any) -> dict[str, Any]:
    return deadline(STATUTES, name, Asked(received, **more))


# statute, start, what else is asked, due
VECTORS = [
    ("eu-gdpr-erase", "2027-01-31", {}, "2027-03-01"),
    ("eu-gdpr-access", "2027-01-31", {"extended": True}, "2027-04-30"),
    ("us-canspam-optout", "2026-12-21", {}, "2027-01-06"),
    ("us-ca-ccpa-optout-sale", "2026-11-16", {}, "2026-12-09"),
    ("us-ca-ccpa-limit-spi", "2026-11-16", {}, "2026-12-09"),
    ("us-tcpa-revoke-sms", "2026-11-16", {}, "2026-12-01"),
    ("us-ca-ccpa-delete", "2026-11-16", {}, "2026-12-31"),
    ("us-ca-ccpa-delete", "2026-11-16", {"extended": True}, "2027-02-14"),  # a Sunday, and no text moves it
    ("us-fl-delete", "2026-11-16", {}, "2026-12-31"),
    ("us-fl-delete", "2026-11-16", {"extended": True}, "2027-01-15"),
    ("us-ca-ccpa-ack", "2026-11-16", {}, "2026-12-02"),
    # which text held at the start
    ("us-tcpa-dnc-company", "2025-04-10", {}, "2025-05-10"),
    ("us-tcpa-dnc-company", "2025-04-11", {}, "2025-04-25"),
    ("us-ut-correct", "2026-07-01", {}, "2026-08-15"),
    # FCRA: the day of receipt is day 1
    ("us-fcra-611", "2026-11-16", {}, "2026-12-15"),
    ("us-fcra-611", "2026-11-16", {"extended": True}, "2026-12-30"),
    ("us-fcra-611-furnisher", "2026-11-16", {}, "2026-11-20"),
    # appeals have a clock and an extension of their own
    ("us-co-appeal", "2026-11-16", {}, "2026-12-31"),
    ("us-co-appeal", "2026-11-16", {"extended": True}, "2027-03-01"),
    # hours: an instant, never moved
    ("eu-gdpr-breach-sa", "2026-11-13T12:17:00+01:00", {}, "2026-11-16T11:17:00Z"),
    ("eu-gdpr-breach-sa", "2026-10-24T12:00:00", {}, "2026-10-27T10:00:00Z"),  # 72 h pass, 71 on the wall
    ("eu-gdpr-breach-sa", "2026-11-13", {}, "2026-11-15T23:00:00Z"),
    ("us-tcpa-confirm-text", "2026-11-16T23:58:00-05:00", {}, "2026-11-17T05:03:00Z"),
    ("eu-eprivacy-telecom-breach", "2026-11-13T12:00:00Z", {"extended": True}, "2026-11-17T12:00:00Z"),
    # years, leap days
    ("us-il-bipa-destroy", "2028-02-29", {}, "2031-02-28"),
    ("us-glba-disposal", "2028-02-29", {}, "2030-02-28"),
    # the day where the law holds
    ("us-ca-ccpa-delete", "2026-11-17T02:00:00Z", {}, "2026-12-31"),
    ("eu-gdpr-erase", "2026-11-15T23:30:00Z", {}, "2026-12-16"),
    ("eu-gdpr-erase", "2026-11-15T23:30:00", {}, "2026-12-15"),
    # Germany keeps 26 December, the Union as a whole does not; 24 December is a working day in both
    ("eu-gdpr-erase", "2024-11-26", {}, "2024-12-26"),
    ("eu-gdpr-erase", "2024-11-26", {"place": "DE"}, "2024-12-27"),
    ("eu-gdpr-erase", "2026-11-25", {}, "2026-12-28"),
    # United Kingdom: bank holidays move the end; a pause moves it first
    ("gb-ukgdpr-access", "2026-11-25", {}, "2026-12-29"),
    ("gb-ukgdpr-access", "2026-03-02", {}, "2026-04-02"),
    ("gb-ukgdpr-access", "2026-03-02", {"paused": ("2026-03-10..2026-03-11",)}, "2026-04-07"),  # Good Friday, Easter
    ("gb-ukgdpr-access", "2026-03-02", {"paused": ("2026-03-10..2026-03-17",)}, "2026-04-09"),
    ("gb-ukgdpr-access", "2026-03-02", {"paused": ("2026-03-10..2026-03-17", "2026-03-12..2026-03-19")}, "2026-04-13"),
    ("gb-ukgdpr-access", "2026-03-02", {"paused": ("2026-05-01..2026-05-09",)}, "2026-04-02"),
    ("gb-ukgdpr-access", "2026-03-02", {"paused": ("2026-03-10..2026-03-17",), "extended": True}, "2026-06-09"),
    # the text has no pause
    ("eu-gdpr-erase", "2026-03-02", {"paused": ("2026-03-10..2026-03-17",)}, "2026-04-02"),
    ("us-va-delete", "2026-03-02", {"paused": ("2026-03-10..2026-03-17",)}, "2026-04-16"),
    ("br-lgpd-breach", "2026-11-17", {}, "2026-11-23"),  # 20 November is free in Brazil
    ("ca-casl-unsubscribe", "2026-12-21", {}, "2027-01-07"),
    ("us-nyc-ll144", "2026-11-16", {}, "2026-12-01"),
    ("us-sec-8k-105", "2026-11-24", {}, "2026-12-01"),
]


@pytest.mark.parametrize(("name", "received", "more", "due"), VECTORS)
def test_published_dates(name: str, received: str, more: dict[str, Any], due: str) -> None:
    said = ask(name, received, **more)
    assert said["due"] == due, said["steps"]
    assert said["citation"] == STATUTES[name].citation
    assert any(due in step for step in said["steps"])


@pytest.mark.parametrize(
    ("name", "received", "share", "part"),
    [
        ("eu-gdpr-breach-sa", "2026-11-13T12:00:00Z", "0.5", "2026-11-15T00:00:00Z"),
        ("us-ca-ccpa-delete", "2026-11-16", "0.5", "2026-12-08"),
        ("us-canspam-optout", "2026-12-21", "0.5", "2026-12-29"),
        ("us-canspam-optout", "2026-12-21", "0.01", "2026-12-22"),
        ("us-ca-ccpa-delete", "2026-11-16", "0.29", "2026-11-29"),
        ("us-ca-ccpa-delete", "2026-11-16", "1", "2026-12-31"),
        ("eu-gdpr-erase", "2027-01-31", "0.5", "2027-02-14"),
    ],
)
def test_the_operators_part_of_the_window(name: str, received: str, share: str, part: str) -> None:
    assert ask(name, received, share=Fraction(share))["subwindow_due"] == part


def test_what_must_wait_has_no_earlier_end() -> None:
    said = ask("us-ca-ccpa-reoptin-wait", "2026-11-16")
    assert (said["due"], said["subwindow_due"]) == ("2027-11-16", None)
    assert said["steps"][-1] == "Not before 2027-11-16."
    assert ask("in-dpdp-erasure-warning", "2027-06-01")["due"] == "2027-06-03T18:30:00Z"  # from the end of that day


def test_no_number_in_law_is_no_date() -> None:
    said = ask("eu-gdpr-consent-withdraw", "2026-11-16")
    assert (said["due"], said["subwindow_due"], said["extended_due"]) == (None, None, None)
    assert "own promise is needed" in said["steps"][-1]
    assert ask("gl-iso42001", "2026-11-16")["steps"][-1] == "This text sets no clock."


def test_clocks_that_start_together() -> None:
    (ack,) = ask("us-ca-ccpa-delete", "2026-11-16")["also"]
    assert (ack["statute"], ack["due"], ack["citation"]) == ("us-ca-ccpa-ack", "2026-12-02", "11 CCR 7021(a)")
    (done,) = ask("us-fl-delete", "2026-11-16")["also"]
    assert (done["statute"], done["due"]) == ("us-fl-completion", "2027-01-15")
    (early,) = ask("us-ca-ccpa-delete", "2020-03-01")["also"]  # the rule on confirming came later than the act
    assert early["due"] is None


def test_what_is_commonly_quoted_is_shown_where_it_differs() -> None:
    assert ask("eu-gdpr-erase", "2026-11-16")["quoted"] == {"days": 30}
    assert ask("us-canspam-optout", "2026-11-16")["quoted"] == {"retention": {"years": 5}}
    assert ask("us-sec-17a4-6", "2026-11-16")["quoted"] is None
    assert ask("eu-gdpr-breach-sa", "2026-11-16T00:00Z")["quoted"] is None


def test_the_steps_can_be_followed() -> None:
    steps = ask("eu-gdpr-erase", "2027-01-31T10:00:00Z", extended=True)["steps"]
    assert steps[0] == "The start is 2027-01-31T10:00:00Z; in Europe/Brussels that is 2027-01-31 (Sunday), 11:00:00."
    assert "The day of the start is not counted: day 1 is 2027-02-01." in steps
    assert "1 month ends on the last day of a shorter month: 2027-02-28." in steps
    assert "2027-02-28 is a Sunday: the end moves to the next working day, 2027-03-01 (calendar eu)." in steps
    assert "3 months end on the last day of a shorter month: 2027-04-30." in steps
    assert "The person is told of the extension and its reason by 2027-03-01." in steps
    assert "only the practice of authorities" in " ".join(
        ask("eu-gdpr-erase", "2026-03-02", paused=("2026-03-03..2026-03-04",))["steps"]
    )


REFUSED = [
    (("eu-gdpr-erasee", "2026-11-16"), {}, "unknown_statute", "eu-gdpr-erase"),
    (("x", "2026-11-16"), {}, "unknown_statute", "an id of the catalogue"),
    (("us-ok-access", "2026-11-16"), {}, "not_in_force", "2027-01-01"),
    (("eu-gdpr-erase", "2018-05-24"), {}, "not_in_force", "2018-05-25"),
    (("us-canspam-optout", "2026-11-16"), {"extended": True}, "no_extension", "--extended"),
    (("us-canspam-optout", "2050-12-28"), {}, "calendar_year", "2051"),
    (("us-canspam-optout", "2014-12-28"), {}, "calendar_year", "2014"),
    (("eu-gdpr-erase", "2050-12-10"), {}, "calendar_year", "2051"),
    (("eu-gdpr-erase", "9999-12-31"), {}, "moment", "2100"),
    (("eu-gdpr-erase", "0001-01-01"), {}, "moment", "1970"),
    (("eu-gdpr-erase", "2026-02-30"), {}, "moment", "such as"),
    (("eu-gdpr-erase", "yesterday"), {}, "moment", "such as"),
    (("eu-gdpr-erase", ""), {}, "moment", "such as"),
    (("eu-gdpr-erase", "2026-11-16T25:00"), {}, "moment", "such as"),
    (("eu-gdpr-erase", "2026-11-16Z"), {}, "moment", "such as"),
    (("eu-gdpr-erase", "1763251200"), {}, "moment", "such as"),
    (("eu-gdpr-erase", "２０２６-11-16"), {}, "moment", "such as"),
    (("eu-gdpr-erase", "2026-11-16"), {"place": "US-CA"}, "unknown_place", "DE"),
    (("eu-gdpr-erase", "2026-11-16"), {"place": "ATLANTIS"}, "unknown_place", "EU"),
    (("gb-ukgdpr-access", "2026-11-16"), {"paused": ("2026-11-20",)}, "pause", "FROM..TO"),
    (("gb-ukgdpr-access", "2026-11-16"), {"paused": ("2026-11-20..2026-11-19",)}, "pause", "before its beginning"),
    (("gb-ukgdpr-access", "2026-11-16"), {"paused": ("a..b",)}, "moment", "such as"),
]


@pytest.mark.parametrize(("args", "more", "code", "says"), REFUSED)
def test_refusals_say_why(args: tuple[str, str], more: dict[str, Any], code: str, says: str) -> None:
    with pytest.raises(Refused) as refused:
        ask(*args, **more)
    assert refused.value.code == code
    assert says in str(refused.value)
    assert refused.value.what_now


@pytest.mark.parametrize(
    "text", ["0", "-1", "2", "nan", "inf", "", "half", "1/0", "1e-400000000", "1_0", "٠.٥", "0." + "1" * 40]
)
def test_a_share_is_above_nothing_and_at_most_all(text: str) -> None:
    with pytest.raises(Refused, match="above 0 and up to 1"):
        try_deadline.share(text)


DEADLINES = sorted(
    law.id
    for law in STATUTES.values()
    if law.bound == "deadline"
    and all(version.unit not in ("none", "immediate", "undue_delay") for version in law.versions)
)
DAYS = st.dates(date(2028, 2, 1), date(2045, 1, 1))
SHARES = st.fractions(Fraction(1, 100), Fraction(1), max_denominator=100)


def moment(text: str) -> datetime:
    """A date as its last instant, so that ends can be compared."""
    if "T" in text:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    return datetime.fromisoformat(text) + timedelta(days=1)


@given(st.sampled_from(DEADLINES), DAYS, SHARES)
@settings(max_examples=300, deadline=None)
def test_a_part_is_never_later_and_an_extension_never_earlier(name: str, day: date, share: Fraction) -> None:
    said = ask(name, day.isoformat(), share=share)
    assert moment(said["subwindow_due"]) <= moment(said["due"])
    if said["extended_due"] is None:
        with pytest.raises(Refused, match="no_extension"):
            ask(name, day.isoformat(), extended=True)
        return
    longer = ask(name, day.isoformat(), extended=True, share=share)
    assert longer["due"] == longer["extended_due"] == said["extended_due"]  # once only
    assert moment(longer["due"]) > moment(said["due"])
    assert moment(longer["subwindow_due"]) <= moment(longer["due"])


@given(st.sampled_from(DEADLINES), DAYS, st.integers(0, 40))
@settings(max_examples=300, deadline=None)
def test_a_later_start_is_never_due_earlier(name: str, day: date, later: int) -> None:
    ends = [moment(ask(name, each.isoformat())["due"]) for each in (day, day + timedelta(days=later))]
    assert ends[0] <= ends[1]


@given(DAYS, st.lists(st.tuples(st.integers(-5, 60), st.integers(0, 20)), max_size=4))
@settings(max_examples=200, deadline=None)
def test_a_pause_never_shortens_and_overlaps_count_once(day: date, pauses: list[tuple[int, int]]) -> None:
    given_pauses = [(day + timedelta(days=at), day + timedelta(days=at + long)) for at, long in pauses]
    texts = tuple(f"{first}..{last}" for first, last in given_pauses)
    plain, paused = ask("gb-ukgdpr-access", day.isoformat()), ask("gb-ukgdpr-access", day.isoformat(), paused=texts)
    assert moment(paused["due"]) >= moment(plain["due"])
    stood = {first + timedelta(days=n) for first, last in given_pauses for n in range((last - first).days)}
    assert moment(paused["due"]) <= moment(plain["due"]) + timedelta(days=len(stood) + 5)
    assert ask("eu-gdpr-erase", day.isoformat(), paused=texts)["due"] == ask("eu-gdpr-erase", day.isoformat())["due"]


@given(st.lists(st.tuples(st.integers(-5, 60), st.integers(0, 20)), min_size=1, max_size=4))
def test_paused_days_are_those_that_stood_still(pauses: list[tuple[int, int]]) -> None:
    start = date(2026, 3, 2)
    made = [Pause(start + timedelta(days=at), start + timedelta(days=at + long)) for at, long in pauses]
    days, _ = counted_pause(made, start, start + timedelta(days=365))
    stood = {one.first + timedelta(days=n) for one in made for n in range((one.last - one.first).days)}
    assert days == len({day for day in stood if day >= start})
    assume(days)
    assert days >= max((one.last - max(one.first, start)).days for one in made)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "shop")
    return tmp_path / "shop"


def run(*args: str) -> tuple[int, str, BaseException | None]:
    app = typer.Typer()
    app.callback()(lambda: None)
    try_deadline.register(app)
    result = CliRunner().invoke(app, ["deadline", *args])
    return result.exit_code, result.stdout, result.exception


def put(folder: Path, file: str, text: str) -> None:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text, encoding="utf-8")


def test_the_verb_without_a_folder(tmp_path: Path) -> None:
    code, out, _ = run("--statute", "eu-gdpr-erase", "--received", "2027-01-31", "--json", "-C", str(tmp_path))
    said = json.loads(out)
    assert code == 0
    wanted = {"due": "2027-03-01", "subwindow_due": "2027-02-14", "extended_due": "2027-04-30"}
    assert {name: said[name] for name in wanted} == wanted
    assert said["citation"]
    assert len(said["steps"]) > 4
    code, out, _ = run("--statute", "us-fl-delete", "--received", "2026-11-16", "--extended", "-C", str(tmp_path))
    assert code == 0
    assert "due            2027-01-15" in out
    assert "2027-01-15 us-fl-completion" in out


def test_the_verb_with_pauses_and_a_place(tmp_path: Path) -> None:
    asked = ("--statute", "gb-ukgdpr-access", "--received", "2026-03-02", "--json", "-C", str(tmp_path))
    _, out, _ = run(*asked, "--paused", "2026-03-10..2026-03-17", "--paused", "2026-03-12..2026-03-19")
    assert json.loads(out)["due"] == "2026-04-13"
    _, out, _ = run(*asked, "--jurisdiction", "gb-sct", "--subwindow", "1")
    assert json.loads(out)["subwindow_due"] == "2026-04-02"
    code, _, error = run(*asked, "--subwindow", "0")
    assert code != 0
    assert isinstance(error, TidingsError)


OWN_LAW = """statutes:
  house-rule:
    law: House rule
    jurisdiction: DE
    citation: p. 1
    source: Written by the operator
    confidence: high
    versions: [{effective_from: "2020-01-01", window: 2, unit: business_days, calendar: house}]
"""


def test_a_folder_with_its_own_law_calendar_and_clocks(folder: Path) -> None:
    put(folder, "policy/statutes/own.yaml", OWN_LAW)
    put(folder, "policy/calendars/house.yaml", 'years:\n  "2026": ["2026-11-17"]\n  "2027": []\n')
    put(folder, "policy/clocks.yaml", "clocks: {eu-gdpr-erase: {days: 30}, eu-gdpr-consent-withdraw: {hours: 24}}\n")

    def due(name: str, received: str, *more: str) -> str:
        code, out, error = run("--statute", name, "--received", received, "--json", "-C", str(folder), *more)
        assert code == 0, error
        return str(json.loads(out)["due"])

    assert due("house-rule", "2026-11-16") == "2026-11-19"
    assert due("eu-gdpr-erase", "2026-12-01") == "2026-12-31"  # 30 days, before the month
    assert due("eu-gdpr-erase", "2027-02-01") == "2027-03-01"  # the month, before 30 days
    assert due("eu-gdpr-erase", "2026-12-01", "--extended") == "2027-03-01"
    assert due("eu-gdpr-consent-withdraw", "2026-12-01T00:00:00Z") == "2026-12-02T00:00:00Z"
    code, _, error = run("--statute", "house-rule", "--received", "2027-12-31", "-C", str(folder))
    assert code != 0
    assert isinstance(error, Refused)
    assert error.code == "calendar_year"


def test_readings_of_a_text_are_the_operators_choice(folder: Path) -> None:
    put(
        folder,
        "policy/clocks.yaml",
        "clocks:\n  eu-gdpr-breach-sa: {readings: [skip_hour, two_working_days]}\n  gb-ukgdpr-access: {readings: [first_day_counts]}\n",
    )
    statutes, problems = catalogue_statutes(load(folder))
    assert problems == []
    assert deadline(statutes, "eu-gdpr-breach-sa", Asked("2026-11-10T12:17:00+01:00"))["due"] == "2026-11-13T12:00:00Z"
    assert deadline(statutes, "eu-gdpr-breach-sa", Asked("2026-11-13T12:17:00+01:00"))["due"] == "2026-11-17T12:00:00Z"
    assert deadline(statutes, "gb-ukgdpr-access", Asked("2026-11-16"))["due"] == "2026-12-15"


WRONG_CLOCKS = [
    ("clocks:\n  eu-gdpr-erase: {days: 32}\n", 2, "looser_clock"),
    ("clocks:\n  us-ca-ccpa-delete: {days: 46}\n", 2, "looser_clock"),
    ("clocks:\n  us-ca-ccpa-delete: {months: 2}\n", 2, "looser_clock"),
    ("clocks:\n  eu-gdpr-breach-sa: {days: 4}\n", 2, "looser_clock"),
    ("clocks:\n  eu-gdpr-eras: {days: 3}\n", 2, "unknown_statute"),
    ("clocks:\n  eu-gdpr-erase: {days: 0}\n", 2, "amount"),
    ("clocks:\n  eu-gdpr-erase: {days: 3, hours: 1}\n", 2, "amount"),
    ("clocks:\n  eu-gdpr-erase: {fortnights: 1}\n", 2, "own_clock"),
    ("clocks:\n  us-ca-ccpa-reoptin-wait: {days: 1}\n", 2, "own_clock"),
    ("clocks:\n  eu-gdpr-erase: {readings: [skip_hour]}\n", 2, "choice"),
    ("clocks:\n  eu-gdpr-erase: {days: 3, calendar: mars}\n", 2, "choice"),
    ("clocks: [eu-gdpr-erase]\n", 1, "not_a_mapping"),
]


@pytest.mark.parametrize(("text", "line", "code"), WRONG_CLOCKS)
def test_a_clock_that_cannot_bind_is_refused_with_its_line(folder: Path, text: str, line: int, code: str) -> None:
    put(folder, "policy/clocks.yaml", text)
    _, problems = examine_policy(load(folder))
    assert ("policy/clocks.yaml", line, code) in {(one.file, one.line, one.code) for one in problems}


def test_a_calendar_without_this_year_is_refused_where_a_rule_counts_by_it(folder: Path) -> None:
    put(folder, "policy/calendars/house.yaml", 'years:\n  "2019": ["2019-01-01"]\n')
    assert examine_policy(load(folder))[1] == []  # nobody counts by it
    rule = """rules:
  - id: quick
    anchor: channel
    when: {fact: change_type, is: email}
    effect: {deadline: {business_days: 2, calendar: house}}
    examples: [{given: {change_type: email}, gives: applies}]
"""
    put(folder, "policy/own.yaml", rule)
    (problem,) = examine_policy(load(folder))[1]
    assert (problem.file, problem.code) == ("policy/calendars/house.yaml", "calendar_year")


@pytest.mark.parametrize(
    "text",
    ["free: []\n", "years: []\n", "years: {}\n", 'years:\n  "2026": ["2027-01-01"]\n', 'years:\n  "2026": [soon]\n'],
)
def test_a_wrong_calendar_is_refused(folder: Path, text: str) -> None:
    put(folder, "policy/calendars/house.yaml", text)
    _, problems = examine_policy(load(folder))
    assert {one.file for one in problems} == {"policy/calendars/house.yaml"}
    with pytest.raises(ConfigurationError):
        raise run("--statute", "eu-gdpr-erase", "--received", "2026-11-16", "-C", str(folder))[2] or AssertionError


def test_an_own_clock_and_calendar_change_the_version(folder: Path) -> None:
    before = load(folder).policy_version
    put(folder, "policy/clocks.yaml", "clocks: {eu-gdpr-erase: {days: 30}}\n")
    clocked = load(folder).policy_version
    put(folder, "policy/calendars/house.yaml", 'years:\n  "2026": []\n')
    assert len({before, clocked, load(folder).policy_version}) == 3
