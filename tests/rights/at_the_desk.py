"""Driving the desk without Spark: people who ask, words that are said, and the journal as a batch would have written it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from erased_history import Past
from history import SECRET

from tidings.rights import intake
from tidings.rights.asks import Ask, Identifier, Word
from tidings.rights.book import FINAL, Book, Request
from tidings.rights.desk import Desk
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import associated, bucket, kid, open_payload, seal_payload, subject_key


def said_of(shop: Past, person: int, data: dict[str, Any], **row: Any) -> None:
    """One more event of a person, with these words sealed in it."""
    number = shop.history.batches
    key, event = subject_key(SECRET[:-1] + bytes([number]), shop.tag(person)), f"event-{number}-{person}"
    aad = associated("journal", event, "payload")
    sealed = seal_payload(json.dumps(data).encode(), key, shop.settings.keyring.derive("iv"), aad)
    shop.history.batch(0, 1, first=person, row={"payload": sealed, **row})


def known_by(shop: Past, address: str, *people: int) -> None:
    own = shop.settings.keyring.identifier_hash("email", address)
    rows = []
    for person in people:
        said_of(
            shop, person, {"key": {"id": person}, "before": None, "after": {"email": address}, "changed": ["email"]}
        )
        place = {"offset": person, "source": "crm", "generation": "g1", "batch": shop.history.batches}
        rows.append(
            place
            | {"hash": own, "bucket": bucket(own, 16), "tag": shop.tag(person), "kind": "email", "entity": "customer"}
        )
    shop.history._commit("identities", rows, "test", shop.history.batches)


def at_work(shop: Past, rounds: int = 2) -> Desk:
    desk = Desk(shop.settings, shop.store, shop.store.version)
    desk.recover()
    for _ in range(rounds):
        desk.step()
    return desk


def asked(shop: Past, kind: str, address: str, assurance: str = "verified", **more: Any) -> str:
    return intake.hand_in(
        shop.settings, Ask(kind, (Identifier("email", address),), "rest", datetime.now(UTC), assurance, **more)
    )


def stands(shop: Past, name: str) -> Request:
    """As the table tells it; the desk itself keeps little of what is over."""
    at_work(shop)
    return Book(shop.store).refresh().requests[name]


def say(shop: Past, name: str, action: str, by: str, **more: Any) -> Request:
    intake.say(shop.settings, Word(name, action, by, "because", **more))
    return stands(shop, name)


def why(request: Request) -> str:
    """The reason of the step that ended it."""
    return next(step.reason for step in request.steps if step.state in FINAL)


def held_for(request: Request) -> str:
    return next(step.reason for step in reversed(request.steps) if step.what == "held")


def handed_over(shop: Past, name: str) -> list[dict[str, Any]]:
    """The messages of a request that lie in the inbox of the source `rights`."""
    key, found = shop.settings.keyring.derive("inbox"), []
    for path in sorted((shop.data / "inbox" / "rights").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            if row["place"].startswith(f"ask:{name}:"):
                text = open_payload(key, associated("inbox", row["place"], "body"), row["sealed"])
                found.append(json.loads(text)["after"])
    return found


def journaled(shop: Past, name: str, person: int, *consents: tuple[str, str, str, str]) -> None:
    """What the newest message of a request becomes: one event for each consent (class, channel, purpose, state), or one of another type."""
    said = handed_over(shop, name)[-1]
    data = {part: said[part] for part in ("key", "before", "after")} | {"changed": []}
    for one in consents or (None,):
        number = shop.history.batches
        secret, file = SECRET[:-1] + bytes([number]), f"rights-g1-{number}-00000000"
        place = {"source": "rights", "causation": name, "key_file": file, "recipients": []}
        if one is not None:
            words = dict(zip(("class", "channel", "purpose", "state"), one, strict=True))
            place |= {"change_type": "consent", "consent": {**words, "request_time": datetime.now(UTC)}}
        tag = shop.tag(person)
        row = {"tag": tag, "kid": kid(secret, tag), "key": subject_key(secret, tag)}
        KeyFiles(shop.data / "keys", shop.settings.keyring.derive("kek")).write(pa.Table.from_pylist([row]), file)
        said_of(shop, person, data, **place)
