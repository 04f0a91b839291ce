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

from tidings.rights.asks import Ask, Identifier


@dataclass(frozen=True)
class Call:
    """`request` a person asks for something (`ask` is None where it is closed or cannot be taken); otherwise a change of consent."""

    request: bool
    ask: Ask | None = None


@cache
def catalogue() -> Mapping[str, Any]:
    text = files("tidings").joinpath("catalog/signals/platforms.yaml").read_text(encoding="utf-8")
    said: Mapping[str, Any] = yaml.safe_load(text)
    return said


def read(platform: str, body: Mapping[str, Any], now: datetime) -> Call:
    """A rectification brings values in the platform's own form, so it runs as a change of its source, not as a request."""
    said = catalogue()["platforms"][platform]
    asked = _words(body, said["request"])
    if not asked or not re.search(said.get("is_request", "."), asked):
        return Call(False)
    kind = next((kind for kind, words in catalogue()["kinds"] if re.search(words, asked, re.IGNORECASE)), None)
    if kind is None:
        return Call(False)
    status = _words(body, said["status"])
    email, reference = _words(body, said["email"]), _words(body, said["reference"])
    if re.search(catalogue()["closed"], status, re.IGNORECASE) or not email or not reference:
        return Call(True)
    received = min(_time(_at(body, said["received"])) or now, now)
    ask = Ask(kind, (Identifier("email", email),), "consent", received, _assurance(status))
    return Call(True, Ask(**ask.__dict__ | {"reference": reference, "agent": platform, "contact": email}))


def _assurance(status: str) -> str:
    if re.search(catalogue()["unverified"], status, re.IGNORECASE):
        return "none"
    return "verified" if re.search(catalogue()["verified"], status, re.IGNORECASE) else "claimed"


def _at(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def _words(body: Any, path: str) -> str:
    found = _at(body, path)
    if isinstance(found, list):
        found = " ".join(word for word in found if isinstance(word, str))
    return str(found)[:500] if isinstance(found, str | int) else ""


def _time(said: Any) -> datetime | None:
    """ISO 8601, or seconds or milliseconds since 1970."""
    try:
        if isinstance(said, int | float):
            return datetime.fromtimestamp(said / 1000 if said > 100_000_000_000 else said, UTC)
        found = datetime.fromisoformat(said)
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
