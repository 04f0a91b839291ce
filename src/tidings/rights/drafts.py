"""A step that is to be written: what the parts around the desk propose, and the desk numbers, commits and has attested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Draft:
    """`state` and `due` are empty where the step changes nothing of them. Details hold names, codes and times, nothing of the person."""

    request: str
    what: str
    reason: str = ""
    actor: str = ""  # nobody but the desk itself
    details: Mapping[str, str] = field(default_factory=dict)
    state: str = ""
    due: datetime | None = None
