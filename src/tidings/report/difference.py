"""What would change if an anchor that is not enforced yet were: pairs that were sent and would not be, by rule and recipient. No JVM.

Every decision keeps what all its rules together would have said (`would`) and which of the silent ones spoke (`shadowed`). The report
counts the events of the journal by decision, so it costs one column of the interval asked for, and nothing is decided again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow.dataset as ds

from tidings.gate.decisions import decided_in
from tidings.store import Store


def difference(store: Store, anchors: Mapping[str, str], since: datetime | None = None) -> dict[str, Any]:
    """`anchors` maps a rule's id to its anchor; rules that are gone are listed under `unknown`."""
    look = ds.field("recorded") >= since if since else None
    rows = store.arrow("journal", ["decision"], filter=look) if store.version("journal") is not None else None
    counts = Counter(rows["decision"].to_pylist()) if rows is not None else Counter[str]()
    pairs = watched = 0
    changes: Counter[tuple[str, str, str, str, str]] = Counter()
    decided = decided_in(store.decisions)
    for reference, events in counts.items():
        row = decided.get(reference) or {}
        for one in row.get("recipients", ()):
            pairs += events
            watched += events if one.get("shadowed") else 0
            if one.get("would"):
                for rule in one["shadowed"]:
                    anchor = anchors.get(rule, "unknown")
                    changes[anchor, rule, one["subscriber"], one["outcome"], one["would"]] += events
    names = ("anchor", "rule", "subscriber", "now", "would", "pairs")
    listed = [dict(zip(names, (*key, count), strict=True)) for key, count in sorted(changes.items())]
    return {
        "since": since.isoformat() if since else None,
        "events": sum(counts.values()),
        "pairs": pairs,
        "pairs_where_silent_rules_spoke": watched,
        "changes": listed,
    }
