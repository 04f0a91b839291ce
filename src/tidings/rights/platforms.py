"""What a consent platform's call means: a request of a person, or a change of consent. Read by catalog/signals/platforms.yaml. Pure.

A platform's word that it verified somebody counts as `verified`; a request that it holds unverified has the assurance `none`, and any
other `claimed`. A request that is closed there changes nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from tidings.rights.asks import PLACE, Ask, Identifier


@dataclass(frozen=True)
class Call:
    """`request` a person asks for something; otherwise, or as well, it is a change of consent. `lacks`: what keeps it from being taken."""

    request: bool
    asks: tuple[Ask, ...] = ()
    lacks: str = ""


@cache
def catalogue() -> Mapping[str, Any]:
    text = files("tidings").joinpath("catalog/signals/platforms.yaml").read_text(encoding="utf-8")
    said: Mapping[str, Any] = yaml.safe_load(text)
    return said


def read(platform: str, body: Mapping[str, Any], now: datetime) -> Call:
    """A rectification brings values in the platform's own form, so it runs as a change of its source, not as a request."""
    said = catalogue()["platforms"][platform]
    asked = [one for one in _each(body, said["request"]) if re.search(said.get("is_request", "."), one)]
    kinds = [next((kind for kind, words in catalogue()["kinds"] if _fits(words, one)), "") for one in asked]
    if not any(kinds):
        return Call(False)
    status = _words(body, said["status"])
    if _fits(catalogue()["closed"], status):
        return Call(True)
    email, reference = _words(body, said["email"]), _words(body, said["reference"])
    if not email or not reference:
        return Call(True, lacks="an e-mail or a reference")
    who, received = (Identifier("email", email),), min(_time(_at(body, said["received"])) or now, now)
    more: dict[str, Any] = {
        "jurisdiction": _place(_words(body, said.get("place", ""))),
        "reference": reference,
        "contact": email,
    }
    more["regulation"] = re.sub("[^A-Za-z0-9._-]", "", _words(body, said.get("law", "")))[:64]
    asks = [Ask(kind, who, "consent", received, _assurance(status), agent=platform, **more) for kind in kinds if kind]
    return Call(all(kinds), tuple({one.kind: one for one in asks}.values()))


def _fits(pattern: str, text: str) -> bool:
    return bool(re.search(pattern, text, re.IGNORECASE))


def _place(text: str) -> str:
    """EU_DE is DE, us_ca is US-CA; what is no place is none, and then the operator's own counts."""
    spelled = text.strip().upper().replace("_", "-")
    spelled = spelled.removeprefix("EU-")
    return spelled if PLACE.fullmatch(spelled) else ""


def _assurance(status: str) -> str:
    if re.search(catalogue()["unverified"], status, re.IGNORECASE):
        return "none"
    return "verified" if re.search(catalogue()["verified"], status, re.IGNORECASE) else "claimed"


def _at(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def _words(body: Any, path: str) -> str:
    found = _at(body, path) if path else None
    return str(found)[:500] if isinstance(found, str | int) else ""


def _each(body: Any, path: str) -> list[str]:
    """One word or several: a person may ask for two things at once."""
    found = _at(body, path)
    return [
        str(one)[:500] for one in (found if isinstance(found, list) else [found])[:20] if isinstance(one, str | int)
    ]


def _time(said: Any) -> datetime | None:
    """ISO 8601, or seconds or milliseconds since 1970."""
    try:
        if isinstance(said, int | float):
            return datetime.fromtimestamp(said / 1000 if said > 100_000_000_000 else said, UTC)
        found = datetime.fromisoformat(said)
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
