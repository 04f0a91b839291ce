"""Google Consent Mode, version 2: what a page told Google's tags the person allows.

A page says `default` once, before anybody was asked, and `update` whenever the person chooses. The last word on each setting counts;
only a word of an `update` is a choice of the person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidings.rights.bits import BadSignal

SETTINGS = (
    "ad_storage",
    "ad_user_data",
    "ad_personalization",
    "analytics_storage",
    "functionality_storage",
    "personalization_storage",
    "security_storage",
)
COMMANDS = ("default", "update")
MOST_COMMANDS = 50


@dataclass(frozen=True)
class ConsentMode:
    """Setting → granted; and which of them the person chose."""

    granted: dict[str, bool]
    chosen: frozenset[str]

    def denied(self) -> set[str]:
        return {name for name, yes in self.granted.items() if not yes}


def read(said: Any) -> ConsentMode:
    """One mapping of settings (taken as an update), or a list of [command, settings] in the order in which the page said them."""
    commands = [("update", said)] if isinstance(said, Mapping) else said
    if not isinstance(commands, Sequence) or isinstance(commands, str) or not 0 < len(commands) <= MOST_COMMANDS:
        raise BadSignal("bad_word", "consent_mode")
    granted: dict[str, bool] = {}
    chosen: set[str] = set()
    for command in commands:
        name, settings = _command(command)
        for setting, word in settings.items():
            if setting in ("wait_for_update", "region"):
                continue
            if setting not in SETTINGS or word not in ("granted", "denied"):
                raise BadSignal("bad_word", "consent_mode")
            granted[setting] = word == "granted"
            if name == "update":
                chosen.add(setting)
    if not granted:
        raise BadSignal("empty", "consent_mode")
    return ConsentMode(granted, frozenset(chosen))


def _command(command: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(command, Sequence) and not isinstance(command, str) and len(command) in (2, 3):
        name, settings = command[-2:]  # gtag('consent', 'update', {…}) as the data layer keeps it
        if name in COMMANDS and isinstance(settings, Mapping):
            return str(name), settings
    raise BadSignal("bad_word", "consent_mode")
