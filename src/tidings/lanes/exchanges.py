"""What was said to a subscriber and answered, kept for deliveries that were given up and sealed on the executor.

It stands in a column of its own beside the members: committed with the call it belongs to, and not read by whoever reads calls.
Its key is made of the event's own key and of the event's sealed payload, so it cannot outlive either: an erasure destroys the
one, the end of the payload's time the other. Nothing of a delivery that went on is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

from tidings.channels.call import Outcome
from tidings.seal.keyring import associated, open_payload, seal_payload

if TYPE_CHECKING:
    from tidings.lanes.letters import Letter
    from tidings.seal.keyfiles import KeyFiles
    from tidings.store import Store

GIVEN_UP = ("dead_lettered", "in_doubt")


def sealed(
    members: Iterable[Mapping[str, Any]], outcomes: Sequence[Outcome], rows: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The exchanges of a call's given-up members; `rows` are the journal rows that the call was made from."""
    said = {outcome.event_id: outcome.exchange for outcome in outcomes if outcome.exchange is not None}
    over = {member["event_id"] for member in members if member["final"] in GIVEN_UP} & said.keys()
    if not over:
        return []
    found = []
    for row in rows:
        if (event_id := row["event_id"]) in over and (exchange := said[event_id]) is not None:
            key = _key(row["key"], row["payload"])
            plain, aad = exchange.encode(), associated("attempts", event_id, "exchange")
            found.append({"event_id": event_id, "sealed": seal_payload(plain, key, _key(key, b"iv"), aad)})
    return found


def opened(event_id: str, key: bytes, payload: bytes, exchange: bytes) -> dict[str, Any]:
    """The request and the response; Damaged when it does not open."""
    plain = open_payload(_key(key, payload), associated("attempts", event_id, "exchange"), exchange)
    said: dict[str, Any] = json.loads(plain)
    return said


def _key(key: bytes, payload: bytes) -> bytes:
    return hmac.new(key, b"exchange" + payload, hashlib.sha256).digest()


def shown(store: Store, keys: KeyFiles, letter: Letter) -> dict[str, Any]:
    """What was said and answered for a dead letter, opened; or `gone`, and why."""
    place = (ds.field("source") == letter.source) & (ds.field("generation") == letter.generation)
    look = place & (ds.field("offset") == letter.offset) & (ds.field("event_id") == letter.event)
    columns = ["kid", "key_file", "payload"]
    rows = store.arrow("journal", columns, filter=look).to_pylist()
    if not rows or rows[0]["payload"] is None:
        return {"gone": "expired"}
    row = rows[0]
    known = keys.load({row["key_file"]}, {row["kid"]})
    if row["kid"] not in known:
        return {"gone": "erased"}
    call = (ds.field("lane") == letter.lane) & (ds.field("cycle") == letter.cycle)
    for made in store.arrow("attempts", ["exchanges"], filter=call).to_pylist():
        for one in made["exchanges"] or ():
            if one["event_id"] == letter.event:
                return opened(letter.event, known[row["kid"]][1], row["payload"], one["sealed"])
    return {"gone": "not kept: it ended without a call that was answered, or its channel does not tell"}
