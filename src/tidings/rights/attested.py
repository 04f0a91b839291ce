"""A step of a request as the ledger says it: who did what, what was asked, until when, and which recipients it names.

A certificate is read off these entries and nothing else, so what is not in them cannot be certified. Recipients enter as the root over
their leaves: a request may have more of them than an entry holds. What breaks the promise: a reason or a detail that names the person;
the words of a step are for everybody who may see the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tidings.ledger.merkle import leaf_hash, root_of
from tidings.ledger.vocabulary import MAX_TEXT, Value, canonical, encode_entry

# Details that are for everybody. The rest (a caller's own reference, where an event lies) could lead to the person and stays in the table.
PUBLIC = {
    "recipient",
    "evidence",
    "approvers",
    "digest",
    "scope",
    "hurdle",
    "keys",
    "messages",
    "event",
    "lanes",
    "tasks",
}
PUBLIC |= {"final", "code", "until", "same_as", "law", "action", "child", "share", "duty", "statute", "days"}
PUBLIC |= {"hold", "holds", "grounds", "hold_until", "records", "jurisdictions"}
NOBODY = "none"  # the state before the first
_ASKED = {"way": "way", "jurisdiction": "jurisdiction", "regulation": "regulation", "assurance": "assurance"}
Leaf = tuple[str, str, str, str]


def entry_of(row: Mapping[str, Any], attestor: str, erased: Mapping[str, Value] | None = None) -> bytes:
    """The entry of one row of `rights_requests`; `erased` are the fields of an erasure that this step was."""
    asked = {name: plain(row[column]) for name, column in _ASKED.items() if row.get(column)}
    if row.get("opened"):
        asked["received"] = stamp(row["opened"])
    details: dict[str, str] = dict(row.get("details") or ())
    said: dict[str, Any] = {
        "kind": "erased" if erased else "rights_transition",
        "attestor": attestor,
        "timestamp": stamp(row["changed"]),
        "request": row["request"],
        "right": row["kind"],
        "state": row["state"],
        "previous_state": row.get("previous") or NOBODY,
        "step": row["step"],
        "what": row["what"],
        "actor": plain(row.get("actor") or ""),
        "reason": plain(row.get("reason") or ""),
        "deadline": stamp(row["due"]) if row.get("due") else "",
        "asked": asked,
        "details": {name: plain(value) for name, value in sorted(details.items()) if name in PUBLIC and value},
        **_parts(row.get("parts") or ()),
        **(erased or {}),
    }
    return encode_entry({name: value for name, value in said.items() if value not in ("", {}, None)})


def leaf(part: Mapping[str, Any]) -> Leaf:
    """What stands for one recipient."""
    deadline = stamp(part["deadline"]) if part.get("deadline") else ""
    return str(part["recipient"]), str(part["way"]), str(part.get("event_id") or ""), deadline


def parts_root(leaves: Iterable[Leaf]) -> str:
    return root_of(leaf_hash(canonical(list(one))) for one in sorted(leaves)).hex()


def stamp(moment: datetime) -> str:
    # Not strftime: it writes years before 1000 with fewer digits, and the ledger refuses that.
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def plain(text: str) -> str:
    """One line that fits into an entry."""
    line = "".join(character if character.isprintable() else " " for character in text).strip()
    kept = line.encode(errors="replace")[: MAX_TEXT - 4]
    return line if len(kept) == len(line.encode(errors="replace")) else kept.decode(errors="ignore") + " …"


def _parts(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    leaves = [leaf(part) for part in parts]
    return {"parts_count": len(leaves), "parts_root": parts_root(leaves)} if leaves else {}
