"""Who ever received a person's data (GDPR Art. 15(1)(c) and 19): from the journal and the attempts, by person and interval. No JVM.

A recipient is whoever was sent an event of the person: *acknowledged* when it said so, *possibly* when a call left and no answer came
back, or it left and was turned down. Whoever was denied is not in it. After an erasure nothing links a person to their events any
more, so the list is drawn up before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from tidings.gate.decisions import decided_in
from tidings.gate.policy import Policy
from tidings.ledger.vocabulary import ACK_STRENGTHS
from tidings.report.people import events_of, tags_of
from tidings.report.told import calls_about
from tidings.settings import Settings
from tidings.store import Store

# What a call that left may have given away; `transient`, `throttled` and `refused` end before the subscriber took anything.
_POSSIBLY = ("in_doubt", "terminal")


def recipients_of(
    settings: Settings,
    store: Store,
    policy: Policy,
    who: str,
    between: tuple[datetime | None, datetime | None] = (None, None),
) -> list[dict[str, Any]]:
    """One entry per recipient, first told first; `between` bounds the time of the call."""
    return listed_for(settings, store, policy, events_of(settings, store, tags_of(settings, store, who)), between)


def listed_for(
    settings: Settings,
    store: Store,
    policy: Policy,
    events: Iterable[dict[str, Any]],
    between: tuple[datetime | None, datetime | None] = (None, None),
) -> list[dict[str, Any]]:
    """The same, of events that are at hand."""
    rows = {row["event_id"]: row for row in events}
    if not rows:
        return []
    said: dict[str, list[dict[str, Any]]] = {}
    for call in _calls(store, rows, between):
        said.setdefault(call["subscriber"], []).append(call)
    listed = [_recipient(settings, policy, name, calls) for name, calls in said.items()]
    return sorted(listed, key=lambda one: (one["first"], one["subscriber"]))


def _calls(
    store: Store, rows: Mapping[str, Mapping[str, Any]], between: tuple[datetime | None, datetime | None]
) -> Iterable[dict[str, Any]]:
    """Every call that told, or may have told, somebody of one of these events."""
    columns = ["subscriber", "intent", "finished", "strength", "members"]
    for call in calls_about(store, rows, columns, between):
        for member in call["members"] or ():
            row = rows.get(member["event_id"])
            if row is not None and member["result"] in ("acknowledged", *_POSSIBLY):
                yield {
                    **call,
                    "result": member["result"],
                    "event": row,
                    "left_out": _left_out(store, row, call["subscriber"]),
                }


def _left_out(store: Store, row: Mapping[str, Any], subscriber: str) -> tuple[str, ...]:
    return tuple(decided_in(store.decisions).choices(row["decision"])[subscriber]["redact"])


def _recipient(settings: Settings, policy: Policy, name: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    known = settings.subscribers.get(name)
    listed = next((one.approvals for one in policy.recipients if one.subscriber == name), None)
    sure = [call for call in calls if call["result"] == "acknowledged"]
    times = [call["finished"] for call in calls]
    hidden = [set(call["left_out"]) for call in calls]
    return {
        "subscriber": name,
        "role": known.role if known else None,
        "acts_as": known.acts_as if known else None,
        "region": known.region if known else None,
        "received": "acknowledged" if sure else "possibly",
        "ack": max((call["strength"] or "A0" for call in sure), key=ACK_STRENGTHS.index, default="A0"),
        "first": min(times).isoformat(timespec="seconds"),
        "last": max(times).isoformat(timespec="seconds"),
        "events": len({call["event"]["event_id"] for call in calls}),
        "in_doubt": len({call["event"]["event_id"] for call in calls} - {call["event"]["event_id"] for call in sure}),
        "change_types": sorted({call["event"]["change_type"] for call in calls}),
        "never_told": sorted(set.intersection(*hidden)),
        "approved": None
        if listed is None
        else [{"purposes": list(one.purposes), "jurisdictions": list(one.jurisdictions)} for one in listed],
        "onward": list(known.onward) if known else [],
    }
