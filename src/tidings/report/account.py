"""The account of every (event, subscriber) pair, from the tables alone: journal, attempts, settled. No JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tidings.expiry import expired_feeds
from tidings.gate.decisions import decided_in
from tidings.lanes.intake import CAPSULE
from tidings.lanes.semantics import NOTIFIED
from tidings.lanes.wishes import WISH
from tidings.store import Store

OPEN = ("waiting", "deferred", "accepted", "notified")
_CALL = ("subscriber", "cycle", "intent")
_NEEDED = [
    "event_id",
    "source",
    "generation",
    "offset",
    "batch",
    "change_type",
    "operation",
    "entity",
    "time",
    "recorded",
    "flags",
    "decision",
    "recipients",
    "deadlines",
]


@dataclass
class End:
    """How one delivery stands: its calls so far and, when it is over, its final."""

    attempts: int = 0
    final: str = ""
    code: str = ""
    strength: str = ""
    at: datetime | None = None
    finals: list[str] = field(default_factory=list)
    open: str = ""  # accepted (an answer comes later) or notified (told; nothing proves that it was done)
    feed: str = ""
    offset: int = -1
    made: bool = False  # by a bootstrap: no decision of its time names this subscriber


Ends = dict[tuple[str, str], End]


def journal_rows(store: Store, filter: Any = None, extra: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Journal rows in offset order, without what is sealed; each recipient with what was decided for it."""
    rows = store.arrow("journal", [*_NEEDED, *extra], filter=filter)
    order = [("source", "ascending"), ("generation", "ascending"), ("offset", "ascending")]
    decided = decided_in(store.decisions)
    return [row | {"recipients": decided.recipients(row)} for row in rows.sort_by(order).to_pylist()]


def ends(store: Store, events: set[str] | None = None, since: datetime | None = None) -> Ends:
    """Every delivery that was tried or ended, by (event, subscriber)."""
    look = None if since is None else ds.field("finished") >= pa.scalar(since, pa.timestamp("us", "UTC"))
    rows = store.arrow("attempts", [*_CALL, "started", "finished", "strength", "members"], filter=look)
    found: Ends = {}
    for row in sorted(rows.to_pylist(), key=lambda r: (r["finished"] or r["started"], r["cycle"])):
        for member in row["members"] or ():
            if events is None or member["event_id"] in events:
                place = End(feed=f"{member['source']}/{member['generation']}", offset=member["offset"])
                _count(found.setdefault((member["event_id"], row["subscriber"]), place), row, member)
    return found


def _count(end: End, row: Mapping[str, Any], member: Mapping[str, Any]) -> None:
    if member["result"] == WISH:
        # Taken up again: what follows is a new end, and no second one of the same turn.
        end.finals.clear()
        end.made = end.made or bool(member["code"])
        return
    if not row["intent"] and member["result"]:
        end.attempts = max(end.attempts, member["attempt"] or 0)
    if member["code"]:
        end.code = member["code"]
    if member["result"] == "accepted":
        end.open, end.strength = "notified" if member["code"] == NOTIFIED else "accepted", member["ack"] or "A0"
    if member["final"]:
        end.finals.append(member["final"])
    if member["final"] and end.final != "acknowledged":  # what a subscriber has it keeps, whatever became of a repeat
        end.final, end.at, end.strength = member["final"], row["finished"], member["ack"] or ""


def bootstrapped(known: Ends) -> dict[str, list[str]]:
    """Event → subscribers that were added later and told by a bootstrap."""
    found: dict[str, list[str]] = {}
    for (event, subscriber), end in known.items():
        if end.made:
            found.setdefault(event, []).append(subscriber)
    return found


def pairs(row: Mapping[str, Any], known: Ends, late: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The pairs of one journal row, as a person reads them, with those of subscribers that were added later."""
    said = []
    added = [{"subscriber": name, "outcome": "allow", "semantics": None, "deadline": None} for name in late]
    for one in [*(row["recipients"] or ()), *added]:
        end = known.get((row["event_id"], one["subscriber"]), End())
        outcome = end.final or end.open or {"deny": "refused", "defer": "deferred"}.get(one["outcome"], "waiting")
        after = (end.at - row["time"]).total_seconds() if end.at and outcome == "acknowledged" else None
        reason = "; ".join(one["reasons"] or ()) if outcome in ("refused", "deferred") and not end.final else end.code
        said.append(
            {
                "subscriber": one["subscriber"],
                "outcome": outcome,
                "reason": "" if outcome == "acknowledged" else reason,
                "seen_after_s": after,
                "acknowledged_at": end.at.isoformat() if after is not None and end.at else None,
                "attempts": end.attempts,
                "ack": end.strength,
                "semantics": one["semantics"],
                "deadline": one["deadline"].isoformat() if one["deadline"] else None,
            }
        )
    return said


def reconcile(
    store: Store,
    progress: Mapping[str, Mapping[str, int]],
    rows: list[dict[str, Any]] | None = None,
    known: Ends | None = None,
) -> dict[str, Any]:
    """Do the books balance? Every pair has one end or is open; nothing is there twice; nothing came from nowhere."""
    rows = journal_rows(store) if rows is None else rows
    known = ends(store) if known is None else known
    settled = Counter(store.arrow("settled", ["event_id"])["event_id"].to_pylist())
    outcomes: Counter[str] = Counter()
    problems: list[str] = []
    seen = Counter(row["event_id"] for row in rows)
    problems += [f"event {name} is in the journal {count} times" for name, count in seen.items() if count > 1]
    expected = set()
    for row in rows:
        here = pairs(row, known)
        outcomes.update(pair["outcome"] for pair in here)
        expected |= {(row["event_id"], pair["subscriber"]) for pair in here}
        problems += _settling(row["event_id"], here, settled)
    made = {pair: end for pair, end in known.items() if end.made}
    outcomes.update(end.final or OPEN[0] for end in made.values())
    expected |= made.keys()
    expired = expired_feeds(store)
    lost = [key for key in known.keys() - expected if not _gone(known[key], expired)]
    problems += [f"{name} was sent to {to} and no decision says so" for name, to in lost]
    for (name, to), end in known.items():
        if len({*end.finals} - {"dead_lettered"}) > 1:  # a dead letter that was sent again ends once more
            problems.append(f"{name} to {to} ended twice: {', '.join(end.finals)}")
    counted = Counter(row["source"] for row in rows if row["generation"] != CAPSULE)  # those come from no source
    for name, part in expired.items():
        counted[name.partition("/")[0]] += part["rows"]
    for source, totals in progress.items():
        if totals.get("events", 0) != counted[source]:
            problems.append(
                f"source {source} counted {totals.get('events', 0)} events, the journal holds {counted[source]}"
            )
    return {
        "balanced": not problems,
        "pairs": sum(outcomes.values()),
        "outcomes": dict(outcomes),
        "problems": problems[:50],
    }


def _gone(end: End, expired: Mapping[str, Mapping[str, int]]) -> bool:
    """Was the event's row among those that went when their time was over? Its calls may be a month younger."""
    return end.feed in expired and end.offset <= expired[end.feed]["upto"]


def _settling(event: str, here: list[dict[str, Any]], settled: Counter[str]) -> list[str]:
    over = all(pair["outcome"] not in OPEN for pair in here)
    if settled[event] > 1:
        return [f"event {event} is settled {settled[event]} times"]
    if over and not settled[event]:
        return [f"event {event} has ended everywhere and is not settled"]
    if settled[event] and not over:
        return [f"event {event} is settled and still open somewhere"]
    return []
