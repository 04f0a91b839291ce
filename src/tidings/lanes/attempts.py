"""Rows of the attempts table: one per call, one per intent, one per delivery the gate ended. Without Spark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidings.channels.call import Outcome
from tidings.lanes.control import Request
from tidings.lanes.member import Delivery, Feed, Final, FinalName, PlannedCall, Rules, Verdict
from tidings.lanes.recover import Recorded, Told
from tidings.lanes.semantics import NOT_STARTED
from tidings.ledger.attestation import Acknowledged
from tidings.ledger.vocabulary import ACK_STRENGTHS

MOMENT = pa.timestamp("us", "UTC")
CARRIED = "carried-"  # begins the name of a row that says an accepted delivery again
STRONG = ("acknowledged", "accepted")  # results that prove something, however little
MEMBER = pa.struct(
    [
        ("source", pa.string()),
        ("generation", pa.string()),
        ("offset", pa.int64()),
        ("event_id", pa.string()),
        ("subject", pa.binary()),
        ("change_type", pa.string()),
        ("attempt", pa.int32()),
        ("result", pa.string()),
        ("code", pa.string()),
        ("next_due", MOMENT),
        ("final", pa.string()),
        ("ack", pa.string()),  # the strength of this member's own acknowledgement
        ("reference", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        ("lane", pa.string()),
        ("cycle", pa.int64()),
        ("call", pa.string()),
        ("subscriber", pa.string()),
        ("channel", pa.string()),
        ("intent", pa.bool_()),
        ("started", MOMENT),
        ("finished", MOMENT),
        ("status", pa.int32()),
        ("latency_ms", pa.int64()),
        ("strength", pa.string()),
        ("digest", pa.string()),
        ("members", pa.list_(MEMBER)),
        ("entry", pa.binary()),
        # Of deliveries that were given up: what was said and answered. Beside the members, since every reader of calls reads those.
        ("exchanges", pa.list_(pa.struct([("event_id", pa.string()), ("sealed", pa.binary())]))),
        ("predicted", pa.list_(MOMENT)),  # of each member in its place, when it was expected to be acknowledged
    ]
)


@dataclass(frozen=True)
class Stamp:
    """What every attestation of a lane says of itself."""

    attestor: str
    channel: str
    destination: str


def when(seconds: float) -> datetime:
    """Rounded to the millisecond, as every time of a lane is."""
    return datetime.fromtimestamp(round(seconds, 3), UTC)


def stamp(seconds: float) -> str:
    return when(seconds).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def made_row(
    rules: Rules,
    call: PlannedCall,
    told: tuple[Sequence[Outcome], Sequence[Verdict]],
    times: tuple[float, float],
    by: Stamp,
) -> dict[str, Any]:
    """The row of a call that was made, or that may have been."""
    outcomes, verdicts = told
    strength = min((o.strength for o in outcomes if o.result == "acknowledged"), default="A0")
    digests = {o.digest for o in outcomes}
    digest = digests.pop() if len(digests) == 1 else ""
    row = _row(call, "", times, by.channel)
    row |= {"status": max(o.status for o in outcomes), "strength": strength, "digest": digest or None}
    row["members"] = [
        _member(call, sent.offset, v, o.result) | {"ack": o.strength if o.result in STRONG else None}
        for sent, v, o in zip(call.members, verdicts, outcomes, strict=True)
    ]
    row["predicted"] = [None if sent.predicted is None else when(sent.predicted) for sent in call.members]
    if any(outcome.code != NOT_STARTED for outcome in outcomes):
        row["entry"] = _entry(rules, call, row, by)
    return row


def intent_row(call: PlannedCall, channel: str) -> dict[str, Any]:
    """On disk before the call: if nothing follows, it is in doubt."""
    row = _row(call, "", (call.at, call.at), channel) | {"intent": True}
    row["members"] = [
        _member(call, sent.offset, Verdict(sent.event_id, None, "", attempt=sent.attempt), "") for sent in call.members
    ]
    return row


def ended_row(rules: Rules, final: Final, seq: int, by: Stamp) -> dict[str, Any]:
    """A delivery that ended without a call: the gate at send, an erasure, a deadline."""
    call = PlannedCall(final.lane, seq, final.feed, "send", (), final.at, False)
    row = _row(call, "", (final.at, final.at), by.channel) | {"strength": "A0"}
    verdict = Verdict(final.event_id, final.final, final.code)
    row["members"] = [_member(call, final.offset, verdict, final.final)]
    row["entry"] = _entry(rules, call, row, by)
    return row


def _row(call: PlannedCall, strength: str, times: tuple[float, float], channel: str) -> dict[str, Any]:
    started, finished = times
    return {
        "lane": call.lane,
        "cycle": call.seq,
        "call": call.id,
        "subscriber": call.lane,
        "channel": channel,
        "intent": False,
        "started": when(started),
        "finished": when(finished),
        "status": None,
        "latency_ms": max(0, round((finished - started) * 1000)),
        "strength": strength or None,
        "digest": None,
        "members": [],
        "entry": None,
        "exchanges": None,
        "predicted": None,
    }


def _member(call: PlannedCall, offset: int, verdict: Verdict, result: str) -> dict[str, Any]:
    change_type = next((s.change_type for s in call.members if s.event_id == verdict.event_id), None)
    return {
        "source": call.feed.source,
        "generation": call.feed.generation,
        "offset": offset,
        "event_id": verdict.event_id,
        "subject": None,  # a row that named its subject would outlive the person's erasure
        "change_type": change_type,
        "attempt": verdict.attempt,
        "result": result or None,
        "code": verdict.code or None,
        "next_due": None if verdict.final or not result or verdict.due == math.inf else when(verdict.due),
        "final": verdict.final,
        "ack": None,
        "reference": verdict.reference or None,
    }


def _entry(rules: Rules, call: PlannedCall, row: dict[str, Any], by: Stamp) -> bytes:
    """The ledger bytes of the row: totals and a root over (event id, result), no member by name."""
    members = [(m["event_id"], m["result"]) for m in row["members"]]
    keys = sha256("\x1f".join(sorted(event_id for event_id, _ in members)).encode())
    assert row["strength"] in ACK_STRENGTHS
    return Acknowledged.of(
        members,
        attestor=by.attestor,
        timestamp=row["finished"].strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        subscriber=call.lane,
        destination=by.destination,
        ack_strength=row["strength"],
        retry_policy=",".join(f"{wait:g}" for wait in rules.schedule),
        idempotency_fingerprint=keys.hexdigest()[:32],
        attempt=max((m["attempt"] for m in row["members"]), default=0),
        call=call.id,
        channel=by.channel,
        lane=call.lane,
        semantics=call.members[0].semantics if call.members else None,
        response_digest=row["digest"],
    ).encode()


def table_of(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def write(rows: Iterable[dict[str, Any]], folder: str) -> None:
    """Rows of the driver's own, into a fresh folder of the store."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_rows(table_of(rows), Path(folder) / "driver.parquet")


def write_rows(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path, compression="zstd", write_statistics=["lane", "cycle", "started", "finished"])


def seconds(moment: datetime | None) -> float:
    return 0.0 if moment is None else round(moment.timestamp(), 3)


def recorded(row: dict[str, Any]) -> Recorded:
    """A row as a restart reads it."""
    members = row["members"] or []
    feed = Feed(members[0]["source"], members[0]["generation"]) if members else Feed("", "")
    told = tuple(
        Told(
            m["event_id"],
            m["attempt"] or 0,
            m["result"] or "",
            m["code"] or "",
            None if m["next_due"] is None else seconds(m["next_due"]),
            cast("FinalName | None", m["final"]),
            m["reference"] or "",
        )
        for m in members
    )
    times = (seconds(row["started"]), seconds(row["finished"]))
    return Recorded(row["cycle"], row["intent"], feed, told, *times, row["call"].startswith(CARRIED))


def outcomes(row: dict[str, Any]) -> list[Outcome]:
    """What a lane learns from a row about its subscriber as a whole."""
    finished = seconds(row["finished"])
    return [
        Outcome(
            m["event_id"],
            m["result"],
            m["code"] or "",
            status=row["status"] or 0,
            retry_after=seconds(m["next_due"]) - finished if m["result"] == "throttled" and m["next_due"] else None,
        )
        for m in row["members"]
    ]


def carried_row(lane: str, delivery: Delivery, now: float, channel: str) -> dict[str, Any]:
    """An accepted delivery said again: what a restart needs to know of it. Nothing is attested twice."""
    assert delivery.begun is not None
    call = PlannedCall(lane, delivery.begun, delivery.feed, "send", (), now, False)
    row = _row(call, "", (delivery.first or now, now), channel) | {"call": f"{CARRIED}{delivery.begun}"}
    verdict = Verdict(delivery.event_id, None, "", delivery.due, attempt=delivery.attempt, reference=delivery.reference)
    member = _member(call, delivery.offset, verdict, "accepted")
    return row | {"members": [member | {"change_type": delivery.change_type}]}


def asked_row(request: Request, seq: int, now: float, attestor: str) -> dict[str, Any]:
    """An operator's request, taken up."""
    call = PlannedCall(request.lane, seq, Feed("", ""), "send", (), now, False)
    row = _row(call, "", (now, now), "control")
    return row | {"call": f"control-{request.serial}", "entry": request.entry(attestor)}


def answered_row(
    rules: Rules, request: Request, found: Sequence[Delivery], at: tuple[int, float], by: Stamp
) -> dict[str, Any]:
    """A later answer, taken up: the deliveries it ended, as strongly as it proves."""
    seq, now = at
    final: FinalName = "acknowledged" if request.action == "acknowledge" else "dead_lettered"
    result = "acknowledged" if final == "acknowledged" else "terminal"
    strength = (request.strength or "A3") if final == "acknowledged" else "A0"
    feed = found[0].feed if found else Feed("", "")
    call = PlannedCall(request.lane, seq, feed, "send", (), now, False)
    row = _row(call, strength, (now, now), by.channel) | {"call": f"control-{request.serial}"}
    row["digest"] = request.evidence or None
    row["members"] = [
        _member(
            replace(call, feed=d.feed), d.offset, Verdict(d.event_id, final, request.action, attempt=d.attempt), result
        )
        | {"change_type": d.change_type, "ack": strength}
        for d in found
    ]
    return row | {"entry": _entry(rules, call, row, by) if found else None}


def policy_row(lane: str, number: int, now: float, entry: bytes) -> dict[str, Any]:
    """A policy that came into force."""
    call = PlannedCall(lane, number, Feed("", ""), "send", (), now, False)
    return _row(call, "", (now, now), "control") | {"call": f"policy-{number}", "entry": entry}


def flattened(rows: pa.Table) -> pa.Table:
    """One row per member, with the columns of its call."""
    lists = rows["members"].combine_chunks()
    lists = pa.concat_arrays(lists.chunks) if isinstance(lists, pa.ChunkedArray) and lists.chunks else lists
    calls = rows.drop_columns(["members"])
    if not rows.num_rows:
        return pa.schema([*calls.schema, *MEMBER]).empty_table()
    flat = pc.list_flatten(lists)
    calls = calls.take(pc.list_parent_indices(lists))
    for field in MEMBER:
        calls = calls.append_column(field.name, pc.struct_field(flat, field.name))
    return calls
