"""The catalogue of laws: complete against the list it was made from, clean in its words, and refused with a line when it is wrong."""

from __future__ import annotations

import csv
import os
import re
from importlib.resources import files
from pathlib import Path

import pytest

from tidings import yaml_lines
from tidings.gate.calendars import places
from tidings.gate.clocks import MAX_AMOUNT
from tidings.gate.loading import catalogue_statutes
from tidings.gate.statute_reader import Reading
from tidings.gate.statutes import Amount, Statute

FACTS = Path(os.environ.get("TIDINGS_FACTS") or Path(__file__).parents[2].parent / "shared" / "facts")
STATUTES, PROBLEMS = catalogue_statutes()
# Laws that rules and tags name and that set no clock.
NO_CLOCK = frozenset(
    """eu-gdpr-6 eu-gdpr-19 eu-gdpr-28 eu-gdpr-32 eu-gdpr-35 eu-gdpr-44-49 eu-scc gb-idta eu-dsa eu-dma eu-aia-6 eu-aia-13
eu-aia-14 eu-aia-15 eu-aia-26 eu-aia-27 eu-aia-annex-iii us-ada gl-wcag22 eu-eaa us-508 us-lanham us-robinson-patman us-udap
us-cfpb-udaap gl-coso us-asc-606 us-asc-810 us-asc-280 us-sec-regsk us-sec-13b2 us-cfaa us-dmca gl-nist-ai-rmf gl-nist-800-218a
gl-iso42001 us-finra-2210 us-sox-302 us-sox-404 us-sox-906 us-title-vii us-four-fifths us-ecoa us-aba-7 us-ftc-5
us-hipaa-marketing gl-cloudevents gl-asyncapi eu-gdpr-processor eu-gdpr-special-categories us-tcpa-consent ca-casl-consent""".split()  # noqa: SIM905
)


def rows(name: str) -> dict[str, dict[str, str]]:
    path = FACTS / name
    if not path.exists():
        pytest.skip(f"no list of laws at {path}; set TIDINGS_FACTS")
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def amount(value: str, unit: str) -> Amount | None:
    return Amount({"calendar_days": "days"}.get(unit, unit), int(value)) if value else None


def test_every_law_of_the_list_is_in_the_catalogue_with_its_numbers() -> None:
    listed, more = rows("statutes.csv"), rows("statutes_ext.csv")
    assert len(listed) == 260
    assert set(listed) - set(STATUTES) == set()
    wrong = []
    for name, row in listed.items():
        law = STATUTES[name]
        last = law.versions[-1]
        said = (last.unit, last.amount, last.extension, law.retention, last.effective_from, last.effective_to)
        unit = {"calendar_days": "days"}.get(row["window_unit"], row["window_unit"])
        window = int(row["window_value"] or 0) if unit in MAX_AMOUNT else 0
        extension = amount(row["extension_value"], row["extension_unit"])
        retention = amount(row["retention_value"], row["retention_unit"])
        dates = (more[name]["effective_from"], more[name]["effective_to"])
        if said != (unit, window, extension, retention, *dates):
            wrong.append((name, said))
        plain = (law.jurisdiction, law.trigger, law.confidence, law.semantic)
        if plain != (row["jurisdiction"], row["trigger"], row["confidence"], more[name]["delivery_semantic"]):
            wrong.append((name, plain))
    assert wrong == []


def test_a_law_without_a_clock_is_carried_too() -> None:
    assert [name for name in NO_CLOCK if name not in STATUTES] == []
    assert {version.unit for name in NO_CLOCK for version in STATUTES[name].versions} == {"none"}


def test_nothing_is_wrong_with_the_catalogue() -> None:
    assert PROBLEMS == []
    for law in STATUTES.values():
        assert law.jurisdiction in places(), law.id
        assert law.summary.endswith("."), law.id
        assert set(law.also) <= set(STATUTES), law.id
        starts = [version.effective_from for version in law.versions]
        assert starts == sorted(starts), law.id


def test_versions_of_a_law_do_not_overlap() -> None:
    for law in STATUTES.values():
        for one, next_one in zip(law.versions, law.versions[1:], strict=False):
            assert one.effective_to < next_one.effective_from, law.id


def test_the_words_are_about_the_law_alone() -> None:
    shelf = files("tidings").joinpath("catalog/statutes")
    text = "\n".join(entry.read_text(encoding="utf-8") for entry in shelf.iterdir())
    assert re.findall(r"(?i)\bbriefs?\b|\brepo\b|\[[VK]\]|https?:|\btext id\b|\w+\.(?:com|org|ai|io)\b", text) == []


def test_a_business_day_names_its_calendar() -> None:
    unnamed = [
        law.id
        for law in STATUTES.values()
        for v in law.versions
        if v.unit == "business_days" and v.calendar == "weekends"
    ]
    assert unnamed == []


def test_only_a_deadline_sets_a_deadline() -> None:
    assert STATUTES["us-ca-ccpa-reoptin-wait"].clocks("request") == ()
    assert [str(clock) for clock in STATUTES["us-ca-ccpa-delete"].clocks("event")] == ["45 days from the event"]
    assert STATUTES["eu-gdpr-consent-withdraw"].needs_sla


GOOD = """statutes:
  one:
    law: L
    jurisdiction: DE
    citation: s. 1
    source: S
    confidence: high
    versions: [{effective_from: "2020-01-01", window: 3, unit: days}]
"""


def read(text: str) -> tuple[list[Statute], Reading]:
    document, problems = yaml_lines.parse(text, "policy/statutes/own.yaml")
    assert document is not None, problems
    reading = Reading(document)
    return reading.statutes(), reading


BAD = [
    (("unit: days", "unit: weeks"), 8, "choice"),
    (("window: 3", "window: 0"), 8, "amount"),
    (("window: 3", "window: 3.5"), 8, "amount"),
    (("window: 3", "window: 99999"), 8, "amount"),
    (("jurisdiction: DE", "jurisdiction: Atlantis"), 4, "unknown_place"),
    (("confidence: high", "confidence: sure"), 7, "choice"),
    (("source: S", "source: ''"), 6, "missing"),
    (('"2020-01-01"', '"2020-1-1"'), 8, "date"),
    (('"2020-01-01"', '"2020-01-01", effective_to: "2019-01-01"'), 8, "date"),
    (("unit: days", "unit: days, calendar: mars"), 8, "choice"),
    (("unit: days", "unit: days, extension: {days: 0}"), 8, "amount"),
    (("unit: days", "unit: days, extension: {months: 1}"), 8, "amount"),
    (("unit: days", "unit: days, extension: {days: 1, hours: 1}"), 8, "amount"),
    (("law: L", "law: L\n    bound: maybe"), 4, "choice"),
    (("law: L", "law: L\n    readings: [mine]"), 4, "choice"),
    (("law: L", "law: L\n    also: other"), 4, "not_a_list"),
    (("law: L", "law: L\n    quoted: thirty"), 4, "not_a_mapping"),
    (("law: L", "law: L\n    surprise: 1"), 4, "unknown_key"),
]


def test_a_right_law_is_read() -> None:
    (law,), reading = read(GOOD)
    assert reading.problems == []
    assert law.clocks("request")[0].zone == "Europe/Berlin"


@pytest.mark.parametrize(("change", "line", "code"), BAD)
def test_a_wrong_law_is_refused_with_its_line(change: tuple[str, str], line: int, code: str) -> None:
    assert change[0] in GOOD
    statutes, reading = read(GOOD.replace(*change))
    assert statutes == []
    assert [(problem.line, problem.code) for problem in reading.problems] == [(line, code)]


def test_a_parallel_clock_must_exist() -> None:
    _, reading = read(GOOD.replace("law: L", "law: L\n    also: [eu-gdpr-refusl]"))
    reading.check_parallel(STATUTES)
    (problem,) = reading.problems
    assert problem.code == "unknown_statute"
    assert "eu-gdpr-refusal" in problem.expected
