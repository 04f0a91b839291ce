"""Hours of the day in which a channel is closed to whoever has something to sell, by the clock where the person is.

A region whose zone is not listed counts in all zones of its country. What breaks it: a person who is away from home.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any
from zoneinfo import ZoneInfo

import yaml

from tidings.gate.places import country

_QUARTER = timedelta(minutes=15)


@cache
def _hours() -> Mapping[str, Any]:
    text = files("tidings").joinpath("catalog/taxonomy/hours.yaml").read_text(encoding="utf-8")
    data: Mapping[str, Any] = yaml.safe_load(text)
    return data


def closed(place: str, channel: str, at: datetime) -> Mapping[str, Any] | None:
    """The law that closes the channel at that moment; None when none does."""
    for law in _hours()["hours"]:
        within = country(place) == law["within"] and channel in law["channels"]
        if within and not all(_open(law, at.astimezone(zone)) for zone in _zones(place)):
            found: Mapping[str, Any] = law
            return found
    return None


def opens(place: str, channel: str, at: datetime) -> datetime:
    """The next quarter of an hour at which the channel is open."""
    first = at.replace(minute=at.minute // 15 * 15, second=0, microsecond=0) + _QUARTER
    return next(moment for n in range(200) if not closed(place, channel, moment := first + n * _QUARTER))


def _open(law: Mapping[str, Any], wall: datetime) -> bool:
    return bool(law["from"] <= wall.hour < law["to"])


@cache
def _zones(place: str) -> tuple[ZoneInfo, ...]:
    listed = _hours()["zones"]
    names = [zone for zone, places in listed.items() if place in places]
    names = names or [zone for zone, places in listed.items() if country(place) in places]
    return tuple(ZoneInfo(zone) for zone in names)
