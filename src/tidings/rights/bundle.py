"""What a person gets who asks what we hold: every change of their records as it was told, and who received what, when. No JVM.

It is put together when somebody hands it over, from the journal and the attempts as they stand, and kept nowhere: a copy that lay with us
would have to be forgotten too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tidings.errors import Refused
from tidings.gate.policy import Policy
from tidings.report.people import differences, events_of
from tidings.report.recipients import listed_for
from tidings.rights.book import Book, Request
from tidings.rights.carrying import ANSWERS
from tidings.settings import Settings
from tidings.store import Store

PARTS = {
    "access": ("records", "history", "recipients"),
    "portability": ("records",),
    "know": ("recipients", "categories"),
}


def bundle(settings: Settings, store: Store, policy: Policy, request: Request) -> dict[str, Any]:
    """The answer to a request for access, portability or categories; nothing of it is stored."""
    if request.kind not in ANSWERS or request.state not in ("working", "fulfilled"):
        expected = f"a request of {', '.join(ANSWERS)} that may be answered"
        raise Refused("no_bundle", f"{request.kind}, {request.state}", expected, "See `tidings rights show`.")
    if request.happened("already_erased"):
        return _erased(Book(store).refresh(), request)
    rows = events_of(settings, store, list(request.tags))
    recipients = listed_for(settings, store, policy, rows)
    said = {
        "records": _records(rows),
        "history": list(_history(rows)),
        "recipients": recipients,
        "categories": _categories(settings, rows),
    }
    return {"request": request.id, "kind": request.kind} | {name: said[name] for name in PARTS[request.kind]}


def _records(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each record as it now stands."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        place = json.dumps([row["entity"], row["data"].get("key")], sort_keys=True)
        image = row["data"].get("after")
        record = found.setdefault(place, {"entity": row["entity"], "key": row["data"].get("key"), "fields": {}})
        record["fields"] = {**record["fields"], **image} if isinstance(image, dict) else {}
    return list(found.values())


def _erased(book: Book, request: Request) -> dict[str, Any]:
    """What is left of somebody who was erased: that they were, when, and how each recipient answered. Nothing else is kept."""
    erasure = book.requests.get(request.details.get("same_as", ""))
    said: dict[str, Any] = {"request": request.details.get("same_as", "")}
    if erasure is not None:
        at = next((step.at for step in erasure.happened("keys_destroyed")), None)
        said |= {"state": erasure.state, "keys_destroyed": at.isoformat() if at else None}
        said["recipients"] = [{"recipient": one.recipient, "answer": one.state} for one in erasure.parts.values()]
    said["certificate"] = f"tidings rights certificate {said['request']}"
    return {"request": request.id, "kind": request.kind, "erased": said}


def _history(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each change, with the version of its record that it made: 1 is how the record came to us."""
    versions: dict[str, int] = {}
    for row in rows:
        place = json.dumps([row["entity"], row["data"].get("key")], sort_keys=True)
        versions[place] = versions.get(place, 0) + 1
        yield {"version": versions[place], **_change(row)}


def _change(row: dict[str, Any]) -> dict[str, Any]:
    told = [one["subscriber"] for one in row["recipients"] if one["outcome"] != "deny"]
    said = {
        "event": row["event_id"],
        "time": row["time"].isoformat(),
        "type": row["change_type"],
        "entity": row["entity"],
    }
    return said | {"source": row["source"], "changed": differences(row["data"]), "told": told}


def _categories(settings: Settings, rows: Iterable[dict[str, Any]]) -> list[str]:
    entities = {row["entity"] for row in rows if row["entity"] in settings.entities}
    fields = (rule for name in entities for rule in settings.entities[name].fields.values())
    return sorted({rule.class_ for rule in fields if rule.class_})
