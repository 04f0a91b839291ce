"""Where a person and a recipient are: the family of privacy law, and what stands between the two when data crosses a border."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

TRANSFERS = ("none", "adequate", "certified", "restricted")


@cache
def _places() -> Mapping[str, Any]:
    text = files("tidings").joinpath("catalog/taxonomy/places.yaml").read_text(encoding="utf-8")
    data: Mapping[str, Any] = yaml.safe_load(text)
    return data


@cache
def _regime_of() -> Mapping[str, str]:
    return {place: regime for regime, places in _places()["regimes"].items() for place in places}


def regimes() -> tuple[str, ...]:
    return (*_places()["regimes"], "other")


def first_places() -> tuple[str, ...]:
    """One place of each family of law."""
    return tuple(places[-1] for places in _places()["regimes"].values())


def country(place: str) -> str:
    return place.partition("-")[0]


@cache
def _countries() -> frozenset[str]:
    return frozenset(_places()["countries"].split())


def known_place(place: str) -> bool:
    """Is this a place at all? A well-formed code that nobody has assigned is none."""
    return country(place) in _countries()


def regime(place: str) -> str:
    """The family of law that a place belongs to."""
    return _regime_of().get(country(place), "other")


def covers(listed: str, place: str) -> bool:
    """Does a listed place mean this one? A country means its regions, EU the whole economic area, * everywhere."""
    return listed in ("*", place, country(place)) or (listed == "EU" and regime(place) == "eu")


def transfer(person: str, recipient: str) -> str:
    """What has to carry data of a person here to a recipient there: nothing, an adequacy finding, a certificate, or more."""
    home, away = regime(person), regime(recipient)
    rules = _places()["transfers"].get(home)
    if rules is None or (home == away and home != "other"):
        return "none"
    if home in ("uk", "ch") and away == "eu":
        return "adequate"
    there = country(recipient)
    return "adequate" if there in rules["adequate"] else "certified" if there in rules["certified"] else "restricted"
