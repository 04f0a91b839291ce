"""A subscriber asks for a stretch of its past again: what would happen, or an order that the running process carries out.

    {"from": "2026-11-01", "to": "2026-11-02T12:00:00Z", "type": ["email"], "again": false, "dry_run": true, "reason": "code"}

The same as `tidings replay` (docs/replay.md), for the token's own subscriber. One person's events are not asked for here: a subscriber
knows people by its own pseudonyms, and an address would tell it who else is known to us.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from tidings.api.errors import ApiError
from tidings.api.shelf import Shelf
from tidings.errors import TidingsError
from tidings.gate.moments import moment
from tidings.lanes import control
from tidings.lanes.buffer import Order
from tidings.lanes.foresee import foresee
from tidings.lanes.lane import Tables
from tidings.lanes.ordered import ends_of, orders

MOST_OPEN = 3  # replays of one subscriber that are not over
_KNOWN = {"from", "to", "type", "again", "dry_run", "reason"}
_REASON = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_TYPE = re.compile(r"[a-z_]{1,64}")


def order(shelf: Shelf, subscriber: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Status and answer: 200 for a dry run, 202 for an order that is on disk."""
    said = _read(body)
    wanted = _order(said)
    tables = _tables(shelf)
    found = foresee(tables, subscriber, wanted, shelf.gate())
    told = {"counts": found.as_dict()["counts"], "gone": found.gone, "dry_run": bool(said.get("dry_run"))}
    if said.get("dry_run"):
        return 200, told
    with shelf.answering:
        mine = [one for one in orders(tables) if one.lane == subscriber]
        if sum(one.state not in ("done", "cancelled") for one in mine) >= MOST_OPEN:
            raise ApiError("too_often", 60)
        wanted = replace(wanted, count=found.counts["sent"])
        words = wanted.as_dict() | {"range": wanted.words()}
        data, reason = shelf.settings.data_path, said.get("reason") or "asked"
        request = control.ask(data, subscriber, "replay", reason, f"replay of {subscriber}", order=words)
    return 202, told | {"replay": request.name}


def show(shelf: Shelf, subscriber: str, name: str) -> dict[str, Any]:
    """How far an order has come."""
    tables = _tables(shelf)
    one = next((one for one in orders(tables) if (one.lane, one.name) == (subscriber, name)), None)
    if one is None:
        raise ApiError("unknown_replay")
    shown = ("name", "at", "reason", "range", "count", "state", "share")
    return {key: value for key, value in one.as_dict().items() if key in shown} | {"deliveries": ends_of(tables, one)}


def _tables(shelf: Shelf) -> Tables:
    return Tables(shelf.store, shelf.keys, shelf.settings)


def _read(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError("not_json") from None
    if not isinstance(said, dict) or set(said) - _KNOWN:
        raise ApiError("bad_order")
    reason = said.get("reason") or "asked"
    flags = [said.get(name, False) for name in ("again", "dry_run")]
    if not isinstance(reason, str) or not _REASON.fullmatch(reason) or not all(isinstance(one, bool) for one in flags):
        raise ApiError("bad_order")
    return said


def _order(said: dict[str, Any]) -> Order:
    types = said.get("type") or []
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list) or not all(isinstance(one, str) and _TYPE.fullmatch(one) for one in types):
        raise ApiError("bad_order")
    start, end = _at(said.get("from")), _at(said.get("to"), late=True)
    if start is None or (end is not None and end <= start):
        raise ApiError("bad_order")  # a stretch without a beginning is the operator's to order
    return Order(start=start, end=end, types=tuple(types), again=said.get("again", False))


def _at(text: Any, late: bool = False) -> float | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise ApiError("bad_order")
    try:
        return moment(text, "UTC", late=late).instant.timestamp()
    except (TidingsError, ValueError, OverflowError):
        raise ApiError("bad_order") from None
