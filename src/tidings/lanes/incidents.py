"""What must never happen, looked for all the same: an order that was broken, an effect that may have come twice.

Per subject only the last acknowledged offset of each feed and change type is held, and only while the subject has a queue: with
nothing waiting there is nothing that could still overtake. Across types a more urgent delivery may pass one that is deferred, so
that is not looked at. What an operator sends again, or a subscriber answers later, is out of order by decision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidings.lanes.member import Delivery, Feed, FinalName, PlannedCall, Totals
from tidings.matters import Kind

Acked = dict[str, dict[tuple[Feed, str], int]]  # subject with a queue → its last acknowledged offsets


def incident(totals: Totals, acked: Acked, delivery: Delivery, final: FinalName, code: str) -> None:
    """Count what the end of a delivery breaks, if anything; note it as acknowledged where it is."""
    if final == "dead_lettered" and code == "in_doubt" and delivery.semantics == "exactly-once":
        _count(totals, "exactly_once_breach")
    if final != "acknowledged" or delivery.reopened:
        return
    last, place = acked.setdefault(delivery.subject, {}), (delivery.feed, delivery.change_type)
    if delivery.offset < last.get(place, -1):
        _count(totals, "order_violation")
    last[place] = max(last.get(place, -1), delivery.offset)


def twice(totals: Totals, unsettled: Collection[str], call: PlannedCall, acknowledged: Iterable[str]) -> None:
    """Acknowledgements of what has ended before: under exactly-once that must not be."""
    once = {member.event_id for member in call.members if member.semantics == "exactly-once"}
    for event_id in acknowledged:
        if event_id in once and event_id not in unsettled:
            _count(totals, "exactly_once_breach")


def _count(totals: Totals, kind: Kind) -> None:
    totals.incidents[kind] = totals.incidents.get(kind, 0) + 1
