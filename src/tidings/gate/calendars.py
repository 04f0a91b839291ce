"""Places and their working days: the zone a law is counted in, and the free days of a calendar.

The days come from the PyPI library `holidays` or from the operator's list in `policy/calendars/`. Saturdays and Sundays are free in
all of them. What breaks the promise: a law that counts another day, so a calendar leaves out what is not sure, because fewer free
days give an earlier date. A year outside `years` is not known: whoever shows a date to a person refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tidings import yaml_lines
from tidings.errors import Damaged, Problem
from tidings.yaml_lines import Document

FIRST_YEAR, LAST_YEAR = 2015, 2050
_FRIDAY, _SATURDAY = 4, 5


@dataclass(frozen=True)
class Place:
    """Where a law holds. `within` is the place whose laws it follows too."""

    zone: str
    calendar: str = ""
    within: str = ""


@dataclass(frozen=True)
class Calendar:
    """The free weekdays, and the years for which they are known."""

    free: frozenset[date]
    years: frozenset[int]

    def works(self, day: date) -> bool:
        return day.weekday() < _SATURDAY and day not in self.free


@dataclass(frozen=True)
class Calendars:
    """The operator's own calendars before those of the library."""

    own: Mapping[str, Calendar] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Calendar:
        return self.own[name] if name in self.own else library(name)

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in CALENDARS

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self.own, *CALENDARS}))


@cache
def _catalogue() -> Document:
    label = "catalog/taxonomy/zones.yaml"
    document, problems = yaml_lines.parse(files("tidings").joinpath(label).read_text(encoding="utf-8"), label)
    if document is None:
        raise Damaged("catalogue", str(problems[0]), "the places of the catalogue", "Install the package again.")
    return document


@cache
def places() -> dict[str, Place]:
    return {name: Place(**entry) for name, entry in _catalogue().data["places"].items()}


CALENDARS: tuple[str, ...] = tuple(_catalogue().data["calendars"])


@cache
def library(name: str) -> Calendar:
    """A calendar of the catalogue over all the years we reckon with."""
    recipe = _catalogue().data["calendars"][name]
    years = range(FIRST_YEAR, LAST_YEAR + 1)
    if "every" in recipe:
        free = frozenset.intersection(*[library(other).free for other in recipe["every"]])
    elif "country" in recipe:
        free = frozenset(_listed(recipe, [*years, LAST_YEAR + 1]))
    else:
        free = frozenset()
    return Calendar(frozenset(day for day in free if day.year in years), frozenset(years))


def _listed(recipe: Mapping[str, Any], years: list[int]) -> Iterable[date]:
    """The weekdays that the library knows as free; the year after tells of a New Year's Day that is kept on the day before."""
    import holidays

    found = holidays.country_holidays(
        recipe["country"],
        subdiv=recipe.get("subdivision"),
        years=years,
        categories=tuple(recipe.get("categories", ("public",))),
        language="en_US",
    )
    without = frozenset(recipe.get("without", ()))
    for day in found:
        names = {name for name in found.get_list(day) if name not in without}
        moved = day.weekday() == _FRIDAY and all(name.endswith("(observed)") for name in names)
        if names and day.weekday() < _SATURDAY and not (moved and not recipe.get("friday", True)):
            yield day


def read_calendars(folder: Path, label: str) -> tuple[Calendars, list[Problem]]:
    """The operator's calendars: one file each, `years:` maps a year to the list of its free days."""
    own: dict[str, Calendar] = {}
    problems: list[Problem] = []
    for path in sorted(folder.glob("*.yaml")):
        document, wrong = yaml_lines.read(path, f"{label}/{path.name}")
        problems += wrong
        if document is not None:
            calendar, wrong = _own(document)
            problems += wrong
            own[path.stem] = calendar
    return Calendars(own), problems


def _own(document: Document) -> tuple[Calendar, list[Problem]]:
    years = document.data.get("years")
    if not isinstance(years, dict) or not years or len(document.data) > 1:
        expected = 'one key `years:`, such as years: {"2027": ["2027-01-01"]}'
        return Calendar(frozenset(), frozenset()), [
            document.problem((), "calendar", "another shape", expected, "List the free days of each year.")
        ]
    free: set[date] = set()
    problems = []
    for year, days in years.items():
        for index, text in enumerate(days if isinstance(days, list) else [days]):
            try:
                day = date.fromisoformat(str(text))
            except ValueError:
                day = date.min
            if str(day.year) != year:
                place = ("years", year, index)
                problems.append(document.problem(place, "date", str(text), f"a day of {year}", "Mend the date."))
            free.add(day)
    known = frozenset(int(year) for year in years if year.isdecimal())
    return Calendar(frozenset(day for day in free if day.weekday() < _SATURDAY), known), problems


def missing_years(calendar: Calendar, first: date, last: date) -> list[int]:
    """The years between two days that the calendar does not know."""
    return [year for year in range(first.year, last.year + 1) if year not in calendar.years]


def working(calendar: Calendar, first: date, nth: int) -> date:
    """The nth working day from `first` on."""
    day = first - timedelta(days=1)
    while nth > 0:
        day += timedelta(days=1)
        nth -= calendar.works(day)
    return day


LIBRARY = Calendars()
