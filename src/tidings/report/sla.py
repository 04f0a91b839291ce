"""Promises and predictions per subscriber: what was late, what will be, and how well that was foretold. No JVM."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings.lanes.attempts import MOMENT, flattened, seconds
from tidings.lanes.lane import Tables
from tidings.lanes.limits import rules_of
from tidings.lanes.sla import at_risk, prospect
from tidings.lanes.slices import feeds
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings
from tidings.store import Store

RECENT = 200  # calls from which today's latency is taken


@dataclass
class Kept:
    """One subscriber and change type: acknowledgements against their promises and predictions, in seconds."""

    late: int = 0
    took: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)  # realised less predicted


def sla(settings: Settings, store: Store, now: datetime, since: datetime, subscriber: str = "") -> list[dict[str, Any]]:
    """Per subscriber: every change type it acknowledged since then, and what waits now."""
    names = [name for name in settings.subscribers if subscriber in ("", name)]
    ended = _acknowledged(store, names, since)
    told = _told(store, {row["event_id"] for row in ended})
    kept: dict[tuple[str, str], Kept] = defaultdict(Kept)
    for row in ended:
        if (event := told.get(row["event_id"])) is not None:
            _note(kept[row["lane"], event["change_type"]], settings, row, event)
    return [
        {
            "subscriber": name,
            "types": [_said(settings, name, kind, one) for (lane, kind), one in sorted(kept.items()) if lane == name],
            **_waiting(settings, store, name, now.timestamp()),
        }
        for name in names
    ]


def _acknowledged(store: Store, names: Sequence[str], since: datetime) -> list[dict[str, Any]]:
    """One row per acknowledged delivery, with the prediction that was made first."""
    if store.version("attempts") is None:
        return []
    look = ds.field("lane").isin(pa.array(names, pa.string())) & (ds.field("finished") >= pa.scalar(since, MOMENT))
    rows = store.arrow("attempts", ["lane", "cycle", "intent", "finished", "predicted", "members"], filter=look)
    rows = rows.filter(pc.invert(rows["intent"])).sort_by("cycle")
    listed = [p for made in rows.to_pylist() for p in made["predicted"] or [None] * len(made["members"] or ())]
    flat = flattened(rows.drop_columns(["predicted"])).select(["lane", "event_id", "finished", "final"]).to_pylist()
    first: dict[tuple[str, str], datetime | None] = {}
    found = []
    for row, predicted in zip(flat, listed, strict=True):
        place = (row["lane"], row["event_id"])
        if first.setdefault(place, predicted) is None:
            first[place] = predicted
        if row["final"] == "acknowledged":
            found.append(row | {"predicted": first[place]})
    return found


def _told(store: Store, events: set[str]) -> dict[str, dict[str, Any]]:
    look = ds.field("event_id").isin(pa.array(sorted(events), pa.string()))
    rows = store.arrow("journal", ["event_id", "change_type", "recorded", "deadlines"], filter=look)
    return {row["event_id"]: row for row in rows.to_pylist()}


def _note(kept: Kept, settings: Settings, row: dict[str, Any], event: dict[str, Any]) -> None:
    took = seconds(row["finished"]) - seconds(event["recorded"])
    promised = settings.subscribers[row["lane"]].sla_for(event["change_type"])
    deadline = dict(event["deadlines"] or ()).get(row["lane"])
    allowed = promised if deadline is None else min(promised, seconds(deadline) - seconds(event["recorded"]))
    kept.took.append(took)
    kept.late += took > allowed
    if row["predicted"] is not None:
        kept.errors.append(seconds(row["finished"]) - seconds(row["predicted"]))


def _said(settings: Settings, name: str, kind: str, kept: Kept) -> dict[str, Any]:
    return {
        "type": kind,
        "sla_s": settings.subscribers[name].sla_for(kind),
        "acknowledged": len(kept.took),
        "late": kept.late,
        "took_p50_s": percentile(kept.took, 50),
        "took_p95_s": percentile(kept.took, 95),
        "predicted": len(kept.errors),
        "error_p50_s": percentile(map(abs, kept.errors), 50),
        "error_p95_s": percentile(map(abs, kept.errors), 95),
        "bias_p50_s": percentile(kept.errors, 50),
    }


def percentile(values: Iterable[float], share: int) -> float | None:
    """The nearest rank; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, -(-len(ordered) * share // 100) - 1)], 3)


def _waiting(settings: Settings, store: Store, name: str, now: float) -> dict[str, Any]:
    """What a lane that started now would find waiting, against the time it is due by."""
    keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    state, _, _ = Tables(store, keys, settings).recovered(rules_of(settings, settings.subscribers[name]), feeds(store))
    risk = at_risk(state, prospect(state, _latency(store, name), now), now)
    nearest = None if risk.nearest > 1e12 else datetime.fromtimestamp(risk.nearest).astimezone().isoformat()
    return {"waiting": risk.waiting, "at_risk": risk.at_risk, "late_now": risk.late, "next_breach": nearest}


def _latency(store: Store, name: str) -> float:
    """Seconds of a call, from the latest ones; a tenth of a second where there are none."""
    last = store.transaction_version("attempts", f"lane/{name}") or 0
    look = (ds.field("lane") == name) & (ds.field("cycle") > last - RECENT) & ds.field("entry").is_valid()
    files = store.files("attempts", column="cycle", above=last - RECENT, where={"lane": name})
    took = store.arrow("attempts", ["latency_ms"], files=files, filter=look)["latency_ms"].to_pylist() if files else []
    return (percentile(took, 50) or 100) / 1000
