"""What a subscriber says became of its events: checked one by one, written once, and taken up by the running process.

    {"acks": [{"id": "…", "status": "ok" | "failed", "reason": "code"}]}

| result | means |
|---|---|
| taken | the answer is on disk; the lane takes it up within a second |
| already | an answer was given before, and that one stands |
| unknown | no open event of this subscriber has this id (another's, never offered, settled otherwise) |
| invalid | the answer is not one: no id, another status, a reason that is no code |
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tidings.api.shelf import Shelf
from tidings.lanes import control

MOST_ACKS = 1_000
_REASON = re.compile(r"[A-Za-z0-9_.:-]{0,64}")  # a code: free text could carry personal data into the ledger
_ACTIONS: dict[str, Literal["acknowledge", "reject"]] = {"ok": "acknowledge", "failed": "reject"}
Strength = Literal["A3", "A4"]


class BadAnswer(Exception):
    """The body as a whole is no answer. `code`: not_json, no_acks, too_many."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


@dataclass(frozen=True)
class Said:
    """How an answer came: how strong it is, and what proves it."""

    by: str
    strength: Strength
    evidence: str = ""


def read_acks(body: bytes) -> list[Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise BadAnswer("not_json") from None
    acks = document.get("acks") if isinstance(document, dict) else None
    if not isinstance(acks, list) or not acks:
        raise BadAnswer("no_acks")
    if len(acks) > MOST_ACKS:
        raise BadAnswer("too_many")
    return acks


def take(shelf: Shelf, lane: str, acks: Sequence[Any], said: Said) -> list[dict[str, str]]:
    """One result per answer, in their order."""
    with shelf.answering:
        return _taken(shelf, lane, acks, said)


def _taken(shelf: Shelf, lane: str, acks: Sequence[Any], said: Said) -> list[dict[str, str]]:
    open_now = {offer.event_id for offer in shelf.offers(lane)}
    before = shelf.answered(lane)
    fresh: dict[tuple[bool, str], list[str]] = {}
    results = []
    for ack in acks:
        if _invalid(ack):
            results.append({"id": "", "result": "invalid"})
            continue
        event, action = ack["id"], _ACTIONS[ack["status"]]
        if event in open_now:
            open_now.discard(event)
            before[event] = action
            fresh.setdefault((action == "acknowledge", ack.get("reason") or action), []).append(event)
            results.append({"id": event, "result": "taken", "answer": action})
        elif event in before:
            results.append({"id": event, "result": "already", "answer": before[event]})
        else:
            results.append({"id": event, "result": "unknown"})
    for (done, reason), events in fresh.items():
        strength = said.strength if done else "A0"
        control.answer(shelf.settings.data_path, lane, events, done, reason, said.by, strength, said.evidence)
    return results


def _invalid(ack: Any) -> bool:
    if not isinstance(ack, dict):
        return True
    event, status, reason = ack.get("id"), ack.get("status"), ack.get("reason") or ""
    good = isinstance(event, str) and 0 < len(event) <= 200 and isinstance(status, str) and status in _ACTIONS
    return not (good and isinstance(reason, str) and _REASON.fullmatch(reason))
